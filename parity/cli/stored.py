"""The commands that read stored runs."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.group import example, fail, main


@main.command(epilog=example("parity report reports/layernorm-20261121-101500", "parity report RUN_DIR --json"))
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def report(run_dir: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show a stored run again. The exit code is 0 whatever the run found."""
    from parity.reporting.results import ResultsError, read_results
    from parity.run import show

    try:
        show(read_results(run_dir), as_json=as_json, verbosity=verbose - quiet)
    except ResultsError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot print the results: {error.strerror}")


@main.command(
    epilog=example(
        "parity explain --list", "parity explain variance-naive", "parity explain RUN_DIR group-norm --tensor 'grad.*'"
    )
)
@click.argument("subject", required=False, metavar="ID|RUN_DIR")
@click.argument("case", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the diagnoses.")
@click.option("--dtype", metavar="NAME", help="Of the case, only this dtype.")
@click.option("--tensor", metavar="GLOB", help="Of the case, only these tensors.")
def explain(subject: str | None, case: str | None, as_list: bool, dtype: str | None, tensor: str | None) -> None:
    """Tell what a diagnosis means, or all that the run in RUN_DIR knows about CASE (an id, or a part of one)."""
    from parity.reporting.console import stdout_console
    from parity.reporting.explain import ExplainError, explain_case, explain_id, explain_list
    from parity.reporting.results import ResultsError

    if (subject is None) != as_list or (case is not None and as_list):
        raise click.UsageError("name a diagnosis, or a run directory and a case, or give --list")
    console = stdout_console()
    try:
        if subject is None:
            explain_list(console)
        elif case is None and not Path(subject).is_dir():
            explain_id(subject, console)
        else:
            explain_case(Path(subject), case, console, dtype=dtype, tensor=tensor)
    except (ExplainError, ResultsError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot print: {error.strerror or error}")
