"""Runs an op's oracle: outputs and every gradient from the same lines, in the dtype that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from autograd import make_vjp
from autograd.builtins import tuple as traced_tuple
from autograd.tracer import getval
from numpy.typing import DTypeLike, NDArray

from parity.cases.op import Op, flatten_lists, group_lists

Tensors = dict[str, NDArray[Any]]


def evaluate(
    op: Op,
    params: Any,
    tensors: Mapping[str, NDArray[Any]],
    *,
    dtype: DTypeLike = np.longdouble,
    gradients: bool = True,
    **knobs: Any,
) -> Tensors:
    """Outputs and gradients of `op` in `dtype`.

    `tensors` maps input names (`x`, `grads.0`) and upstream gradients (`grad.y`) to arrays. The result maps outputs
    and, where upstream gradients are given and wanted, `grad.<input>` to arrays. `knobs` are handed to the op's lines.
    """
    cast = {name: np.asarray(value, dtype=dtype) for name, value in tensors.items()}
    upstream = {name: cast.pop(f"grad.{name}") for name in op.upstream if f"grad.{name}" in cast}
    grouped = group_lists(cast, op)
    with np.errstate(all="ignore"):
        if gradients and upstream:
            return differentiate(op, params, grouped, upstream, knobs)
        return arrays(op.forward(grouped, params, **knobs))


def differentiate(
    op: Op, params: Any, inputs: Mapping[str, Any], upstream: Mapping[str, Any], knobs: Mapping[str, Any]
) -> Tensors:
    """Outputs and gradients through reverse-mode differentiation of the oracle's lines."""
    names = [name for name in op.differentiable if name in inputs]
    outputs: dict[str, Any] = {}

    def traced(leaves: tuple[Any, ...]) -> Any:
        outputs.update(op.forward({**inputs, **dict(zip(names, leaves, strict=True))}, params, **knobs))
        return traced_tuple(tuple(outputs[name] for name in upstream))

    vjp, _ = make_vjp(traced)(tuple(inputs[name] for name in names))
    gradients = vjp(tuple(upstream.values()))
    return arrays({**outputs, **{f"grad.{n}": g for n, g in zip(names, gradients, strict=True)}})


def arrays(outputs: Mapping[str, Any]) -> Tensors:
    """Plain arrays by tensor name, lists flattened."""
    return {name: np.asarray(getval(value)) for name, value in flatten_lists(outputs).items()}
