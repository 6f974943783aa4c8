"""Progress on stderr: bars on a terminal, a plain line now and then in a log, nothing with -q."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from parity.config.nodes import printable
from parity.engine import (
    Announced,
    BackendLost,
    BackendStarted,
    CellFinished,
    Event,
    Judging,
    Resumed,
    Running,
    TrainingAdvanced,
    TrainingFinished,
    WorkBegun,
)
from parity.judge.compare.verdict import Comparison, Verdict
from parity.reporting.text.words import grouped, plural

LINE_EVERY_S = 10.0
LINE_SHARE = 0.1
QUIET_S = 60.0
"""A log has a line at most every ten seconds: after a tenth of the cases, or a minute."""
TICK_S = 1.0
SPEED_S = 300.0
"""The time to the end is told from the speed of so many last seconds; a cell may take one minute, a diagnosis more."""
ADVANCING = (Resumed, CellFinished, TrainingAdvanced, TrainingFinished)
MAX_SHOWN = 3
"""Cells at hand that are named; of most runs all backends are at one or two."""


class ProgressReporter(Protocol):
    """Shows how far a run is, as a context manager around it."""

    def __enter__(self) -> ProgressReporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Something happened in the run."""


class SilentReporter:
    """Says nothing."""

    def __enter__(self) -> SilentReporter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Nothing to say."""


CASES, TRAININGS = "cases", "trainings"


class Standing:
    """How far a run is, what it works at and what it has found, as its events tell.

    Cases of ops and trainings (in each dtype) are counted apart: one takes milliseconds, the other minutes.
    """

    def __init__(self, n_cases: int, n_trainings: int) -> None:
        self.total = {CASES: n_cases, TRAININGS: n_trainings}
        self.done = {CASES: 0, TRAININGS: 0}
        self.n_findings = 0
        self.judging = ""
        self.training: TrainingAdvanced | None = None
        self._running: Callable[[], list[Running]] = list

    def take(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Take in one event."""
        if isinstance(event, Resumed):
            self.total = {CASES: event.n_cases, TRAININGS: event.n_trainings}
        elif isinstance(event, WorkBegun):
            self._running = event.running
        elif isinstance(event, Judging):
            self.judging = event.case
        elif isinstance(event, TrainingAdvanced):
            self.training = event
        elif isinstance(event, CellFinished | TrainingFinished):
            if isinstance(event, TrainingFinished):
                self.done[TRAININGS] += 1
            else:
                self.done[CASES] += event.last_of_case
            self.judging, self.training = "", None
            self.n_findings += len({(c.dtype, c.tensor) for c in comparisons if is_finding(c)})

    def completed(self, kind: str) -> float:
        """The cases that are finished, or the trainings, with the part of the one at hand."""
        part = self.training.step / self.training.steps if self.training and kind == TRAININGS else 0.0
        return self.done[kind] + part

    @property
    def share(self) -> float:
        """The part of everything that is finished."""
        return sum(map(self.completed, self.total)) / max(1, sum(self.total.values()))

    def findings(self) -> str:
        """`findings in 3 tensors`, or nothing."""
        return f"findings in {plural(self.n_findings, 'tensor')}" if self.n_findings else ""

    def now(self) -> str:
        """What is worked at: a diagnosis, a training, or the cells that backends compute."""
        if self.judging:
            return f"diagnosing {self.judging}"
        if self.training is not None:
            return training_text(self.training)
        cells = grouped((f"{case} {dtype}", backend) for case, dtype, backend in self._running())
        if not cells and not any(self.done.values()):
            return "starting the backends"
        shown = [f"{cell} on {', '.join(backends)}" for cell, backends in list(cells.items())[:MAX_SHOWN]]
        return "; ".join([*shown, *(["..."] if len(cells) > MAX_SHOWN else [])])


def is_finding(c: Comparison) -> bool:
    """Whether it differs by more than rounding, and nobody has accepted that."""
    return c.verdict.fails and c.verdict is not Verdict.ROUNDING and c.known is None


