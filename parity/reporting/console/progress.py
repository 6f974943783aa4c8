"""Progress on stderr: bars on a terminal, occasional plain lines in a log, nothing with -q."""

from __future__ import annotations

import datetime
import math
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
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
    ModelFinished,
    Resumed,
    Running,
    ShardFinished,
    TrainingAdvanced,
    WorkBegun,
)
from parity.judge.compare.verdict import Comparison, Verdict
from parity.reporting.text.words import grouped, plural

LINE_EVERY_S = 10.0
LINE_SHARE = 0.1
QUIET_S = 60.0
"""A log gets a line after each tenth of the cases or each minute, but at most every ten seconds."""
TICK_S = 1.0
LEAST_S, LEAST_SHARE = 10.0, 0.2
"""The time to the end is not told before a fifth is done, nor from less than the last ten seconds."""
STEADY = 1.5
"""It is told while both halves of the latest cases took about as long: the first case of a kernel may be searched for
minutes, and the next ones repeat the answer."""
MAX_SAMPLES, TINY_S = 1000, 1e-3
"""Of the finished cases, so many times are kept; a clock may not have moved in between."""
ADVANCING = (Resumed, CellFinished, ShardFinished, TrainingAdvanced, ModelFinished)
MAX_SHOWN = 3
"""The number of current cells that are named; in most runs all backends compute one or two."""


class ProgressReporter(Protocol):
    """Shows the progress of a run, as a context manager around it."""

    def __enter__(self) -> ProgressReporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Process an event of the run."""


class SilentReporter:
    """Shows nothing."""

    def __enter__(self) -> SilentReporter:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Do nothing."""


CASES, MODELS = "cases", "models"


class Pace:
    """How fast the cases of a kind are finished, and the seconds to the end if that is steady."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: list[tuple[float, float]] = []

    def take(self, completed: float) -> None:
        """Note how many are finished now."""
        if completed and (not self._samples or completed > self._samples[-1][0]):
            thin = 2 if len(self._samples) >= MAX_SAMPLES else 1
            self._samples = [*self._samples[::thin], (completed, self._clock())]

    def left(self, total: float) -> float | None:
        """The seconds to the end of `total`; None while nobody can tell."""
        if not self._samples:
            return None
        last, now = self._samples[-1][0], self._clock()
        (half, began), (quarter, middle) = self._before(last / 2), self._before(last * 0.75)
        speeds = [(quarter - half) / max(middle - began, TINY_S), (last - quarter) / max(now - middle, TINY_S)]
        too_early = now - began < LEAST_S or last < LEAST_SHARE * total
        if too_early or not min(speeds) or max(speeds) > STEADY * min(speeds):
            return None
        return (total - last) * (now - began) / (last - half)

    def _before(self, completed: float) -> tuple[float, float]:
        """The last sample of at most so many, else the first one."""
        return self._samples[max(0, bisect(self._samples, (completed, math.inf)) - 1)]


def left_text(seconds: float) -> str:
    """`0:01:20`."""
    return str(datetime.timedelta(seconds=round(seconds)))


class TimeLeft(ProgressColumn):
    """The seconds to the end in a bar, if they can be told."""

    def render(self, task: Task) -> Text:
        """The text."""
        left = task.fields["pace"].left(task.total or 0)
        return Text("" if not left else f"eta {left_text(left)}", style="progress.remaining")


class Standing:
    """The progress of a run, its current work and its findings so far, from its events.

    Cases of ops, and of models (with trainings; per dtype), are counted separately: one takes milliseconds, the other
    minutes.
    """

    def __init__(self, n_cases: int, n_models: int) -> None:
        self.total = {CASES: n_cases, MODELS: n_models}
        self.done = {CASES: 0, MODELS: 0}
        self.n_findings = 0
        self.judging = ""
        self.elsewhere = ""
        self.training: TrainingAdvanced | None = None
        self._running: Callable[[], list[Running]] = list

    def take(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Process one event."""
        if isinstance(event, Resumed):
            self.total = {CASES: event.n_cases, MODELS: event.n_models}
        elif isinstance(event, WorkBegun):
            self._running = event.running
        elif isinstance(event, Judging):
            self.judging = event.case
        elif isinstance(event, TrainingAdvanced):
            self.training = event
        elif isinstance(event, CellFinished | ShardFinished | ModelFinished):
            if isinstance(event, ModelFinished):
                self.done[MODELS] += 1
            elif isinstance(event, ShardFinished):
                self.done[CASES] += event.n_cases
                self.elsewhere = event.progress
            else:
                self.done[CASES] += event.last_of_case
            self.judging, self.training = "", None
            self.n_findings += len({(c.case, c.dtype, c.tensor) for c in comparisons if is_finding(c)})

    def completed(self, kind: str) -> float:
        """Number of finished cases, or of models including the finished part of the current one."""
        part = self.training.step / self.training.steps if self.training and kind == MODELS else 0.0
        return self.done[kind] + part

    @property
    def share(self) -> float:
        """The finished share of the run."""
        return sum(map(self.completed, self.total)) / max(1, sum(self.total.values()))

    def findings(self) -> str:
        """`findings in 3 tensors`, or nothing."""
        return f"findings in {plural(self.n_findings, 'tensor')}" if self.n_findings else ""

    def now(self) -> str:
        """The current work: a diagnosis, a training, or the cells that backends compute."""
        if self.judging:
            return f"diagnosing {self.judging}"
        if self.training is not None:
            return training_text(self.training)
        if self.elsewhere and self.done[CASES] < self.total[CASES]:
            return self.elsewhere
        cells = grouped((f"{case} {dtype}", backend) for case, dtype, backend in self._running())
        if not cells and not any(self.done.values()):
            return "starting the backends"
        shown = [f"{cell} on {', '.join(backends)}" for cell, backends in list(cells.items())[:MAX_SHOWN]]
        return "; ".join([*shown, *(["..."] if len(cells) > MAX_SHOWN else [])])


