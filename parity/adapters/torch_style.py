"""What PyTorch and the frameworks that copy its interface have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parity.adapters.base import Adapter


class TorchStyleAdapter(Adapter):
    """Ops through `framework.nn.functional` and `framework.nn.utils`; a subclass imports the framework."""

    framework: Any

    def version(self) -> str:
        return str(self.framework.__version__)

    def gradients(self, outputs: Sequence[Any], upstream: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        pairs = [(y, dy) for y, dy in zip(outputs, upstream) if y.requires_grad]
        if pairs:
            self.framework.autograd.backward(*map(list, zip(*pairs)))
        return [leaf.grad for leaf in leaves]

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.framework.nn.functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)

    def batch_norm(
        self,
        x: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        weight: Any = None,
        bias: Any = None,
    ) -> Any:
        function = self.framework.nn.functional.batch_norm
        y = function(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.framework.nn.functional.linear(x, weight, bias)

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

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        parameters = [self.framework.nn.Parameter(self.framework.zeros_like(grad)) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters
