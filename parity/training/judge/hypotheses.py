"""What may be wrong with a step, as something that can be computed: a table of sources for each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from parity.cases import OPS
from parity.cases.clip import ClipGradNormParams, ClipGradValueParams
from parity.cases.op import Variant
from parity.judge.diagnose.causes import DEGRADED, NARROW, SEMANTIC
from parity.training.judge.oracle import NOTHING, Array, Changes, Rework
from parity.training.model import unprefixed
from parity.training.records import StepRecord
from parity.training.schedules import SCHEDULES
from parity.training.spec import Training, walk
from parity.training.steps import Clipping, Update, rates
from parity.training.variants import model_variants, narrow_options, on

WEIGHT_DECAY, LOSS = "weight_decay", "loss"
ALONE, NAMED, LOSSY, FITTED = 0.125, 0.5, 1.5, 2.5
"""What it costs to believe that one layer of a kind does what the others do not, a factor that means something, a band
of sizes, and a factor that means nothing."""
CLIPS = "steps in which the norm is above the limit"
FLOAT64 = "float64, in which it shows what float32 has lost"

FRACTIONS = (0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
SMALL = tuple(10.0 ** (k / 2) for k in range(-32, 1))
STARTS: Mapping[str, Sequence[float]] = {
    "eps": SMALL,
    "weight_decay": (0.0, *SMALL),
    "lr_decay": (0.0, *SMALL),
    "momentum": FRACTIONS,
    "dampening": FRACTIONS,
    "alpha": FRACTIONS,
    "beta1": FRACTIONS,
    "beta2": FRACTIONS,
}
"""Where a fit of each number begins: what optimizers are given as a part of 1, and what is added to something."""
EPSILONS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Hypothesis:
    """A cause: its diagnosis, and what it `changes` of a step.

    `weight` is what it costs to believe it beside a plain one (0). `lossy`: right but for lost digits, known by the
    size of its error. `shown_by` says which steps or data would show it. `parts`: of several together.
    """

    id: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    changes: Changes = NOTHING
    weight: float = 0.0
    shown_by: str = ""
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
            other.shown_by or self.shown_by,
            self.lossy or other.lossy,
            (self, other),
        )


Hypotheses = Iterator[Hypothesis]


def hypothesis_of(variant: Variant, changes: Changes, weight: float = 0.0, **shown: Any) -> Hypothesis:
    """A variant of an op or schedule, and what it changes of the step."""
    return Hypothesis(variant.id, {**variant.arguments, **shown}, changes, weight, variant.shown_by)


def reworked(diagnosis: str, shown: Mapping[str, Any], rework: Rework, weight: float = 0.0, **more: Any) -> Hypothesis:
    """A change of the gradients."""
    return Hypothesis(diagnosis, shown, Changes(rework=(rework,)), weight, **more)


def model_variant(key: str, variant: Variant) -> Hypothesis:
    """A variant of the model's reference."""
    lossy = variant.unstable or variant.id == "reduced-precision"
    weight = LOSSY if lossy else ALONE if "@" in key else 0.0
    arguments = {**variant.arguments, **variant.params, **({"absent": variant.absent} if variant.absent else {})}
    shown = {"in": key, **{name: v for name, v in arguments.items() if v != ()}}
    return Hypothesis(variant.id, shown, Changes(model={key: arguments}), weight, variant.shown_by, lossy=lossy)


def layer_variants(training: Training, _ranks: int) -> Hypotheses:
    """The variants of all layers of a kind, and of each by itself."""
    layers = list(walk(training.layers))
    for key, variant in model_variants(training):
        if key != LOSS:
            yield model_variant(key, variant)
            alike = [layer for layer in layers if layer.op == key]
            yield from (model_variant(on(key, layer), variant) for layer in alike if len(alike) > 1)


def loss_variants(training: Training, _ranks: int) -> Hypotheses:
    """The variants of the loss: sums for means."""
    yield from (model_variant(LOSS, variant) for key, variant in model_variants(training) if key == LOSS)


