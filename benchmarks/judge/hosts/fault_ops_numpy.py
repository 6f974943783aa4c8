"""The faulty ops for the adapter `numpy`: forward and `<op>_backward`. A generated file imports all and configures."""

from __future__ import annotations

from typing import Any

import fault_kernels as kernels
from fault_kernels import NumpyLib

SWITCHES = kernels.switches({})


def configure(given: dict[str, Any]) -> None:
    global SWITCHES
    SWITCHES = kernels.switches(given)


def forward(op: str, params: dict[str, Any], **tensors: Any) -> Any:
    return kernels.norm_forward(NumpyLib, SWITCHES, op, tensors, params)


def backward(op: str, grad_y: Any, params: dict[str, Any], **tensors: Any) -> Any:
    return kernels.norm_backward(NumpyLib, SWITCHES, op, grad_y, tensors, params)


def layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    return forward("layer_norm", {"normalized_shape": normalized_shape, "eps": eps}, x=x, weight=weight, bias=bias)


def layer_norm_backward(grad_y: Any, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    return backward(
        "layer_norm", grad_y, {"normalized_shape": normalized_shape, "eps": eps}, x=x, weight=weight, bias=bias
    )


def group_norm(x: Any, weight: Any, bias: Any, num_groups: int, eps: float) -> Any:
    return forward("group_norm", {"num_groups": num_groups, "eps": eps}, x=x, weight=weight, bias=bias)


def group_norm_backward(grad_y: Any, x: Any, weight: Any, bias: Any, num_groups: int, eps: float) -> Any:
    return backward("group_norm", grad_y, {"num_groups": num_groups, "eps": eps}, x=x, weight=weight, bias=bias)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return forward("instance_norm", {"eps": eps}, x=x, weight=weight, bias=bias)


def instance_norm_backward(grad_y: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return backward("instance_norm", grad_y, {"eps": eps}, x=x, weight=weight, bias=bias)


def batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    params = {"training": training, "momentum": momentum, "eps": eps}
    tensors = {"x": x, "weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return forward("batch_norm", params, **tensors)


def batch_norm_backward(
    grad_y: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    params = {"training": training, "momentum": momentum, "eps": eps}
    tensors = {"x": x, "weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return backward("batch_norm", grad_y, params, **tensors)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    return kernels.linear_forward(NumpyLib, SWITCHES, {"x": x, "weight": weight, "bias": bias})


def linear_backward(grad_y: Any, x: Any, weight: Any, bias: Any) -> Any:
    return kernels.linear_backward(NumpyLib, SWITCHES, grad_y, {"x": x, "weight": weight, "bias": bias})


def clip_grad_norm(grads: Any, max_norm: float, norm_type: float, scope: str) -> Any:
    params = {"max_norm": max_norm, "norm_type": norm_type, "scope": scope}
    return kernels.clip_grad_norm(NumpyLib, SWITCHES, grads, params)


def clip_grad_value(grads: Any, clip_value: float) -> Any:
    return kernels.clip_grad_value(NumpyLib, SWITCHES, grads, {"clip_value": clip_value})
