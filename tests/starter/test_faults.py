"""The inputs that `parity init` chooses, before kernels of a framework: right ones pass, those with a fault fail."""

from __future__ import annotations

import inspect
import textwrap

import numpy as np
import pytest
import torch
from torch.nn import functional

from parity.config import load_plan
from parity.judge.compare.cell import consult_oracle
from parity.starter.write import starter

pytestmark = pytest.mark.frameworks


def layer_norm(x, weight, bias, normalized_shape, eps):
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)


def over_the_last_axis(x, weight, bias, normalized_shape, eps):
    return functional.layer_norm(x, x.shape[-1:], None, None, eps) * weight + bias


def layer_norm_of_one_eps(x, weight, bias, normalized_shape, eps):
    return layer_norm(x, weight, bias, normalized_shape, 1e-5)


def group_norm(x, weight, bias, num_groups, eps):
    return functional.group_norm(x, num_groups, weight, bias, eps)


def three_groups(x, weight, bias, num_groups, eps):
    return functional.group_norm(x, 3, weight, bias, eps)


def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    mean, var = running_mean.clone(), running_var.clone()
    y = functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return {"y": y, "running_mean": mean, "running_var": var}


def usual_momentum(x, weight, bias, running_mean, running_var, training, momentum, eps):
    return batch_norm(x, weight, bias, running_mean, running_var, training, 0.1, eps)


def linear(x, weight, bias):
    return functional.linear(x, weight, bias)


def bias_of_a_matrix(x, weight, bias):
    return x @ weight.T + (bias if x.ndim == 2 else 0)


def conv2d(x, weight, bias, stride, padding, dilation, groups):
    return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)


def every_group_sees_the_first(x, weight, bias, stride, padding, dilation, groups):
    first = x[:, : weight.shape[1]]
    return functional.conv2d(first, weight, bias, stride, padding, dilation)


def padding_not_beside_dilation(x, weight, bias, stride, padding, dilation, groups):
    rolled = x if dilation == 1 else x.roll(1, -1)
    return functional.conv2d(rolled, weight, bias, stride, padding, dilation, groups)


def avg_pool2d(x, kernel_size):
    return functional.avg_pool2d(x, kernel_size)


def of_nine(x, kernel_size):
    return functional.avg_pool2d(x, kernel_size) * kernel_size**2 / 9


def cross_entropy(x, target, ignore_index, reduction):
    rows = x.reshape(-1, x.shape[-1])
    return functional.cross_entropy(rows, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)


def none_ignored(x, target, ignore_index, reduction):
    return cross_entropy(x, target.clamp(min=0), -1, reduction)


def usual_index_ignored(x, target, ignore_index, reduction):
    return cross_entropy(x, target, -100, reduction)


def divided_by_all(x, target, ignore_index, reduction):
    total = cross_entropy(x, target, ignore_index, "sum")
    return total / target.numel() if reduction == "mean" else total


def gelu(x, approximate):
    return functional.gelu(x, approximate=approximate)


def always_exact(x, approximate):
    return functional.gelu(x)


def clip_grad_norm(grads, max_norm, norm_type, scope):
    def clipped(norm):
        return torch.clamp(max_norm / (norm + 1e-6), max=1.0)

    norms = torch.stack([torch.linalg.vector_norm(g, norm_type) for g in grads])
    total = torch.linalg.vector_norm(norms, norm_type)
    scales = [clipped(total if scope == "global" else norm) for norm in norms]
    return {"grads": [g * s for g, s in zip(grads, scales, strict=True)], "total_norm": total}


def euclidean(grads, max_norm, norm_type, scope):
    return clip_grad_norm(grads, max_norm, 2.0, scope)


def sgd(param, grad, lr, momentum, dampening, weight_decay, nesterov, step, momentum_buffer=None):
    grad = grad + weight_decay * param
    if not momentum:
        return {"param": param - lr * grad}
    buffer = grad if step == 1 else momentum * momentum_buffer + (1 - dampening) * grad
    return {"param": param - lr * (grad + momentum * buffer if nesterov else buffer), "momentum_buffer": buffer}


def undamped(**given):
    return sgd(**{**given, "dampening": 0.0})


def never_nesterov(**given):
    return sgd(**{**given, "nesterov": False})


def never_first(**given):
    return sgd(**{**given, "step": 2})


