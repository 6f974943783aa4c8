"""A rule over a pair in a process of its own, so that a candidate that patches, exits or hangs harms nothing.

Processes are forked from one that has imported torch and computed as good as nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.cheats.rules import RULES, objection

SECONDS = 60.0
"""After this time a rule counts as failed, as a run that is cut off does in the projects."""


def judged(rule: str, reference: Path, new: Path, seconds: float = SECONDS) -> str:
    """What the rule objects to, "" if nothing. A process that ends without an answer has none that counts."""
    _imported()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, rule, reference, new))
    process.start()
    there.close()
    try:
        return str(here.recv()) if here.poll(seconds) else f"no answer within {seconds:g} s"
    except EOFError:
        process.join()
        return f"ended without an answer, exit code {process.exitcode}"
    finally:
        _end(process)
        here.close()


@cache
def _imported() -> None:
    """Import what a first comparison imports, here and not in every process."""
    torch.set_num_threads(1)
    torch.testing.assert_close(torch.ones(1), torch.ones(1))


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.join(1.0)
    if process.is_alive() and process.pid:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def _child(answer: Connection, rule: str, reference: Path, new: Path) -> None:
    """Judge with nothing on the terminal, and answer."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    answer.send(objection(RULES[rule], (reference, new)))
    os._exit(0)
