"""The lines at fault of a pair, looked for before a cause is searched, or for a finding of a finished run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from parity.cases.op import GRADIENT
from parity.check.candidate_process import FaultCase, fault_case, stored
from parity.check.match import Array
from parity.check.pair import FilePair
from parity.check.place import DIGITS, KEPT, SECONDS, FaultLine, located, with_repair
from parity.config.plan import CasePlan
from parity.engine.forking import Script
from parity.reporting.results.stored_tensors import input_paths
from parity.reporting.text.findings import MUTATED, Finding


class FaultLines:
    """The lines at fault of a pair, each looked for once, by processes that `start` begins; a repair is asked in cases
    of other `sizes`, too."""

    def __init__(
        self, pair: FilePair, start: Callable[[Script], Any] = Script.started, sizes: Sequence[CasePlan] = ()
    ) -> None:
        self.pair, self.start, self.sizes = pair, start, sizes
        self._known: dict[tuple[str, str], FaultLine | None] = {}

    def locate(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array], tensors: Sequence[str]) -> bool:
        """Look for the line at fault in the first case that differs; whether nothing more needs to be known: a repair
        is, or that digits are lost."""
        if self._known or not tensors:
            return False
        self._known[case.id, dtype] = None
        with tempfile.TemporaryDirectory(prefix="parity-fault-") as name:
            files = {each: Path(file) for each, file in stored(Path(name) / "input", inputs).items()}
            hit = self.line_of(fault_case(files, asdict(case.params), dtype, tensors))
        self._known[case.id, dtype] = hit
        return hit is not None and (hit.repair is not None or hit.kind == DIGITS)

    def lose_digits(self) -> bool:
        """Whether the candidate computes what the reference does, but with fewer digits: its results in float64 agree
        in the first case that differs, which is taken for all."""
        return any(hit is not None and hit.kind == DIGITS for hit in self._known.values())

    def of(self, run_dir: Path, finding: Finding) -> FaultLine | None:
        """The location of a finding; None where it cannot be told."""
        row = finding.worst.row
        key, cause = (row.case, row.dtype), finding.id.partition(" ")[0]
        if cause not in (MUTATED, *KEPT) and key in self._known:
            return self._known[key]
        with suppress(Exception):
            return self.line_of(asked_of(run_dir, finding))
        return None

    def line_of(self, asked: FaultCase) -> FaultLine | None:
        """The location of what is asked; None where it cannot be told."""
        asked = replace(asked, start=self.start, sizes=self.sizes)
        with suppress(Exception):  # Whatever a user's code raises.
            return with_repair(located(asked, self.pair, SECONDS), asked, self.pair)
        return None


def asked_of(run_dir: Path, finding: Finding) -> FaultCase:
    """What is asked for a finding. Raises LookupError if the run has no such case."""
    row = finding.worst.row
    case = next(case for case in finding.cases if case.id == row.case)
    files = {name: run_dir / item.file for name, item in case.inputs.items() if item.file}
    if row.call is not None:
        other = input_paths(case, row.call)
        files = {name: run_dir / other[name] if name in other else path for name, path in files.items()}
    folder = next(iter(files.values())).parent
    files |= {path.name[: -len(".npy")]: path for path in folder.glob(f"{GRADIENT}*.npy")}
    same = [d.row.tensor for d in finding.differences if (d.row.case, d.row.dtype) == (row.case, row.dtype)]
    tensors = list(dict.fromkeys([row.tensor, *same]))
    return fault_case(files, case.params, row.dtype, tensors, finding.id.partition(" ")[0])