def adam(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    grad = grad + weight_decay * param
    exp_avg = betas[0] * exp_avg + (1 - betas[0]) * grad
    exp_avg_sq = betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad
    corrections = [1 - beta**step for beta in betas]
    spread = exp_avg_sq.sqrt() / corrections[1] ** 0.5 + eps
    return {"param": param - lr / corrections[0] * exp_avg / spread, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}


def usual_betas(**given):
    return adam(**{**given, "betas": (0.9, 0.999)})


def usual_eps(**given):
    return adam(**{**given, "eps": 1e-8})


def rmsprop(
    param, grad, square_avg, lr, alpha, eps, weight_decay, momentum, centered, grad_avg=None, momentum_buffer=None
):
    grad = grad + weight_decay * param
    square_avg = spread = alpha * square_avg + (1 - alpha) * grad * grad
    state = {"square_avg": square_avg}
    if centered:
        state["grad_avg"] = alpha * grad_avg + (1 - alpha) * grad
        spread = square_avg - state["grad_avg"] ** 2
    update = grad / (spread.sqrt() + eps)
    if momentum:
        state["momentum_buffer"] = update = momentum * momentum_buffer + update
    return {"param": param - lr * update, **state}


def never_centered(**given):
    return rmsprop(**given) | rmsprop(**{**given, "centered": False})


def usual_alpha(**given):
    return rmsprop(**{**given, "alpha": 0.99})


FAULTS = {
    layer_norm: (over_the_last_axis, layer_norm_of_one_eps),
    group_norm: (three_groups,),
    batch_norm: (usual_momentum,),
    linear: (bias_of_a_matrix,),
    conv2d: (every_group_sees_the_first, padding_not_beside_dilation),
    avg_pool2d: (of_nine,),
    cross_entropy: (none_ignored, usual_index_ignored, divided_by_all),
    gelu: (always_exact,),
    clip_grad_norm: (euclidean,),
    sgd: (undamped, never_nesterov, never_first),
    adam: (usual_betas, usual_eps),
    rmsprop: (never_centered, usual_alpha),
}


def cases_of(kernel, tmp_path):
    """The cases of the config that is written for a kernel's source."""
    path, config = tmp_path / "mine.py", tmp_path / "mine.yaml"
    path.write_text("import torch\nDIFFERENTIABLE = False\n" + textwrap.dedent(inspect.getsource(kernel)))
    config.write_text(starter(path, config, None, lambda _: None).text)
    return load_plan([config]).cases


def fails(kernel, case):
    """Whether the outputs of a kernel leave the tolerance in float64, or are of another structure."""
    inputs = {t.name: t.sample(0, case.id, "float32") for t in case.tensors}
    exact = consult_oracle(case, inputs)
    assert all(np.isfinite(values).all() for values in exact.values())
    outputs = computed(kernel, case, {n: v if v.dtype == np.int64 else v.astype("float64") for n, v in inputs.items()})
    if outputs is None or {n: v.shape for n, v in outputs.items()} != {n: v.shape for n, v in exact.items()}:
        return True
    limits = {name: case.tolerance.lookup("float64", name) for name in exact}
    return not all(np.allclose(outputs[n], exact[n], limits[n].rtol, limits[n].atol) for n in exact)


def computed(kernel, case, inputs):
    """The outputs of a kernel by name; None where it raises."""
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    grads = [tensors.pop(name) for name in [*tensors] if name.startswith("grads.")]
    params = {name: value for name, value in vars(case.params).items() if name in signature(kernel)}
    try:
        found = kernel(**tensors, **({"grads": grads} if grads else {}), **params)
    except (RuntimeError, IndexError, TypeError):
        return None
    found = found if isinstance(found, dict) else {"y": found}
    listed = found.pop("grads", [])
    return {name: value.numpy() for name, value in found.items()} | {
        f"grads.{i}": g.numpy() for i, g in enumerate(listed)
    }


def signature(kernel):
    """The names that a kernel, or the right one that it stands for, takes."""
    right = next(right for right, faults in FAULTS.items() if kernel in (right, *faults))
    return inspect.signature(right).parameters


@pytest.mark.parametrize("right", FAULTS, ids=lambda kernel: kernel.__name__)
def test_a_right_kernel_passes_and_each_fault_fails(right, tmp_path):
    cases = cases_of(right, tmp_path)
    assert [case.id for case in cases if fails(right, case)] == []
    assert [fault.__name__ for fault in FAULTS[right] if not any(fails(fault, case) for case in cases)] == []
