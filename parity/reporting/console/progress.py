"""Progress on stderr: a bar on a terminal, plain lines in a log, nothing with -q."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from parity.engine import (
    Announced,
    BackendLost,
    BackendStarted,
    CellFinished,
    Event,
    TrainingAdvanced,
    TrainingFinished,
)
from parity.judge.compare.verdict import Comparison

LINE_EVERY_S = 5.0


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


class BarReporter:
    """A bar with the number of finished cells and of failing tensors, and one for the training at hand."""

    def __init__(self, console: Console, n_cells: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("starting", total=n_cells, visible=n_cells > 0)
        self._training: TaskID | None = None
        self._failing = 0

    def __enter__(self) -> BarReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:
        """Advance, and say above the bar what is worth a line."""
        if isinstance(event, CellFinished):
            self._failing += len({c.tensor for c in comparisons if c.verdict.fails})
            text = f"comparing ({self._failing} tensors differ)" if self._failing else "comparing"
            self._progress.update(self._task, advance=1, description=text)
        elif isinstance(event, TrainingAdvanced):
            self._advance(event)
        elif isinstance(event, TrainingFinished):
            self._advance(None)
        elif line := describe(event):
            self._progress.console.print(line, style="dim", markup=False, highlight=False)

    def _advance(self, event: TrainingAdvanced | None) -> None:
        """Show how far the training is; None ends its bar."""
        if event is None or self._training is None:
            if self._training is not None:
                self._progress.remove_task(self._training)
            self._training = None if event is None else self._progress.add_task("", total=event.steps)
        if event is not None and self._training is not None:
            text = f"{event.case} {event.dtype}{standing(event)}"
            self._progress.update(self._training, completed=event.step, description=escape(text))


class LineReporter:
    """A line for what is worth one, and one every few seconds."""

    def __init__(self, console: Console, n_cells: int) -> None:
        self._console = console
        self._n_cells = n_cells
        self._done = 0
        self._news: tuple[object, ...] = ()
        self._line = ""
        self._printed = time.monotonic()

    def __enter__(self) -> LineReporter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def on_event(self, event: Event, comparisons: Sequence[Comparison]) -> None:  # noqa: ARG002 - a bar counts them
        """Print a line where it is time for one."""
        line = describe(event)
        if isinstance(event, CellFinished):
            self._done += 1
            if time.monotonic() - self._printed >= LINE_EVERY_S:
                line = f"{self._done} of {self._n_cells} cells"
        if isinstance(event, TrainingAdvanced) and self._is_due(event):
            line = f"{event.case} {event.dtype}: step {event.step} of {event.steps}{standing(event)}"
        if line and line != self._line:
            self._line, self._printed = line, time.monotonic()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _is_due(self, event: TrainingAdvanced) -> bool:
        """Whether there is something new: somebody has parted, the end is there, or some seconds have passed."""
        news = (event.case, event.dtype, tuple(event.parted), event.step == event.steps)
        changed, self._news = news != self._news and bool(event.parted or event.step == event.steps), news
        return changed or time.monotonic() - self._printed >= LINE_EVERY_S


def standing(event: TrainingAdvanced) -> str:
    """`, loss 3.215; paddle is outside from step 312`: what there is to know of a training that is under way."""
    loss = "" if math.isnan(event.loss) else f", loss {event.loss:.4g}"
    return loss + "".join(f"; {name} is outside from step {step}" for name, step in event.parted.items())


def describe(event: Event) -> str:
    """The line that an event is worth, if any."""
    if isinstance(event, Announced):
        return event.message
    if isinstance(event, BackendLost):
        return f"{event.spec.name}: {event.message}"
    if isinstance(event, BackendStarted):
        return f"{event.info.spec.name}: {event.info.spec.adapter} {event.info.version}, Python {event.info.python}"
    return ""


def reporter_for(console: Console, n_cells: int, *, quiet: bool) -> ProgressReporter:
    """The reporter that suits the console."""
    if quiet:
        return SilentReporter()
    return BarReporter(console, n_cells) if console.is_terminal else LineReporter(console, n_cells)
