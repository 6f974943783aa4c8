"""results.json: written atomically, validated on reading."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from parity.reporting.results.rows import FILE_NAME, FORMAT, Results, ResultsError
from parity.reporting.results.store import STORE, read_only
from parity.reporting.results.strict_json import as_number, encode, escaped, problem

REPORTS = Path("reports")
"""The folder of run directories without --out."""
MAX_BYTES = 1 << 30
MAX_DIGITS = 300


def as_json(results: Results) -> str:
    """The document, one row per line, with "nan", "inf" and "-inf" for non-finite numbers."""
    parts = [f'"{name}": {encode_part(getattr(results, name))}' for name in DOCUMENT]
    return "{" + ",\n".join(parts) + "}\n"


DOCUMENT = (
    "format", "run", "backends", "cases", "outcomes", "comparisons", "diagnoses", "known", "trainings", "summary",
)  # fmt: skip
"""The parts of the document, in their order."""


def encode_part(part: Any) -> str:
    """A part of the document; a list has one row per line."""
    value = msgspec.to_builtins(part)
    return "[" + ",\n".join(map(encode, value)) + "]" if isinstance(value, list | tuple) else encode(value)


def read_results(run_dir: Path, *, whole: bool = True) -> Results:
    """The results of a run, from results.sqlite if there is no results.json; unless `whole`, only those in reports.

    Raises ResultsError if they are missing or invalid.
    """
    path = run_dir / FILE_NAME
    if not path.exists() and (run_dir / STORE).is_file():
        with read_only(run_dir / STORE) as store:
            return store.results() if whole else store.shown()
    try:
        document = read_json(path, MAX_BYTES)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}; is {run_dir} a run directory?") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ResultsError(f"{path}: not a parity result of format {FORMAT}")
    try:
        return results_of(document)
    except msgspec.ValidationError as error:
        raise ResultsError(f"{path}: {problem(error)}") from error


def results_of(document: Mapping[str, Any]) -> Results:
    """The results that a document holds; raises msgspec.ValidationError."""
    try:
        # Not strict, so that "nan" is accepted as a number.
        results = msgspec.convert(document, Results, strict=False)
    except UnicodeEncodeError:  # msgspec 0.22 rejects lone surrogates
        return results_of(escaped(document))
    diagnoses = [replace(cause, evidence=as_number(cause.evidence)) for cause in results.diagnoses]
    return msgspec.structs.replace(results, diagnoses=diagnoses)


def read_json(path: Path, max_bytes: int) -> Any:
    """An untrusted JSON file; numbers too large for a float become infinite.

    Raises OSError if it is not a regular file, ValueError if it is larger than `max_bytes` or not JSON, and
    RecursionError if it is nested too deeply.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > max_bytes:
        raise ValueError(f"it is larger than {max_bytes >> 20} MiB")
    return json.loads(path.read_text(encoding="utf-8"), parse_int=whole)


def whole(digits: str) -> float:
    """A whole number; infinite if it is too large for a float."""
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def new_directory(path: Path) -> Path:
    """Create a new directory; its name gets a number if it already exists."""
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
    raise AssertionError("count() does not end")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; an existing file or link is replaced, and links are not followed."""
    # A lone surrogate in a user's text becomes a JSON escape.
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
