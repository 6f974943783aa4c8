"""Computable causes of a wrong step: a table of sources for each stage.

The variants are those of the ops. The names of an alteration's arguments begin with what they are options of:
`update.decoupled`, `layer_norm@encoder.norm.ddof` (see `oracle.NOTHING`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.op import Variant
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.evaluator import Alteration
from parity.judge.diagnose.proposals import UNNAMED, UNNAMED_WEIGHT
from parity.training.judge.measured import MeasuredStage, owner, shown
from parity.training.schedules import SCHEDULES
from parity.training.spec import Parameter, Training, walk
from parity.training.steps import clip_params, rates
from parity.training.variants import model_variants, narrow_options, on

WEIGHT_DECAY, LOSS = "weight_decay", "loss"
ALONE, NAMED, LOSSY = 0.125, 0.25, 1.5
"""The weights of a fault in only one layer of a kind, of a number with a meaning, and of a range of error sizes."""
IN_BACKWARD: Mapping[str, Any] = {"backward.only": True}
CLIPS = "steps in which the norm is above the limit"
FLOAT64 = "float64, which shows what float32 loses"
HIDING = {"update": ("clip", "gradient"), "clip": ("gradient",), "loss": ("forward",)}
"""Earlier stages, the latest first, whose causes appear in a stage if the mode does not expose theirs."""


@dataclass(frozen=True)
class Stage:
    """A stage that exceeds the error bound, with the probe that is searched; `forward`: its forward pass is right."""

    training: Training
    ranks: int
    dtype: str
    measured: MeasuredStage
    forward: bool = False


Causes = Iterator[Cause]


def cause(name: str, parameters: Mapping[str, Any], weight: float = 0.0, shown_by: str = "", **options: Any) -> Cause:
    """A cause whose alteration has these options, written `<of>__<option>`."""
    arguments = {option.replace("__", ".", 1): value for option, value in options.items()}
    return Cause(name, parameters, Alteration(arguments), weight=weight, shown_by=shown_by)


def varied(of: str, variant: Variant, weight: float = 0.0, **parameters: Any) -> Cause:
    """A variant of an op or a schedule as a cause."""
    options = {f"{of}__{name}": value for name, value in variant.arguments.items()}
    return cause(variant.id, {**variant.arguments, **parameters}, weight, variant.shown_by, **options)


def in_model(key: str, variant: Variant, *, backward: bool) -> Cause:
    """A variant of the model as a cause; with `backward`, it changes only gradients."""
    options = {**variant.arguments, **variant.params, **({"absent": variant.absent} if variant.absent else {})}
    lossy = variant.id == "reduced-precision"
    arguments = {f"{key}.{name}": value for name, value in options.items()}
    arguments |= IN_BACKWARD if backward and not lossy else {}
    alteration = Alteration(unstable=arguments) if lossy else Alteration(arguments)
    parameters = {"in": key, **{name: v for name, v in options.items() if v != ()}}
    weight = LOSSY if lossy else ALONE if "@" in key else 0.0
    return Cause(variant.id, parameters, alteration, weight=weight, shown_by=variant.shown_by, lossy=lossy)


def layer_variants(stage: Stage) -> Causes:
    """The variants of all layers of a kind, and of each layer alone."""
    layers = list(walk(stage.training.layers))
    for key, variant in model_variants(stage.training):
        if key != LOSS:
            yield in_model(key, variant, backward=stage.forward)
            same_op = [layer for layer in layers if layer.op == key]
            every = [on(key, layer) for layer in same_op if len(same_op) > 1]
            yield from (in_model(one, variant, backward=stage.forward) for one in every)


def loss_variants(stage: Stage) -> Causes:
    """The variants of the loss, such as a sum instead of the mean."""
    variants = (variant for key, variant in model_variants(stage.training) if key == LOSS)
    yield from (in_model(LOSS, variant, backward=stage.forward) for variant in variants)


def rank_statistics(stage: Stage) -> Causes:
    """Batch statistics that each rank takes over its own rows."""
    if stage.ranks > 1:
        shown_by = "layers that take statistics over the batch"
        parameters = {"over": "the rows of each rank"}
        yield cause("batch-norm-statistics", parameters, shown_by=shown_by, ranks__count=stage.ranks)


def first_rank(stage: Stage) -> Causes:
    """The gradient of the first rank alone."""
    if stage.ranks > 1:
        parameters = {"rows": "of the first rank alone"}
        ranks: dict[str, Any] = {"ranks__count": stage.ranks, "ranks__reduction": "first"}
        yield cause("rank-reduction", parameters, shown_by=FACTOR_SHOWN_BY["rank-reduction"], **ranks)


def factors(stage: Stage) -> Iterator[tuple[str, str, float]]:
    """Factors of a loss and its gradient with a known meaning: id, meaning, factor."""
    training, ranks = stage.training, stage.ranks
    if ranks > 1:
        yield "rank-reduction", "summed over the ranks", float(ranks)
        yield "rank-reduction", "divided by the number of ranks twice", 1.0 / ranks
    if training.accumulation > 1:
        yield "accumulation-sum", "summed over the micro-batches", float(training.accumulation)
        yield "accumulation-sum", "divided by their number twice", 1.0 / training.accumulation
    if training.batch_size > 1:
        yield "mean-vs-sum", "summed over the rows", float(training.batch_size)
    yield "scaled", "doubled", 2.0


FACTOR_SHOWN_BY = {
    "accumulation-sum": "an accumulation of 2 or more",
    "rank-reduction": "several ranks",
    "mean-vs-sum": "several rows in a step",
}
"""What shows the factors of these ids; any loss shows the others."""


def loss_factors(stage: Stage) -> Causes:
    """A loss and its gradient, multiplied by a factor."""
    for name, meaning, factor in factors(stage):
        parameters = {"factor": factor, "meaning": meaning}
        shown_by = FACTOR_SHOWN_BY.get(name, "")
        yield cause(name, parameters, NAMED, shown_by, loss__factor=factor, gradient__factor=factor)
    exact, observed = (float(own.get("loss", 0.0)) for own in (stage.measured.exact, stage.measured.observed))
    if exact and observed and np.isfinite(observed):
        factor, parameters = observed / exact, {"factor": observed / exact, "meaning": UNNAMED}
        yield cause("scaled", parameters, UNNAMED_WEIGHT, loss__factor=factor, gradient__factor=factor)


def gradient_factors(stage: Stage) -> Causes:
    """Gradients multiplied by a factor: all, or only the wrong ones."""
    for own, of in parts(stage):
        for name, meaning, factor in factors(stage):
            weight = 0.0 if name in ("rank-reduction", "accumulation-sum") else NAMED
            parameters = {"factor": factor, "meaning": meaning, **own}
            shown_by = FACTOR_SHOWN_BY.get(name, "")
            yield cause(name, parameters, weight + ALONE * bool(of), shown_by, gradient__factor=factor, gradient__of=of)
        yield cause(
            "sign-flipped",
            own or {"of": "all gradients"},
            NAMED + ALONE * bool(of),
            gradient__factor=-1.0,
            gradient__of=of,
        )


def parts(stage: Stage) -> Iterator[tuple[Mapping[str, Any], frozenset[str]]]:
    """Nothing, for all parameters; then, if only some are wrong, these: as a cause's parameters, and as a set."""
    yield {}, frozenset()
    measured = stage.measured
    wrong = frozenset(map(owner, measured.tensors_outside))
    if wrong and wrong < frozenset(map(owner, measured.exact)):
        yield {"of": sorted(wrong)}, wrong


