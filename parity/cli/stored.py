"""The commands that read stored runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.group import example, fail, main, output_options

if TYPE_CHECKING:
    from parity.reporting.results.outputs import Outputs
from parity.exit_codes import INCOMPLETE


@main.command(
    short_help="Show a stored run again, in any format.",
    epilog=example(
        "parity report reports/layernorm-20261121-101500",
        "parity report RUN_DIR --html report.html --junit-xml junit.xml",
        "parity report RUN_DIR --markdown - | gh pr comment --body-file -",
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@output_options
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def report(run_dir: Path, quiet: bool, verbose: bool, wanted: Outputs) -> None:
    """Show a stored run again, as tables or in the requested formats.

    Exit code: 0 whatever the run found; 2 the run cannot be read or a file cannot be written.
    """
    from parity.reporting.console.run import show
    from parity.reporting.results.directory import Losses
    from parity.reporting.results.outputs import write_asked
    from parity.reporting.results.results import read_results

    losses = Losses()
    try:
        results = read_results(run_dir, whole=False)
        if not (wanted.files or wanted.github):
            show(results, verbosity=verbose - quiet)
        for path in write_asked(results, run_dir, wanted, losses):
            click.echo(f"written to {path}", err=True)
        losses.check()
    except OSError as error:
        fail(f"cannot write {error.filename or 'the results'}: {error.strerror or error}")


@main.command(
    short_help="Write runs as a table of ops by backends.",
    epilog=example("parity run configs/census/*.yaml --out RUN_DIR; parity census RUN_DIR reports/census"),
)
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--kinds", metavar="FILE", type=click.Path(path_type=Path), help="What kind each difference is, in YAML.")
@click.option("--sample", is_flag=True, help="Write one script for each backend, and link no other.")
def census(run_dirs: Sequence[Path], out: Path, kinds: Path | None, sample: bool) -> None:
    """Write OUT/index.html, ops down and backends across, and a script without parity for each finding in OUT/repro.

    Several runs, of different cases, are one table. With --kinds, a difference is a bug, a documented convention or
    reduced precision, as the first row of FILE says that covers it, else unclassified.

    Exit code: 0 all is written; 2 the run or FILE cannot be read or a file cannot be written; 3 some scripts could not
    be made, a difference is unclassified, or a row of FILE covers nothing.
    """
    from parity.config.nodes import printable
    from parity.reporting.finding_kinds import read_kinds
    from parity.reporting.html.census import census_page, sampled, to_script, unclassified, unused
    from parity.reporting.results.results import read_results, write_atomically
    from parity.reporting.text.words import plural
    from parity.repro import ReproError
    from parity.repro.write import scripts_of

    try:
        rows = None if kinds is None else read_kinds(kinds)
        runs = [read_results(run_dir) for run_dir in run_dirs]
        ids = Counter(case.id for results in runs for case in results.cases)
        if ids and max(ids.values()) > 1:
            fail(f"two of the runs have the case {printable(ids.most_common(1)[0][0])}; name runs of different cases")
        wanted = [to_script(results) for results in runs]
        made = [
            item
            for chosen, results, run_dir in zip(sampled(wanted) if sample else wanted, runs, run_dirs, strict=True)
            for item in scripts_of(chosen, results, run_dir, out / "repro")
        ]
        refused = [item for item in made if isinstance(item, ReproError)]
        names = {item.script.stem for item in made if not isinstance(item, ReproError)}
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "index.html", census_page(runs, names, rows))
    except OSError as error:
        fail(f"cannot write {error.filename or out}: {error.strerror or error}")
    problems = [f"no script: {item}" for item in refused]
    problems += [
        f"{kinds}: {line}" for line in ([] if rows is None else [*unclassified(runs, rows), *unused(runs, rows)])
    ]
    for problem in problems:
        click.echo(problem, err=True)
    click.echo(f"written to {out / 'index.html'}, with {plural(len(names), 'script')} in {out / 'repro'}")
    if problems:
        sys.exit(INCOMPLETE)


@main.command(
    short_help="Explain a diagnosis, or one case of a run.",
    epilog=example(
        "parity explain --list", "parity explain variance-naive", "parity explain RUN_DIR group-norm --tensor 'grad.*'"
    ),
)
@click.argument("subject", required=False, metavar="ID|RUN_DIR")
@click.argument("case", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the diagnoses.")
@click.option("--dtype", metavar="NAME", help="Only this dtype of the case.")
@click.option("--tensor", metavar="GLOB", help="Only these tensors of the case.")
@click.option("-v", "--verbose", is_flag=True, help="Show every number and all evidence of the case.")
def explain(
    subject: str | None, case: str | None, as_list: bool, dtype: str | None, tensor: str | None, verbose: bool
) -> None:
    """Explain a diagnosis, or what the run in RUN_DIR found in CASE (an id or a part of one)."""
    from parity.reporting.console.explain import explain_case, explain_id, explain_list
    from parity.reporting.console.run import stdout_console

    if (subject is None) != as_list or (case is not None and as_list):
        raise click.UsageError("name a diagnosis, or a run directory and a case, or give --list")
    console = stdout_console()
    try:
        if subject is None:
            explain_list(console)
        elif case is None and not Path(subject).is_dir():
            explain_id(subject, console)
        else:
            explain_case(Path(subject), case, console, dtype=dtype, tensor=tensor, verbose=verbose)
    except OSError as error:
        fail(f"cannot print: {error.strerror or error}")
