"""Training in PaddlePaddle: paddle.nn, paddle.optimizer and paddle.optimizer.lr in dynamic mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.adapters.base import Unsupported, parts_of
from parity.adapters.paddle.adapter import ALWAYS, STATES, optimizer_class, translated
from parity.training.worker.job import ParameterGroup
from parity.training.worker.op_model import flat
from parity.training.worker.torch_style import TorchStyleTrainer

Options = Mapping[str, Any]

RATES = ("end_lr", "eta_min")
"""Options of schedules that are rates."""


class PaddleTrainer(TorchStyleTrainer):
    """Layers, one optimizer with groups of parameters, and a scheduler that sets its rate.

    In Paddle a group has a factor of the optimizer's rate instead of its own rate. Clipping is that of paddle.nn.utils,
    which has the recipe's formula; ClipGradByGlobalNorm omits the 1e-6.
    """

    def build(self) -> None:
        # Linear's weights are [in, out] in Paddle's layers; the rounding of a sum over a weight depends on the layout.
        matrices = [layer for layer in flat(self.recipe["layers"]) if "linear" in parts_of(layer["op"])]
        weights = {name for layer in matrices for name in layer["tensors"].values() if name}
        self.transposed = {name for name in weights if name.endswith(".weight")}
        super().build()

    def module_base(self) -> type[Any]:
        return self.framework.nn.Layer  # type: ignore[no-any-return]

    def parameter(self, name: str) -> Any:
        value = self.imported(name, self.job.tensors[name])
        parameter = self.framework.create_parameter(value.shape, self.job.dtype)
        parameter.set_value(value)
        return parameter

    def clear_gradients(self) -> None:
        self.optimizer.clear_grad()

    def clip_norm(self, names: Sequence[str], max_norm: float, norm_type: float) -> Any:
        try:
            return super().clip_norm(names, max_norm, norm_type)
        except ValueError as error:
            raise Unsupported(f"paddle.nn.utils.clip_grad_norm_: {error}") from error

    def clip_value(self, names: Sequence[str], clip_value: float) -> None:
        gradients = [self.gradient(name) for name in names]
        clipped = self.adapter.clip_grad_value(gradients, clip_value)["grads"]  # type: ignore[attr-defined]
        for name, value in zip(names, clipped):
            self.set_gradient(name, value)

    def make_optimizer(self, kind: str, groups: Sequence[ParameterGroup]) -> None:
        self.kind = optimizer_class(kind, any(group.options.get("momentum") for group in groups))
        own = [{"params": [self.parameters[n] for n in g.names], **translated(self.kind, g.options)} for g in groups]
        self.base = max(group.lr for group in groups)
        make = getattr(self.framework.optimizer, self.kind)
        self.optimizer = make(learning_rate=self.base, parameters=own, **ALWAYS.get(self.kind, {}))
        self.set_rates([group.lr for group in groups])

    def rates(self) -> list[float]:
        return [self.optimizer.get_lr() * factor for factor in self.factors]

    def set_rates(self, rates: Sequence[float]) -> None:
        """The largest rate becomes the optimizer's; the groups' factors are set on their parameters."""
        base = max(rates)
        self.optimizer.set_lr(base)
        self.factors = [rate / base if base else 1.0 for rate in rates]
        for group, factor in zip(self.groups, self.factors):
            for name in group.names:
                self.parameters[name].optimize_attr["learning_rate"] = factor

    def optimizer_step(self) -> None:
        # Paddle numbers the names of states; without the guard, a fresh optimizer would continue the numbers.
        with self.framework.utils.unique_name.guard():
            self.optimizer.step()

    def scheduler_of(self, name: str, **options: Any) -> Any:
        absolute = [option for option in RATES if options.get(option)]
        if absolute and len(set(self.factors)) > 1:
            reason = "the groups of a Paddle optimizer scale one common rate"
            raise Unsupported(f"{reason}, so groups with different rates cannot have the same {absolute[0]}")
        try:
            scheduler = SCHEDULERS[name](self.framework.optimizer.lr, self.base, **options)
        except (AssertionError, ValueError) as error:
            raise Unsupported(f"paddle.optimizer.lr: {str(error).strip()}") from error
        if scheduler is not None:
            self.optimizer.set_lr_scheduler(scheduler)
        return scheduler

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        stored, own = self.optimizer.state_dict(), self.parameters[name].name
        tensors = {state: stored.get(f"{own}_{kept}_0") for state, kept in STATES[self.kind].items()}
        return {state: tensor for state, tensor in tensors.items() if tensor is not None}

    def load_optimizer_state(self, done: int, states: Mapping[str, Mapping[str, Any]]) -> None:
        stored = {}
        for group in self.groups:
            for name in group.names:
                kept = self.powers(group.options, done)
                for state, own in STATES[self.kind].items():
                    kept[own] = states[name].get(state, self.imported(name, self.zeros(name)))
                stored.update({f"{self.parameters[name].name}_{own}_0": tensor for own, tensor in kept.items()})
        self.optimizer.set_state_dict(stored)

    def powers(self, options: Options, done: int) -> dict[str, Any]:
        """The powers of the betas, which Paddle computes as products; Lamb's factors are in float32."""
        kind = np.dtype(self.job.dtype).type
        powers = {}
        for i, beta in enumerate(options.get("betas", ()), 1):
            factors = np.full(done + 1, np.float32(beta) if self.kind == "Lamb" else beta, kind)
            factors[0] = beta
            powers[f"beta{i}_pow_acc"] = self.tensor(np.multiply.accumulate(factors)[-1:])
        return powers

    def assign(self, tensor: Any, value: Any) -> None:
        tensor.set_value(value)

    def exported(self, name: str, tensor: Any) -> Any:
        array = self.adapter.to_numpy(tensor)
        return array.T if name in self.transposed else array

    def imported(self, name: str, array: Any) -> Any:
        return self.tensor(np.array(array.T if name in self.transposed else array, order="C"))


