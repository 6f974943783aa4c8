"""The results of a run: rows exactly as results.json has them, built once and read back for every renderer."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.judge.compare.verdict import Verdict
from parity.training.report.rows import NON_FINITE, read_trainings

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
    known: Sequence[Row] = ()
    summary: Row = field(default_factory=dict)
    trainings: Sequence[Row] = ()

    def frame(self) -> pd.DataFrame:
        """The comparisons as a table, with the op of each case."""
        import pandas as pd

        ops = {case["id"]: case["op"] for case in self.cases}
        rows = [{**row, "op": ops[row["case"]]} for row in self.comparisons]
        return pd.DataFrame.from_records(rows)

    def as_json(self) -> str:
        """The document, one row a line, with "nan", "inf" and "-inf" for numbers that are not finite."""
        parts = {
            "format": encode(FORMAT),
            "run": encode(self.run),
            "backends": encode_rows(self.backends),
            "cases": encode_rows(self.cases),
            "outcomes": encode_rows(self.outcomes),
            "comparisons": encode_rows(self.comparisons),
            "diagnoses": encode_rows(self.diagnoses),
            "known": encode_rows(self.known),
            "trainings": encode_rows(self.trainings),
            "summary": encode(self.summary),
        }
        return "{" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "}\n"


def encode_rows(rows: Sequence[Row]) -> str:
    """A JSON list with one row a line."""
    return "[" + ",\n".join(map(encode, rows)) + "]"


def encode(value: Any) -> str:
    """Strict JSON; numbers that are not finite become strings."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(spelled(value), allow_nan=False, ensure_ascii=False)


def spelled(value: Any) -> Any:
    """`value` with non-finite floats spelled as strings, ready for strict JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(item) for item in value]
    return value


TEXTS = frozenset(("case", "dtype", "tensor", "actual", "expected", "verdict", "known", "message"))


MEASURED = ("actual_value", "expected_value", "max_abs_diff", "required_rtol", "oracle_value")
SIDES = ("actual", "expected")
MAX_BYTES = 1 << 30
MAX_DIGITS = 300
RESIDUALS = ("residual_before", "residual_after")
MISSING = object()
NUMBER = (int, float, str, type(None))
NUMBERS = (int, float, type(None))
VERDICTS = frozenset(verdict.value for verdict in Verdict)
PARTS: tuple[tuple[str, type, Mapping[str, Any]], ...] = (
    ("run", dict, {"baseline": str}),
    ("backends", list, {"name": str, "framework": str, "version": str}),
    ("cases", list, {"id": str, "op": str, "params": dict, "inputs": dict, "source": dict, "dtypes": list}),
    ("outcomes", list, dict.fromkeys(("case", "dtype", "backend", "outcome", "message"), str)),
    (
        "comparisons",
        list,
        dict.fromkeys(("case", "dtype", "tensor", "actual", "expected", "verdict", "message"), str)
        | dict.fromkeys(("rtol", "atol"), (int, float))
        | dict.fromkeys(("max_abs_diff", "required_rtol", "actual_value", "expected_value", "oracle_value"), NUMBER)
        | {"culprit": list, "suspect": bool, "known": (str, type(None)), "error_ratio": dict}
        | {"worst_index": (list, type(None))},
    ),
    (
        "diagnoses",
        list,
        dict.fromkeys(("case", "dtype", "backend", "id", "title"), str)
        | {"tensors": list, "explained": bool, "evidence": dict}
        | dict.fromkeys(("residual_before", "residual_after"), NUMBER),
    ),
    ("known", list, dict.fromkeys(("case", "reason", "state", "message"), str)),
    ("summary", dict, {"outcomes": dict, "verdicts": dict, "exit_code": int}),
)
"""What a renderer relies on: each part of the document, its kind, and the fields of its objects with their types."""

SOURCE_FIELDS = {"file": str, "line": int}
INPUT_FIELDS = {"shape": list, "draw": str, "file": (str, type(None))}


def read_results(run_dir: Path) -> Results:
    """The stored results of a run; raises ResultsError where there are none or they are not ours."""
    path = run_dir / FILE_NAME
    try:
        document = read_json(path, MAX_BYTES)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}; is {run_dir} the directory of a run?") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ResultsError(f"{path}: not a parity result of format {FORMAT}")
    for key, kind, fields in PARTS:
        check_part(path, document.get(key), key, kind, fields)
    check_part(path, [case["source"] for case in document["cases"]], "cases: source", list, SOURCE_FIELDS)
    inputs = [item for case in document["cases"] for item in case["inputs"].values()]
    check_part(path, inputs, "cases: inputs", list, INPUT_FIELDS)
    known = {case["id"] for case in document["cases"]}
    strange = [row for row in document["comparisons"] if row["case"] not in known or row["verdict"] not in VERDICTS]
    if strange:
        raise ResultsError(
            f"{path}: a comparison of an unknown case or with an unknown verdict: {str(strange[0])[:200]}"
        )
    comparisons = [parsed(row) for row in document["comparisons"]]
    for row in comparisons:
        check_measured(path, row)
    for row in document["diagnoses"]:
        check_texts(path, row, "tensors")
    diagnoses = [{**row, **as_number({k: row[k] for k in RESIDUALS})} for row in document["diagnoses"]]
    try:
        trainings = read_trainings(document.get("trainings", []), known)
    except ValueError as error:
        raise ResultsError(f"{path}: trainings: {error}") from error
    others = {key: document[key] for key, *_ in PARTS if key not in ("comparisons", "diagnoses")}
    return Results(comparisons=comparisons, diagnoses=diagnoses, trainings=trainings, **others)


def read_json(path: Path, max_bytes: int) -> Any:
    """A JSON file that may come from anywhere; numbers too long for a float become infinite.

    Raises OSError where it is no regular file, ValueError where it is larger than `max_bytes` or not JSON, and
    RecursionError where it is nested too deeply.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > max_bytes:
        raise ValueError(f"it is larger than {max_bytes >> 20} MiB")
    return json.loads(path.read_text(encoding="utf-8"), parse_int=whole)


