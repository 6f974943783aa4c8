"""`parity repro`: writes findings as scripts that run without parity."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.group import example, fail, main
from parity.exit_codes import INCOMPLETE, USAGE


@main.command(
    short_help="Write a script that shows a finding without parity.",
    epilog=example(
        "parity repro RUN_DIR near-constant-pair -b paddle --dtype float64 --issue", "parity repro RUN_DIR --all"
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("case", required=False)
@click.option("-b", "--backend", metavar="NAME", help="Only the findings of this backend.")
@click.option("--dtype", metavar="NAME", help="Only the findings in this dtype.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="The directory to write to (default: RUN_DIR/repro)."
)
@click.option("--issue", "issues", is_flag=True, help="Also write the text of an issue for each backend that is wrong.")
@click.option("--all", "every", is_flag=True, help="All findings of the run, instead of CASE.")
def repro(
    run_dir: Path, case: str | None, backend: str | None, dtype: str | None, out: Path | None, issues: bool, every: bool
) -> None:
    """Write a script that reproduces each finding of CASE (an id or a part of one) without parity.

    A script needs only NumPy and its framework. It exits with 1 if the difference is there and with 0 if it is gone.
    Exit code: 0 the scripts are written; 2 the command is wrong or there are no findings; 3 the scripts are written,
    but their paths could not be printed.
    """
    from parity.repro import ReproError
    from parity.repro.write import WrittenScript, write_scripts

    if every and case is not None:
        raise click.UsageError("give a case or --all, not both")
    try:
        scripts = list(write_scripts(run_dir, case, every=every, backend=backend, dtype=dtype, out=out, issues=issues))
    except OSError as error:
        fail(f"cannot write {error.filename or out or run_dir}: {error.strerror or error}; name another --out")
    try:
        for item in scripts:
            click.echo(item, err=isinstance(item, ReproError))
            if isinstance(item, WrittenScript) and item.note:
                click.echo(item.note, err=True)
    except OSError as error:
        fail(f"cannot print: {error.strerror or error}; the scripts are written", INCOMPLETE)
    if all(isinstance(item, ReproError) for item in scripts):
        sys.exit(USAGE)
