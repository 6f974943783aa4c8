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

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, step: int, **options: Any) -> Any:
        """One step of the optimizer `kind` from a state; the parameter and the state after that."""
        raise NotImplementedError

    def sgd(
        self,
        param: Any,
        grad: Any,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
        step: int,
        momentum_buffer: Any = None,
    ) -> Any:
        options = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        state = {} if momentum_buffer is None else {"momentum_buffer": momentum_buffer}
        return self.stepped("SGD", param, grad, state, step, lr=lr, **options)

    def adam(
        self,
        param: Any,
        grad: Any,
        exp_avg: Any,
        exp_avg_sq: Any,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
        step: int,
        kind: str = "Adam",
    ) -> Any:
        state = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        return self.stepped(
            kind, param, grad, state, step, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay
        )

    def adamw(self, **given: Any) -> Any:
        return self.adam(**given, kind="AdamW")

    def rmsprop(self, param: Any, grad: Any, square_avg: Any, **given: Any) -> Any:
        kept = {name: given.pop(name) for name in ("grad_avg", "momentum_buffer") if name in given}
        return self.stepped("RMSprop", param, grad, {"square_avg": square_avg, **kept}, 2, **given)

    def adagrad(self, param: Any, grad: Any, step: int, **given: Any) -> Any:
        return self.stepped("Adagrad", param, grad, {"sum": given.pop("sum")}, step, **given)
