"""What may be wrong with a step, as something that can be computed, stage by stage: the plain hypotheses first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parity.cases import OPS
from parity.cases.clip import ClipGradNormParams, ClipGradValueParams
from parity.cases.op import Knob
from parity.judge.diagnose.causes import DEGRADED, NARROW, SEMANTIC
from parity.training.judge.fits import IDS, Number, numbers
from parity.training.judge.oracle import NOTHING, Array, Changes, Probe, Rework
from parity.training.schedules import SCHEDULES
from parity.training.spec import Training, walk
from parity.training.steps import Clipping, Update
from parity.training.variants import model_knobs, narrow_options, on

WEIGHT_DECAY, LOSS = "weight_decay", "loss"
ALONE, NAMED, LOSSY, FITTED = 0.125, 0.5, 1.5, 2.5
"""What it costs to believe that one layer of a kind does what the others do not, a factor that means something, a band
of sizes, and a factor that means nothing."""


@dataclass(frozen=True)
class Hypothesis:
    """A cause: what it `changes` of a step, and as what it is told.

    `weight` is what it costs to believe it beside a plain one (0). `lossy`: right but for lost digits, known by the
    size of its error. `told_by` says which steps or data would show it. `parts`: of several together.
    """

    id: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    changes: Changes = NOTHING
    weight: float = 0.0
    told_by: str = ""
    lossy: bool = False
    parts: tuple[Hypothesis, ...] = ()

    @property
    def kind(self) -> str:
        """The verdict on who does this."""
        return DEGRADED if self.id in NARROW else SEMANTIC

    def with_(self, other: Hypothesis) -> Hypothesis:
        """Both together."""
        return Hypothesis(
            f"{self.id} + {other.id}",
            {**self.parameters, **other.parameters},
            self.changes.with_(other.changes),
            self.weight + other.weight + 1.0,
            other.told_by or self.told_by,
            self.lossy or other.lossy,
            (self, other),
        )


def forward(training: Training, ranks: int) -> Iterator[Hypothesis]:
    """Of the forward pass: what the lines of the layers can be told to do otherwise."""
    yield from (from_knob(kind, knob) for kind, knob in layer_knobs(training))
    if ranks > 1:
        told_by = "layers that take statistics over the batch"
        yield Hypothesis(
            "batch-norm-statistics",
            {"over": "the rows of each rank"},
            Changes(model={"ranks": {"count": ranks}}),
            told_by=told_by,
        )


def layer_knobs(training: Training) -> Iterator[tuple[str, Knob]]:
    """The knobs of the layers' lines, of all layers of a kind and of each by itself."""
    layers = list(walk(training.layers))
    for key, knob in model_knobs(training):
        if key == LOSS:
            continue
        yield key, knob
        alike = [layer for layer in layers if layer.op == key]
        if len(alike) > 1:
            yield from ((on(key, layer), knob) for layer in alike)


def from_knob(kind: str, knob: Knob) -> Hypothesis:
    """A knob of the model's lines."""
    lossy = knob.unstable or knob.id == "reduced-precision"
    weight = LOSSY if lossy else ALONE if "@" in kind else 0.0
    arguments = {**knob.arguments, **knob.params, **({"absent": knob.absent} if knob.absent else {})}
    shown = {"in": kind, **{name: v for name, v in arguments.items() if v != ()}}
    return Hypothesis(knob.id, shown, Changes(model={kind: arguments}), weight, knob.told_by, lossy=lossy)


def loss(training: Training, ranks: int) -> Iterator[Hypothesis]:
    """Of the loss: sums for means."""
    yield from (from_knob(LOSS, knob) for key, knob in model_knobs(training) if key == LOSS)
    for name, meaning, factor in factors(training, ranks):
        changes = Changes(loss=times(factor), rework=(multiplied(factor),))
        yield Hypothesis(name, {"factor": factor, "meaning": meaning}, changes, NAMED)


def times(factor: float) -> Callable[[Array], Array]:
    """The multiple of a tensor."""
    return lambda values: values * values.dtype.type(factor)


def factors(training: Training, ranks: int) -> Iterator[tuple[str, str, float]]:
    """The factors that mean something for a loss and its gradient: id, meaning, factor."""
    if ranks > 1:
        yield "rank-reduction", "summed over the ranks", float(ranks)
        yield "rank-reduction", "divided by the number of ranks twice", 1.0 / ranks
    if training.accumulation > 1:
        yield "accumulation-sum", "summed over the micro-batches", float(training.accumulation)
        yield "accumulation-sum", "divided by their number twice", 1.0 / training.accumulation
    if training.batch_size > 1:
        yield "mean-vs-sum", "summed over the rows", float(training.batch_size)
    yield "scaled", "doubled", 2.0


