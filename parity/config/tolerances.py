"""Tolerances: a table by dtype, rows for gradients, rows for tensors; the last rule that applies wins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from parity.cases.draw import COARSENESS
from parity.config.fields import check_keys, fill, require_mapping
from parity.config.nodes import Node, Report
from parity.config.plan import Tolerance, ToleranceRule

GRADIENTS = "grad.*"
EXAMPLE = "float32: {rtol: 1.0e-5, atol: 1.0e-6}"


def parse_tolerance(node: Node | None, report: Report) -> tuple[ToleranceRule, ...]:
    """The rules of one `tolerance` mapping: dtype rows, then `gradients`, then `tensors`."""
    if node is None:
        return ()
    if not node.is_mapping:
        report.add(node, f"a tolerance is given by dtype: {{{EXAMPLE}}}")
        return ()
    check_keys(node, (*COARSENESS, "gradients", "tensors"), report, "tolerance")
    rules = _rows(node, None, report)
    gradients, tensors = node.get("gradients"), node.get("tensors")
    if gradients is not None:
        rules += _table(gradients, GRADIENTS, report)
    if tensors is not None and require_mapping(tensors, report, "tensors"):
        for name, rows in tensors.mapping.items():
            rules += _table(rows, name, report)
    return tuple(rules)


def _table(node: Node, tensor: str, report: Report) -> list[ToleranceRule]:
    if not node.mapping or {"rtol", "atol"} & node.mapping.keys():
        report.add(node, f"a tolerance is given by dtype: {{{EXAMPLE}}}")
        return []
    check_keys(node, COARSENESS, report, "a tolerance")
    return _rows(node, tensor, report)


def _rows(node: Node, tensor: str | None, report: Report) -> list[ToleranceRule]:
    rules = []
    for dtype in COARSENESS:
        entry = node.get(dtype)
        tolerance = fill(Tolerance, entry, report, "a tolerance") if entry is not None else None
        if entry is not None and tolerance is not None and _sane(entry, tolerance, report):
            rules.append(ToleranceRule(dtype, tensor, tolerance.rtol, tolerance.atol))
    return rules


def _sane(node: Node, tolerance: Tolerance, report: Report) -> bool:
    wrong = [key for key in ("rtol", "atol") if not sane_number(getattr(tolerance, key))]
    for key in wrong:
        report.add(node.mapping[key], f"{key} must be finite and not below 0")
    return not wrong


def sane_number(value: float) -> bool:
    """Whether `value` can be an rtol or atol."""
    return math.isfinite(value) and value >= 0


def check_tensor_names(node: Node | None, tensors: Iterable[str], report: Report) -> None:
    """Reports names and globs below `tolerance.tensors` that match no tensor."""
    names = tuple(dict.fromkeys(tensors))
    rows: Mapping[str, Node] = (node.get("tensors") or node).mapping if node and node.get("tensors") else {}
    for name, entry in rows.items():
        if not matches_any(name, names):
            report.add(entry, f'no tensor is called "{name}"', allowed=names, near=name, value=False)


def matches_any(glob: str, names: Iterable[str]) -> bool:
    """Whether a tensor's name or glob matches one of `names`."""
    return any(fnmatchcase(name, glob) for name in names)


def parse_options(option: str, texts: Iterable[str], tensors: Iterable[str], report: Report) -> list[ToleranceRule]:
    """The rules of `--rtol 1e-5 --rtol grad.weight:1e-4` (or --atol), the general ones first."""
    names, rules = tuple(dict.fromkeys(tensors)), []
    for text in texts:
        tensor, colon, number = text.rpartition(":")
        value = _number(number)
        if value is None or (colon and not tensor):
            report.add_command_line(f"--{option} {text}", f"--{option} takes V or NAME:V, V a number not below 0")
        elif tensor and names and not matches_any(tensor, names):
            report.add_command_line(f"--{option} {text}", f'no tensor is called "{tensor}"', names, tensor)
        elif option == "rtol":
            rules.append(ToleranceRule(tensor=tensor or None, rtol=value))
        else:
            rules.append(ToleranceRule(tensor=tensor or None, atol=value))
    return sorted(rules, key=lambda rule: rule.tensor is not None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if sane_number(value) else None