class Bars(Progress):
    """Bars with a line below them that says what is worked at."""

    def __init__(self, standing: Standing, *columns: Any, **options: Any) -> None:
        self._standing = standing
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the line."""
        yield from super().get_renderables()
        line = "; ".join(part for part in (self._standing.findings(), self._standing.now()) if part)
        yield Text(printable(line), style="dim", no_wrap=True, overflow="ellipsis")


def add_tasks(progress: Progress, standing: Standing) -> dict[str, TaskID]:
    """A task for each kind of which there is something to do; its clock starts with the first of it."""
    return {kind: progress.add_task(kind, total=n, start=kind == CASES) for kind, n in standing.total.items() if n}


def update(progress: Progress, tasks: Mapping[str, TaskID], standing: Standing) -> None:
    """Move the tasks to where the run is."""
    for kind, task in tasks.items():
        completed = standing.completed(kind)
        if completed:
            progress.start_task(task)
        progress.update(task, completed=completed, total=standing.total[kind])


class BarReporter:
    """A bar for the cases of ops, and one for the trainings."""

    def __init__(self, console: Console, n_cases: int, n_trainings: int) -> None:
        self._standing = Standing(n_cases, n_trainings)
        time_left = (TextColumn("eta"), TimeRemainingColumn())
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *time_left)
        self._progress = Bars(self._standing, *columns, console=console, transient=True, speed_estimate_period=SPEED_S)
        self._tasks = add_tasks(self._progress, self._standing)

    def __enter__(self) -> BarReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Advance, and say above the bars what is worth a line."""
        self._standing.take(event, comparisons)
        if isinstance(event, ADVANCING):
            update(self._progress, self._tasks, self._standing)
        elif line := describe(event):
            self._progress.console.print(line, style="dim", markup=False, highlight=False)


class LineReporter:
    """A line for what is worth one, and one now and then with how far the run is, from a thread: a diagnosis may be
    long."""

    def __init__(
        self, console: Console, n_cases: int, n_trainings: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._standing = Standing(n_cases, n_trainings)
        self._progress = Progress(disable=True, speed_estimate_period=SPEED_S, get_time=clock)
        self._tasks = add_tasks(self._progress, self._standing)
        self._diverged: dict[tuple[str, str], int] = {}
        self._printed, self._share = clock(), 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="parity-progress")

    def __enter__(self) -> LineReporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Print what is news."""
        self._standing.take(event, comparisons)
        if isinstance(event, ADVANCING):
            update(self._progress, self._tasks, self._standing)
        line = describe(event)
        if isinstance(event, TrainingAdvanced) and self._has_news(event):
            line = training_text(event)
        if line:
            self._print(line)

    def tick(self) -> None:
        """Print how far the run is, where it is time for that."""
        waited, share = self._clock() - self._printed, self._standing.share
        if waited >= QUIET_S or (waited >= LINE_EVERY_S and share - self._share >= LINE_SHARE):
            self._share = share
            counts = [self._counted(task) for task in self._progress.tasks if not task.finished or share >= 1]
            parts = (*counts, self._standing.findings(), self._standing.now())
            self._print("; ".join(part for part in parts if part))

    def _counted(self, task: Task) -> str:
        """`12 of 96 cases, 0:01:20 left`."""
        left = "" if not task.time_remaining else f", {TimeRemainingColumn().render(task)} left"
        return f"{int(task.completed)} of {task.total:.0f} {task.description}{left}"

    def _has_news(self, event: TrainingAdvanced) -> bool:
        """Whether another backend has diverged."""
        key = (event.case, event.dtype)
        before, self._diverged[key] = self._diverged.get(key, 0), len(event.parted)
        return len(event.parted) > before

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def _watch(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()


def training_text(event: TrainingAdvanced) -> str:
    """`curve float32: step 400 of 1000, loss 3.215; paddle diverges at step 312`."""
    loss = "" if math.isnan(event.loss) else f", loss {event.loss:.4g}"
    diverged = "".join(f"; {name} diverges at step {step}" for name, step in event.parted.items())
    return f"{event.case} {event.dtype}: step {event.step} of {event.steps}{loss}{diverged}"


def describe(event: Event) -> str:
    """The line that an event is worth, if any."""
    if isinstance(event, Announced):
        return event.message
    if isinstance(event, BackendLost):
        return f"{event.spec.name}: {event.message}"
    if isinstance(event, BackendStarted):
        return f"{event.info.spec.name}: {event.info.spec.adapter} {event.info.version}, Python {event.info.python}"
    return ""


def reporter_for(console: Console, n_cases: int, n_trainings: int = 0, *, quiet: bool) -> ProgressReporter:
    """The reporter that suits the console."""
    if quiet:
        return SilentReporter()
    # FORCE_COLOR, which CI systems set, makes a terminal of any file.
    animated = console.is_interactive and console.file.isatty()
    return (BarReporter if animated else LineReporter)(console, n_cases, n_trainings)