def gradient(training: Training, ranks: int) -> Iterator[Hypothesis]:
    """Of the gradient: how it is reduced, what was left in it, and whatever the forward pass may have."""
    if ranks > 1:
        knobs = {"ranks": {"count": ranks, "reduction": "first"}}
        yield Hypothesis("rank-reduction", {"rows": "of the first rank alone"}, Changes(model=knobs))
    for name, meaning, factor in factors(training, ranks):
        plain = name in ("rank-reduction", "accumulation-sum")
        shown = {"factor": factor, "meaning": meaning}
        yield Hypothesis(name, shown, Changes(rework=(multiplied(factor),)), 0.0 if plain else NAMED)
    for kind in ("clipped", "grad"):
        shown = {"left": "the clipped gradient" if kind == "clipped" else "the gradient before clipping"}
        yield Hypothesis("gradient-not-zeroed", shown, Changes(rework=(left_over(kind),)), told_by="step 2")
        yield Hypothesis("stale", {"of": "the step before"}, Changes(rework=(stale(kind),)), 1.0)
    yield Hypothesis("sign-flipped", {"of": "all gradients"}, Changes(rework=(multiplied(-1.0),)), NAMED)
    yield from (from_knob(LOSS, knob) for key, knob in model_knobs(training) if key == LOSS)
    yield from (from_knob(key, knob) for key, knob in layer_knobs(training))


def multiplied(factor: float, names: frozenset[str] | None = None) -> Rework:
    """The gradients (of `names`) times a factor."""

    def rework(grads: dict[str, Array], _: Probe) -> dict[str, Array]:
        return {n: g * g.dtype.type(factor) if names is None or n in names else g for n, g in grads.items()}

    return rework


def left_over(kind: str) -> Rework:
    """The gradients upon those of the step before, `grad` or `clipped`; step 1 has none."""

    def rework(grads: dict[str, Array], probe: Probe) -> dict[str, Array] | None:
        if probe.step == 1:
            return grads
        left = before(probe, kind)
        return left and {n: g + left[n].astype(g.dtype) if n in left else g for n, g in grads.items()}

    return rework


def stale(kind: str) -> Rework:
    """The gradients of the step before in place of these."""

    def rework(grads: dict[str, Array], probe: Probe) -> dict[str, Array] | None:
        left = before(probe, kind)
        return left and {n: left[n].astype(g.dtype) if n in left else g for n, g in grads.items()}

    return rework


def before(probe: Probe, kind: str) -> dict[str, Array] | None:
    """The side's gradients of the step before; None where they are not known."""
    if probe.previous is None or probe.previous.step != probe.step - 1:
        return None
    found = Probe(probe.previous).group(kind)
    return found or (Probe(probe.previous).group("grad") or None)


def clip(training: Training, _ranks: int) -> Iterator[Hypothesis]:
    """Of clipping: over which tensors, whether at all, and the arguments of its lines."""
    recipe = training.clip
    if recipe is None:
        return
    if recipe.name == "value":
        knobs = OPS["clip_grad_value"].knobs(ClipGradValueParams(recipe.clip_value), {})
    else:
        shapes = {p.name: p.shape for p in training.parameters}
        knobs = OPS["clip_grad_norm"].knobs(ClipGradNormParams(recipe.max_norm, recipe.norm_type), shapes)
        for scope in ("tensor", "group", "global"):
            if scope != recipe.scope and not (scope == "group" and len(training.groups) == 1):
                changed = Clipping(replace(recipe, scope=scope))
                yield Hypothesis("clip-per-tensor", {"scope": scope}, Changes(clipping=changed), told_by=CLIPS)
    yield Hypothesis("clip-ignored", {}, Changes(clipping=Clipping(None)), told_by=CLIPS)
    for knob in knobs:
        if "scope" not in knob.arguments:
            changed = Clipping(recipe, knob.arguments)
            yield Hypothesis(knob.id, dict(knob.arguments), Changes(clipping=changed), told_by=knob.told_by)


CLIPS = "steps in which the norm is above the limit"


def precisions(training: Training) -> Iterator[Hypothesis]:
    """Options of the optimizer that are kept in float32, and what is computed from them."""
    op = OPS[training.optimizer]
    knobs = {repr(k.arguments): k for g in training.groups for k in op.knobs(op.params(**g.options), {})}
    computed = [k.arguments for k in knobs.values() if k.id == "attribute-precision"]
    for names in narrow_options(training):
        for arguments in ({}, *computed):
            change = Update(arguments, narrow="float32", narrowed=names)
            shown = {"float32": sorted(names), **arguments}
            weight = 0.01 * (len(names) + len(arguments))
            yield Hypothesis("attribute-precision", shown, Changes(update=change), weight, told_by=FLOAT64)