def whole(digits: str) -> float:
    """A whole number; a float where no float could hold it otherwise."""
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def check_part(path: Path, part: Any, key: str, kind: type, fields: Mapping[str, Any]) -> None:
    """Raise ResultsError where a part of the document is not what it should be."""
    rows = part if isinstance(part, list) else [part]
    if not isinstance(part, kind) or not all(isinstance(row, dict) for row in rows):
        raise ResultsError(f"{path}: {key} is not a {'list of objects' if kind is list else 'JSON object'}")
    for row in rows:
        for field_name, types in fields.items():
            if not isinstance(row.get(field_name, MISSING), types):
                raise ResultsError(f"{path}: {key}: {field_name} is missing or wrong in {str(row)[:200]}")


def check_measured(path: Path, row: Row) -> None:
    """Raise ResultsError where a comparison lacks the numbers that its worst element has, or names no side."""
    check_texts(path, row, "culprit")
    ratios = [row["error_ratio"].get(side, "") for side in SIDES]
    measured = [row[name] for name in MEASURED]
    lacking = row["worst_index"] is not None and None in measured[:2]
    if lacking or any(not isinstance(value, NUMBERS) for value in (*measured, *ratios)):
        raise ResultsError(f"{path}: a comparison without the numbers that it needs: {str(row)[:200]}")


def check_texts(path: Path, row: Row, name: str) -> None:
    """Raise ResultsError where a field is not a list of texts."""
    if not all(isinstance(item, str) for item in row[name]):
        raise ResultsError(f"{path}: {name} is not a list of names in {str(row)[:200]}")


def parsed(row: Row) -> Row:
    """A comparison with its spelled-out numbers as floats again."""
    return {key: value if key in TEXTS else as_number(value) for key, value in row.items()}


def as_number(value: Any) -> Any:
    """A spelled-out number as a float, also inside a mapping; anything else as it is."""
    if isinstance(value, dict):
        return {key: as_number(item) for key, item in value.items()}
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def summarize(outcomes: Iterable[Row], comparisons: Iterable[Row]) -> Row:
    """How many of each outcome and verdict there are."""
    return {
        "outcomes": dict(Counter(row["outcome"] for row in outcomes)),
        "verdicts": dict(Counter(row["verdict"] for row in comparisons)),
    }


def new_directory(path: Path) -> Path:
    """A directory that was not there before, with a number behind its name where another was quicker."""
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
    raise AssertionError("count() does not end")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; what lies there is replaced and not followed."""
    # A lone surrogate in a user's text becomes the JSON escape that it is written as.
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