def rank_statistics(_training: Training, ranks: int) -> Hypotheses:
    """Statistics over the batch that each rank takes of its own rows."""
    if ranks > 1:
        shown, changes = {"over": "the rows of each rank"}, Changes(model={"ranks": {"count": ranks}})
        shown_by = "layers that take statistics over the batch"
        yield Hypothesis("batch-norm-statistics", shown, changes, shown_by=shown_by)


def first_rank(_training: Training, ranks: int) -> Hypotheses:
    """The gradient of one rank alone."""
    if ranks > 1:
        changes = Changes(model={"ranks": {"count": ranks, "reduction": "first"}})
        yield Hypothesis("rank-reduction", {"rows": "of the first rank alone"}, changes)


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


def times(factor: float) -> Callable[[Array], Array]:
    """The multiple of a tensor."""
    return lambda values: values * values.dtype.type(factor)


def multiplied(factor: float) -> Rework:
    """The gradients times a factor."""
    return lambda grads, _: {name: times(factor)(g) for name, g in grads.items()}


def loss_factors(training: Training, ranks: int) -> Hypotheses:
    """A loss, and its gradient, that are a multiple."""
    for name, meaning, factor in factors(training, ranks):
        changes = Changes(loss=times(factor), rework=(multiplied(factor),))
        yield Hypothesis(name, {"factor": factor, "meaning": meaning}, changes, NAMED)


def gradient_factors(training: Training, ranks: int) -> Hypotheses:
    """Gradients that are a multiple."""
    for name, meaning, factor in factors(training, ranks):
        weight = 0.0 if name in ("rank-reduction", "accumulation-sum") else NAMED
        yield reworked(name, {"factor": factor, "meaning": meaning}, multiplied(factor), weight)
    yield reworked("sign-flipped", {"of": "all gradients"}, multiplied(-1.0), NAMED)


def earlier_gradients(_training: Training, _ranks: int) -> Hypotheses:
    """Gradients on top of those of the step before, or in their place."""
    for kind, left in (("clipped", "the clipped gradient"), ("grad", "the gradient before clipping")):
        added, stale = partial(with_earlier, kind, True), partial(with_earlier, kind, False)
        yield reworked("gradient-not-zeroed", {"left": left}, added, shown_by="step 2")
        yield reworked("stale", {"of": "the step before"}, stale, 1.0)


def with_earlier(kind: str, added: bool, grads: dict[str, Array], probe: StepRecord) -> dict[str, Array] | None:
    """The gradients of the step before, `grad` or `clipped`, `added` to these or in place of them; None where they are
    not known. Nothing is left in step 1."""
    if added and probe.step == 1:
        return grads
    if probe.previous is None or probe.previous.step != probe.step - 1:
        return None
    earlier = unprefixed(kind, probe.previous.tensors) or unprefixed("grad", probe.previous.tensors)
    if not earlier:
        return None
    return {n: earlier[n].astype(g.dtype) + (g if added else 0) if n in earlier else g for n, g in grads.items()}


def clip_variants(training: Training, _ranks: int) -> Hypotheses:
    """Clipping over other tensors, or none at all, and the variants of the op that clips."""
    recipe = training.clip
    if recipe is None:
        return
    if recipe.name == "value":
        variants = OPS["clip_grad_value"].variants(ClipGradValueParams(recipe.clip_value), {})
    else:
        shapes = {p.name: p.shape for p in training.parameters}
        variants = OPS["clip_grad_norm"].variants(ClipGradNormParams(recipe.max_norm, recipe.norm_type), shapes)
        # The only group is all parameters.
        for scope in ("tensor", "group", "global") if len(training.groups) > 1 else ("tensor", "global"):
            if scope != recipe.scope:
                changes = Changes(clipping=Clipping(replace(recipe, scope=scope)))
                yield Hypothesis("clip-per-tensor", {"scope": scope}, changes, shown_by=CLIPS)
    yield Hypothesis("clip-ignored", {}, Changes(clipping=Clipping(None)), shown_by=CLIPS)
    for variant in variants:
        if "scope" not in variant.arguments:
            yield hypothesis_of(variant, Changes(clipping=Clipping(recipe, variant.arguments)))


