"""Progress on stderr: a bar on a terminal, plain lines in a log, nothing with -q."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parity.engine import Announced, BackendLost, BackendStarted, CellFinished, Event
from parity.judge.verdict import Comparison

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
    """A bar with the number of finished cells and of failing tensors."""

    def __init__(self, console: Console, n_cells: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("starting", total=n_cells)
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
        elif line := describe(event):
            self._progress.console.print(line, style="dim", markup=False, highlight=False)


class LineReporter:
    """A line for what is worth one, and one every few seconds."""

    def __init__(self, console: Console, n_cells: int) -> None:
        self._console = console
        self._n_cells = n_cells
        self._done = 0
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
        if line:
            self._printed = time.monotonic()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


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
