"""The models of trainings in PyTorch, from its own modules' functions, to hold the oracle against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - what everyone calls it

from parity.cases.training.spec import Layer, Training

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "silu": F.silu, "sigmoid": torch.sigmoid}
Tensors = Mapping[str, torch.Tensor]


def run(layers: Sequence[Layer], x: Any, tensors: Tensors) -> Any:
    """What the layers make of x; buffers in `tensors` are moved on."""
    for layer in layers:
        x = one(layer, x, tensors)
    return x


def one(layer: Layer, x: Any, tensors: Tensors) -> Any:
    options = layer.options

    def own(name: str) -> torch.Tensor | None:
        return tensors.get(f"{layer.name}.{name}")

    if layer.kind == "linear":
        return F.linear(x, own("weight"), own("bias"))
    if layer.kind == "conv2d":
        return F.conv2d(x, own("weight"), own("bias"), options["stride"], options["padding"])
    if layer.kind == "embedding":
        return F.embedding(x, own("weight"))
    if layer.kind == "position_embedding":
        return x + own("weight")[: x.shape[1]]
    if layer.kind == "layer_norm":
        return F.layer_norm(x, options["normalized_shape"], own("weight"), own("bias"), options["eps"])
    if layer.kind == "batch_norm":
        buffers = (own("running_mean"), own("running_var"))
        return F.batch_norm(x, *buffers, own("weight"), own("bias"), True, options["momentum"], options["eps"])
    if layer.kind == "activation":
        return ACTIVATIONS[options["function"]](x)
    if layer.kind == "residual":
        return x + run(layer.layers, x, tensors)
    if layer.kind == "flatten":
        return x.flatten(1)
    if layer.kind == "avg_pool2d":
        return F.avg_pool2d(x, options["kernel_size"])
    return attention(layer, x, tensors)


def attention(layer: Layer, x: Any, tensors: Tensors) -> Any:
    module = torch.nn.MultiheadAttention(layer.options["embed_dim"], layer.options["num_heads"], batch_first=True)
    parts = {n: [tensors[f"{layer.name}.{p}_proj.{n}"] for p in "qkv"] for n in ("weight", "bias")}
    given = {
        "in_proj_weight": torch.cat(parts["weight"]),
        "in_proj_bias": torch.cat(parts["bias"]),
        "out_proj.weight": tensors[f"{layer.name}.out_proj.weight"],
        "out_proj.bias": tensors[f"{layer.name}.out_proj.bias"],
    }
    return torch.func.functional_call(module.to(x.dtype), given, (x, x, x), {"need_weights": False})[0]


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
