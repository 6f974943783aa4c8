"""JSON without NaN: numbers that are not finite are spelled as texts; and what msgspec finds wrong in a document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_SHOWN = 400
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
LOCATION = re.compile(r"(?s)(?P<problem>.*?)(?: - at `\$\.?(?P<location>[^`]*)`)?")
"""Splits a message of msgspec into the problem and its location."""


def encode(value: Any) -> str:
    """Strict JSON; non-finite numbers become texts."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(spelled(value), allow_nan=False, ensure_ascii=False)


def spelled(value: Any) -> Any:
    """`value` with non-finite floats spelled as texts, ready for strict JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(item) for item in value]
    return value


def as_number(value: Any) -> Any:
    """A spelled number as a float, also inside a mapping; anything else as it is."""
    if isinstance(value, dict):
        return {key: as_number(item) for key, item in value.items()}
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def escaped(value: Any) -> Any:
    """A document with lone surrogates as JSON escapes."""
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def problem(error: Exception) -> str:
    """`comparisons[3].rtol: expected float, got str`, with limited length."""
    match = LOCATION.fullmatch(str(error))
    if match is None:
        return str(error)[:MAX_SHOWN]
    what = match["problem"].replace("`", "").replace("Object missing required field", "missing field")
    what = f"e{what[1:]}" if what.startswith("Expected ") else what
    return (f"{match['location']}: {what}" if match["location"] else what)[:MAX_SHOWN]
