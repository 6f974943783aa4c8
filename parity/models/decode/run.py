"""Cases of `kind: decode` as a client of `parity/run.py`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from parity.clients import Client, JudgedCase
from parity.config.plan import ORACLE, CasePlan, Plan
from parity.engine import Announced, Judging
from parity.engine.workers import Workers
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failure, Failures, with_failures
from parity.models import run as models
from parity.models.audit import audited
from parity.models.decode.judge import Decoding
from parity.models.decode.port import Decoder
from parity.models.decode.spec import DECODE
from parity.models.layers import partners
from parity.models.ports import ModelError
from parity.models.state import MappingError, mapped, stored
from parity.outcome import CellOutcome, Outcome

REFUSED = (ModelError, MappingError)
"""Errors of a port, or of its file of names."""


class DecodeRun:
    """Runs and judges a model that decodes, in one dtype and each backend on its own; `folder` has its files."""

    def __init__(
        self, plan: Plan, case: CasePlan, dtype: str, workers: Workers, folder: Path, notify: Callable[..., None]
    ) -> None:
        self.case, self.dtype, self._notify = case, dtype, notify
        self.scratch = folder / "runs"
        self.ports = [Decoder(spec, case, dtype, workers, self.scratch / spec.name) for spec in plan.backends]
        self.base = next(port for port in self.ports if port.name == plan.baseline)
        self.comparisons: list[Comparison] = []
        self.diagnoses: list[Diagnosis] = []
        self.outcomes: list[CellOutcome] = []
        self._base: Decoding | None = None
        self._of_base: Sequence[Failure] = ()

    def judged(self) -> Iterator[JudgedCase]:
        """Build, run and judge. An interrupt yields the ports judged so far, and is raised again."""
        interrupted: KeyboardInterrupt | None = None
        began = time.monotonic()
        try:
            for port in sorted(self.ports, key=lambda port: port is not self.base):
                self._take(port)
        except KeyboardInterrupt as error:
            interrupted = error
        finally:
            for port in self.ports:
                port.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
        rows = (self.outcomes, self.comparisons, self.diagnoses, ())
        yield JudgedCase(self.case, self.dtype, *rows, time.monotonic() - began)
        if interrupted is not None:
            raise interrupted

    def _take(self, port: Decoder) -> None:
        """Run and judge a port. Where parity fails, what was measured stays, and the other ports go on."""
        failures, outcome, ended = Failures(self._of_base), Outcome.OK, ""
        decoding: Decoding | None = None
        try:
            with failures.contained(f"preparing {port.name}", passing=REFUSED):
                decoding = None if failures else self._decoding(port)
            if decoding is not None:
                self._notify(Judging(self.case.id))
                with failures.contained(f"judging {port.name}", passing=REFUSED):
                    decoding.judged()
        except REFUSED as error:
            outcome, ended = getattr(error, "outcome", Outcome.ERROR), str(error)
        if decoding is not None or ended:
            notes = [] if decoding is None else decoding.notes
            message = "; ".join([ended, *notes] if ended else notes)
            self.outcomes.append(CellOutcome(self.case.id, self.dtype, port.name, outcome, message=message))
        if port is self.base:
            self._base, self._of_base = decoding, () if decoding is not None and decoding.full else tuple(failures)
        self._state(port.name, decoding, failures, ended)

    def _state(self, name: str, decoding: Decoding | None, failures: Failures, ended: str) -> None:
        """Add the comparisons and causes of a port; where its runs have `ended`, or parity failed, a row says so."""
        cell, rows, causes = (self.case.id, self.dtype, name), list[Comparison](), list[Diagnosis]()
        if decoding is not None:
            with failures.contained("stating the results"):
                rows.extend(decoding.comparisons())
        missing = failures[-1].message if failures else ended if rows else ""
        if missing:
            of = (self.case.id, self.dtype, "output", name, ORACLE)
            rows.append(comparison_of(*of, Verdict.NOT_COMPARED, 0.0, 0.0, message=missing))
        if decoding is not None:
            with failures.contained("stating the causes"):
                causes.extend(decoding.diagnoses())
        self.comparisons += rows
        self.diagnoses += with_failures(cell, causes, failures, tuple(dict.fromkeys(row.tensor for row in rows)))

    def _decoding(self, port: Decoder) -> Decoding:
        """A port with its model and prompts, and the baseline's weights. Raises ModelError or MappingError."""
        self._say(f"builds {port.name}")
        port.build(None)
        if port is self.base:
            return Decoding(self.case, self.dtype, port, port.prompts(), port.state, None, {}, self._say)
        base = self._base
        if base is None or not base.full:
            raise ModelError("the baseline failed, whose prompts and weights it needs")
        moves, notes = mapped(self.base, port, self.case.params.mapping)
        for note in notes:
            self._say(f"{port.name}: {note}")
        state = self.scratch / f"state-{port.name}"
        stored(self.base, port, moves, state)
        return Decoding(
            self.case, self.dtype, port, base.prompts, state, base, partners(self.base, port, moves), self._say
        )

    def _say(self, text: str) -> None:
        self._notify(Announced(f"{self.case.id} {self.dtype}: {text}"))


CLIENT = Client(partial(models.judged_cases, DECODE, DecodeRun), replaceable=models.functions_of, audit=audited)
