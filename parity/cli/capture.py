"""`parity capture`: what the layers of a model compute, from an unchanged script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click

from parity.cli.group import example, main


@main.command(
    short_help="Store what every layer of a script's models computes.",
    context_settings={"ignore_unknown_options": True},
    epilog=example(
        "parity capture train.py --out dump/torch --gradients --steps 1",
        "parity capture -b oneflow infer.py --out dump/oneflow -- --batch 4",
        "parity capture model.onnx --inputs batch.npz --out dump/onnx",
    ),
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False), metavar="SCRIPT.py|MODEL.onnx")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option("--out", required=True, metavar="DIR", help="The dump; an earlier one there is replaced.")
@click.option("--gradients", is_flag=True, help="Also gradients, in the backward passes.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Only the first N calls of each model.")
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False), metavar="FILE.npz", help="Of MODEL.onnx.")
@click.option(
    "-b", "--backend", metavar="NAME[==VERSION]", help="Run in the environment of this framework, as `parity run` does."
)
@click.option("--python", type=click.Path(exists=True, dir_okay=False), metavar="PATH", help="Run in this interpreter.")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
def capture(
    script: str,
    arguments: tuple[str, ...],
    out: str,
    gradients: bool,
    steps: int | None,
    inputs: str | None,
    backend: str | None,
    python: str | None,
    no_provision: bool,
) -> NoReturn:
    """Run SCRIPT.py, unchanged, with ARGS, and store the inputs, outputs and parameters of every layer of each model
    that it calls (torch, Paddle, OneFlow, ...) in call order, as safetensors; or run MODEL.onnx once on --inputs.

    Options of the script that parity has too follow `--`. In a script of your own one line does the same:
    `parity.capture(model, "dump/")`. Compare two dumps with `parity compare`. docs/capture.md has the names of tensors.

    Exit code: the script's; 2 the command is wrong or nothing can be written.
    """
    from parity.capture import launch

    if script.endswith(".onnx") != (inputs is not None):
        raise click.UsageError("an ONNX model takes --inputs FILE.npz, and a script takes none")
    if backend and python:
        raise click.UsageError("name a backend or a Python, not both")
    if script.endswith(".onnx") and not python:
        backend = backend or "onnxruntime"
    command, environment = interpreter_of(backend, python, provision=not no_provision)
    options = {"out": out, "gradients": gradients, "steps": steps, "inputs": inputs}
    full = [command, launch.__file__, json.dumps(options), script, *arguments]
    process = subprocess.Popen(full, env=environment)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    while True:
        try:
            code = process.wait()
            sys.exit(code if code >= 0 else 128 - code)
        except KeyboardInterrupt:  # the script received it, too, and decides how it ends
            continue


def interpreter_of(backend: str | None, python: str | None, *, provision: bool) -> tuple[str, dict[str, str]]:
    """The interpreter for a script, and its environment variables; without a backend that of the user's shell."""
    from parity import environments
    from parity.config.backend_options import load_backends
    from parity.environments.interpreter import isolated_environment

    if backend is None:
        return str(Path(python).absolute()) if python else sys.executable, dict(os.environ)
    spec = load_backends([backend])[0]
    interpreter = environments.resolve(spec, provision=provision, progress=lambda line: click.echo(line, err=True))
    managed = interpreter.kind == "managed"
    return str(interpreter.python), isolated_environment(os.environ) if managed else dict(os.environ)
