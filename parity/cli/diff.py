"""`parity diff`: compares two stored runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from parity.cli.group import example, fail, main
from parity.exit_codes import FAIL_ON

if TYPE_CHECKING:
    from parity.reporting.diff.compare import Diff


@main.command(
    short_help="Compare two runs: what is new, worse, fixed.",
    epilog=example(
        "parity diff main-run pr-run --markdown diff.md",
        "parity diff old-run new-run --map my-paddle=paddle",
        "parity diff RUN RUN --map paddle==2.6.2=paddle",
    ),
)
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="OLD=NEW",
    help="Compare backend OLD of RUN_A with NEW of RUN_B. Repeatable. If both runs are the same, compare only these.",
)
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="The mildest verdict that counts as a finding (default: RUN_B's)."
)
@click.option("--fail-on-others", is_flag=True, help="Also judge the backends that are not the subject of a run.")
@click.option(
    "--factor",
    type=click.FloatRange(min=1, min_open=True),
    default=2.0,
    show_default=True,
    metavar="X",
    help="An error must be this many times larger to be worse, or smaller to be better.",
)
@click.option(
    "--markdown", type=click.Path(path_type=Path), metavar="PATH", help="Also write a comment for a pull request."
)
@click.option("--html", type=click.Path(path_type=Path), metavar="PATH", help="Also write a self-contained HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document on stdout instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every change.")
def diff(
    run_a: Path,
    run_b: Path,
    maps: tuple[str, ...],
    fail_on: str | None,
    fail_on_others: bool,
    factor: float,
    markdown: Path | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> NoReturn:
    """Compare the runs in RUN_A and RUN_B: list new, worse, vanished, fixed and better findings.

    Two releases of a backend (`paddle==2.6.2` and `paddle`) are matched if there is only one candidate. An error below
    8 times that of a careful implementation is noise, never worse. A finding that was not checked again has vanished;
    it does not count as fixed.

    Exit code: 0 nothing is new or worse; 1 something is new or worse; 2 the command is wrong or a run cannot be read;
    3 nothing is new or worse, but tensors of RUN_A were not compared in RUN_B, or nothing could be compared.
    """
    from parity.reporting.diff.compare import compare

    if not math.isfinite(factor):
        raise click.BadParameter(f"{factor} is not a finite number", param_hint="--factor")
    differences = compare(run_a, run_b, maps=maps, level=fail_on, factor=factor, fail_on_others=fail_on_others)
    try:
        write_files(differences, markdown, html)
    except OSError as error:
        fail(f"cannot write {error.filename or markdown or html}: {error.strerror or error}")
    try:
        show(differences, as_json=as_json, verbosity=verbose - quiet)
    except OSError as error:
        fail(f"cannot print the differences: {error.strerror or error}")
    sys.exit(differences.exit_code)


def write_files(differences: Diff, markdown: Path | None, html: Path | None) -> None:
    """Write the requested files; raises OSError."""
    from parity.reporting.blocks.html import page
    from parity.reporting.blocks.markdown import comment
    from parity.reporting.diff.report import diff_report
    from parity.reporting.results.results import write_atomically

    if markdown is not None:
        write_atomically(markdown, comment(diff_report(differences)))
    if html is not None:
        write_atomically(html, page(diff_report(differences)))


def show(differences: Diff, *, as_json: bool, verbosity: int) -> None:
    """Print a diff on stdout, as tables or as JSON."""
    from parity.reporting.blocks.console import show as show_report
    from parity.reporting.console.run import stdout_console
    from parity.reporting.diff.document import as_json as document_text
    from parity.reporting.diff.report import diff_report

    if as_json:
        click.echo(document_text(differences))
    else:
        show_report(diff_report(differences), stdout_console(), verbosity=verbosity)
