"""`parity init`: writes a config for a file with kernels and runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from parity.cli.group import example, fail, main
from parity.cli.run import run


@main.command(
    short_help="Write a config for one's own kernels, and run it.",
    epilog=example(
        "parity init my_kernel.py",
        "parity init my_kernel.py --dtype bfloat16",
        "parity init kernels/norm.py --adapter torch -o norm.yaml --no-run",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--adapter",
    metavar="NAME",
    help="The framework whose tensors the functions take (default: the one that the file imports).",
)
@click.option(
    "-o",
    "--output",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="The config to write (default: FILE with the suffix .yaml).",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="NAME",
    help="Repeatable (default: float32 and float64, or FILE's DTYPES).",
)
@click.option("--force", is_flag=True, help="Replace an existing config.")
@click.option("--no-run", is_flag=True, help="Write the config and do not run it.")
@click.pass_context
def init(
    ctx: click.Context,
    file: Path,
    adapter: str | None,
    config: Path | None,
    dtypes: tuple[str, ...],
    force: bool,
    no_run: bool,
) -> None:
    """Write a config for the functions of FILE that are named after ops, and run it.

    The config compares them with the framework's own ops and judges them by the exact answer, on inputs that reveal
    common mistakes; what the framework itself does wrong is a warning. FILE runs only in a worker process. Exit code:
    that of `parity run`; 2 if no config was written.
    """
    from parity.starter.write import starter

    if not file.is_file():
        fail(f"{file} is not a file; name the Python file with your functions")
    config = config or file.with_suffix(".yaml")
    command = shlex.join(["parity", "run", str(config)])
    if config.exists() and config.samefile(file):
        fail(f"{config} is the file itself; name another config with -o")
    if config.exists() and not force:
        fail(f"{config} already exists: run it with `{command}`, or replace it with --force")
    try:
        made = starter(file, config, adapter, lambda op: click.echo(f"choosing inputs for {op}", err=True), dtypes)
        config.write_text(made.text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {config}: {error.strerror or error}; name another with -o")
    for note in made.notes:
        click.echo(note, err=True)
    click.echo(f"wrote {config}: {made.summary}", err=True)
    if no_run:
        click.echo(f"run it with: {command}", err=True)
        return
    ctx.invoke(run, configs=(config,))
