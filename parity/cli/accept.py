"""`parity accept`: `known` entries for what a stored run found."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from parity.cli.group import example, fail, main


@main.command(
    short_help="Accept findings: write `known:` entries into the config.",
    epilog=example(
        'parity accept RUN_DIR --reason "naive variance, see issue 123" --until 2027-06-30',
        'parity accept RUN_DIR offset=100 -b paddle --reason "known upstream" --dry-run',
        "parity accept RUN_DIR --unsupported",
        "parity accept RUN_DIR --expired",
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("case", required=False)
@click.option("--reason", metavar="TEXT", help="Accept the findings, for this reason.")
@click.option("--unsupported", is_flag=True, help="Accept what a backend cannot compute, for the reason it gives.")
@click.option("--expired", is_flag=True, help="Drop the entries whose deviation the run no longer shows.")
@click.option("--until", metavar="DATE", help="Last day of the entry, as 2027-06-30 (default: half a year from today).")
@click.option("-b", "--backend", metavar="NAME", help="Only for this backend.")
@click.option("--dtype", metavar="NAME", help="Only for this dtype.")
@click.option("--diagnosis", metavar="ID", help="Only for this root cause.")
@click.option("--dry-run", is_flag=True, help="Print the changes to the configs and write nothing.")
def accept(
    run_dir: Path,
    case: str | None,
    reason: str | None,
    unsupported: bool,
    expired: bool,
    until: str | None,
    backend: str | None,
    dtype: str | None,
    diagnosis: str | None,
    dry_run: bool,
) -> None:
    """Accept the findings of a run, or of CASE (an id or a part of one): add them to its config as `known:` entries.

    An entry covers one root cause in one backend, up to twice its error ratio, in as many cases as one glob can match.
    The comments and layout of the config do not change. An error, a crash or a timeout is never accepted.

    Exit code: 0 the entries are written, or there is nothing to accept; 2 the command is wrong, the run cannot be
    read, or a config cannot be written or has changed since the run.
    """
    from parity.config.plan import REASON_WANTED
    from parity.reporting.accept import AcceptRequest, acceptance

    if not (reason is not None or unsupported or expired):
        raise click.UsageError('nothing to do: give --reason "...", --unsupported or --expired')
    if reason is not None and not (reason.strip() not in ("", REASON_WANTED) and reason.isprintable()):
        raise click.BadParameter("a reason must be one line of text", param_hint="--reason")
    today = datetime.date.today()
    day = end(until, today)
    request = AcceptRequest(reason, day, case, backend, dtype, diagnosis, unsupported, expired)
    accepted = acceptance(run_dir, request, today)
    for change in accepted.changes:
        try:
            if not dry_run:
                change.write()
        except OSError as error:
            fail(f"cannot write {change.path}: {error.strerror or error}")
        for line in [change.diff()] if dry_run else change.lines():
            click.echo(line)
    if not accepted.changes:
        click.echo("nothing to accept")
    for note in accepted.notes:
        click.echo(f"remaining: {note}")


def end(until: str | None, today: datetime.date) -> datetime.date:
    """The last day; raises BadParameter unless it is in the future."""
    from parity.config.plan import ACCEPTED_DAYS

    try:
        day = today + datetime.timedelta(ACCEPTED_DAYS) if until is None else datetime.date.fromisoformat(until)
    except ValueError:
        raise click.BadParameter(f'"{until}" is not a date such as 2027-06-30', param_hint="--until") from None
    if day <= today:
        raise click.BadParameter(f"{until} is not in the future", param_hint="--until")
    return day