def optimizer_variants(training: Training) -> list[Variant]:
    """The variants of the optimizer for all groups, at the first step and at later ones."""
    op = OPS[training.optimizer]
    variants: dict[str, Variant] = {}
    for own in training.groups:
        for step in (1, 2):
            params = op.params(**own.options)
            params = replace(params, step=step) if hasattr(params, "step") else params
            for variant in op.variants(params, {}):
                variants.setdefault(
                    repr((variant.id, sorted(variant.arguments.items()), "step" in variant.params)), variant
                )
    return list(variants.values())


def update_variants(training: Training, _ranks: int) -> Hypotheses:
    """The variants of the optimizer; where they have the step's number, one before and one behind it."""
    variants = optimizer_variants(training)
    yield from (
        hypothesis_of(variant, Changes(update=Update(variant.arguments)))
        for variant in variants
        if "step" not in variant.params
    )
    for offset in (-1, 1) if any("step" in variant.params for variant in variants) else ():
        changes = Changes(update=Update(offset=offset))
        yield Hypothesis("step-offset", {"offset": offset}, changes, shown_by="an early step")


def precisions(training: Training, _ranks: int) -> Hypotheses:
    """Options of the optimizer that are kept in float32, and what is computed from them."""
    computed = [k.arguments for k in optimizer_variants(training) if k.id == "attribute-precision"]
    for names in narrow_options(training):
        for arguments in ({}, *computed):
            changes = Changes(update=Update(arguments, narrow="float32", narrowed=names))
            weight = 0.01 * (len(names) + len(arguments))
            shown = {"float32": sorted(names), **arguments}
            yield Hypothesis("attribute-precision", shown, changes, weight, shown_by=FLOAT64)


def group_options(training: Training, _ranks: int) -> Hypotheses:
    """Groups that have another one's options: its weight decay, or all of them."""
    groups = training.groups
    decays = dict.fromkeys(group.options.get(WEIGHT_DECAY, 0.0) for group in groups)
    for value in decays if len(decays) > 1 else ():
        changed = {i: {WEIGHT_DECAY: value} for i, g in enumerate(groups) if g.options.get(WEIGHT_DECAY) != value}
        changes = Changes(update=Update(options=changed))
        shown = {WEIGHT_DECAY: value, "of": "every parameter"}
        shown_by = "parameters that are excluded and not 0"
        yield Hypothesis("weight-decay-excludes", shown, changes, shown_by=shown_by)
    for i, own in enumerate(groups):
        for j, other in enumerate(groups):
            if i != j and dict(own.options) != dict(other.options):
                update = Update(options={i: dict(other.options)}, rate=partial(rate_of_group, training, (i,), j))
                shown = {"group": list(own.parameters[:3]), "has those of": list(other.parameters[:3])}
                yield Hypothesis("group-options", shown, Changes(update=update), NAMED)
    if len(groups) > 1:
        later = range(1, len(groups))
        options = {i: dict(groups[0].options) for i in later}
        update = Update(options=options, rate=partial(rate_of_group, training, later, 0))
        yield Hypothesis("group-options", {"every group": "has those of the first"}, Changes(update=update), NAMED)


def rate_of_group(training: Training, groups: Sequence[int], other: int, _step: int, group: int, lr: float) -> float:
    """The rate of `groups` in the proportion in which `other` has it."""
    own = [float(g.options["lr"]) for g in training.groups]
    return lr * own[other] / own[group] if group in groups and own[group] else lr


def other_rates(training: Training, _ranks: int) -> Hypotheses:
    """An update that takes another rate than the one that is reported: the schedule's variants."""
    schedule = SCHEDULES[training.schedule.name]
    for variant in schedule.variants(schedule.options(**training.schedule.options)):
        update = Update(rate=partial(scheduled_rate, training, variant.arguments))
        yield hypothesis_of(variant, Changes(update=update), NAMED, **{"in": "the update, not in the reported rate"})


