"""Asks an interpreter for its version and its packages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.environments import installed
from parity.environments.interpreter import Interpreter
from parity.environments.pins import Pin

OLDEST_PYTHON = (3, 8)
_WHO = "import sys; print('%d.%d.%d' % tuple(sys.version_info[:3])); print(sys.executable)"


class ProbeError(Exception):
    """The interpreter did not answer; the message says why, `output` is its stderr."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Identity:
    """The version and path that an interpreter reports; `executable` is the real one behind a pyenv shim."""

    version: tuple[int, ...]
    executable: Path

    @property
    def version_text(self) -> str:
        """The version as text, "3.10.13"."""
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Contents:
    """The packages of an interpreter that matter for one pin."""

    python_version: str
    missing: tuple[str, ...]
    numpy_version: str
    framework_version: str | None

    def interpreter(self, python: Path, kind: str) -> Interpreter:
        """The `Interpreter` with these contents."""
        return Interpreter(python, kind, self.python_version, self.numpy_version, self.framework_version)


def identify(python: Path, timeout_s: float = 10.0) -> Identity:
    """The identity of `python`; ProbeError if it does not run (an unselected pyenv shim exits with 127)."""
    lines = _run([str(python), "-c", _WHO], None, timeout_s).splitlines()
    try:
        return Identity(tuple(int(number) for number in lines[-2].split(".")), Path(lines[-1]))
    except (IndexError, ValueError):
        raise ProbeError("its output is not that of a Python interpreter") from None


def contents_of(
    python: Path, pin: Pin, environment: Mapping[str, str] | None = None, *, importing: bool = False
) -> Contents:
    """The contents of `python`; `importing` also imports the framework, to prove that it loads."""
    question = _question(pin) | {"imports": list(pin.modules) if importing else []}
    command = [str(python), str(Path(installed.__file__)), json.dumps(question)]
    # The first import of a framework reads gigabytes from a cold disk.
    output = _run(command, environment, timeout_s=600.0 if importing else 30.0)
    answers = [line for line in output.splitlines() if line.startswith(installed.ANSWER)]
    if not answers:
        raise ProbeError("it printed no answer")
    return _contents(pin, json.loads(answers[-1].removeprefix(installed.ANSWER)))


def host_contents(pin: Pin) -> Contents:
    """The contents of the interpreter that runs parity, without a process and without importing the framework."""
    return _contents(pin, installed.contents(**_question(pin)))


def _question(pin: Pin) -> dict[str, list[str]]:
    return {"modules": ["numpy", *pin.modules], "distributions": ["numpy", *pin.distributions]}


def _contents(pin: Pin, answer: Mapping[str, Any]) -> Contents:
    versions = answer["versions"]
    framework = [versions[name] for name in pin.distributions if name in versions]
    return Contents(
        python_version=answer["python"],
        missing=tuple(answer["missing"]),
        numpy_version=versions.get("numpy", "unknown"),
        framework_version=framework[0] if framework else None,
    )


def _run(command: list[str], environment: Mapping[str, str] | None, timeout_s: float) -> str:
    try:
        process = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"it did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise ProbeError(f"it cannot be started ({error})") from None
    if process.returncode != 0:
        last_words = process.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ProbeError(f"it exited with status {process.returncode} ({last_words[0]})", process.stderr)
    return process.stdout
