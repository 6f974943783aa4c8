"""The oracle of a training: its gradients against finite differences and PyTorch, its steps against torch.optim."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.cases.training.model import gradients
from tests import torch_models
from tests.trainings import batches, drawn, preset, training

FEATURES = {"name": "regression", "features": (5,), "targets": 2}
IMAGES = {"name": "regression", "features": (2, 6, 6), "targets": 3}
SEQUENCES = {"name": "regression", "features": (4, 6), "targets": 3}
TOKENS = {"name": "masked_lm", "vocab": 9, "sequence": 5, "masked": 0.5}
HEAD = {"linear": {"out_features": 2}}
CONV = {"conv2d": {"out_channels": 3, "kernel_size": 3, "stride": 2, "padding": 1}}
MODELS = {
    "linear": ([{"linear": {"out_features": 2}}], FEATURES),
    "no-bias": ([{"linear": {"out_features": 2, "bias": False}}], FEATURES),
    **{f: ([{"activation": f}, HEAD], FEATURES) for f in ("relu", "gelu", "tanh", "silu", "sigmoid")},
    "conv2d": ([CONV, "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "avg-pool": ([{"avg_pool2d": {"kernel_size": 3}}, "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "batch-norm": (["batch_norm", HEAD], FEATURES),
    "batch-norm-2d": ([CONV, "batch_norm", "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "layer-norm": (["layer_norm", HEAD], FEATURES),
    "attention": ([{"multi_head_attention": {"num_heads": 2}}, "flatten", {"linear": {"out_features": 3}}], SEQUENCES),
    "residual": ([{"residual": [{"linear": {"out_features": 5}}, {"activation": "tanh"}]}, HEAD], FEATURES),
    "tokens": (
        [{"embedding": {"embedding_dim": 4}}, "position_embedding", {"linear": {"out_features": 9}}],
        TOKENS,
    ),
}


def model(name, **more):
    written, data = MODELS[name]
    return training(written, data, **{"batch_size": 4, "rows": 8, **more})


@pytest.mark.parametrize("name", MODELS)
def test_gradients_agree_with_finite_differences_in_longdouble(name):
    case = model(name, accumulation=2)
    tensors = {key: value.astype(np.longdouble) for key, value in drawn(case).items()}
    rows = batches(case)
    found = gradients(case, tensors, rows, dtype=np.longdouble)
    step = np.longdouble(2) ** -21
    for parameter in case.parameters:
        numeric = np.zeros(parameter.shape, np.longdouble)
        for index in np.ndindex(parameter.shape):
            sides = []
            for sign in (1, -1):
                moved = {**tensors, parameter.name: tensors[parameter.name].copy()}
                moved[parameter.name][index] += sign * step
                sides.append(gradients(case, moved, rows, dtype=np.longdouble, backward=False).loss)
            numeric[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(found.grads[parameter.name], numeric, rtol=1e-8, atol=1e-10, err_msg=parameter.name)


CASES = {**{name: lambda name=name: model(name) for name in MODELS}}
CASES |= {name: lambda name=name: preset(name) for name in ("mlp", "cnn", "bert")}
CASES |= {"accumulated": lambda: preset("bert", accumulation=4)}


@pytest.mark.parametrize("name", CASES)
def test_output_loss_gradients_and_buffers_are_those_of_pytorch(name):
    case = CASES[name]()
    values, rows = drawn(case), batches(case, dtype="float64")
    found = gradients(case, values, rows)
    trained = {p.name for p in case.parameters}
    tensors = {key: torch.tensor(value, requires_grad=key in trained) for key, value in values.items()}
    output, loss = torch_models.gradients(case, tensors, [tuple(map(torch.tensor, part)) for part in rows])
    close = {"rtol": 1e-10, "atol": 1e-13}
    np.testing.assert_allclose(found.output, output.numpy(), **close)
    np.testing.assert_allclose(found.loss, loss.numpy(), **close)
    for key, tensor in tensors.items():
        mine = found.grads[key] if key in trained else found.buffers[key]
        np.testing.assert_allclose(mine, (tensor.grad if key in trained else tensor).numpy(), **close, err_msg=key)
