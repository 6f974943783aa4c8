"""Cases of `kind: model` as a client of `parity/run.py`: ports, state mapping, runs, findings, rows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parity.clients import Client, JudgedCase, or_failed
from parity.config.plan import CasePlan, Plan
from parity.engine import Announced, EngineOptions, Event, Judging
from parity.engine.inputs import folder_name
from parity.engine.logs import RunLog
from parity.engine.starting import replaceable
from parity.engine.workers import Workers
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failures, unjudged, unknown, with_failures
from parity.models import converted, orders, repeated
from parity.models.audit import audited
from parity.models.converted import Fold
from parity.models.layers import partners
from parity.models.measure import RUNS, TRUTH, ReferenceRuns
from parity.models.pair import PortPair
from parity.models.ports import ModelError, RemotePort, read_batch
from parity.models.repeated import OtherBatch
from parity.models.spec import MODEL, ModelSpec
from parity.models.state import MappingError, Move, mapped, read, stored, written
from parity.models.worker.tape import Recorded
from parity.outcome import CellOutcome, Outcome

FORWARD_ONLY = "computes no gradients, so none are compared"
LOSSLESS = "has no loss, so neither it nor gradients are compared"
"""The messages about a port without gradients, or without a loss."""


def judged_cases(
    kind: str,
    made: Callable[..., Any],
    plan: Plan,
    options: EngineOptions,
    run_dir: Path,
    observe: Callable[[Event], None],
    _rows: Sequence[Any] = (),
    done: Collection[tuple[str, str]] = (),
) -> Iterator[JudgedCase]:
    """The results of `made(...).judged()` for each case of a kind and each dtype that is not `done`; its workers end
    with it."""
    asked = [(i, case) for i, case in enumerate(plan.cases) if case.op == kind]
    asked = [(i, case) for i, case in asked if any((case.id, dtype) not in done for dtype in case.dtypes)]
    if not asked:
        return
    log, posted = RunLog(run_dir / "log.txt"), list[Event]()

    def notify(*events: Event) -> None:
        while posted:
            observe(posted.pop(0))
        for event in events:
            observe(event)

    workers = Workers(options, replaceable(case for _, case in asked), log, posted.append)
    try:
        for index, case in asked:
            for dtype in case.dtypes:
                if (case.id, dtype) not in done:
                    folder = run_dir / "tensors" / folder_name(index, case) / dtype
                    judged = made(plan.of(case), case, dtype, workers, folder, notify).judged()
                    whole = (with_missing(one, plan.of(case).baseline) for one in judged)
                    yield from or_failed(whole, plan, case, [dtype])
    finally:
        workers.close()
        log.close()


def with_missing(judged: JudgedCase, baseline: str) -> JudgedCase:
    """Adds a not-compared row for each backend that failed, so that the run counts as incomplete."""
    compared = {row.actual for row in judged.comparisons}
    failed = [o for o in judged.outcomes if o.outcome is not Outcome.OK and o.backend not in compared]
    others = [o for o in failed if o.backend != baseline] or failed
    missing = [
        comparison_of(o.case, o.dtype, "output", o.backend, baseline, Verdict.NOT_COMPARED, 0.0, 0.0, message=o.message)
        for o in others
    ]
    return replace(judged, comparisons=[*judged.comparisons, *missing])


def functions_of(case: CasePlan) -> Sequence[str]:
    """The functions that a case needs of the users' files."""
    assert isinstance(case.params, ModelSpec)  # noqa: S101 - for the type checker
    return case.params.functions