class StaticTrainer(PaddleTrainer):
    """Runs the model, forward and backward, as one program of `paddle.jit.to_static`; the rest is dynamic."""

    def build(self) -> None:
        super().build()
        self.model = self.framework.jit.to_static(self.module, full_graph=True)


def polynomial(lr: Any, rate: float, total_iters: int, power: float, end_lr: float) -> Any:
    """PolynomialDecay."""
    return lr.PolynomialDecay(rate, total_iters, end_lr, power)


def warmup(lr: Any, rate: float, after: Any, steps: int, start_factor: float) -> Any:
    """LinearWarmup to `rate`, then `after`, a rate or a scheduler."""
    return lr.LinearWarmup(after, steps, start_factor * rate, rate) if steps else after


def warmup_polynomial(
    lr: Any, rate: float, warmup_steps: int, total_iters: int, start_factor: float, power: float, end_lr: float
) -> Any:
    """LinearWarmup, then PolynomialDecay."""
    after = polynomial(lr, rate, total_iters - warmup_steps, power, end_lr)
    return warmup(lr, rate, after, warmup_steps, start_factor)


SCHEDULERS: Mapping[str, Callable[..., Any]] = {
    "constant": lambda _lr, _rate: None,
    # LinearLR cannot start from 0.
    "linear": lambda lr, rate, total_iters, start_factor: warmup(lr, rate, rate, total_iters, start_factor),
    "polynomial": polynomial,
    "cosine": lambda lr, rate, T_max, eta_min: lr.CosineAnnealingDecay(rate, T_max, eta_min),  # noqa: N803
    "step": lambda lr, rate, step_size, gamma: lr.StepDecay(rate, step_size, gamma),
    "warmup_polynomial": warmup_polynomial,
}
"""Schedule to Paddle's scheduler: (paddle.optimizer.lr, rate, **options)."""
