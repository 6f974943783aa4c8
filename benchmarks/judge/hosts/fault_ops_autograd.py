"""The faulty ops for frameworks with an autograd: the host brings `lib`, and `differentiable(forward, backward)`.

`differentiable` returns a function of tensors whose result is `forward(*tensors)` and whose gradients are
`backward(dy, *tensors)`, through the framework's own custom functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fault_kernels as kernels


class Ops:
    """The ops of one framework under one set of switches."""

    def __init__(self, lib: Any, differentiable: Callable[..., Any], given: dict[str, Any]) -> None:
        self.lib, self.differentiable, self.s = lib, differentiable, kernels.switches(given)

    def norm(self, op: str, leaves: dict[str, Any], fixed: dict[str, Any], params: dict[str, Any]) -> Any:
        names = [name for name, leaf in leaves.items() if leaf is not None]
        lib, s = self.lib, self.s

        def forward(*tensors: Any) -> Any:
            return kernels.norm_forward(lib, s, op, {**dict(zip(names, tensors, strict=True)), **fixed}, params)["y"]

        def backward(dy: Any, *tensors: Any) -> Any:
            found = kernels.norm_backward(lib, s, op, dy, {**dict(zip(names, tensors, strict=True)), **fixed}, params)
            return tuple(found.get(f"grad.{name}") for name in names)

        y = self.differentiable(forward, backward)(*[leaves[name] for name in names])
        if op != "batch_norm":
            return y
        detached = {name: lib.detach(leaves[name]) for name in names}
        outputs = kernels.norm_forward(lib, s, op, {**detached, **fixed}, params)
        return {**outputs, "y": y}

    def layer_norm(self, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
        params = {"normalized_shape": normalized_shape, "eps": eps}
        return self.norm("layer_norm", {"x": x, "weight": weight, "bias": bias}, {}, params)

    def group_norm(self, x: Any, weight: Any, bias: Any, num_groups: int, eps: float) -> Any:
        params = {"num_groups": num_groups, "eps": eps}
        return self.norm("group_norm", {"x": x, "weight": weight, "bias": bias}, {}, params)

    def instance_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return self.norm("instance_norm", {"x": x, "weight": weight, "bias": bias}, {}, {"eps": eps})

    def batch_norm(
        self,
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
        fixed = {"running_mean": running_mean, "running_var": running_var}
        return self.norm("batch_norm", {"x": x, "weight": weight, "bias": bias}, fixed, params)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        leaves = {"x": x, "weight": weight, "bias": bias}
        names = [name for name, leaf in leaves.items() if leaf is not None]
        lib, s = self.lib, self.s

        def forward(*tensors: Any) -> Any:
            return kernels.linear_forward(lib, s, dict(zip(names, tensors, strict=True)))["y"]

        def backward(dy: Any, *tensors: Any) -> Any:
            found = kernels.linear_backward(lib, s, dy, dict(zip(names, tensors, strict=True)))
            return tuple(found.get(f"grad.{name}") for name in names)

        return self.differentiable(forward, backward)(*[leaves[name] for name in names])

    def clip_grad_norm(self, grads: Any, max_norm: float, norm_type: float, scope: str) -> Any:
        params = {"max_norm": max_norm, "norm_type": norm_type, "scope": scope}
        return kernels.clip_grad_norm(self.lib, self.s, [self.lib.detach(g) for g in grads], params)

    def clip_grad_value(self, grads: Any, clip_value: float) -> Any:
        return kernels.clip_grad_value(
            self.lib, self.s, [self.lib.detach(g) for g in grads], {"clip_value": clip_value}
        )

    def functions(self) -> dict[str, Any]:
        """The ops by name, for a user's op file."""
        ops = (*kernels.NORMS, "linear", "clip_grad_norm", "clip_grad_value")
        return {op: getattr(self, op) for op in ops}
