"""`parity check` of folders: a table, or a line of JSON per pair, as the answers come."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from parity.check.batch import Batch

WIDTHS = (11, 26, 8)
"""Of a verdict, a cause and seconds."""
STARTING_S = 300.0
"""Beyond `--seconds`, which begin once a pair is prepared and end after a case."""


@dataclass(frozen=True)
class BatchOptions:
    """What the options of a batch ask for."""

    out: Path | None
    quiet: bool
    as_json: bool
    jobs: int
    resume: bool
    shard: str | None
    junit_xml: Path | None

    @property
    def folder(self) -> Path:
        """Where answers go. Raises click.UsageError if those of another run are there, or none are to be kept."""
        from parity.check.batch import ANSWERS

        if self.out is None and self.resume:
            raise click.UsageError("--resume needs --out DIR, the folder of the interrupted check")
        if self.out is not None and not self.resume and (self.out / ANSWERS).exists():
            raise click.UsageError(f"{self.out / ANSWERS} is there; add --resume, or name another --out")
        return (self.out or Path("reports") / f"check-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}").absolute()


def check_all(batch: Batch, asked: BatchOptions, passed: Sequence[str], seconds: float) -> int:
    """Check all pairs of a batch with the options `passed`; the exit code. Raises UserError."""
    from parity.check.batch import Runner, answered, junit, part, summary, worst

    folder = asked.folder
    members = part(batch.members, asked.shard)
    known = answered(folder, members) if asked.resume else {}
    rows = list(known.values())
    width = max((len(member.name) for member in members), default=0)
    for row in rows:
        show(row, width, asked)
    runner = Runner(folder, passed, asked.jobs, 2 * seconds + STARTING_S)
    interrupted = False
    try:
        with closing(runner.answers([m for m in members if m.name not in known])) as answers:  # type: ignore[type-var]
            for row in answers:
                rows.append(row)
                show(row, width, asked)
    except KeyboardInterrupt:
        interrupted = True
    if asked.junit_xml is not None:
        asked.junit_xml.write_text(junit(rows), encoding="utf-8")
    lines = summary(rows, len(members), batch.unmatched)
    if interrupted:
        lines.append(f"interrupted; the others: the same command with --out {folder} --resume")
    for line in [] if asked.quiet else lines:
        click.echo(line, err=asked.as_json)
    return INTERRUPTED if interrupted else worst(rows)


def show(row: Mapping[str, Any], width: int, asked: BatchOptions) -> None:
    """One pair's answer: a line of JSON, or of the table."""
    from parity.check.batch import cells
    from parity.config.nodes import printable

    if asked.as_json:
        click.echo(json.dumps(row))
        return
    *columns, sentence = cells(row)
    text = "  ".join(column.ljust(n) for column, n in zip(columns, (width, *WIDTHS), strict=True))
    click.echo(printable(f"{text}  {sentence}"))


def passed_on(given: Mapping[str, Any]) -> list[str]:
    """The options of the command, as those of a check of one pair."""
    words: list[str] = []
    for name, value in given.items():
        option = {"settings": "--set", "dtypes": "--dtype", "everything": "--all", "format_name": "--format"}.get(
            name, f"--{name}"
        )
        option = option.replace("_", "-")
        if name in ("out", "quiet") or value is None or value is False:
            continue
        if value is True:
            words.append(option)
        else:
            for item in value if isinstance(value, tuple) else (value,):
                words += [option, str(item)]
    return words