def limited(one: Cause, stage: Stage) -> Causes:
    """A cause in the update of all parameters, and of only the wrong ones."""
    given = one.alteration or Alteration()
    for own, of in parts(stage):
        arguments = {**given.arguments, "update.of": of} if of else given.arguments
        alteration = replace(given, arguments=arguments)
        yield replace(
            one, parameters={**one.parameters, **own}, alteration=alteration, weight=one.weight + ALONE * bool(of)
        )


def earlier_gradients(stage: Stage) -> Causes:
    """Gradients added to those of the previous step, or replaced by them; none if these are unknown."""
    previous = stage.measured.probe.previous
    if previous is not None and any(name.startswith(("grad.", "clipped.")) for name in previous.tensors):
        kinds = (("clipped", "the clipped gradient"), ("grad", "the gradient before clipping"))
        for (own, of), (kind, left) in product(parts(stage), kinds):
            options, weight = {"gradient__earlier": kind, "gradient__of": of}, ALONE * bool(of)
            yield cause("gradient-not-zeroed", {"left": left, **own}, weight, "step 2", **options)
            parameters = {"from": "the previous step", **own}
            yield cause("stale", parameters, 1.0 + weight, gradient__stale=True, **options)


def clip_variants(stage: Stage) -> Causes:
    """Clipping over other tensors, no clipping, and the variants of the clipping op."""
    recipe = stage.training.clip
    if recipe is None:
        return
    yield cause("clip-ignored", {}, shown_by=CLIPS, clip__ignored=True)
    if recipe.name == "norm":
        # A single group is the same as all parameters.
        for scope in ("tensor", "group", "global") if len(stage.training.groups) > 1 else ("tensor", "global"):
            if scope != recipe.scope:
                yield cause("clip-per-tensor", {"scope": scope}, shown_by=CLIPS, clip__scope=scope)
        for meaning, names in memberships(stage.training):
            parameters = {"without": meaning}
            yield cause("clip-left-out", parameters, NAMED, CLIPS, clip__without=names)
            spared = {**parameters, "which are": "not clipped either"}
            yield cause("clip-left-out", spared, NAMED, CLIPS, clip__without=names, clip__spared=True)
    shapes = {p.name: p.shape for p in stage.training.parameters}
    for variant in OPS[f"clip_grad_{recipe.name}"].variants(clip_params(recipe), shapes):
        if "scope" not in variant.arguments:
            yield varied("clip", variant)


