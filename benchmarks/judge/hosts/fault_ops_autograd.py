"""The faulty ops for torch, paddle and oneflow: their tensor operations, and gradients through their autograd."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import fault_kernels as kernels
import numpy as np


class FrameworkLib:
    """The tensor operations of a framework with an autograd; see `fault_base.NumpyLib`."""

    def __init__(self, framework: str) -> None:
        self.is_paddle = framework == "paddle"
        self.framework = import_module(framework)
        self.sqrt, self.abs = self.framework.sqrt, self.framework.abs
        self.maximum, self.minimum = self.framework.maximum, self.framework.minimum
        self.matmul, self.largest = self.framework.matmul, self.framework.max

    def array(self, values: Any, like: Any) -> Any:
        """A tensor also of a scalar: Paddle 3.3.1 keeps the number in `x + 1e-5` as float32, also where x is float64."""
        return self.tensor(np.asarray(values, dtype=self.dtype(like)))

    def tensor(self, values: Any) -> Any:
        make = self.framework.to_tensor if self.is_paddle else self.framework.tensor
        return make(values)

    def dtype(self, x: Any) -> str:
        return str(x.dtype).rpartition(".")[2]

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype) if self.is_paddle else x.to(getattr(self.framework, dtype))

    def sum(self, x: Any, axes: Any) -> Any:
        return self.framework.sum(x, list(axes), keepdim=True)

    def sequential(self, rows: Any) -> Any:
        # torch.cumsum would accumulate in float64.
        acc = rows[0]
        for i in range(1, rows.shape[0]):
            acc = acc + rows[i]
        return acc

    def reshape(self, x: Any, shape: Any) -> Any:
        return self.framework.reshape(x, tuple(shape))

    def permute(self, x: Any, order: Any) -> Any:
        move = self.framework.transpose if self.is_paddle else self.framework.permute
        return move(x, tuple(order))

    def expand(self, x: Any, shape: Any) -> Any:
        return x.expand(list(shape)) if self.is_paddle else x.expand(*shape)

    def take(self, flat: Any, index: Any) -> Any:
        places = self.tensor(index)
        pick = self.framework.index_select
        return pick(flat, places, axis=0) if self.is_paddle else pick(flat, 0, places)

    def concat(self, parts: Any) -> Any:
        return self.framework.concat(parts, axis=0) if self.is_paddle else self.framework.cat(parts, dim=0)

    def detach(self, x: Any) -> Any:
        return x.detach()

    def differentiable(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors: the result is `forward(*tensors)`, the gradients are `backward(dy, *tensors)`."""
        autograd = self.framework.autograd
        is_paddle = self.is_paddle
        base: Any = autograd.PyLayer if is_paddle else autograd.Function

        class Kernel(base):
            """A forward and a backward as they are given."""

            @staticmethod
            def forward(ctx: Any, *tensors: Any) -> Any:
                ctx.save_for_backward(*tensors)
                return forward(*tensors)

            @staticmethod
            def backward(ctx: Any, dy: Any) -> Any:
                saved = ctx.saved_tensor() if is_paddle else ctx.saved_tensors
                return backward(dy, *saved)

        return Kernel.apply


class Ops:
    """The ops of one framework under one set of switches."""

    def __init__(self, framework: str, given: dict[str, Any]) -> None:
        self.lib, self.s = FrameworkLib(framework), kernels.switches(given)

    def norm(self, op: str, leaves: dict[str, Any], fixed: dict[str, Any], params: dict[str, Any]) -> Any:
        names = [name for name, leaf in leaves.items() if leaf is not None]
        lib, s = self.lib, self.s

        def forward(*tensors: Any) -> Any:
            return kernels.norm_forward(lib, s, op, {**dict(zip(names, tensors, strict=True)), **fixed}, params)["y"]

        def backward(dy: Any, *tensors: Any) -> Any:
            gradients = kernels.norm_backward(
                lib, s, op, dy, {**dict(zip(names, tensors, strict=True)), **fixed}, params
            )
            return tuple(gradients.get(f"grad.{name}") for name in names)

        y = self.lib.differentiable(forward, backward)(*[leaves[name] for name in names])
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
            gradients = kernels.linear_backward(lib, s, dy, dict(zip(names, tensors, strict=True)))
            return tuple(gradients.get(f"grad.{name}") for name in names)

        return self.lib.differentiable(forward, backward)(*[leaves[name] for name in names])

    def clip_grad_norm(self, grads: Any, max_norm: float, norm_type: float, scope: str) -> Any:
        params = {"max_norm": max_norm, "norm_type": norm_type, "scope": scope}
        return kernels.clip_grad_norm(self.lib, self.s, [self.lib.detach(g) for g in grads], params)

    def clip_grad_value(self, grads: Any, clip_value: float) -> Any:
        return kernels.clip_grad_value(
            self.lib, self.s, [self.lib.detach(g) for g in grads], {"clip_value": clip_value}
        )


def functions(framework: str, given: dict[str, Any]) -> dict[str, Any]:
    """The ops of a framework by name, for a user's op file; `given` are its switches."""
    ops = Ops(framework, given)
    return {op: getattr(ops, op) for op in (*kernels.NORMS, "linear", "clip_grad_norm", "clip_grad_value")}
