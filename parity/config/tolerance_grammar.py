"""Tolerances as a config writes them: a table by dtype, rows for gradients and tensors; the last that applies wins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from annotated_types import Ge
from pydantic import AllowInfNan, Field

from parity.cases.dtypes import COARSENESS
from parity.config.grammar import ConfigModel, model_of, read
from parity.config.nodes import Node, Problems
from parity.config.tolerances import ToleranceRule

GRADIENTS = "grad.*"

Limit = Annotated[float, Ge(0), AllowInfNan(False)]


class _Limits(ConfigModel):
    what: ClassVar[str] = "a tolerance"
    rtol: Limit
    atol: Limit


class _ByDtype(ConfigModel):
    """A table by dtype, which users often confuse with one of its rows."""

    what: ClassVar[str] = "a tolerance"
    wanted: ClassVar[str] = "given by dtype: {float32: {rtol: 1.0e-5, atol: 1.0e-6}}"

    @classmethod
    def accepts(cls, value: Any) -> bool:
        return bool(value) and isinstance(value, dict) and not {"rtol", "atol"} & value.keys()

    def rules(self, tensor: str | None = None) -> Iterator[ToleranceRule]:
        """The rules of the table for a tensor, or for all of them."""
        for dtype in COARSENESS:
            row = getattr(self, dtype)
            if row is not None:
                yield ToleranceRule(dtype, tensor, row.rtol, row.atol)


ROWS = dict.fromkeys(COARSENESS, (_Limits, None))
Table: Any = model_of("tolerance_table", "a tolerance", ROWS, base=_ByDtype)


class _Tolerances(_ByDtype):
    def all_rules(self) -> tuple[ToleranceRule, ...]:
        """The rules from general to specific: dtype rows, then `gradients`, then `tensors`."""
        tables = [(None, self), (GRADIENTS, self.gradients), *self.tensors.items()]  # type: ignore[attr-defined]
        return tuple(rule for name, table in tables if table is not None for rule in table.rules(name))


BY_TENSOR = Annotated[dict[str, Table], Field(description="a mapping (key: value)")]
TABLES: Mapping[str, Any] = {"gradients": (Table, None), "tensors": (BY_TENSOR, {})}
Tolerances: Any = model_of("tolerance", "tolerance", {**ROWS, **TABLES}, base=_Tolerances)


def parse_tolerance(node: Node | None, report: Problems) -> tuple[ToleranceRule, ...]:
    """The rules of one `tolerance` mapping; empty and a report if it is wrong."""
    tolerances = None if node is None else read(Tolerances, node, report)
    return () if tolerances is None else tolerances.all_rules()


def check_tensor_names(node: Node | None, tensors: Iterable[str], report: Problems) -> None:
    """Reports names and globs below `tolerance.tensors` that match no tensor."""
    names = tuple(dict.fromkeys(tensors))
    rows: Mapping[str, Node] = (node.get("tensors") or node).mapping if node and node.get("tensors") else {}
    for name, entry in rows.items():
        if not matches_any(name, names):
            report.add(entry, f'there is no tensor "{name}"', allowed=names, near=name, value=False)


def matches_any(glob: str, names: Iterable[str]) -> bool:
    """Whether a tensor's name or glob matches one of `names`."""
    return any(fnmatchcase(name, glob) for name in names)


def parse_options(option: str, texts: Iterable[str], tensors: Iterable[str], report: Problems) -> list[ToleranceRule]:
    """The rules of `--rtol 1e-5 --rtol grad.weight:1e-4` (or --atol), general ones first."""
    names, rules = tuple(dict.fromkeys(tensors)), []
    for text in texts:
        tensor, colon, number = text.rpartition(":")
        value = _number(number)
        if value is None or (colon and not tensor):
            report.add_command_line(
                f"--{option} {text}", f"--{option} must be V or TENSOR:V, where V is a number, 0 or more"
            )
        elif tensor and names and not matches_any(tensor, names):
            report.add_command_line(f"--{option} {text}", f'there is no tensor "{tensor}"', names, tensor)
        else:
            rules.append(ToleranceRule(tensor=tensor or None, **{option: value}))  # type: ignore[arg-type]
    return sorted(rules, key=lambda rule: rule.tensor is not None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if sane_number(value) else None


def sane_number(value: float) -> bool:
    """Whether `value` can be an rtol or atol."""
    return math.isfinite(value) and value >= 0