def memberships(training: Training) -> Iterator[tuple[str, frozenset[str]]]:
    """Properties by which a loop may select parameters, each with the parameters that have it."""
    questions: Sequence[Callable[[Parameter], str]] = (
        lambda p: f"parameters of {'one axis' if len(p.shape) < 2 else 'several axes'}",
        lambda p: f"*.{p.name.rpartition('.')[2]}",
        lambda p: p.name,
        lambda p: f"{p.name.partition('.')[0]}.*",
    )
    sets: dict[frozenset[str], str] = {}
    for question in questions:
        answers = {p.name: question(p) for p in training.parameters}
        for answer in dict.fromkeys(answers.values()):
            names = frozenset(name for name, own in answers.items() if own == answer)
            if len(names) < len(answers):
                sets.setdefault(names, answer)
    yield from ((answer, names) for names, answer in sets.items())


def optimizer_variants(training: Training) -> list[Variant]:
    """The variants of the optimizer for all groups, in the first step and in later ones."""
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


def update_variants(stage: Stage) -> Causes:
    """The variants of the optimizer, and if any depends on the step's number, a number that is off by one."""
    variants = optimizer_variants(stage.training)
    for variant in variants:
        if "step" not in variant.params:
            yield from limited(varied("update", variant), stage)
    for offset in (-1, 1) if any("step" in variant.params for variant in variants) else ():
        yield cause("step-offset", {"offset": offset}, shown_by="an early step", update__offset=offset)


def precisions(stage: Stage) -> Causes:
    """Optimizer options stored as float32, and variants of what is computed from them; only float64 shows them."""
    if stage.dtype != "float64":
        return
    variants = optimizer_variants(stage.training)
    computed = [variant.arguments for variant in variants if variant.id == "attribute-precision"]
    for names in narrow_options(stage.training):
        for arguments in ({}, *computed):
            options = {f"update__{name}": value for name, value in arguments.items()}
            options |= {"update__narrow": "float32", "update__narrowed": names}
            weight = 0.01 * (len(names) + len(arguments))
            yield cause("attribute-precision", {"float32": sorted(names), **arguments}, weight, FLOAT64, **options)


def group_options(stage: Stage) -> Causes:
    """Groups with the weight decay or all options of another group; and swapped betas."""
    groups = stage.training.groups
    tuples = {name: tuple(reversed(value)) for name, value in groups[0].options.items() if isinstance(value, tuple)}
    for name, value in tuples.items():
        changed = {i: {name: value} for i in range(len(groups))}
        yield cause("option-value", {name: list(value), "of": "another place"}, update__options=changed)
    decays = dict.fromkeys(group.options.get(WEIGHT_DECAY, 0.0) for group in groups)
    for value in decays if len(decays) > 1 else ():
        changed = {i: {WEIGHT_DECAY: value} for i, g in enumerate(groups) if g.options.get(WEIGHT_DECAY) != value}
        shown_by = "parameters that are excluded and not 0"
        parameters = {WEIGHT_DECAY: value, "of": "every parameter"}
        yield cause("weight-decay-excludes", parameters, shown_by=shown_by, update__options=changed)
    for i, own in enumerate(groups):
        for j, other in enumerate(groups):
            if i != j and dict(own.options) != dict(other.options):
                parameters = {"group": list(own.parameters[:3]), "has those of": list(other.parameters[:3])}
                yield other_group(stage.training, parameters, (i,), j)
    if len(groups) > 1:
        yield other_group(stage.training, {"every group": "has those of the first"}, range(1, len(groups)), 0)