class ModelRun:
    """Runs and judges a model in one dtype; `folder` has its files."""

    def __init__(
        self, plan: Plan, case: CasePlan, dtype: str, workers: Workers, folder: Path, notify: Callable[..., None]
    ) -> None:
        self.case, self.dtype, self.folder, self._notify = case, dtype, folder, notify
        self.model: ModelSpec = case.params
        self.scratch = folder / "runs"
        self.batch = folder / "batch"
        self.outcomes: dict[str, CellOutcome] = {}
        self.folds: dict[str, Sequence[Fold]] = {}
        self.ports = {
            spec.name: RemotePort(spec, case, dtype, workers, self.scratch / spec.name) for spec in plan.backends
        }
        self.base = self.ports[plan.baseline]
        self.judge_seconds = 0.0
        self.others: OtherBatch | None = None

    def judged(self) -> Iterator[JudgedCase]:
        """Build, map, run and judge. An interrupt yields the ports judged so far, and is raised again."""
        comparisons: list[Comparison] = []
        diagnoses: list[Diagnosis] = []
        interrupted: KeyboardInterrupt | None = None
        try:
            for pair in self._pairs():
                self._notify(Judging(self.case.id))
                began = time.monotonic()
                try:
                    rows, causes = self._judge(pair)
                except ModelError as error:
                    self._fail(pair.other, error)
                    continue
                comparisons += rows
                diagnoses += causes
                self.judge_seconds += time.monotonic() - began
        except KeyboardInterrupt as error:
            interrupted = error
        finally:
            for port in self.ports.values():
                port.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
        outcomes = list(self.outcomes.values()) if interrupted is None else self._known(comparisons)
        yield JudgedCase(self.case, self.dtype, outcomes, comparisons, diagnoses, (), self.judge_seconds)
        if interrupted is not None:
            raise interrupted

    def _judge(self, pair: PortPair) -> tuple[list[Comparison], list[Diagnosis]]:
        """The comparisons and causes of a pair; where parity fails, without causes, or at last without verdicts."""
        failures, cell = Failures(), (self.case.id, self.dtype, pair.other.name)
        with failures.contained(f"judging {pair.other.name}", passing=(ModelError,)):
            pair.judged()
            self._add_orders(pair)
            self._call_again(pair)
            rows = [*pair.comparisons(), *repeated.rows(pair, pair.repeated)]
            return rows, list(pair.diagnoses(rows))
        rows = list(unknown(self.case, self.dtype, [pair.other.name], failures[-1]))
        pair.findings = []
        with failures.contained(f"comparing the outputs of {pair.other.name}", passing=(ModelError,)):
            rows = [unjudged(row, failures[-1]) if row.verdict.passes else row for row in pair.comparisons()]
        return rows, with_failures(cell, (), failures, tuple(row.tensor for row in rows))

    def _call_again(self, pair: PortPair) -> None:
        """Call a port with other inputs, then with the first again, and say what differs then."""
        if self.others is None:
            return
        self._say(f"calls {pair.other.name} again")
        pair.repeated = repeated.called_again(pair, self.others)

    def _other_inputs(self) -> None:
        """The baseline's runs with other inputs, if it takes them."""
        self._say(f"runs {self.base.name} with other inputs")
        try:
            self.others = repeated.other_inputs(self.base, self.batch, self.scratch / "other-batch", self.dtype)
        except ModelError as error:
            self._say(f"ports are not called again, since {self.base.name} fails with other inputs: {error}")

    def _add_orders(self, pair: PortPair) -> None:
        """Add to the mapping file which tensors between layers have their axes in another order."""
        with (self.folder / "mapping.yaml").open("a", encoding="utf-8") as file:
            file.writelines(f"# {pair.other.name}: {line}\n" for line in orders.written(pair.axes))

    def _known(self, comparisons: Sequence[Comparison]) -> list[CellOutcome]:
        """The outcomes after an interrupt: those of ports that failed or were judged; the others run again."""
        judged = {row.actual for row in comparisons}
        return [o for name, o in self.outcomes.items() if o.outcome is not Outcome.OK or name in judged]

    def _fail(self, port: RemotePort, error: Exception) -> None:
        outcome = error.outcome if isinstance(error, ModelError) else Outcome.ERROR
        self.outcomes[port.name] = CellOutcome(self.case.id, self.dtype, port.name, outcome, message=str(error))

    def _say(self, text: str) -> None:
        self._notify(Announced(f"{self.case.id} {self.dtype}: {text}"))

    def _pairs(self) -> Iterator[PortPair]:
        """The pairs of ports that can be judged; the outcomes of others say why not."""
        for port in [self.base, *(port for port in self.ports.values() if port is not self.base)]:
            self._say(f"builds {port.name}")
            try:
                port.build(self.batch if port is self.base else None, self.base.layers)
                self._read_batch(port)
                lacking = self._lacking(port)
                self.outcomes[port.name] = CellOutcome(self.case.id, self.dtype, port.name, Outcome.OK, message=lacking)
            except ModelError as error:
                self._fail(port, error)
        others = [p for p in self.ports.values() if p is not self.base and self.outcomes[p.name].outcome is Outcome.OK]
        if self.outcomes[self.base.name].outcome is not Outcome.OK:
            for port in others:
                self._fail(port, ModelError(f"the baseline failed: {self.outcomes[self.base.name].message}"))
            return
        moves = self._moves(others)
        others = [port for port in others if port.name in moves]
        layers = {port.name: self._partners(port, moves[port.name]) for port in others}
        watched = {name for theirs in layers.values() for name in theirs.values()}
        watched |= {fold.norm for folds in self.folds.values() for fold in folds}
        try:
            free, step = self._reference_runs(watched)
            free.check(self.base.name)
        except ModelError as error:
            self._fail(self.base, error)
            for port in others:
                self._fail(port, ModelError(f"the baseline failed: {error}"))
            return
        self._other_inputs()
        for port in others:
            state = self.folder / "runs" / f"state-{port.name}"
            stored(self.base, port, moves[port.name], state)
            self._say(f"runs {port.name}")
            port.outputs = [name for name in free.plain if name.partition(".")[0] == "output"]
            try:
                is_own = self.model.weights == "own" or (port.converted and self.model.weights is None)
                own = port.state if is_own else None
                run = port.run(own or state, self.batch, layers=layers[port.name], gradients=self._gradients)
            except ModelError as error:
                self._fail(port, error)
                continue
            states = {self.base.name: self.base.state, port.name: state}
            folder = self.folder / port.name
            yield PortPair(
                self.case, self.dtype, self.base, port, states, moves[port.name], layers[port.name], self.batch, folder,
                free, step, run, own, behind={fold.layer: fold.norm for fold in self.folds.get(port.name, ())},
            )  # fmt: skip

    def _lacking(self, port: RemotePort) -> str:
        """A message about what the port lacks for this case; "" for nothing."""
        if not self.model.loss or port.differentiable:
            return ""
        return FORWARD_ONLY if port.has_loss else LOSSLESS

    def _partners(self, port: RemotePort, moves: Sequence[Move]) -> dict[str, str]:
        """The baseline's layer for each of a port's."""
        layer_partners = converted.paired(partners(self.base, port, moves), self.folds.get(port.name, ()))
        converted.adopted(self.base, port, layer_partners)
        return layer_partners

    def _read_batch(self, port: RemotePort) -> None:
        """Convert the batch file, for the baseline; raises ModelError."""
        if port is self.base:
            read_batch(self.model, self.batch)

    @property
    def _gradients(self) -> bool:
        return bool(self.model.loss)

    def _moves(self, others: Sequence[RemotePort]) -> dict[str, list[Move]]:
        """The state mapping of each port; it is also written to the run directory."""
        moves: dict[str, list[Move]] = {}
        for port in others:
            try:
                if port.converted:
                    given = read(self.model.mapping, self.base, port) if self.model.mapping else {}
                    moves[port.name], notes, self.folds[port.name] = converted.moves_of(self.base, port, given)
                else:
                    moves[port.name], notes = mapped(self.base, port, self.model.mapping)
            except MappingError as error:
                self._fail(port, MappingError(f"{error}; say which parameter is which in a file, `mapping: FILE`"))
                continue
            for note in notes:
                self._say(f"{port.name}: {note}")
        if moves:
            path = self.folder / "mapping.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written(moves), encoding="utf-8")
            self._say(f"the state mapping is in {path}")
        return moves

    def _reference_runs(self, layers: Collection[str]) -> tuple[ReferenceRuns, ReferenceRuns]:
        """The baseline's runs: on its own, and in step with itself."""
        base, state, wide = self.base, self.base.state, TRUTH.get(self.dtype, "")
        self._say(f"runs {base.name}")

        def run(**how: Any) -> Recorded:
            return base.run(state, self.batch, layers=layers, **how)

        plain = run(gradients=self._gradients)
        free = [run(seed=seed, gradients=self._gradients) for seed in range(1, RUNS + 1)]
        step = [run(seed=seed, partner=plain) for seed in range(1, RUNS + 1)]
        truths = [plain, plain]
        if wide:
            self._say(f"runs {base.name} in {wide}")
            try:
                truths = [run(dtype=wide, gradients=self._gradients), run(dtype=wide, partner=plain)]
            except ModelError as error:
                self._say(f"{base.name} does not run in {wide}, so its own run is taken as exact: {error}")
                base.build(self.batch)
                self._read_batch(base)
        return ReferenceRuns(plain, truths[0], free, self.dtype), ReferenceRuns(plain, truths[1], step, self.dtype)


CLIENT = Client(partial(judged_cases, MODEL, ModelRun), replaceable=functions_of, audit=audited)