def update(training: Training, _ranks: int) -> Iterator[Hypothesis]:
    """Of the optimizer's step: the arguments of its lines, whose options are whose, the rate, the step's number."""
    for knob in update_knobs(training):
        changes = Changes(update=Update(knob.arguments))
        yield Hypothesis(knob.id, dict(knob.arguments), changes, told_by=knob.told_by)
    if counts_steps(training):
        for offset in (-1, 1):
            changes = Changes(update=Update(offset=offset))
            yield Hypothesis("step-offset", {"offset": offset}, changes, told_by="an early step")
    yield from options(training)
    yield from rates(training)
    for name, factor, meaning in ((("stale"), 0.0, "not applied"), ("sign-flipped", -1.0, "added")):
        shown = {"update": meaning}
        yield Hypothesis(name, shown, Changes(update=Update(factor=factor)), NAMED)
    for number in numbers(training):
        usual = EPSILONS if number.name == "eps" else (0.0,)
        yield from (other_value(number, value) for value in usual if value != number.asked)


def other_value(number: Number, value: float) -> Hypothesis:
    """That a number of the optimizer has another value."""
    shown = {number.name: value} if number.name in IDS else {number.name: value, "asked": number.asked}
    told_by = "a second moment near eps" if number.name == "eps" else "the second step, whose states are not 0"
    return Hypothesis(number.id, shown, number.changes(value), NAMED, told_by)


FLOAT64 = "float64, in which it shows what float32 has lost"
EPSILONS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def counts_steps(training: Training) -> bool:
    """Whether the number of a step enters the optimizer's lines."""
    op = OPS[training.optimizer]
    return any("step" in knob.params for group in training.groups for knob in op.knobs(op.params(**group.options), {}))


def update_knobs(training: Training) -> list[Knob]:
    """The knobs of the optimizer for all groups, at the first step and at later ones, but for the step's number."""
    op = OPS[training.optimizer]
    found: dict[str, Knob] = {}
    for group in training.groups:
        for step in (1, 2):
            given = op.params(**group.options)
            params = replace(given, step=step) if hasattr(given, "step") else given
            for knob in op.knobs(params, {}):
                if "step" not in knob.params:
                    found.setdefault(repr((knob.id, sorted(knob.arguments.items()))), knob)
    return list(found.values())


def options(training: Training) -> Iterator[Hypothesis]:
    """That a group has another one's options: its weight decay, or all of them."""
    groups = training.groups
    values = dict.fromkeys(group.options.get(WEIGHT_DECAY, 0.0) for group in groups)
    for value in values if len(values) > 1 else ():
        changed = {i: {WEIGHT_DECAY: value} for i, g in enumerate(groups) if g.options.get(WEIGHT_DECAY) != value}
        yield Hypothesis(
            "weight-decay-excludes",
            {WEIGHT_DECAY: value, "of": "every parameter"},
            Changes(update=Update(options=changed)),
            told_by="parameters that are excluded and not 0",
        )
    for i, group in enumerate(groups):
        for j, other in enumerate(groups):
            if i != j and dict(group.options) != dict(other.options):
                shown = {"group": list(group.parameters[:3]), "has those of": list(other.parameters[:3])}
                change = Update(options={i: dict(other.options)}, rate=rate_of_group(training, i, j))
                yield Hypothesis("group-options", shown, Changes(update=change), NAMED)
    if len(groups) > 1:
        first = {i: dict(groups[0].options) for i in range(1, len(groups))}
        change = Update(options=first, rate=rate_of_group(training, None, 0))
        yield Hypothesis("group-options", {"every group": "has those of the first"}, Changes(update=change), NAMED)


Rate = Callable[[int, int, float], float]


def rate_of_group(training: Training, group: int | None, other: int) -> Rate:
    """The rate of a group (None: of all) in the proportion in which `other` has it."""
    own = [float(g.options["lr"]) for g in training.groups]

    def rate(_step: int, of: int, lr: float) -> float:
        return lr * own[other] / own[of] if group in (None, of) and own[of] else lr

    return rate


def rates(training: Training) -> Iterator[Hypothesis]:
    """That the update takes another rate than the one that is reported: the schedule's knobs."""
    schedule = SCHEDULES[training.schedule.name]
    given = schedule.options(**training.schedule.options)

    def rate(arguments: Mapping[str, Any]) -> Rate:
        def other(step: int, group: int, _lr: float) -> float:
            return schedule.rate(float(training.groups[group].options["lr"]), step - 1, given, **arguments)

        return other

    for knob in schedule.knobs(given):
        change = Update(rate=rate(knob.arguments))
        shown = {**knob.arguments, "in": "the update, not in the reported rate"}
        yield Hypothesis(knob.id, shown, Changes(update=change), NAMED, knob.told_by)


HYPOTHESES: Mapping[str, Callable[[Training, int], Iterator[Hypothesis]]] = {
    "forward": forward,
    "loss": loss,
    "gradient": gradient,
    "clip": clip,
    "update": update,
}
"""The standing hypotheses of every stage that the oracle computes."""
NARROWED = ("update", "float64")


def standing(stage: str, training: Training, ranks: int, dtype: str) -> list[Hypothesis]:
    """Those of a stage, without two that are told as the same thing; in float64 those about float32 as well."""
    stated = [*HYPOTHESES[stage](training, ranks), *(precisions(training) if (stage, dtype) == NARROWED else ())]
    return list({repr((h.id, sorted(h.parameters.items()))): h for h in stated}.values())
