"""The results of a run: rows exactly as results.json has them, built once and read back for every renderer."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
FILE_NAME = "results.json"

Row = dict[str, Any]


class ResultsError(Exception):
    """A run directory that cannot be read; the message says which file and why."""


@dataclass(frozen=True)
class Results:
    """What `results.json` holds (format 1). Rows are plain dicts; numbers that are not finite are floats here."""

    run: Row
    backends: Sequence[Row]
    cases: Sequence[Row]
    outcomes: Sequence[Row]
    comparisons: Sequence[Row]
    diagnoses: Sequence[Row] = ()
    summary: Row = field(default_factory=dict)

    def frame(self) -> pd.DataFrame:
        """The comparisons as a table, with the op of each case."""
        import pandas as pd

        ops = {case["id"]: case["op"] for case in self.cases}
        rows = [{**row, "op": ops[row["case"]]} for row in self.comparisons]
        return pd.DataFrame.from_records(rows)

    def as_json(self) -> str:
        """The document, with "nan", "inf" and "-inf" for numbers that are not finite."""
        document = {
            "format": FORMAT,
            "run": self.run,
            "backends": self.backends,
            "cases": self.cases,
            "outcomes": self.outcomes,
            "comparisons": self.comparisons,
            "diagnoses": self.diagnoses,
            "summary": self.summary,
        }
        return json.dumps(spelled(document), allow_nan=False, indent=1, ensure_ascii=False)


def spelled(value: Any) -> Any:
    """`value` with non-finite floats spelled as strings, ready for strict JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(item) for item in value]
    return value


NUMBERS = frozenset(
    ("max_abs_diff", "max_rel_diff", "rmse", "rtol", "atol", "required_rtol")
    + ("actual_value", "expected_value", "oracle_value")
)


def read_results(run_dir: Path) -> Results:
    """The stored results of a run; raises ResultsError where there are none or they are not ours."""
    path = run_dir / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}; is {run_dir} the directory of a run?") from error
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ResultsError(f"{path}: not a parity result of format {FORMAT}")
    keys = ("run", "backends", "cases", "outcomes", "diagnoses", "summary")
    missing = [key for key in (*keys, "comparisons") if key not in document]
    if missing:
        raise ResultsError(f"{path}: lacks {', '.join(missing)}")
    comparisons = [
        {k: float(v) if k in NUMBERS and isinstance(v, str) else v for k, v in row.items()}
        for row in document["comparisons"]
    ]
    return Results(comparisons=comparisons, **{key: document[key] for key in keys})


def summarize(outcomes: Iterable[Row], comparisons: Iterable[Row]) -> Row:
    """How many of each outcome and verdict there are."""
    return {
        "outcomes": dict(Counter(row["outcome"] for row in outcomes)),
        "verdicts": dict(Counter(row["verdict"] for row in comparisons)),
    }


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
