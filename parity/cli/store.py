"""The commands for the store of a run: `query` and `merge`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.group import example, fail, main
from parity.exit_codes import FAIL_ON, INCOMPLETE, MISMATCH


@main.command(
    short_help="Ask a stored run a question in SQL.",
    epilog=example(
        'parity query RUN_DIR "SELECT op, backend, count(*) FROM findings GROUP BY op, backend"',
        'parity query RUN_DIR "SELECT * FROM cells WHERE error_ratio > 4 ORDER BY error_ratio DESC" --csv > near.csv',
        "parity query RUN_DIR --parquet comparisons.parquet",
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("sql", required=False)
@click.option("--csv", "in_csv", is_flag=True, help="Print CSV, as a pipe gets it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of objects.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="PATH", help="Write the answer as a Parquet file.")
def query(run_dir: Path, sql: str | None, in_csv: bool, as_json: bool, parquet: Path | None) -> None:
    """Answer SQL from the rows of a run, also while it runs; docs/store.md has the tables.

    Without SQL, --parquet writes all comparisons. Exit code: 0 answered; 2 the query or the run is wrong.
    """
    from parity.reporting.query import EVERYTHING, Answer, as_parquet, ask, show_on_stdout

    if in_csv + as_json + (parquet is not None) > 1:
        raise click.UsageError("--csv, --json and --parquet exclude each other")
    if sql is None and parquet is None:
        raise click.UsageError('give a query, for example "SELECT * FROM findings"')

    def show(answer: Answer) -> None:
        if parquet is None:
            show_on_stdout(answer, as_json=as_json, in_csv=in_csv)
        else:
            click.echo(f"written to {parquet}: {as_parquet(answer, parquet)} rows", err=True)

    try:
        ask(run_dir, EVERYTHING if sql is None else sql, show)
    except OSError as error:
        fail(f"cannot write {parquet or 'the answer'}: {error.strerror or error}")


@main.command(
    short_help="Merge the runs of shards into one.",
    epilog=example("parity merge shards/* --out all && parity report all"),
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The new directory."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
def merge(runs: tuple[Path, ...], out: Path, quiet: bool) -> None:
    """Merge the cells of RUNS, each once, into one run in --out, and show it.

    Exit code: that of the merged run, as of `parity run`; 2 if the runs have different seeds or backends, disagree in a
    cell, or cannot be read, or the directory cannot be written; 3 if all would pass but a shard is missing.
    """
    from parity.reporting.console.run import show
    from parity.reporting.merge import merge
    from parity.reporting.results.claims import check_ours, empty
    from parity.reporting.results.directory import held, made
    from parity.reporting.text.words import listed

    if out.resolve() in {run_dir.resolve() for run_dir in runs}:
        raise click.UsageError(f"{out} is one of the runs; name another --out")
    try:
        check_ours(made(out))
        with held(out):
            empty(out)
            results, missing = merge(runs, out)
        show(results, verbosity=-1 if quiet else 0)
    except OSError as error:
        fail(f"cannot write {error.filename or out}: {error.strerror or error}")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        click.echo(f"incomplete: shard {listed(missing)} {verb} missing, with its cases", err=True)
    sys.exit(results.summary.exit_code or (INCOMPLETE if missing else 0))


@main.command(
    short_help="Judge a stored run by other tolerances.",
    epilog=example(
        "parity judge RUN_DIR --rtol 1e-5 --atol 1e-6",
        "parity judge RUN_DIR --rtol 'grad.*:1e-3' --fail-on mismatch",
        "parity judge RUN_DIR --rule dynamo",
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--rtol", multiple=True, metavar="V|TENSOR:V", help="This rtol, for all tensors or for one. Repeatable.")
@click.option("--atol", multiple=True, metavar="V|TENSOR:V", help="This atol, for all tensors or for one. Repeatable.")
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="The mildest verdict that exits with 1 (default: the run's)."
)
@click.option("--fail-on-others", is_flag=True, help="Also judge the backends that are not the run's subject.")
@click.option(
    "--rule",
    type=click.Choice(("assert_close", "dynamo", "flash-attention", "msprobe")),
    help="Apply another tool's rule, and show where it disagrees with the error bound.",
)
@click.option("-v", "--verbose", is_flag=True, help="List all tensors that change.")
def judge(
    run_dir: Path,
    rtol: tuple[str, ...],
    atol: tuple[str, ...],
    fail_on: str | None,
    fail_on_others: bool,
    rule: str | None,
    verbose: bool,
) -> None:
    """Show what a stored run would have found with other tolerances, without running anything.

    The verdicts are exact: each comparison keeps the few elements that decide for every rtol and atol.

    Exit code: that of the run with these tolerances, with --rule 1 if the rule rejects a tensor, else 0; 2 the command
    is wrong, or the run cannot be read or kept no such elements; 3 also if some tensors lack them.
    """
    from parity.reporting.console.judge import rules_of, show_judged, show_rule
    from parity.reporting.judge import judged

    if rule is not None and (rtol or atol or fail_on or fail_on_others):
        raise click.UsageError("--rule has tolerances of its own; leave --rtol, --atol and --fail-on out")
    try:
        if rule is not None:
            from parity.reporting.rules import apply_rule

            answer = apply_rule(run_dir, rule)
            show_rule(rule, answer)
            sys.exit(MISMATCH if any(n for (rejected, _), n in answer.counts.items() if rejected) else 0)
        judged_run = judged(run_dir, rules_of(rtol, atol), fail_on, fail_on_others=fail_on_others)
    except OSError as error:
        fail(f"cannot judge {run_dir}: {error.strerror or error}")
    show_judged(judged_run, verbose=verbose)
    sys.exit(judged_run.results.summary.exit_code)
