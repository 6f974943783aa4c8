"""The inputs that `parity init` chooses in 16 bits: kernels that compute in float32 pass, those that do not fail."""

import inspect
import textwrap

import numpy as np
import pytest
import torch

from parity.cases.dtypes import as_dtype
from parity.config import load_plan
from parity.judge.audit import audit_case
from parity.judge.compare.cell import consult_oracle
from parity.starter.write import starter

pytestmark = pytest.mark.frameworks


def layer_norm(x, weight, bias, normalized_shape, eps):
    axes = tuple(range(-len(normalized_shape), 0))
    deviations = x.float() - x.float().mean(axes, keepdim=True)
    var = deviations.square().mean(axes, keepdim=True)
    return {"y": (deviations / torch.sqrt(var + eps) * weight.float() + bias.float()).to(x.dtype)}


def moments_in_dtype(x, weight, bias, normalized_shape, eps):
    axes = tuple(range(-len(normalized_shape), 0))
    mean, square = (part.mean(axes, keepdim=True).to(x.dtype).float() for part in (x.float(), x.float().square()))
    var = torch.clamp(square - mean * mean, min=0)
    deviations = x.float() - x.float().mean(axes, keepdim=True)
    return {"y": (deviations / torch.sqrt(var + eps) * weight.float() + bias.float()).to(x.dtype)}


def rms_norm(x, weight, normalized_shape, eps, kept=torch.float32):
    axes = tuple(range(-len(normalized_shape), 0))
    total = x.float().square().sum(axes, keepdim=True).to(kept).float()
    mean = total / (x.numel() / total.numel())
    return {"y": (x.float() * torch.rsqrt(mean + eps) * weight.float()).to(x.dtype)}


def sum_in_dtype(x, **given):
    return rms_norm(x, **given, kept=x.dtype)


def clip_grad_norm(grads, max_norm, kept=torch.float32):
    norm = sum(g.to(kept).square().float().sum() for g in grads).sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return {f"grads.{i}": (g.float() * scale).to(g.dtype) for i, g in enumerate(grads)} | {
        "total_norm": norm.to(grads[0].dtype)
    }


def norm_in_dtype(grads, **given):
    return clip_grad_norm(grads, **given, kept=grads[0].dtype)


def adamw(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):
    p, g, m, v = (tensor.float() for tensor in (param, grad, exp_avg, exp_avg_sq))
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    spread = torch.sqrt(v) / (1 - betas[1] ** step) ** 0.5 + eps
    p = p * (1 - lr * weight_decay) - lr / (1 - betas[0] ** step) * m / spread
    return {n: t.to(param.dtype) for n, t in (("param", p), ("exp_avg", m), ("exp_avg_sq", v))}


def eps_in_dtype(param, eps, **given):
    return adamw(param, **given, eps=torch.tensor(eps).to(param.dtype).float())


FAULTS = {layer_norm: moments_in_dtype, rms_norm: sum_in_dtype, clip_grad_norm: norm_in_dtype, adamw: eps_in_dtype}
OF_A_SHORT_RANGE = (sum_in_dtype, norm_in_dtype, eps_in_dtype)
"""Faults of float16 alone: bfloat16 has the range of float32."""
LARGEST = 65504.0


def cases_of(kernel, dtype, folder):
    """The cases of the config that is written for a kernel."""
    path, config = folder / "mine.py", folder / "mine.yaml"
    path.write_text("import torch\nDIFFERENTIABLE = False\n" + textwrap.dedent(inspect.getsource(kernel)))
    config.write_text(starter(path, config, None, lambda _: None, (dtype,)).text)
    return load_plan([config]).cases


def fails(kernel, right, case, dtype):
    """Whether the outputs of a kernel leave the tolerance."""
    inputs = {t.name: as_dtype(t.sample(0, case.id, dtype), dtype) for t in case.tensors}
    exact = consult_oracle(case, inputs)
    tensors = {n: torch.from_numpy(np.array(v, np.float32)).to(getattr(torch, dtype)) for n, v in inputs.items()}
    listed = [tensors.pop(name) for name in [*tensors] if name.startswith("grads.")]
    given = {**tensors, **({"grads": listed} if listed else {})}
    names = inspect.signature(right).parameters
    found = kernel(**given, **{n: v for n, v in vars(case.params).items() if n in names})
    limits = {name: case.tolerance.lookup(dtype, name) for name in exact}
    return not all(np.allclose(found[n].float(), exact[n], limits[n].rtol, limits[n].atol) for n in exact)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("right", FAULTS, ids=lambda kernel: kernel.__name__)
def test_a_right_kernel_passes_and_its_fault_fails(right, dtype, tmp_path):
    cases, fault = cases_of(right, dtype, tmp_path), FAULTS[right]
    assert [case.id for case in cases if fails(right, right, case, dtype)] == []
    shown = any(fails(fault, right, case, dtype) for case in cases)
    assert shown is not (dtype == "bfloat16" and fault in OF_A_SHORT_RANGE)


@pytest.mark.parametrize("kernel", [rms_norm, clip_grad_norm], ids=lambda kernel: kernel.__name__)
def test_the_audit_lists_an_overflow_where_squares_exceed_the_format(kernel, tmp_path):
    audits = {}
    for case in cases_of(kernel, "float16", tmp_path):
        inputs = {t.name: t.sample(0, case.id, "float16") for t in case.tensors}
        largest = max(np.square(values, dtype=np.float64).max() for values in inputs.values())
        listed = [mistake for mistake in audit_case(case, inputs).mistakes if mistake.id == "narrow-overflow"]
        assert listed
        audits.setdefault(bool(largest > LARGEST), []).append(any(mistake.fails_in for mistake in listed))
    assert audits[True]
    assert all(audits[True])
    assert not all(audits[False])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_mean_that_is_large_against_the_deviations_is_among_the_inputs(dtype, tmp_path):
    drawn = [case.tensors[0].sample(0, case.id, dtype) for case in cases_of(layer_norm, dtype, tmp_path)]
    assert any(abs(x.mean()) > 50 * x.std() > 0 for x in drawn)
