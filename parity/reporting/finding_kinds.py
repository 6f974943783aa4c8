"""What kind a finding of the census is: rows of a YAML file that a person has decided, each with its grounds."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from parity.errors import UserError
from parity.reporting.results.strict_json import problem
from parity.reporting.text.findings import Difference

Text = Annotated[str, msgspec.Meta(min_length=1)]
Patterns = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
ANY = ("*",)


class FindingKind(StrEnum):
    """What a difference by more than rounding is, the most urgent first."""

    BUG = "bug"
    """The framework is wrong, beyond what it documents and what its dtype explains."""
    UNCLASSIFIED = "unclassified"
    """No row of the file covers it."""
    CONVENTION = "convention"
    """The framework computes what it, or its specification, says, which is not what the reference computes."""
    PRECISION = "precision"
    """The right formula with fewer digits than the dtype has."""
    COMPOSITION = "composition"
    """parity's own composition of the framework's calls."""


LABELS = {
    FindingKind.BUG: "bug",
    FindingKind.UNCLASSIFIED: "unclassified",
    FindingKind.CONVENTION: "documented convention",
    FindingKind.PRECISION: "reduced precision",
    FindingKind.COMPOSITION: "parity's own composition",
}


class KindRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences that a row covers, by patterns, and their kind with its grounds.

    `answer` is what a maintainer would say; `script` shows a bug without parity.
    """

    kind: Literal["bug", "convention", "precision"]
    frameworks: Patterns
    ops: Patterns
    evidence: Text
    link: Annotated[str, msgspec.Meta(pattern="^https://")]
    answer: Text
    causes: Patterns = ANY
    cases: Patterns = ANY
    tensors: Patterns = ANY
    dtypes: Patterns = ANY
    script: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a bug without a script, and for a script of anything else."""
        if (self.kind == "bug") is not bool(self.script):
            raise ValueError("a bug has a script, and nothing else has one")

    def covers(self, op: str, cause: str, difference: Difference) -> bool:
        """Whether a difference is one that this row is about."""
        row = difference.row
        given = (op, difference.backend, cause, row.case, row.tensor, row.dtype)
        wanted = (self.ops, self.frameworks, self.causes, self.cases, self.tensors, self.dtypes)
        return all(any(fnmatchcase(value, one) for one in many) for value, many in zip(given, wanted, strict=True))


class KindsError(UserError):
    """A file of kinds that cannot be used."""


def read_kinds(path: Path) -> list[KindRow]:
    """The rows of a file, of which the first that covers a difference decides; raises KindsError with file and row."""
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KindsError(f"{path} cannot be read: {error}") from error
    try:
        return msgspec.convert(rows, list[KindRow])
    except msgspec.ValidationError as error:
        raise KindsError(f"{path}: {problem(error)}") from error