def other_group(training: Training, parameters: Mapping[str, Any], groups: Sequence[int], other: int) -> Cause:
    """Groups that have the options and the rate of another group."""
    options = {i: dict(training.groups[other].options) for i in groups}
    rate = partial(rate_of_group, training, tuple(groups), other)
    shown_by = "groups of parameters whose options differ"
    return cause("group-options", parameters, NAMED, shown_by, update__options=options, update__rate=rate)


def rate_of_group(training: Training, groups: Sequence[int], other: int, _step: int, group: int, lr: float) -> float:
    """The rate of a group; those in `groups` follow the schedule from the base rate of `other`."""
    own = [float(g.options["lr"]) for g in training.groups]
    return lr * own[other] / own[group] if group in groups and own[group] else lr


def other_rates(stage: Stage) -> Causes:
    """Updates that take another rate than the reported one: the schedule's variants."""
    schedule = SCHEDULES[stage.training.schedule.name]
    for variant in schedule.variants(schedule.options(**stage.training.schedule.options)):
        rate, where = partial(scheduled_rate, stage.training, variant.arguments), "the update, not in the reported rate"
        parameters = {**variant.arguments, "in": where}
        yield cause(variant.id, parameters, NAMED, variant.shown_by, update__rate=rate)


def scheduled_rate(training: Training, arguments: Mapping[str, Any], step: int, group: int, _lr: float) -> float:
    """The rate of a group, with changed arguments of the schedule."""
    return rates(training, step, **arguments)[group]


def update_factors(stage: Stage) -> Causes:
    """Updates that are skipped, have the wrong sign or are scaled; and parameters that are not updated."""
    for name, factor, meaning in (("stale", 0.0, "not applied"), ("sign-flipped", -1.0, "added")):
        yield cause(name, {"update": meaning}, NAMED, update__factor=factor)
    measured = stage.measured
    still = frozenset(own for own in map(owner, measured.tensors_outside) if left_alone(own, measured))
    if still:
        yield cause("stale", {"parameters": sorted(still), "update": "not applied"}, NAMED, update__skipped=still)
    starts = {n: v.astype(measured.exact[n].dtype) for n, v in measured.probe.before.items() if n in measured.exact}
    steps = [(measured.observed[n] - v, measured.exact[n] - v) for n, v in starts.items() if n.startswith("param.")]
    power = sum(float(np.vdot(exact, exact)) for _, exact in steps)
    factor = sum(float(np.vdot(exact, observed)) for observed, exact in steps) / power if power else 0.0
    if factor and np.isfinite(factor):
        parameters = {"factor": factor, "of": "the step of every parameter"}
        yield cause("scaled", parameters, UNNAMED_WEIGHT, update__factor=factor)


def left_alone(own: str, measured: MeasuredStage) -> bool:
    """Whether a parameter and its states are unchanged, bit for bit."""
    before = measured.probe.before
    mine = [name for name in measured.observed if owner(name) == own]
    return all(bool(np.all(measured.observed[name] == before.get(name, 0.0))) for name in mine)


SOURCES: Mapping[str, Sequence[Callable[[Stage], Causes]]] = {
    "forward": (layer_variants, rank_statistics),
    "loss": (loss_variants, loss_factors),
    "gradient": (first_rank, gradient_factors, earlier_gradients, loss_variants, layer_variants),
    "clip": (clip_variants,),
    "update": (update_variants, precisions, group_options, other_rates, update_factors),
}
"""The sources of causes for each stage that the oracle computes."""


def standing(name: str, stage: Stage) -> list[Cause]:
    """The causes of a stage and of earlier ones that the mode does not expose, without duplicates."""
    hidden = HIDING.get(name, ())
    n_hidden = next((i for i, other in enumerate(hidden) if shown(other, stage.measured.probe)), len(hidden))
    stages = (name, *hidden[:n_hidden])
    stated = [one for stage_name in stages for source in SOURCES[stage_name] for one in source(stage)]
    return list({repr((c.id, sorted(c.parameters.items()))): c for c in stated}.values())
