"""`parity inspect`: shows the stored values of a tensor."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.group import example, fail, main


@main.command(
    short_help="Show a stored tensor: range, errors, slices.",
    epilog=example(
        "parity inspect RUN_DIR group-norm-offset=10000 y",
        "parity inspect RUN_DIR offset=10000 grad.x --dtype float64 -b paddle --slice '0,:5'",
        "parity inspect RUN_DIR offset=10000 inputs.x --slice '...,0'",
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("case")
@click.argument("tensor")
@click.option("--dtype", metavar="NAME", help="In this dtype (default: the stored dtype with the worst verdict).")
@click.option("-b", "--backend", "backends", multiple=True, metavar="NAME", help="Only this backend. Repeatable.")
@click.option("--slice", "index", metavar="INDEX", help="Print these elements, for example 0,:5 or ...,-1.")
def inspect(
    run_dir: Path, case: str, tensor: str, dtype: str | None, backends: tuple[str, ...], index: str | None
) -> None:
    """Show a stored TENSOR of CASE (an id or a part of one): its range, its errors, and their locations.

    Outputs and gradients are stored if they differ or hide an error; inputs are always stored (as inputs.NAME).

    Exit code: 0 the tensor is shown; 2 the command is wrong, the run cannot be read, or the tensor was not stored.
    """
    from parity.reporting.console.inspect import inspect as show
    from parity.reporting.console.run import stdout_console

    try:
        show(run_dir, case, tensor, stdout_console(), dtype=dtype, backends=backends, slice_text=index)
    except OSError as error:
        fail(f"cannot print: {error.strerror or error}")
