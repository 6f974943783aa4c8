"""The `known` deviations as written; whether an entry is out of date is judged after a run."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from annotated_types import Gt
from pydantic import AfterValidator, AllowInfNan, ConfigDict, WithJsonSchema

from parity.cases.dtypes import COARSENESS
from parity.config.grammar import ConfigModel, Word, read, refusal
from parity.config.nodes import Node, Problems
from parity.config.plan import REASON_WANTED, KnownDeviation, WrittenAt
from parity.diagnoses import catalogue

UNSUPPORTED = "unsupported"
"""The only outcome that can be accepted; an error, a crash or a timeout must be fixed."""

MEASURED = ("tensor", "diagnosis", "error_ratio")
"""The keys that describe a difference; there is none if nothing was computed."""

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _date(text: str) -> datetime.date:
    try:
        if DATE.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise refusal("until must be a date such as 2027-06-30")


def _reason(text: str) -> str:
    if text.strip() in ("", REASON_WANTED):
        raise refusal("a known deviation needs a reason: say why it is accepted")
    return text


class KnownEntry(ConfigModel):
    """One entry of `known`."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"required": ["outcome"], "properties": {"outcome": {"const": UNSUPPORTED}}},
            "then": {"properties": {key: {"type": "null"} for key in MEASURED}},
        }
    )
    what: ClassVar[str] = "a known deviation"
    case: str
    reason: Annotated[str, AfterValidator(_reason)]
    backend: str | None = None
    dtype: Annotated[str, Word("there is no dtype {word}", tuple(COARSENESS))] | None = None
    tensor: str | None = None
    diagnosis: Annotated[str, Word("there is no diagnosis {word}", catalogue)] | None = None
    error_ratio: Annotated[float, Gt(0), AllowInfNan(False)] | None = None
    until: Annotated[str, AfterValidator(_date), WithJsonSchema({"type": "string"})] | None = None
    outcome: Annotated[str, Word("the outcome {word} cannot be accepted", (UNSUPPORTED,))] | None = None


def parse_known(node: Node, report: Problems, backends: Sequence[str] = ()) -> KnownDeviation | None:
    """One entry of `known`; None and a report if it is wrong. `backends`: the allowed ones, empty for no check."""
    entry: KnownEntry | None = read(KnownEntry, node, report)
    if entry is None:
        return None
    if backends and entry.backend is not None and entry.backend not in backends:
        backend = node.mapping["backend"]
        report.add(backend, f'there is no backend "{entry.backend}"', allowed=backends, near=entry.backend)
    for key in MEASURED:
        if entry.outcome is not None and getattr(entry, key) is not None:
            report.add(node.mapping[key], f"{key} describes a difference; it cannot be combined with outcome")
    values = {key: value for key, value in entry if key != "outcome"}
    return KnownDeviation(**values, source=WrittenAt(node.file, node.line), unsupported=entry.outcome == UNSUPPORTED)
