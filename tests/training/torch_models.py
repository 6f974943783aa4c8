"""The models of trainings in PyTorch, from its own modules' functions, to hold the oracle against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - what everyone calls it

from parity.training.spec import Layer, Training

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "silu": F.silu, "sigmoid": torch.sigmoid}
Tensors = Mapping[str, torch.Tensor]


def run(layers: Sequence[Layer], x: Any, tensors: Tensors) -> Any:
    """What the layers make of x; buffers in `tensors` are moved on."""
    for layer in layers:
        x = one(layer, x, tensors)
    return x


def one(layer: Layer, x: Any, tensors: Tensors) -> Any:
    """What one layer makes of x."""
    own = {name.removeprefix(f"{layer.name}."): value for name, value in tensors.items() if own_name(layer, name)}
    if layer.op == "residual":
        return x + run(layer.layers, x, tensors)
    return LAYERS[layer.op](x, layer.params, own)


def own_name(layer: Layer, name: str) -> bool:
    return any(parameter.name == name for parameter in layer.parameters)


def batch_norm(x: Any, params: Any, own: Tensors) -> Any:
    statistics = own["running_mean"], own["running_var"]
    return F.batch_norm(x, *statistics, own["weight"], own["bias"], True, params.momentum, params.eps)


def attention(x: Any, params: Any, own: Tensors) -> Any:
    module = torch.nn.MultiheadAttention(x.shape[-1], params.num_heads, batch_first=True).to(x.dtype)
    given = {f"in_proj_{n}": torch.cat([own[f"{p}_proj.{n}"] for p in "qkv"]) for n in ("weight", "bias")}
    given |= {f"out_proj.{n}": own[f"out_proj.{n}"] for n in ("weight", "bias")}
    return torch.func.functional_call(module, given, (x, x, x), {"need_weights": False})[0]


LAYERS = {
    "linear": lambda x, _, own: F.linear(x, own["weight"], own.get("bias")),
    "conv2d": lambda x, params, own: F.conv2d(x, own["weight"], own.get("bias"), params.stride, params.padding),
    "embedding": lambda x, _, own: F.embedding(x, own["weight"]),
    "position_embedding": lambda x, _, own: x + own["weight"][: x.shape[1]],
    "layer_norm": lambda x, params, own: F.layer_norm(
        x, params.normalized_shape, own["weight"], own["bias"], params.eps
    ),
    "batch_norm": batch_norm,
    **{name: lambda x, *_, function=function: function(x) for name, function in ACTIVATIONS.items()},
    "flatten": lambda x, *_: x.flatten(1),
    "avg_pool2d": lambda x, params, _: F.avg_pool2d(x, params.kernel_size),
    "multi_head_attention": attention,
}


LOSSES = {
    "cross_entropy": lambda output, target: F.cross_entropy(output.flatten(0, -2), target.flatten()),
    "mse_loss": F.mse_loss,
}


def gradients(case: Training, tensors: Tensors, batches: Sequence[Any]) -> tuple[Any, Any]:
    """Output of all rows, and the mean of the losses; `.grad` and buffers of `tensors` are those of the step."""
    outputs, losses = [], []
    for x, target in batches:
        output = run(case.layers, x, tensors)
        loss = LOSSES[case.loss.name](output, target)
        (loss / len(batches)).backward()
        outputs.append(output.detach())
        losses.append(loss.detach())
    return torch.cat(outputs), torch.stack(losses).mean()
