"""`parity check REFERENCE NEW --json` as a rule: a command whose answer is the last line of its output, if it has one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

PARITY = "parity"
COMMAND = (sys.executable, "-m", "parity", "check")
RIGHT = "right"
OBJECTIONS = ("wrong", "unstable", "degraded", "degenerate-problem")
"""Verdicts that do not let a candidate pass; any other word is no judgement."""


@dataclass(frozen=True)
class Answer:
    """A verdict in parity's words, or `no answer`; what was said."""

    verdict: str
    says: str


@cache
def exists() -> bool:
    """Whether this release has the command."""
    return subprocess.run([*COMMAND, "--help"], capture_output=True, check=False).returncode == 0


def checked(reference: Path, new: Path, seconds: float) -> Answer:
    """Ask the command; whatever it has left running in its session ends with it."""
    command = [*COMMAND, str(reference), str(new), "--json"]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, errors="replace", start_new_session=True) as process:
        try:
            return answer(*process.communicate(timeout=seconds))
        except subprocess.TimeoutExpired:
            return Answer("no answer", f"none within {seconds:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answer(stdout: str, stderr: str) -> Answer:
    """The last line as JSON."""
    lines = stdout.strip().splitlines()
    try:
        said: Any = json.loads(lines[-1])
        sentence = str(said.get("sentence") or said.get("cause") or "")
        return Answer(str(said["verdict"]), " ".join(sentence.split()))
    except (IndexError, ValueError, KeyError, AttributeError, TypeError):
        return Answer("no answer", " ".join((stderr or stdout).split())[-200:])
