"""Cases of `kind: decode` as a client of `parity/run.py`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from parity.clients import Client, JudgedCase
from parity.config.plan import CasePlan, Plan
from parity.engine import Announced, Judging
from parity.engine.workers import Workers
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failures, unknown, with_failures
from parity.models import run as models
from parity.models.audit import audited
from parity.models.decode.judge import Decoding
from parity.models.decode.port import Decoder
from parity.models.decode.spec import DECODE
from parity.models.layers import partners
from parity.models.ports import ModelError
from parity.models.state import MappingError, mapped, stored
from parity.outcome import CellOutcome, Outcome


class DecodeRun:
    """Runs and judges a model that decodes, in one dtype and each backend on its own; `folder` has its files."""

    def __init__(
        self, plan: Plan, case: CasePlan, dtype: str, workers: Workers, folder: Path, notify: Callable[..., None]
    ) -> None:
        self.case, self.dtype, self._notify = case, dtype, notify
        self.scratch = folder / "runs"
        self.ports = [Decoder(spec, case, dtype, workers, self.scratch / spec.name) for spec in plan.backends]
        self.base = next(port for port in self.ports if port.name == plan.baseline)

    def judged(self) -> Iterator[JudgedCase]:
        """Build, run and judge. An interrupt yields the ports judged so far, and is raised again."""
        comparisons: list[Comparison] = []
        diagnoses: list[Diagnosis] = []
        outcomes: list[CellOutcome] = []
        interrupted: KeyboardInterrupt | None = None
        began = time.monotonic()
        base: Decoding | None = None
        try:
            for port in sorted(self.ports, key=lambda port: port is not self.base):
                outcome, message = Outcome.OK, ""
                try:
                    decoding = self._decoding(port, base)
                    base = decoding if port is self.base else base
                    self._notify(Judging(self.case.id))
                    rows, causes = self._judge(decoding)
                    comparisons += rows
                    diagnoses += causes
                    message = "; ".join(decoding.notes)
                except (ModelError, MappingError) as error:
                    outcome, message = getattr(error, "outcome", Outcome.ERROR), str(error)
                outcomes.append(CellOutcome(self.case.id, self.dtype, port.name, outcome, message=message))
        except KeyboardInterrupt as error:
            interrupted = error
        finally:
            for port in self.ports:
                port.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
        yield JudgedCase(self.case, self.dtype, outcomes, comparisons, diagnoses, (), time.monotonic() - began)
        if interrupted is not None:
            raise interrupted

    def _judge(self, decoding: Decoding) -> tuple[list[Comparison], list[Diagnosis]]:
        """The comparisons and causes of a port; where parity fails, no verdicts."""
        failures, name = Failures(), decoding.port.name
        with failures.contained(f"judging {name}", passing=(ModelError, MappingError)):
            decoding.judged()
            return list(decoding.comparisons()), list(decoding.diagnoses())
        rows = list(unknown(self.case, self.dtype, [name], failures[-1]))
        return rows, with_failures((self.case.id, self.dtype, name), (), failures, ("output",))

    def _decoding(self, port: Decoder, base: Decoding | None) -> Decoding:
        """A port with its model and prompts, and the baseline's weights. Raises ModelError or MappingError."""
        self._say(f"builds {port.name}")
        port.build(None)
        if port is self.base:
            return Decoding(self.case, self.dtype, port, port.prompts(), port.state, None, {}, self._say)
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
