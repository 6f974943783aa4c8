"""Progress of a comparison on stderr: a bar on a terminal, occasional lines in a log, nothing with -q."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from parity.config.nodes import printable
from parity.reporting.console.progress import is_animated
from parity.reporting.text.words import cut

LINE_EVERY_S = 10.0
LINE_SHARE = 0.1
MAX_NAME = 40

Advance = Callable[[str, int], None]
"""Called for each finished tensor, with its size in bytes."""


@contextlib.contextmanager
def progress(console: Console, total: int, *, quiet: bool) -> Iterator[Advance]:
    """Shows how many of `total` bytes are compared."""
    if quiet:
        yield lambda name, n_bytes: None  # noqa: ARG005
        return
    if not is_animated(console):
        yield lines(console, total)
        return
    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=max(total, 1))
        yield lambda name, n_bytes: bar.update(task, advance=n_bytes, description=cut(plain(name), MAX_NAME))


def plain(name: str) -> str:
    """A name without control characters and markup."""
    return printable(name).replace("[", r"\[")


def lines(console: Console, total: int) -> Advance:
    """A line after each tenth of the bytes, but at most every ten seconds."""
    done, said, next_s = 0, 0.0, time.monotonic() + LINE_EVERY_S

    def advance(name: str, n_bytes: int) -> None:
        nonlocal done, said, next_s
        done += n_bytes
        share = done / max(total, 1)
        if share - said >= LINE_SHARE and time.monotonic() >= next_s:
            said, next_s = share, time.monotonic() + LINE_EVERY_S
            text = f"{share:.0%} of {total / 1e9:.2f} GB compared, now {cut(printable(name), MAX_NAME)}"
            console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    return advance