def is_finding(c: Comparison) -> bool:
    """Whether it differs by more than rounding, is not accepted, and is about what the run judges."""
    return c.counts and c.verdict.fails and c.verdict not in (Verdict.ROUNDING, Verdict.CHOICE) and c.known is None


class Bars(Progress):
    """Bars, and a line with the current work below them."""

    def __init__(self, standing: Standing, *columns: Any, **options: Any) -> None:
        self._standing = standing
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the line."""
        yield from super().get_renderables()
        line = "; ".join(part for part in (self._standing.findings(), self._standing.now()) if part)
        yield Text(printable(line), style="dim", no_wrap=True, overflow="ellipsis")


def add_tasks(progress: Progress, standing: Standing, clock: Callable[[], float]) -> dict[str, TaskID]:
    """A task for each kind of case in the run; its clock starts with its first case."""
    kinds = {kind: n for kind, n in standing.total.items() if n}
    return {kind: progress.add_task(kind, total=n, start=kind == CASES, pace=Pace(clock)) for kind, n in kinds.items()}


def update(progress: Progress, tasks: Mapping[str, TaskID], standing: Standing) -> None:
    """Update the tasks."""
    for kind, task in tasks.items():
        completed = standing.completed(kind)
        if completed:
            progress.start_task(task)
        progress.update(task, completed=completed, total=standing.total[kind])
        progress.tasks[progress.task_ids.index(task)].fields["pace"].take(completed)


class BarReporter:
    """A bar for the cases of ops, and one for the models."""

    def __init__(
        self, console: Console, n_cases: int, n_models: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._standing = Standing(n_cases, n_models)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeLeft())
        self._progress = Bars(self._standing, *columns, console=console, transient=True, get_time=clock)
        self._tasks = add_tasks(self._progress, self._standing, clock)

    def __enter__(self) -> BarReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Update the bars; print notable events above them."""
        self._standing.take(event, comparisons)
        if isinstance(event, ADVANCING):
            update(self._progress, self._tasks, self._standing)
        elif line := describe(event):
            self._progress.console.print(line, style="dim", markup=False, highlight=False)


class LineReporter:
    """A line for each notable event, and occasional progress lines from a thread, since a diagnosis may take long."""

    def __init__(
        self, console: Console, n_cases: int, n_models: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._standing = Standing(n_cases, n_models)
        self._progress = Progress(disable=True, get_time=clock)
        self._tasks = add_tasks(self._progress, self._standing, clock)
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
        """Print notable events."""
        self._standing.take(event, comparisons)
        if isinstance(event, ADVANCING):
            update(self._progress, self._tasks, self._standing)
        line = describe(event)
        if isinstance(event, TrainingAdvanced) and self._has_news(event):
            line = training_text(event)
        if line:
            self._print(line)

    def tick(self) -> None:
        """Print a progress line if one is due."""
        waited, share = self._clock() - self._printed, self._standing.share
        if waited >= QUIET_S or (waited >= LINE_EVERY_S and share - self._share >= LINE_SHARE):
            self._share = share
            counts = [self._counted(task) for task in self._progress.tasks if not task.finished or share >= 1]
            parts = (*counts, self._standing.findings(), self._standing.now())
            self._print("; ".join(part for part in parts if part))

    def _counted(self, task: Task) -> str:
        """`12 of 96 cases, 0:01:20 left`."""
        left = task.fields["pace"].left(task.total or 0)
        text = f", {left_text(left)} left" if left else ""
        return f"{int(task.completed)} of {task.total:.0f} {task.description}{text}"

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
    """The line for an event, if it is notable."""
    if isinstance(event, Announced):
        return event.message
    if isinstance(event, BackendLost):
        return f"{event.spec.name}: {event.message}"
    if isinstance(event, BackendStarted):
        return f"{event.info.spec.name}: {event.info.spec.adapter} {event.info.version}, Python {event.info.python}"
    return ""


def is_animated(console: Console) -> bool:
    """Whether bars can be shown: with FORCE_COLOR, which CI systems set, any file counts as a terminal."""
    return console.is_interactive and console.file.isatty()


def reporter_for(console: Console, n_cases: int, n_models: int = 0, *, quiet: bool) -> ProgressReporter:
    """The reporter for this console."""
    if quiet:
        return SilentReporter()
    return (BarReporter if is_animated(console) else LineReporter)(console, n_cases, n_models)
