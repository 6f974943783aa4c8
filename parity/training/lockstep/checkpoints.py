"""Stores the steps, tensors and records of a participant, so that an interrupted training can continue."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.engine import bundles
from parity.engine.bundles import BundleError
from parity.outcome import Arrays
from parity.training.records import CURVES_AXES, Curves, StepRecord, read_curves

BEFORE = "before."
CURVE = "curve."
STATE = "state-"


@dataclass(frozen=True)
class Checkpoint:
    """The curves of all steps up to a step, and the files of the participant's tensors after it."""

    curves: Curves
    tensors: Mapping[str, Path]


class Checkpoints:
    """The checkpoints and records of one participant, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, curves: Curves, state: Arrays) -> None:
        """Store all steps and the tensors after them, replacing earlier checkpoints."""
        arrays = {f"{CURVE}{name}": array for name, array in curves.arrays.items()}
        new = self._folder / f"{STATE}{curves.n_steps}"
        bundles.write(new, {"step": curves.n_steps, "tracked": list(curves.tracked)}, {**arrays, **state})
        for older in self._folder.glob(f"{STATE}*"):
            if older != new:
                shutil.rmtree(older)

    def read(self) -> Checkpoint | None:
        """The latest readable checkpoint, or None."""
        for folder in sorted(self._folder.glob(f"{STATE}*"), key=step_of, reverse=True):
            try:
                bundle = bundles.read(folder)
                arrays = {name: bundle.load(f"{CURVE}{name}") for name in CURVES_AXES}
                curves = read_curves(1, int(bundle.header["step"]), arrays, list(bundle.header["tracked"]))
            except (BundleError, ValueError, TypeError, KeyError):
                continue
            return Checkpoint(curves, {n: path for n, path in bundle.paths.items() if not n.startswith(CURVE)})
        return None

    def keep(self, record: StepRecord) -> None:
        """Store a record."""
        before = {f"{BEFORE}{name}": array for name, array in record.before.items()}
        bundles.write(self._record(record.step), {}, {**before, **record.tensors, "rows": record.rows})

    def record(self, step: int) -> StepRecord | None:
        """A stored record; None if it is missing or cannot be read."""
        try:
            bundle = bundles.read(self._record(step))
            return record_of(step, {name: bundle.load(name) for name in bundle.paths})
        except (BundleError, KeyError):
            return None

    def copy(self, step: int, folder: Path) -> None:
        """Copy a stored record, if any, to `folder`, replacing its content."""
        if self._record(step).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self._record(step), folder)

    def _record(self, step: int) -> Path:
        return self._folder / f"record-{step}"


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name; -1 if the name is not a checkpoint's."""
    digits = folder.name.removeprefix(STATE)
    return int(digits) if digits.isdecimal() else -1


def record_of(step: int, arrays: Arrays) -> StepRecord:
    """A record from its tensors by their names in the protocol; raises KeyError if there are no `rows`."""
    before = {n.removeprefix(BEFORE): array for n, array in arrays.items() if n.startswith(BEFORE)}
    tensors = {n: array for n, array in arrays.items() if n != "rows" and not n.startswith(BEFORE)}
    return StepRecord(step, arrays["rows"], before, tensors)
