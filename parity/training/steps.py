"""What a step does with its gradients, by the ops' references: rates, clipping and update, with or without changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.clip import ClipGradNormParams, ClipGradValueParams
from parity.cases.op import IncompatibleError
from parity.cases.oracle import IN_PAIRS, Functions, evaluate
from parity.outcome import Array, Arrays
from parity.training.edits import ProgramEdits
from parity.training.schedules import SCHEDULES
from parity.training.spec import Clip, Training


@dataclass(frozen=True)
class Clipping:
    """Changes of the clipping: another recipe (None: no clipping), arguments of the op's reference, edits of it, and
    the parameters that the norms leave out (`without`)."""

    recipe: Clip | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    edits: ProgramEdits | None = None
    without: frozenset[str] = frozenset()

    def of(self, names: Sequence[str]) -> Clipping:
        """The same for the gradients of these parameters; the reference's argument `without` has their positions."""
        numbers = tuple(i for i, name in enumerate(names) if name in self.without)
        if numbers and len(numbers) == len(names):
            raise IncompatibleError("there is no norm of no gradient")
        return replace(self, arguments={**self.arguments, "without": numbers}) if numbers else self


@dataclass(frozen=True)
class Update:
    """Changes of the update: arguments of the op's reference, an offset of the step number, options by group, and
    edits of the reference.

    `rate` maps (step, group, lr) to another lr; `factor` multiplies the change of every parameter; parameters in
    `skipped` are not updated. The options in `narrowed` (empty: all) are rounded to the dtype `narrow`. Everything
    except this rounding is limited to the parameters `of`, if any.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    rate: Any = None
    factor: float = 1.0
    skipped: frozenset[str] = frozenset()
    narrow: str = ""
    narrowed: frozenset[str] = frozenset()
    edits: ProgramEdits | None = None
    of: frozenset[str] = frozenset()

    def at(self, parameter: str) -> Update:
        """The changes for one parameter."""
        return self if not self.of or parameter in self.of else Update(narrow=self.narrow, narrowed=self.narrowed)


def rates(training: Training, step: int, **variants: Any) -> list[float]:
    """The rate of each group in step `step`, counted from 1; `variants` are those of `ScheduleKind.rate`."""
    schedule = SCHEDULES[training.schedule.name]
    options = schedule.options(**training.schedule.options)
    return [schedule.rate(float(group.options["lr"]), step - 1, options, **variants) for group in training.groups]


def clipped(
    training: Training, grads: Arrays, instead: Clipping | None = None, functions: Functions = IN_PAIRS
) -> tuple[dict[str, Array], Array]:
    """The clipped gradients, and the norm of all gradients before clipping: of the recipe's type, else the 2-norm."""
    how = instead or Clipping(training.clip)
    kind = how.arguments.get("norm_type", (training.clip or Clip()).norm_type)
    norm = norm_of(list(grads.values()), kind, functions)
    if how.recipe is None:
        return dict(grads), norm
    after: dict[str, Array] = {}
    every = units(training, how.recipe, grads)
    for names in every:
        results = clip_unit(how.of(names), [grads[name] for name in names], functions)
        after |= {name: results[f"grads.{i}"] for i, name in enumerate(names)}
        norm = results.get("total_norm", norm) if len(every) == 1 else norm
    return {name: after[name] for name in grads}, norm


def norm_of(grads: Sequence[Array], norm_type: float, functions: Functions = IN_PAIRS) -> Array:
    """The norm of all gradients as one vector."""
    return evaluate_list("clip_grad_norm", ClipGradNormParams(1.0, norm_type), grads, functions)["total_norm"]


def clip_params(recipe: Clip) -> Any:
    """The params of the clipping op."""
    if recipe.name == "value":
        return ClipGradValueParams(recipe.clip_value)
    return ClipGradNormParams(recipe.max_norm, recipe.norm_type)


def clip_unit(how: Clipping, grads: Sequence[Array], functions: Functions = IN_PAIRS) -> dict[str, Array]:
    """The outputs of the clipping op for gradients that are clipped together."""
    assert how.recipe is not None  # noqa: S101 - otherwise nothing is clipped
    name, params = f"clip_grad_{how.recipe.name}", clip_params(how.recipe)
    if how.edits is None:
        return evaluate_list(name, params, grads, functions, **how.arguments)
    tensors = {f"grads.{i}": values for i, values in enumerate(grads)}
    return how.edits.run(OPS[name], params, tensors, functions, **how.arguments)


