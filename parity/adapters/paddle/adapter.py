"""PaddlePaddle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.adapters.base import Unsupported
from parity.adapters.torch_style import FunctionalAdapter

CHANNELS_FIRST = {2: "NC", 3: "NCL", 4: "NCHW", 5: "NCDHW"}


class PaddleAdapter(FunctionalAdapter):
    """paddle.nn.functional and paddle.nn.ClipGradBy* in dynamic mode on the CPU.

    Translated here: Linear's weight is [in, out] in Paddle, LayerNorm's weight and bias are flat, BatchNorm's momentum
    weighs the old statistic, and attention takes [N, L, heads, d].
    """

    no_kernel = (
        r"'epsilon' in Op\(\w+\) should be",
        r"The kernel \S+ is not registered",
        r"[Tt]he kernel (\(|`|with key).*(not registered|not found)",
    )
    trainers: ClassVar[Mapping[str, str]] = {
        "eager": "parity.adapters.paddle.trainer:PaddleTrainer",
        "static": "parity.adapters.paddle.static_trainer:StaticTrainer",
    }

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import paddle

        super().__init__(device, threads, mode, ranks)
        paddle.set_device(device)
        self.framework = paddle
        self.functional = paddle.nn.functional

    def describe(self, error: BaseException) -> str:
        """Paddle's messages bring C++ traces before, and hints and an operator's name behind, what they say."""
        summary = str(error).rpartition("Error Message Summary:")[2].strip("-\n ")
        return re.split(r"\n\s*\[Hint:|\s*\(at /", summary)[0]

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        return self.framework.to_tensor(array, stop_gradient=not requires_grad)

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.numpy()

    def has_history(self, tensor: Any) -> Any:
        return not tensor.stop_gradient

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.functional.layer_norm(x, list(normalized_shape), self.flat(weight), self.flat(bias), eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        if len(x.shape) < 3:
            raise Unsupported("paddle.nn.functional.group_norm takes inputs with 3 to 5 axes")
        return self.functional.group_norm(x, num_groups, eps, weight, bias, self.layout(x))

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.functional.instance_norm(x, weight=weight, bias=bias, eps=eps, data_format=self.layout(x))

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
        y = self.functional.batch_norm(
            x, running_mean, running_var, weight, bias, training, 1.0 - momentum, eps, self.layout(x)
        )
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.functional.linear(x, weight.t(), bias)

    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.functional.embedding(self.framework.arange(x.shape[-2]), weight)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.functional.gelu(x, approximate == "tanh")

    def scaled_dot_product_attention(self, query: Any, key: Any, value: Any) -> Any:
        query, key, value = (self.heads_first(tensor) for tensor in (query, key, value))
        return self.heads_first(self.functional.scaled_dot_product_attention(query, key, value))

    def heads_first(self, x: Any) -> Any:
        return x.transpose([0, 2, 1, 3])

    def cross_entropy(self, x: Any, target: Any, ignore_index: int = -100, reduction: str = "mean") -> Any:
        # To Paddle a negative ignore_index ignores nothing, and its mean runs over the ignored targets too.
        x, target, ignored = x.reshape([-1, x.shape[-1]]), target.reshape([-1]), x.shape[-1]
        target = self.framework.where(target == ignore_index, self.framework.full_like(target, ignored), target)
        return self.functional.cross_entropy(x, target, ignore_index=ignored, reduction=reduction)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        if norm_type == 2.0:
            return self.clip_two_norm(grads, max_norm, scope)
        parameters = self.parameters_with(grads)
        groups = [parameters] if scope == "global" else [[p] for p in parameters]
        try:
            norms = [self.framework.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        except ValueError as error:
            raise Unsupported(f"paddle.nn.utils.clip_grad_norm_: {error}") from error
        total = norms[0] if scope == "global" else self.norm(norms, norm_type)
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_two_norm(self, grads: Sequence[Any], max_norm: float, scope: str) -> Any:
        """The classes that Paddle's optimizers take; they keep the norm to themselves, so it is taken beside them."""
        kind = self.framework.nn.ClipGradByGlobalNorm if scope == "global" else self.framework.nn.ClipGradByNorm
        total = self.norm([self.norm([grad], 2.0) for grad in grads], 2.0)
        pairs = [(self.framework.zeros_like(grad), grad.clone()) for grad in grads]
        return {"grads": [clipped for _, clipped in kind(max_norm)(pairs)], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        pairs = [(self.framework.zeros_like(grad), grad) for grad in grads]
        return {"grads": [clipped for _, clipped in self.framework.nn.ClipGradByValue(clip_value)(pairs)]}

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        parameters = [self.leaf(grad.numpy() * 0, requires_grad=True) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters

    def norm(self, tensors: Sequence[Any], norm_type: float) -> Any:
        flat = self.framework.concat([tensor.reshape([-1]) for tensor in tensors])
        return self.framework.linalg.norm(flat, norm_type)

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, **options: Any) -> Any:
        """One step of the optimizer `kind` from a state under Paddle's names; what it has after that."""
        leaf = self.leaf(param.numpy(), requires_grad=True)
        leaf.grad = grad
        with self.framework.utils.unique_name.guard():
            optimizer = getattr(self.framework.optimizer, kind)(parameters=[leaf], **options)
            optimizer.set_state_dict({f"{leaf.name}_{name}_0": value for name, value in state.items()})
            optimizer.step()
        after = optimizer.state_dict()
        return {"param": leaf, **{name: after[f"{leaf.name}_{name}_0"] for name in state}}

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
        if dampening:
            raise Unsupported("paddle.optimizer.Momentum has no dampening")
        if momentum_buffer is None:
            return self.stepped("SGD", param, grad, {}, learning_rate=lr, weight_decay=weight_decay)
        velocity = momentum_buffer * 0 if step == 1 else momentum_buffer
        options = {"learning_rate": lr, "momentum": momentum, "use_nesterov": nesterov, "weight_decay": weight_decay}
        after = self.stepped("Momentum", param, grad, {"velocity": velocity}, **options)
        return {"param": after["param"], "momentum_buffer": after["velocity"]}

    def adam(
        self,
        param: Any,
        grad: Any,
        exp_avg: Any,
        exp_avg_sq: Any,
        lr: float,
        betas: Sequence[float],
        eps: float,
        step: int,
        kind: str = "Adam",
        **options: Any,
    ) -> Any:
        beta1, beta2 = betas
        powers = [self.framework.full([1], beta**step, dtype=param.dtype) for beta in betas]
        state = {"moment1": exp_avg, "moment2": exp_avg_sq, "beta1_pow_acc": powers[0], "beta2_pow_acc": powers[1]}
        options.update({"learning_rate": lr, "beta1": beta1, "beta2": beta2, "epsilon": eps})
        after = self.stepped(kind, param, grad, state, **options)
        return {"param": after["param"], "exp_avg": after["moment1"], "exp_avg_sq": after["moment2"]}

    def adamw(self, **given: Any) -> Any:
        return self.adam(**given, kind="AdamW")

    def lamb(self, weight_decay: float, **given: Any) -> Any:
        """Paddle leaves the trust ratio out where there is no decay, unless `always_adapt`."""
        return self.adam(**given, kind="Lamb", lamb_weight_decay=weight_decay, always_adapt=True)

    def rmsprop(
        self,
        param: Any,
        grad: Any,
        square_avg: Any,
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float,
        momentum: float,
        centered: bool,
        grad_avg: Any = None,
        momentum_buffer: Any = None,
    ) -> Any:
        zeros = self.framework.zeros_like(param)
        kept = {"mean_square": square_avg, "mean_grad": zeros if grad_avg is None else grad_avg}
        kept["momentum"] = zeros if momentum_buffer is None else momentum_buffer
        options = {"learning_rate": lr, "rho": alpha, "epsilon": eps, "momentum": momentum, "centered": centered}
        after = self.stepped("RMSProp", param, grad, kept, weight_decay=weight_decay, **options)
        found = {"param": after["param"], "square_avg": after["mean_square"]}
        found.update({} if grad_avg is None else {"grad_avg": after["mean_grad"]})
        return {**found, **({} if momentum_buffer is None else {"momentum_buffer": after["momentum"]})}

    def adagrad(
        self,
        param: Any,
        grad: Any,
        lr: float,
        eps: float,
        weight_decay: float,
        lr_decay: float,
        step: int,
        **given: Any,
    ) -> Any:
        if lr_decay and step > 1:
            raise Unsupported("paddle.optimizer.Adagrad has no lr_decay")
        options = {"learning_rate": lr, "epsilon": eps, "weight_decay": weight_decay}
        after = self.stepped("Adagrad", param, grad, {"moment": given["sum"]}, **options)
        return {"param": after["param"], "sum": after["moment"]}

    @staticmethod
    def flat(values: Any) -> Any:
        return None if values is None else values.flatten()

    @staticmethod
    def layout(x: Any) -> str:
        return CHANNELS_FIRST[len(x.shape)]
