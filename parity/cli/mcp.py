"""`parity mcp`: parity's answers as tools of the Model Context Protocol, for coding agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from parity.cli.group import example, main

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from parity.cli.waiting import WaitingProcesses

INSTRUCTIONS = (
    "parity says whether code computes what a reference does, for inputs beyond the given ones, and which line does "
    "not. Both files are run, as the user who started this server."
)


@main.command(
    short_help="Serve check, explain and repro as tools for coding agents (Model Context Protocol).",
    epilog=example("parity mcp"),
)
def mcp() -> None:
    """Serve `parity check`, `parity explain` and `parity repro` on stdin and stdout, as tools of the Model Context
    Protocol: a coding agent checks its kernel and is told the line at fault, in a process that has PyTorch loaded.

    Needs the extra `mcp`. The files that an agent names are code, which runs as you; relative paths begin in the
    working directory.
    """
    from parity.cli.waiting import WaitingProcesses

    try:
        import mcp.server  # noqa: F401 - only whether it is there
    except ImportError:
        raise click.UsageError("parity mcp needs the package mcp: pip install 'parity[mcp]'") from None
    processes = WaitingProcesses()
    try:
        server_of(processes).run("stdio")
    finally:
        processes.close()


def server_of(processes: WaitingProcesses) -> MCPServer:
    """The server, whose tools run commands in such processes."""
    from anyio import to_thread
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from parity.version import __version__

    server = MCPServer("parity", instructions=INSTRUCTIONS, version=__version__)

    async def printed(arguments: Sequence[str]) -> str:
        done = await to_thread.run_sync(processes.call, arguments)
        if not done.stdout.strip():
            raise ToolError(done.stderr.strip() or f"parity ended with exit code {done.returncode}")
        return done.stdout

    @server.tool()
    async def check(
        reference: str,
        new: str,
        inputs: str | None = None,
        adapter: str | None = None,
        settings: Sequence[str] = (),
        dtypes: Sequence[str] = (),
        forward_only: bool = False,
        seconds: float = 60.0,
        diagnose_seconds: float = 15.0,
        out: str | None = None,
    ) -> dict[str, Any]:
        """Check whether NEW computes what REFERENCE does: outputs and gradients, for inputs beyond the given ones.

        Args:
            reference: FILE.py or FILE.py:NAME in PyTorch or NumPy, with get_inputs(): a class Model or a function.
            new: FILE.py or FILE.py:NAME: a class ModelNew or a function, which should compute the same.
            inputs: FILE.py:NAME of the function that returns the arguments of a call.
            adapter: the framework of NEW, if it cannot be found out from its imports.
            settings: NAME=VALUE for globals of REFERENCE, such as sizes.
            dtypes: such as float32, bfloat16; by default that of the inputs.
            forward_only: compare outputs only, no gradients.
            seconds: how long cases may be asked.
            diagnose_seconds: how long a cause may be searched; 0 only says whether NEW is wrong.
            out: the folder to write to.

        Returns:
            The object of `parity check --json`: verdict (right, wrong, unstable, degraded, degenerate-problem,
            not-judged), sentence, place (file:line), repair, counterexample, checks, run (the folder for explain).
        """
        options = {"--inputs": inputs, "--adapter": adapter, "--out": out}
        arguments = ["check", "--json", f"--seconds={seconds}", f"--diagnose-seconds={diagnose_seconds}"]
        arguments += [f"{name}={value}" for name, value in options.items() if value is not None]
        arguments += [*(f"--set={text}" for text in settings), *(f"--dtype={name}" for name in dtypes)]
        arguments += ["--forward-only"] if forward_only else []
        answer: dict[str, Any] = json.loads(await printed([*arguments, "--", reference, new]))
        return answer

    @server.tool()
    async def explain(run: str, case: str = "") -> str:
        """Explain what a check found in a case: the evidence for its cause.

        Args:
            run: the folder `run` of an answer, or the id of a diagnosis, such as variance-naive.
            case: the case of its counterexample.
        """
        return await printed(["explain", "--", run, *filter(None, [case])])

    @server.tool()
    async def repro(run: str, case: str) -> str:
        """Write a script that shows a difference without parity; returns its path.

        Args:
            run: the folder `run` of an answer.
            case: the case of its counterexample.
        """
        return await printed(["repro", "--", run, case])

    return server
