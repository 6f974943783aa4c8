"""What a step of a training does with the gradients: optimizer, groups of parameters, schedule, clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

from parity.cases.op import CaseError, Op
from parity.cases.optimizer import check as check_optimizer
from parity.config.fields import check_keys, field_specs, fill, require_mapping
from parity.config.nodes import Node, Report, child
from parity.training.groups import DECAY, PatternGroup, grouped, matching
from parity.training.schedules import SCHEDULES
from parity.training.schedules import check as check_schedule
from parity.training.spec import Clip, Group, Schedule

EXCLUDES = f"{DECAY}_excludes"
STEP = "step"
"""The field of an optimizer's params that counts steps, which a training does itself."""

LENGTHS = ("total_iters", "T_max")
"""Options of a schedule that are the training's steps where the config leaves them out."""


@dataclass(frozen=True)
class ClipNorm:
    """Gradients are scaled to a norm of `max_norm` at most, all together, those of a group, or each by itself."""

    max_norm: float = 1.0
    norm_type: float = 2.0
    scope: Literal["global", "group", "tensor"] = "global"

    def __post_init__(self) -> None:
        check_positive("max_norm", self.max_norm)
        if not self.norm_type >= 1.0:
            raise CaseError("norm_type", f"norm_type must be 1, 2, ... or .inf, not {self.norm_type}")


@dataclass(frozen=True)
class ClipValue:
    """Every element of a gradient is clamped into [-clip_value, clip_value]."""

    clip_value: float = 1.0

    def __post_init__(self) -> None:
        check_positive("clip_value", self.clip_value)


CLIPS: Mapping[str, type[Any]] = {"norm": ClipNorm, "value": ClipValue}


def check_positive(name: str, value: float) -> None:
    """Raise CaseError for a limit that would leave nothing, or everything."""
    if not (isfinite(value) and value > 0):
        raise CaseError(name, f"{name} must be a finite number above 0, not {value}")


def optimizers(ops: Mapping[str, Op]) -> dict[str, Op]:
    """The ops that are one step of an optimizer: they take a parameter and its gradient."""
    return {name: op for name, op in ops.items() if op.input("param") and op.input("grad")}


def choice(node: Node, table: Mapping[str, Any], what: str, report: Report) -> str | None:
    """The `name` of a mapping, if it is in the table; reports it when not."""
    if not node.is_mapping:
        report.add(node, f"{what} is a name, or a mapping: {{name: {next(iter(table))}, ...}}", allowed=table)
        return None
    entry = node.get("name")
    if entry is None:
        report.add(node, f"{what} needs a name", key=f"{node.key}.name", allowed=table)
        return None
    if isinstance(entry.value, str) and entry.value in table:
        return entry.value
    report.add(entry, f"no such {what}", allowed=table, near=entry.text)
    return None


def without(node: Node, *keys: str) -> Node:
    """A mapping without some of its keys."""
    return node.with_value({key: entry for key, entry in node.mapping.items() if key not in keys})


def parse_schedule(node: Node | None, steps: int | None, report: Report) -> Schedule | None:
    """The schedule of the rate, or None after reporting what is wrong; `steps` is how long the training is."""
    if node is None:
        return Schedule()
    name = choice(node, SCHEDULES, "schedule", report)
    if name is None:
        return None
    kind = SCHEDULES[name]
    implied = {
        key: child(node, key, steps, str(steps))
        for key, spec in field_specs(kind.options).items()
        if key in LENGTHS and spec.required and key != kind.warmup and steps is not None
    }
    own = node.with_value({**implied, **without(node, "name").mapping})
    options = filled(kind.options, own, report, f"the schedule {name}", check_schedule)
    return None if options is None else Schedule(name, dict(vars(options)))


def parse_clip(node: Node | None, report: Report) -> Clip | None:
    """The clipping of gradients; None where there is none, or after reporting what is wrong."""
    if node is None or node.value is None:
        return None
    name = choice(node, CLIPS, "clip", report)
    options = None if name is None else fill(CLIPS[name], without(node, "name"), report, f"the clip {name}")
    return None if options is None else Clip(str(name), **vars(options))


def filled(cls: type[Any], node: Node, report: Report, what: str, check: Any) -> Any | None:
    """`fill`, and then `check(options)`, whose CaseError is reported at the option that it names."""
    options = fill(cls, node, report, what)
    if options is None:
        return None
    try:
        check(options)
    except CaseError as error:
        report.add(node.get(error.key.rpartition(".")[2]) or node, error.message)
        return None
    return options