def scheduled_rate(training: Training, arguments: Mapping[str, Any], step: int, group: int, _lr: float) -> float:
    """The rate of a group with the schedule's arguments changed."""
    return rates(training, step, **arguments)[group]


def update_factors(_training: Training, _ranks: int) -> Hypotheses:
    """Updates that are left out, or go the other way."""
    for name, factor, meaning in (("stale", 0.0, "not applied"), ("sign-flipped", -1.0, "added")):
        yield Hypothesis(name, {"update": meaning}, Changes(update=Update(factor=factor)), NAMED)


@dataclass(frozen=True)
class OptimizerNumber:
    """A number of the optimizer that `groups` share: what the recipe has, and the options with another value."""

    name: str
    asked: float
    groups: Sequence[int]
    options: Callable[[float], Mapping[str, Any]]

    def other(self, value: float) -> Hypothesis:
        """That it has another value."""
        changes = Changes(update=Update(options=dict.fromkeys(self.groups, self.options(value))))
        if self.name == "eps":
            return Hypothesis("eps-value", {"eps": value}, changes, NAMED, "a second moment near eps")
        shown = {self.name: value, "asked": self.asked}
        return Hypothesis("option-value", shown, changes, NAMED, "the second step, whose states are not 0")


def numbers(training: Training) -> Iterator[OptimizerNumber]:
    """The numbers of the optimizer but for the rate, each of the groups that have it. A state that the recipe does not
    keep tells nothing of its number, and one that has different values is not tried."""
    groups = [group.options for group in training.groups]
    for name in groups[0]:
        having = [i for i, options in enumerate(groups) if options[name]] or [*range(len(groups))]
        value = groups[having[0]][name]
        if any(groups[i][name] != value for i in having):
            continue
        if name == "betas":
            yield from (
                OptimizerNumber(f"beta{i + 1}", beta, having, partial(other_beta, value, i))
                for i, beta in enumerate(value)
            )
        elif name in STARTS and (value or name == WEIGHT_DECAY):
            yield OptimizerNumber(name, value, having, partial(option, name))


def option(name: str, value: float) -> dict[str, Any]:
    """An option by its name."""
    return {name: value}


def other_beta(betas: Sequence[float], i: int, value: float) -> dict[str, Any]:
    """The betas with another value at a place."""
    return {"betas": (*betas[:i], value, *betas[i + 1 :])}


def usual_numbers(training: Training, _ranks: int) -> Hypotheses:
    """Numbers that frameworks have by default: another eps, and no other option at all."""
    for number in numbers(training):
        usual = EPSILONS if number.name == "eps" else (0.0,)
        yield from (number.other(value) for value in usual if value != number.asked)


Source = Callable[[Training, int], Hypotheses]
HYPOTHESES: Mapping[str, Sequence[Source]] = {
    "forward": (layer_variants, rank_statistics),
    "loss": (loss_variants, loss_factors),
    "gradient": (first_rank, gradient_factors, earlier_gradients, loss_variants, layer_variants),
    "clip": (clip_variants,),
    "update": (update_variants, group_options, other_rates, update_factors, usual_numbers),
}
"""Where the hypotheses of every stage that the oracle computes come from."""
FLOAT64_ONLY: Mapping[str, Sequence[Source]] = {"update": (precisions,)}


def standing(stage: str, training: Training, ranks: int, dtype: str) -> list[Hypothesis]:
    """Those of a stage, without two of the same diagnosis and parameters; in float64 those about float32 as well."""
    sources = (*HYPOTHESES[stage], *(FLOAT64_ONLY.get(stage, ()) if dtype == "float64" else ()))
    stated = [hypothesis for source in sources for hypothesis in source(training, ranks)]
    return list({repr((h.id, sorted(h.parameters.items()))): h for h in stated}.values())