def evaluate_list(
    op: str, params: Any, grads: Sequence[Array], functions: Functions, **arguments: Any
) -> dict[str, Array]:
    """The outputs of an op of several gradients, in their dtype."""
    tensors = {f"grads.{i}": values for i, values in enumerate(grads)}
    return evaluate(OPS[op], params, tensors, dtype=grads[0].dtype, functions=functions, **arguments)


def units(training: Training, clip: Clip, grads: Arrays) -> list[list[str]]:
    """The sets of parameters that are clipped together."""
    if clip.name == "value" or clip.scope == "global":
        return [list(grads)]
    if clip.scope == "group":
        groups = [[name for name in group.parameters if name in grads] for group in training.groups]
        return [group for group in groups if group]
    return [[name] for name in grads]


NO_CHANGE = Update()


def updated(
    training: Training,
    step: int,
    before: Mapping[str, Arrays],
    grads: Arrays,
    lr: Sequence[float] | Array,
    changes: Update = NO_CHANGE,
    functions: Functions = IN_PAIRS,
) -> dict[str, Array]:
    """`param.<name>` and `state.<state>.<name>` after step `step`, from clipped gradients.

    `before` has `<name>` under `param` and `<state>.<name>` under `state`; a missing state is 0. `lr` has each group's
    rate.
    """
    op = OPS[training.optimizer]
    states = by_parameter(before["state"])
    groups = {name: i for i, group in enumerate(training.groups) for name in group.parameters}
    updates: dict[str, Array] = {}
    for name, grad in grads.items():
        i, change = groups[name], changes.at(name)
        params = params_of(training, i, step, float(lr[min(i, len(lr) - 1)]), change)
        param = before["param"][name]
        tensors = {"param": param, "grad": grad, **zero_states(op, params, param), **states.get(name, {})}
        if name in change.skipped:
            after = dict(tensors)
        elif change.edits is not None:
            after = change.edits.run(op, params, tensors, functions, **change.arguments)
        elif functions:
            after = evaluate(op, params, tensors, dtype=param.dtype, functions=functions, **change.arguments)
        else:
            after = dict(op.reference(tensors, params, **change.arguments))
        after.pop("grad", None)
        if change.factor != 1.0:
            after["param"] = param + change.factor * (after["param"] - param)
        updates[f"param.{name}"] = after.pop("param")
        updates.update({f"state.{state}.{name}": values for state, values in after.items()})
    return updates


def params_of(training: Training, group: int, step: int, lr: float, change: Update) -> Any:
    """The op's params for a group at a step."""
    op = OPS[training.optimizer]
    options = {**training.groups[group].options, **change.options.get(group, {})}
    if change.rate is not None:
        lr = change.rate(step, group, lr)
    params = op.params(**{**options, "lr": lr})
    if change.narrow:
        rounded = dict(narrowed_options(params, change.narrow))
        wanted = change.narrowed or rounded.keys()
        params = replace(params, **{name: value for name, value in rounded.items() if name in wanted})
    return replace(params, step=max(1, step + change.offset)) if hasattr(params, "step") else params


def narrowed_options(params: Any, dtype: str) -> Iterator[tuple[str, Any]]:
    """The options, rounded to `dtype`."""
    kind = np.dtype(dtype).type
    for name, value in vars(params).items():
        if isinstance(value, float):
            yield name, float(kind(value))
        elif isinstance(value, tuple):
            yield name, tuple(float(kind(v)) for v in value)


def by_parameter(states: Arrays) -> dict[str, dict[str, Array]]:
    """`<state>.<parameter>` to the states of each parameter."""
    grouped: dict[str, dict[str, Array]] = {}
    for name, values in states.items():
        state, _, parameter = name.partition(".")
        grouped.setdefault(parameter, {})[state] = values
    return grouped


def zero_states(op: Any, params: Any, param: Array) -> dict[str, Array]:
    """The initial states."""
    names = op.infer_shapes(params, {"param": param.shape}).inputs
    return {name: np.zeros_like(param) for name in names if name not in ("param", "grad")}
