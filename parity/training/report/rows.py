"""The rows of `trainings` in results.json, read without trust: every field is there and of a usable size."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from parity.training.spec import CURVES, STAGES

VALUES = ("loss", "grad_norm", "lr")
ENVELOPES = ("loss", "grad_norm")
SEEN = ("probe", "curve")

MAX_ROWS = 20_000
MAX_STEPS = 1_000_000
MAX_PROBES = 10_000
MAX_TEXT = 2_000
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def read_trainings(rows: Any, cases: Collection[str]) -> list[dict[str, Any]]:
    """The rows with their numbers as floats; raises ValueError for what they should not be, or for unknown `cases`."""
    return [training(row, cases) for row in listed(rows, "trainings", MAX_ROWS)]


def training(row: Any, cases: Collection[str]) -> dict[str, Any]:
    """One row."""
    found = mapping(row, "a row")
    if found.get("case") not in cases:
        raise ValueError(f"a training of an unknown case: {str(found.get('case'))[:200]}")
    ensemble = mapping(found.get("ensemble"), "ensemble")
    return {
        **{name: text(found.get(name), name) for name in ("case", "dtype", "backend", "expected")},
        **{name: whole(found.get(name), name, MAX_STEPS) for name in ("steps", "planned")},
        "ensemble": {
            "of": optional(text, ensemble.get("of"), "ensemble: of"),
            "members": whole(ensemble.get("members"), "ensemble: members", MAX_STEPS),
        },
        "parting": optional(parting, found.get("parting"), "parting"),
        "probes": [probe(item) for item in listed(found.get("probes"), "probes", MAX_PROBES)],
        "curves": curves(mapping(found.get("curves"), "curves")),
        "norms": optional(text, found.get("norms"), "norms"),
    }


def parting(value: Any, name: str) -> dict[str, Any]:
    """Where a side leaves what rounding explains."""
    found = mapping(value, name)
    stage, seen = found.get("stage"), found.get("seen")
    if stage is not None and stage not in STAGES:
        raise ValueError(f"{name}: an unknown stage: {str(stage)[:200]}")
    if seen not in SEEN:
        raise ValueError(f"{name}: seen is neither {' nor '.join(SEEN)}: {str(seen)[:200]}")
    return {
        "step": whole(found.get("step"), f"{name}: step", MAX_STEPS),
        "stage": stage,
        "tensor": optional(text, found.get("tensor"), f"{name}: tensor"),
        "ratio": optional(number, found.get("ratio"), f"{name}: ratio"),
        "diagnosis": optional(text, found.get("diagnosis"), f"{name}: diagnosis"),
        "seen": seen,
    }


def probe(value: Any) -> dict[str, Any]:
    """A step that was asked of the oracle, with the ratios of the stages that were observed."""
    found = mapping(value, "a probe")
    ratios = mapping(found.get("ratios"), "ratios of a probe")
    known = {stage: number(ratios[stage], f"probe: {stage}") for stage in STAGES if stage in ratios}
    return {"step": whole(found.get("step"), "step of a probe", MAX_STEPS), "ratios": known}


def curves(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of each step, the ratios and the envelope."""
    return {
        **{name: numbers(found.get(name), name) for name in VALUES},
        "ratio": dict(named(found, "ratio", CURVES)),
        "envelope": dict(named(found, "envelope", ENVELOPES)),
    }


def named(found: Mapping[str, Any], name: str, keys: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    """The curves that stand below a name."""
    given = mapping(found.get(name), name)
    yield from ((key, numbers(given[key], f"{name}: {key}")) for key in keys if key in given)


def numbers(value: Any, name: str) -> list[float]:
    """A curve."""
    return [number(item, name) for item in listed(value, name, MAX_STEPS)]


def number(value: Any, name: str) -> float:
    """A number, also a spelled-out one."""
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name}: not a number: {str(value)[:200]}")
    return float(value)


def whole(value: Any, name: str, most: int) -> int:
    """A number of steps, or the like."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name}: not a whole number from 0 to {most}: {str(value)[:200]}")
    return value


def text(value: Any, name: str) -> str:
    """A name or a path."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name}: not a text of at most {MAX_TEXT} characters: {str(value)[:200]}")
    return value


def optional(read: Callable[[Any, str], Any], value: Any, name: str) -> Any:
    """What `read` makes of a value; None as it is."""
    return None if value is None else read(value, name)


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}: not a JSON object: {str(value)[:200]}")
    return value


def listed(value: Any, name: str, most: int) -> list[Any]:
    """A list that is not too long."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{name}: not a list of at most {most}: {str(value)[:200]}")
    return value
