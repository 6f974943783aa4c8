"""Runs the benchmark's NumPy kernels in this process, and draws a case's tensors as `parity run` would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.judge.hosts import kernels
from parity.cases.op import flatten_lists

Tensors = dict[str, NDArray[Any]]


def compute(
    op: str, params: Mapping[str, Any], inputs: Mapping[str, Any], dtype: str, given: Mapping[str, Any]
) -> Tensors:
    """Outputs and gradients of a kernel with these switches; `inputs` are arrays by name, `grad.y` among them."""
    tensors = {name: np.asarray(values).astype(dtype) for name, values in inputs.items()}
    switches = kernels.switches(dict(given))
    with np.errstate(all="ignore"):
        return {name: np.asarray(x) for name, x in run(op, dict(params), tensors, switches).items()}


def run(op: str, params: dict[str, Any], tensors: Tensors, switches: Any) -> dict[str, Any]:
    lib = kernels.NumpyLib
    if op.startswith("clip"):
        grads = [tensors[f"grads.{i}"] for i in range(len(tensors))]
        clip = kernels.clip_grad_norm if op == "clip_grad_norm" else kernels.clip_grad_value
        return flatten_lists(clip(lib, switches, grads, params))
    upstream = tensors.pop("grad.y")
    if op == "linear":
        return kernels.linear_forward(lib, switches, tensors) | kernels.linear_backward(
            lib, switches, upstream, tensors
        )
    forward = kernels.norm_forward(lib, switches, op, tensors, params)
    return forward | kernels.norm_backward(lib, switches, op, upstream, tensors, params)
