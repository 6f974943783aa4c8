"""`parity compare`: two dumps of tensors, file against file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity.cli.group import end_once_on_signals, example, fail, main, output_options
from parity.exit_codes import DEFAULT_FAIL_ON, FAIL_ON

if TYPE_CHECKING:
    from parity.dumps.session import CompareOptions, ComparisonJob
    from parity.reporting.results.outputs import Outputs


@main.command(
    short_help="Compare tensors in files: two dumps, or two checkpoints.",
    epilog=example(
        "parity compare torch_dump/ paddle_dump/",
        "parity compare model.safetensors model.pdparams --write-mapping names.yaml",
        "parity compare left.npz right.npz --truth float64.npz --rtol 1e-4 --rtol '*.bias:1e-3'",
    ),
)
@click.argument("left", type=click.Path(path_type=Path))
@click.argument("right", type=click.Path(path_type=Path))
@click.option(
    "--truth", type=click.Path(path_type=Path), metavar="DUMP", help="A third, more precise dump that judges both."
)
@click.option("--mapping", type=click.Path(path_type=Path), metavar="FILE", help="YAML: `left name: right name`.")
@click.option(
    "--write-mapping", type=click.Path(path_type=Path), metavar="FILE", help="Write the pairs as a mapping file."
)
@click.option("--known", type=click.Path(path_type=Path), metavar="FILE", help="YAML with a list `known:` to accept.")
@click.option("--rtol", multiple=True, metavar="V|TENSOR:V", help="Override rtol, for all tensors or some. Repeatable.")
@click.option("--atol", multiple=True, metavar="V|TENSOR:V", help="Override atol, for all tensors or some. Repeatable.")
@click.option("--ignore-dtype", is_flag=True, help="Compare the values of tensors whose dtypes differ.")
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default=DEFAULT_FAIL_ON,
    show_default=True,
    help="The mildest verdict that exits with 1.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory (default: reports/compare-TIME)."
)
@output_options
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def compare(
    left: Path,
    right: Path,
    truth: Path | None,
    mapping: Path | None,
    write_mapping: Path | None,
    known: Path | None,
    rtol: tuple[str, ...],
    atol: tuple[str, ...],
    ignore_dtype: bool,
    fail_on: str,
    out: Path | None,
    quiet: bool,
    verbose: bool,
    wanted: Outputs,
) -> NoReturn:
    """Compare the tensors in LEFT with those in RIGHT, each a file or a folder: .npy, .npz, .safetensors, JSON lines
    (.jsonl), and checkpoints, weights only (.pt, .pth, .bin, .pdparams).

    |left - right| <= atol + rtol * |right| must hold for every element. Tensors are paired by name, by a mapping, by
    content, or by order and shape; every tensor needs a partner. Files are read as they are compared, in constant
    memory; a pickle is never run. No framework is needed.

    Exit code: 0 aligned; 1 findings, or an outdated `known` entry; 2 the command is wrong, or a file cannot be read or
    written; 3 no findings, but something could not be compared; 130 interrupted (what was compared is kept).
    """
    end_once_on_signals()
    job, options = opened((left, right, truth), (mapping, known), (rtol, atol), fail_on, check_dtype=not ignore_dtype)
    if write_mapping is not None:
        write(write_mapping, job)
    sys.exit(shown(job, options, out, wanted, verbosity=verbose - quiet))


def opened(
    paths: tuple[Path, Path, Path | None],
    files: tuple[Path | None, Path | None],
    limits: tuple[tuple[str, ...], tuple[str, ...]],
    fail_on: str,
    *,
    check_dtype: bool,
) -> tuple[ComparisonJob, CompareOptions]:
    """The dumps with their matching, and what is asked; exits with 2 if anything cannot be read."""
    from parity.dumps.compare import Rules
    from parity.dumps.dump import open_dump
    from parity.dumps.mapping import read_mapping
    from parity.dumps.matching import MatchingError
    from parity.dumps.session import CompareOptions, names_of, parse_limits, prepared, read_known

    mapping, known = files
    try:
        left, right, truth = (None if path is None else open_dump(path) for path in paths)
        assert left is not None and right is not None  # noqa: S101 - both are arguments
        rules = Rules(parse_limits(*limits, [tensor.name for tensor in left.tensors]), check_dtype)
        names = names_of(left.path, right.path)
        accepted = () if known is None else read_known(known, names)
        options = CompareOptions(rules, {} if mapping is None else read_mapping(mapping), accepted, fail_on)
        return prepared(left, right, truth, options), options
    except MatchingError as error:
        fail(f"{mapping}: {error}")


def write(path: Path, job: ComparisonJob) -> None:
    """Write the matching as a mapping file; exits with 2 if that fails."""
    from parity.dumps.mapping import mapping_text
    from parity.reporting.results.results import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, mapping_text(job.matching))
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}")
    click.echo(f"mapping written to {path}", err=True)


def shown(job: ComparisonJob, options: CompareOptions, out: Path | None, wanted: Any, *, verbosity: int) -> int:
    """Compare, show and write; the exit code."""
    from rich.console import Console

    from parity.config.plan import Plan
    from parity.dumps.progress import progress
    from parity.dumps.session import Session
    from parity.reporting.console.run import show
    from parity.reporting.results.claims import claimed
    from parity.reporting.results.directory import Losses
    from parity.reporting.results.outputs import write_run_files

    losses = Losses()
    try:
        run_dir = click.get_current_context().with_resource(claimed(out, Plan("compare", (), (), "", 0, ())))
        with wanted.silenced():
            total = job.left.nbytes + job.right.nbytes
            with progress(Console(stderr=True), total, quiet=verbosity < 0) as advance:
                results = Session(job, options, run_dir, ["parity", *sys.argv[1:]], advance, losses).run()
            if not wanted.on_stdout:
                show(results, verbosity=verbosity)
        written = [*write_run_files(results, run_dir, wanted, losses), str(run_dir)]
        losses.check()
    except BlockingIOError as error:
        fail(f"cannot use {error.filename}: {error.strerror}; wait until it has finished, or name another --out")
    except OSError as error:
        fail(f"cannot write {error.filename or out or 'the results'}: {error.strerror or error}")
    if verbosity >= 0:
        click.echo(f"written to {', '.join(written)}; for reviewers: {run_dir / 'report.html'}", err=True)
    return results.summary.exit_code
