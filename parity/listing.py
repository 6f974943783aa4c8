"""What `parity ops`, `parity backends` and `parity env list` print."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import Any

from rich.table import Table
from rich.text import Text

from parity import environments
from parity.adapters import ADAPTERS, adapter_class
from parity.cases import OPS
from parity.config.plan import BackendSpec
from parity.reporting.console.run import stdout_console


def ops_table() -> None:
    """Every op with its params and their defaults, its tensors, and the backends that implement it."""
    table = plain_table("op", "params", "inputs", "runs on")
    for op in OPS.values():
        inputs = ", ".join(item.name + ("?" if item.optional else "") for item in op.inputs)
        runs_on = ", ".join(name for name in ADAPTERS if adapter_class(name).offers(op.name))
        table.add_row(op.name, ", ".join(map(param_text, fields(op.params))), inputs, runs_on)
    console = stdout_console()
    console.print(table)
    console.print("? optional: null leaves it out", style="dim")


def param_text(field: Any) -> str:
    """`eps=1e-05`, or the bare name of a param without a default."""
    return str(field.name) if field.default is MISSING else f"{field.name}={field.default}"


def backends_table() -> None:
    """Every adapter: where it would run and in which version, without creating anything."""
    table = plain_table("backend", "version", "runs in", "python", "numpy")
    for name in ADAPTERS:
        try:
            found = environments.resolve(BackendSpec(name, name), provision=False)
        except environments.EnvironmentUnavailable as error:
            table.add_row(name, "-", Text(str(error), style="yellow"), "", "")
            continue
        where = f"{found.kind}: {found.python}"
        table.add_row(
            name, found.framework_version or found.numpy_version, where, found.python_version, found.numpy_version
        )
    stdout_console().print(table)


def environments_table() -> None:
    """Every managed environment with its size."""
    found = environments.list_environments()
    console = stdout_console()
    if not found:
        console.print("no managed environments; `parity run` creates one when a backend needs it")
        return
    table = plain_table("name", "backend", "version", "python", "size", "created", "")
    for each in found:
        size = f"{each.size_bytes / 2**30:.1f} GiB"
        state = "" if each.ready else Text("incomplete, not used", style="yellow")
        table.add_row(
            each.name, each.adapter, each.version, each.python, size, each.created[:16].replace("T", " "), state
        )
    console.print(table)
    console.print(os.path.commonpath([each.path for each in found]), style="dim")


def plain_table(*columns: str) -> Table:
    """A borderless table that wraps long texts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
