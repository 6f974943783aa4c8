"""What PyTorch and the frameworks that copy its interface, in part or in whole, have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parity.adapters.base import Adapter

OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "lamb": "LAMB",
}
"""Optimizer to the class in `optim`, which need not have all of them."""

STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "sum")
"""What optimizers keep for a parameter."""


class FunctionalAdapter(Adapter):
    """Ops through `framework.nn.functional`; a subclass imports the framework."""

    framework: Any
    dtypes = None

    def version(self) -> str:
        return str(self.framework.__version__)

    def settings(self) -> tuple[Any, bool]:
        return self.framework.get_default_dtype(), self.framework.is_grad_enabled()

    def restore(self, settings: tuple[Any, bool]) -> None:
        self.framework.set_default_dtype(settings[0])
        self.framework.set_grad_enabled(settings[1])

    def gradients(self, outputs: Sequence[Any], upstream: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        pairs = [(y, dy) for y, dy in zip(outputs, upstream) if self.has_history(y)]
        if pairs:
            self.framework.autograd.backward(*map(list, zip(*pairs)))
        return [leaf.grad for leaf in leaves]

    def has_history(self, tensor: Any) -> Any:
        """Whether a gradient can go through a tensor."""
        return tensor.requires_grad

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.framework.nn.functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)

    def batch_norm(
        self, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, **options: Any
    ) -> Any:
        y = self.framework.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, **options)
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.framework.nn.functional.linear(x, weight, bias)

    def conv2d(self, x: Any, weight: Any, bias: Any = None, **options: int) -> Any:
        return self.framework.nn.functional.conv2d(x, weight, bias, **options)

    def avg_pool2d(self, x: Any, kernel_size: int) -> Any:
        return self.framework.nn.functional.avg_pool2d(x, kernel_size, kernel_size)

    def flatten(self, x: Any) -> Any:
        return self.framework.flatten(x, 1)

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.framework.nn.functional.embedding(x, weight)

    def position_embedding(self, x: Any, weight: Any) -> Any:
        positions = self.framework.arange(x.shape[-2], device=x.device)
        return x + self.framework.nn.functional.embedding(positions, weight)

    def relu(self, x: Any) -> Any:
        return self.framework.nn.functional.relu(x)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.framework.nn.functional.gelu(x, approximate=approximate)

    def tanh(self, x: Any) -> Any:
        return self.framework.nn.functional.tanh(x)

    def silu(self, x: Any) -> Any:
        return self.framework.nn.functional.silu(x)

    def sigmoid(self, x: Any) -> Any:
        return self.framework.nn.functional.sigmoid(x)

    def scaled_dot_product_attention(self, query: Any, key: Any, value: Any) -> Any:
        return self.framework.nn.functional.scaled_dot_product_attention(query, key, value)

    def multi_head_attention(self, x: Any, num_heads: int, **tensors: Any) -> Any:
        n, length, _ = x.shape
        query, key, value = (
            self.heads_first(self.projected(x, name, tensors).reshape((n, length, num_heads, -1)))
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = self.heads_first(self.scaled_dot_product_attention(query=query, key=key, value=value))
        return self.projected(mixed.reshape((n, length, -1)), "out_proj", tensors)

    def projected(self, x: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        return self.linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return x.transpose(1, 2)

    def cross_entropy(self, x: Any, target: Any, ignore_index: int = -100, reduction: str = "mean") -> Any:
        function = self.framework.nn.functional.cross_entropy
        x, target = x.reshape((-1, x.shape[-1])), target.reshape((-1,))
        return function(x, target, ignore_index=ignore_index, reduction=reduction)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.framework.nn.functional.mse_loss(x, target, reduction=reduction)

    def updated(self, op: str, param: Any, grad: Any, step: int = 2, **given: Any) -> Any:
        """One step of an optimizer from the states among what is `given`; RMSprop does not count its steps."""
        raise NotImplementedError

    def sgd(self, **given: Any) -> Any:
        return self.updated("sgd", **given)

    def adam(self, **given: Any) -> Any:
        return self.updated("adam", **given)

    def adamw(self, **given: Any) -> Any:
        return self.updated("adamw", **given)

    def rmsprop(self, **given: Any) -> Any:
        return self.updated("rmsprop", **given)

    def adagrad(self, **given: Any) -> Any:
        return self.updated("adagrad", **given)

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        """Parameters that have these gradients."""
        parameters = [self.leaf(self.to_numpy(grad) * 0, True) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters


class TorchStyleAdapter(FunctionalAdapter):
    """Clips and optimizers through `framework.nn.utils` and `framework.optim` as well."""

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        parameters = self.parameters_with(grads)
        groups = [parameters] if scope == "global" else [[p] for p in parameters]
        norms = [self.framework.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        total = (
            norms[0] if scope == "global" else self.framework.linalg.vector_norm(self.framework.stack(norms), norm_type)
        )
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        parameters = self.parameters_with(grads)
        self.framework.nn.utils.clip_grad_value_(parameters, clip_value)
        return {"grads": [p.grad for p in parameters]}

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, step: int, **options: Any) -> Any:
        """One step of the optimizer `kind` from a state; the parameter and the state after that."""
        raise NotImplementedError

    def updated(self, op: str, param: Any, grad: Any, step: int = 2, **given: Any) -> Any:
        state = {name: given.pop(name) for name in STATES if name in given}
        return self.stepped(OPTIMIZERS[op], param, grad, state, step, **given)
