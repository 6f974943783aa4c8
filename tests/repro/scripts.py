"""Runs generated scripts where parity cannot be imported, and reads what they print."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conftest import call

DRIVER = """
import contextlib, io, json, sys


class NoParity:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "parity":
            raise ImportError("a script must not import parity")


def outcome(script):
    printed = io.StringIO()
    # Not by runpy, whose frames have no source: MindSpore looks for one.
    with open(script) as file:
        code = compile(file.read(), script, "exec")
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, {"__name__": "__main__", "__file__": script})
            code = 0
        except SystemExit as error:
            code = error.code
        except Exception as error:
            code = repr(error)
    return [code, printed.getvalue()]


sys.meta_path.insert(0, NoParity())
found = {script: outcome(script) for script in sys.argv[2:]}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""

HEAD = re.compile(
    r"(?P<tensor>\S+) (?P<shape>\[.*?\]) against (?P<side>\S+): (?P<n>\d+) of (?P<size>\d+) elements exceed "
    r"rtol=(?P<rtol>\S+) atol=(?P<atol>\S+); (?:largest difference (?P<largest>\S+)|(?P<odd>.*) is expected)"
)
WORST = re.compile(r"    worst at (?P<index>\[.*?\]): (?P<values>.*)")
RATIO = re.compile(
    r"    its error(?: in \[[^]]*\])? is (?P<ratio>\S+) times that of a careful implementation; the error bound is (?P<limit>\S+)"
)


@dataclass(frozen=True)
class Printed:
    """One comparison as a script printed it."""

    tensor: str
    side: str
    head: Mapping[str, Any]
    index: list[int]
    values: Mapping[str, float]
    ratio: float | None


def run_together(scripts: Mapping[str, Sequence[Path]], folder: Path) -> dict[Path, tuple[Any, str]]:
    """Exit code and output of each script; those of one interpreter run in one process, which has no parity."""
    (folder / "driver.py").write_text(DRIVER)
    found: dict[Path, tuple[Any, str]] = {}
    for python, paths in scripts.items():
        answers = folder / "answers.json"
        command = [python, "-I", str(folder / "driver.py"), str(answers), *map(str, paths)]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found |= {Path(script): tuple(answer) for script, answer in json.loads(answers.read_text()).items()}
    return found


def run_alone(python: str, script: Path) -> subprocess.CompletedProcess[str]:
    """A script as a user starts it, elsewhere and without parity."""
    with TemporaryDirectory() as elsewhere:
        blocked = (
            "import sys; sys.modules['parity'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
        )
        command = [python, "-c", blocked, str(script)]
        return subprocess.run(command, capture_output=True, text=True, cwd=elsewhere)


def comparisons(printed: str) -> Iterator[Printed]:
    """What a script printed, in pieces."""
    lines = printed.splitlines()
    for i, line in enumerate(lines):
        head = HEAD.fullmatch(line)
        if head:
            worst = WORST.fullmatch(lines[i + 1])
            assert worst, lines[i + 1]
            ratio = RATIO.fullmatch(lines[i + 2]) if i + 2 < len(lines) else None
            pairs = (item.rsplit(" ", 1) for item in worst["values"].split(", "))
            values = {name: float(value) for name, value in pairs}
            index = json.loads(worst["index"])
            yield Printed(
                head["tensor"], head["side"], head.groupdict(), index, values, float(ratio["ratio"]) if ratio else None
            )


WRONG = """
def linear(x, weight, bias):
    return x @ weight.T + 2 * bias


def linear_backward(grad_y, x, weight):
    return {"x": grad_y @ weight, "weight": grad_y.T @ x, "bias": 2 * grad_y.sum(0)}
"""
LINEAR = "{id: one, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7]}}}"
PLAIN = "{id: one, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7]}}, gradients: false}"


def repro(run_dir: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return call("repro", run_dir, *arguments)


def scripts(run_dir: Path, *arguments: str | Path) -> list[Path]:
    done = repro(run_dir, *(arguments or ("--all",)))
    assert done.returncode == 0, done.stderr
    return sorted((run_dir / "repro").glob("*.mine.py"))


def rewrite(run_dir: Path, change) -> None:
    """Edit results.json as somebody else might."""
    path = run_dir / "results.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