@dataclass(frozen=True)
class Optimizer:
    """An optimizer as written: its name, its options, the groups that have others, and what is not decayed."""

    name: str
    options: Mapping[str, Any]
    groups: tuple[PatternGroup, ...]
    excludes: tuple[str, ...]

    def over(self, names: Sequence[str]) -> tuple[Group, ...]:
        """Its groups over a model's parameters."""
        return grouped(names, self.options, self.groups, self.excludes)


def parse_optimizer(node: Node | None, ops: Mapping[str, Op], report: Report) -> Optimizer | None:
    """The optimizer, or None after reporting what is wrong."""
    table = optimizers(ops)
    name = None if node is None else choice(node, table, "optimizer", report)
    if node is None or name is None:
        return None
    n_before = len(report)
    bare = without(node, "name", "groups", EXCLUDES)
    options = _options(bare, table[name], report, beside=("groups", EXCLUDES))
    groups = tuple(_group(item, bare, table[name], report) for item in _listed(node, "groups", report))
    excludes = tuple(item.text for item in _words(node, EXCLUDES, report))
    if excludes and options is not None and DECAY not in options:
        report.add(node.mapping[EXCLUDES], f"{name} has no {DECAY}")
    if options is None or len(report) > n_before:
        return None
    return Optimizer(name, options, tuple(group for group in groups if group is not None), excludes)


def _options(node: Node, op: Op, report: Report, beside: Sequence[str]) -> dict[str, Any] | None:
    """The optimizer's options but for the step; `beside` are keys that the same mapping takes."""
    allowed = [f.name for f in fields(op.params) if f.name != STEP]
    complete = check_keys(node, (*allowed, *beside), report, op.name)
    own = node.with_value({key: entry for key, entry in node.mapping.items() if key in allowed})
    options = filled(op.params, own, report, op.name, check_optimizer)
    return {key: getattr(options, key) for key in allowed} if complete and options is not None else None


def _group(node: Node, base: Node, op: Op, report: Report) -> PatternGroup | None:
    if not require_mapping(node, report, "a group"):
        return None
    patterns = _words(node, "parameters", report)
    if not patterns:
        message = 'a group needs "parameters": a list of their names or patterns'
        report.add(node, message, key=f"{node.key}.parameters")
    bare = without(node, "parameters")
    check_keys(node, ["parameters", *(f.name for f in fields(op.params) if f.name != STEP)], report, "a group")
    options = _options(bare.with_value({**base.mapping, **bare.mapping}), op, report, beside=tuple(bare.mapping))
    return None if options is None else PatternGroup(tuple(item.text for item in patterns), options)


def check_patterns(node: Node, names: Sequence[str], report: Report) -> None:
    """Reports an optimizer's patterns that match no parameter, and parameters that are in two groups."""
    excludes, groups = node.get(EXCLUDES), node.get("groups")
    for pattern in excludes.items if excludes is not None else ():
        _check_pattern(pattern, names, report)
    claimed: dict[str, int] = {}
    for i, group in enumerate(groups.items if groups is not None else ()):
        patterns = (group.get("parameters") or group).items
        for pattern in patterns:
            _check_pattern(pattern, names, report)
        own = [name for name in names if any(matching(pattern.text, [name]) for pattern in patterns)]
        twice = next((name for name in own if name in claimed), None)
        if twice is not None:
            report.add(group, f'"{twice}" is in groups[{claimed[twice]}] already; it can be in one group only')
        claimed = {**dict.fromkeys(own, i), **claimed}


def _check_pattern(node: Node, names: Sequence[str], report: Report) -> None:
    if isinstance(node.value, str) and not matching(node.value, names):
        wider = f"; *{node.value}* would match" if matching(f"*{node.value}*", names) else ""
        message = f'no parameter is called "{node.value}" (a pattern matches a whole name){wider}'
        layers = dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in names)
        report.add(node, message, allowed=(*names, *layers), near=node.value)


def _listed(node: Node, key: str, report: Report) -> tuple[Node, ...]:
    """The items of a list under a key; nothing where there is none."""
    entry = node.get(key)
    if entry is not None and not entry.is_list:
        report.add(entry, f"{key} must be a list")
    return () if entry is None else entry.items


def _words(node: Node, key: str, report: Report) -> tuple[Node, ...]:
    """The items of a list of texts; what is none is reported and left out."""
    items = _listed(node, key, report)
    for item in items:
        if not isinstance(item.value, str):
            report.add(item, f'{key} are names or patterns in quotes, for example "*.bias"')
    return tuple(item for item in items if isinstance(item.value, str))
