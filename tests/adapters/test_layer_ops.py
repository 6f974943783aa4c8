"""The ops that layers and losses of trainings are, in every framework: outputs and gradients against PyTorch's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.markers import ONEFLOW_GRAPH
from tests.training.requests import TrainingClient, client, clients

pytestmark = pytest.mark.frameworks

F = torch.nn.functional
RNG = np.random.default_rng(5)
X, IMAGES = RNG.normal(size=(5, 7)), RNG.normal(size=(2, 4, 6, 6))
SEQUENCES = RNG.normal(size=(2, 5, 8))
TOKENS, CLASSES = RNG.integers(0, 9, (2, 5)), RNG.integers(0, 8, (2, 5))
CLASSES[0, :2] = -100
PROJECTIONS = {
    f"{name}.{kind}": RNG.normal(size=(8, 8) if kind == "weight" else 8)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    for kind in ("weight", "bias")
}


def attended(x: Any, num_heads: int, **tensors: Any) -> Any:
    packed = {
        kind: torch.cat([tensors[f"{name}.{kind}"] for name in ("q_proj", "k_proj", "v_proj")])
        for kind in ("weight", "bias")
    }
    out = (tensors["out_proj.weight"], tensors["out_proj.bias"])
    x = x.transpose(0, 1)
    mixed, _ = F.multi_head_attention_forward(
        x, x, x, 8, num_heads, packed["weight"], packed["bias"], None, None, False, 0.0, *out
    )
    return mixed.transpose(0, 1)


def flat_cross_entropy(x: Any, target: Any, **options: Any) -> Any:
    return F.cross_entropy(x.reshape(-1, 8), target.reshape(-1), **options)


@dataclass(frozen=True)
class OpExample:
    """An op on some inputs, and what PyTorch calls it."""

    op: str
    reference: Callable[..., Any]
    inputs: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)


HEADS = {name: RNG.normal(size=(2, 3, 5, 4)) for name in ("query", "key", "value")}
CONV = {"weight": RNG.normal(size=(6, 2, 3, 3)), "bias": RNG.normal(size=6)}
LOSS = {"x": SEQUENCES, "target": CLASSES}
EXAMPLES = {
    **{name: OpExample(name, getattr(torch, name), {"x": X}) for name in ("relu", "tanh", "sigmoid")},
    "silu": OpExample("silu", F.silu, {"x": X}),
    **{f"gelu-{a}": OpExample("gelu", F.gelu, {"x": X}, {"approximate": a}) for a in ("none", "tanh")},
    "conv2d": OpExample(
        "conv2d", F.conv2d, {"x": IMAGES, **CONV}, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    ),
    "conv2d-bare": OpExample(
        "conv2d",
        F.conv2d,
        {"x": IMAGES[:, :2], "weight": CONV["weight"]},
        {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    ),
    "avg_pool2d": OpExample("avg_pool2d", F.avg_pool2d, {"x": IMAGES}, {"kernel_size": 3}),
    "flatten": OpExample("flatten", lambda x: torch.flatten(x, 1), {"x": IMAGES}),
    "embedding": OpExample("embedding", F.embedding, {"x": TOKENS, "weight": RNG.normal(size=(9, 3))}),
    "position_embedding": OpExample(
        "position_embedding", lambda x, weight: x + weight[:5], {"x": SEQUENCES, "weight": RNG.normal(size=(6, 8))}
    ),
    "attention": OpExample("scaled_dot_product_attention", F.scaled_dot_product_attention, HEADS),
    "heads": OpExample("multi_head_attention", attended, {"x": SEQUENCES, **PROJECTIONS}, {"num_heads": 2}),
    **{
        f"cross_entropy-{r}": OpExample(
            "cross_entropy", flat_cross_entropy, LOSS, {"ignore_index": -100, "reduction": r}
        )
        for r in ("mean", "sum")
    },
    "cross_entropy-3": OpExample(
        "cross_entropy", flat_cross_entropy, {**LOSS, "target": CLASSES % 8}, {"ignore_index": 3, "reduction": "mean"}
    ),
    **{
        f"mse_loss-{r}": OpExample("mse_loss", F.mse_loss, {"x": X, "target": X[::-1].copy()}, {"reduction": r})
        for r in ("mean", "sum")
    },
}
# Not paddle:static: Paddle 3.3.1 dies with SIGSEGV in one of some hundred programs of one process, whatever the op.
BACKENDS = ("torch", "paddle", "oneflow", pytest.param("oneflow:graph", marks=ONEFLOW_GRAPH))


Answer = Callable[["OpExample", str], dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=BACKENDS)
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    """Outputs and gradients of a backend, whose worker is started once."""
    adapter, _, mode = request.param.partition(":")
    with clients(lambda: tmp_path_factory.mktemp("ops")) as client_of:
        yield lambda example, dtype: answered(client_of(adapter, mode or "eager"), example, dtype)


def answered(d: TrainingClient, example: OpExample, dtype: str) -> dict[str, np.ndarray]:
    """Outputs and gradients of a worker; every upstream gradient is 1."""
    paths = {name: d.folder / f"{i}.npy" for i, name in enumerate([*example.inputs, "y"])}
    wanted = reference(example, dtype)
    for name, array in {**example.inputs, "y": np.ones_like(wanted["y"])}.items():
        np.save(paths[name], array)
    request = {
        "cell": 1,
        "op": example.op,
        "dtype": dtype,
        "params": dict(example.params),
        "droppable": [],
        "absent": [],
        "grad_outputs": {"y": str(paths.pop("y"))},
        "tensors": {name: str(path) for name, path in paths.items()},
        "differentiable": [name.removeprefix("grad.") for name in wanted if name != "y"],
        "lists": [],
        "layouts": {},
        "calls": 1,
        "watched": {},
        "storage": {},
        "max_elements": 10_000,
    }
    reply, outputs = d.ask("run", **request)
    assert reply["outcome"] == "ok", reply
    return outputs


def reference(example: OpExample, dtype: str) -> dict[str, np.ndarray]:
    """The same from PyTorch's own module, in float64; what is an integer, and the target of a loss, has no gradient."""
    kind = getattr(torch, dtype)
    given = {name: torch.from_numpy(array) for name, array in example.inputs.items()}
    given = {name: t.to(kind) if t.is_floating_point() else t for name, t in given.items()}
    leaves = {n: t.requires_grad_() for n, t in given.items() if t.is_floating_point() and n != "target"}
    first, *rest = given
    y = example.reference(given[first], **{name: given[name] for name in rest}, **example.params)
    y.backward(torch.ones_like(y))
    return {"y": y.detach().numpy(), **{f"grad.{name}": leaf.grad.numpy() for name, leaf in leaves.items()}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_ops_of_layers_are_those_of_pytorchs_modules(answer: Answer, name: str, dtype: str) -> None:
    example, limit = EXAMPLES[name], {"float32": 1e-5, "float64": 1e-7}[dtype]
    wanted, outputs = reference(example, dtype), answer(example, dtype)
    assert set(outputs) == set(wanted)
    # Of the whole op: the gradient of a key's bias is zero, and what is left of it rounding.
    scale = max(np.abs(values).max() for values in wanted.values())
    for tensor, values in wanted.items():
        assert outputs[tensor].dtype == dtype
        np.testing.assert_allclose(outputs[tensor], values, rtol=limit, atol=limit * scale, err_msg=tensor)


def test_a_users_parts_take_part_in_a_composed_op(tmp_path: Path) -> None:
    ops = (
        "def linear(x, weight, bias):\n    return 2 * (x @ weight.T + bias)\n\n"
        "def scaled_dot_product_attention(query, key, value):\n    return value\n"
    )
    example = EXAMPLES["heads"]
    with client(tmp_path, "torch", ops=ops) as d:
        found = answered(d, example, "float64")["y"]
    given = {name: torch.from_numpy(array) for name, array in example.inputs.items()}
    value = 2 * F.linear(given["x"], given["v_proj.weight"], given["v_proj.bias"])
    wanted = 2 * F.linear(value, given["out_proj.weight"], given["out_proj.bias"])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_half_of_the_parts_are_not_the_users_op(tmp_path: Path) -> None:
    ops = "def linear(x, weight, bias):\n    return x @ weight.T + bias\n"
    refused = pytest.raises(AssertionError, match=r"my_ops\.py has no multi_head_attention")
    with client(tmp_path, "torch", ops=ops) as d, refused:
        answered(d, EXAMPLES["heads"], "float32")
