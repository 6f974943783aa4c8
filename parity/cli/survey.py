"""Commands that list algorithms, ops, backends and environments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from parity.cli.group import MAX_THREADS, end_once_on_signals, example, fail, main
from parity.exit_codes import INCOMPLETE
from parity.fingerprint import DTYPES, FINGERPRINTED


@main.command(
    short_help="Find out which algorithm each backend uses.",
    epilog=example(
        "parity fingerprint layer_norm",
        "parity fingerprint batch_norm -b torch -b mine=torch:./my_ops.py --dtype float32",
    ),
)
@click.argument("op", type=click.Choice(FINGERPRINTED))
@click.option(
    "-b",
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="NAME[==VERSION][:MODE], NAME=ADAPTER:OPS_FILE, or a name in --config. Repeatable (default: all adapters).",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Use the backends of this config.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="Only this dtype. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: reports/fingerprint-OP-TIME.")
@click.option("--json", "as_json", is_flag=True, help="Print fingerprint.json on stdout instead of a table.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True, metavar="N")
@click.option("--timeout", type=click.FloatRange(1e-3, 1e6), default=60.0, show_default=True, metavar="S")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
def fingerprint(op: str, as_json: bool, **asked: Any) -> NoReturn:
    """Identify the algorithm that each backend uses for OP, by probe inputs; store the evidence and a plot.

    Exit code: 0 everything was measured; 2 the command is wrong; 3 something could not be measured; 130 interrupted.
    """
    from parity.fingerprint.study import request
    from parity.fingerprint.table import fingerprint_and_show

    try:
        wanted = request(op, **asked)
    except OSError as error:
        fail(f"cannot use {error.filename or 'reports'}: {error.strerror or error}; name another --out")
    end_once_on_signals()
    try:
        sys.exit(fingerprint_and_show(wanted, as_json=as_json))
    except OSError as error:
        fail(f"cannot write {error.filename or wanted.run_dir}: {error.strerror or error}", INCOMPLETE)


@main.command(short_help="List the ops, or show one.", epilog=example("parity ops", "parity ops layer_norm"))
@click.argument("name", required=False)
def ops(name: str | None) -> None:
    """List the ops, their params and the backends that implement them; or show the op NAME in full."""
    from parity.listing import op_details, ops_table

    op_details(name) if name else ops_table()


@main.command(short_help="List the backends and their interpreters.", epilog=example("parity backends"))
def backends() -> None:
    """List the backends: whether they are installed, where, and in which version."""
    from parity.listing import backends_table

    backends_table()


@main.group(
    short_help="Manage the environments of frameworks.",
    epilog=example("parity env list", "parity env create oneflow", "parity env create paddle==2.6.2"),
)
def env() -> None:
    """Manage the environments of backends that cannot run in this interpreter."""


@env.command("list", epilog=example("parity env list"))
def env_list() -> None:
    """List the managed environments."""
    from parity.listing import environments_table

    environments_table()


@env.command("create", epilog=example("parity env create oneflow", "parity env create paddle==2.6.2"))
@click.argument("backend", metavar="NAME[==VERSION]")
def env_create(backend: str) -> None:
    """Create the environment of a backend, in the pinned release unless a version is given."""
    from parity import environments

    adapter, _, version = backend.partition("==")
    end_once_on_signals()
    environment = environments.create_environment(adapter, version or None, click.echo)
    click.echo(f"ready: {environment.name} ({environment.path})")


@env.command("remove", epilog=example("parity env remove oneflow-0.9.0-py3.10"))
@click.argument("name")
def env_remove(name: str) -> None:
    """Remove an environment; NAME is as `parity env list` shows it."""
    from parity import environments

    environments.remove_environment(name)
    click.echo(f"removed: {name}")
