"""The schedule's length and the optimizer's groups in a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from parity.config.grammar import required
from parity.config.nodes import Node, Problems, child
from parity.config.tree import only
from parity.training.config.models import EXCLUDES, OPTIMIZERS, STEP, ChosenOptions
from parity.training.groups import DECAY, PatternGroup, grouped, matching
from parity.training.schedules import SCHEDULES
from parity.training.spec import Group

LENGTHS = ("total_iters", "T_max")
"""Options of a schedule that default to the training's steps."""


def with_length(schedule: Node, steps: int) -> Node:
    """The schedule as written; its length defaults to the training's steps."""
    kind = SCHEDULES.get((schedule.get("name") or schedule).text)
    implied = {
        field.name: child(schedule, field.name, steps, str(steps))
        for field in (fields(kind.options) if kind is not None else ())
        if kind is not None and field.name in LENGTHS and required(field) and field.name != kind.warmup
    }
    return schedule.with_value({**implied, **schedule.mapping}) if schedule.is_mapping else schedule


def with_groups(optimizer: Node) -> Node:
    """The optimizer as written; the options of its groups default to its own."""
    op, groups = OPTIMIZERS.get((optimizer.get("name") or optimizer).text), optimizer.get("groups")
    if op is None or groups is None:
        return optimizer
    base = only(optimizer, {field.name for field in fields(op.params)} - {STEP}).mapping
    complete = (item.with_value({**base, **item.mapping}) if item.is_mapping else item for item in groups.items)
    listed = groups.with_value(tuple(complete)) if groups.is_list else groups
    return optimizer.with_value({**optimizer.mapping, "groups": listed})


def groups_of(optimizer: ChosenOptions, names: Sequence[str]) -> tuple[Group, ...]:
    """The optimizer's groups of a model's parameters."""
    own = [PatternGroup(group.beside.parameters, _options(group)) for group in optimizer.beside.groups]
    return grouped(names, _options(optimizer), own, getattr(optimizer.beside, EXCLUDES))


def _options(chosen: ChosenOptions) -> Mapping[str, Any]:
    return {key: value for key, value in vars(chosen.options).items() if key != STEP}


def check_decay(optimizer: ChosenOptions, node: Node, report: Problems) -> None:
    """Report `weight_decay_excludes` of an optimizer without weight decay."""
    if EXCLUDES in node.mapping and DECAY not in _options(optimizer):
        report.add(node.mapping[EXCLUDES], f"{optimizer.name} has no {DECAY}")


def check_patterns(node: Node, names: Sequence[str], report: Problems) -> None:
    """Report an optimizer's patterns that match no parameter, and parameters in two groups."""
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
            report.add(group, f'"{twice}" is already in groups[{claimed[twice]}]; a parameter can be in one group only')
        claimed = {**dict.fromkeys(own, i), **claimed}


def _check_pattern(node: Node, names: Sequence[str], report: Problems) -> None:
    if isinstance(node.value, str) and not matching(node.value, names):
        wider = f"; *{node.value}* would match" if matching(f"*{node.value}*", names) else ""
        message = f'no parameter matches "{node.value}" (a pattern matches a whole name){wider}'
        layers = dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in names)
        report.add(node, message, allowed=(*names, *layers), near=node.value)
