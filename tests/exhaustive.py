"""Tests marked `exhaustive`: needed again only where something that they read has changed.

The *sources* of a file of tests are what its tests can reach: the modules that it imports, itself and through others, and
where the command line is among them, all of parity and what else `tests/` has for it; the configs, where it names them; and
the releases of what is installed. When all exhaustive tests of a file have passed, a digest of its sources is recorded in
`tests/exhaustive.txt`, if PARITY_RECORD_EXHAUSTIVE is set. A run of everything leaves out the exhaustive tests of a file while this digest still holds, and
says how many; to name a file, `-k` or `-m exhaustive` runs them whatever is recorded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

ROOT = Path(__file__).parent.parent
RECORD = "tests/exhaustive.txt"
UPDATE = "PARITY_RECORD_EXHAUSTIVE"
HEAD = f"# With which sources all exhaustive tests of a file passed: {UPDATE}=1 pytest\n"
PACKAGES = ("parity", "tests", "benchmarks")
COMMANDS = ("parity/cli/__init__.py", "parity/run.py", "parity/engine/__init__.py")
"""Who imports one of these starts workers, which load adapters by name: no import leads there."""
INSTALLED = ("pyproject.toml", "parity/environments/pins.py")
FOLDERS = {"CONFIGS": "configs", '"reports"': "reports/census"}
"""Where the files are whose folder a file of tests names so."""
IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([^\n]*))", re.MULTILINE)


def one_of_each(family: Callable[..., Hashable], rows: Iterable[Any]) -> list[ParameterSet]:
    """The rows of a table of tests: the first of each family for any run, the others for exhaustive ones."""
    seen: set[Hashable] = set()
    found = []
    for row in rows:
        param = row if isinstance(row, ParameterSet) else pytest.param(*row)
        name = family(*param.values)
        further = [pytest.mark.exhaustive] if name in seen else []
        seen.add(name)
        found.append(pytest.param(*param.values, id=param.id, marks=[*param.marks, *further]))
    return found


def selected(request: pytest.FixtureRequest) -> bool:
    """Whether exhaustive tests of a fixture's file are to run, so that it makes for all what these need."""
    mine = [item for item in request.session.items if item.path == request.path]
    return any(item.get_closest_marker("exhaustive") for item in mine)


def digest(test: Path, root: Path = ROOT) -> str:
    """What stands for the content of all sources of a file of tests."""
    found = sha256()
    for path in sorted(sources(test, root)):
        found.update(f"{path.relative_to(root)}\0".encode() + sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def sources(test: Path, root: Path = ROOT) -> set[Path]:
    """The files that the tests of a file can reach."""
    found = reached(test, root) | {root / name for name in INSTALLED}
    if found & {root / name for name in COMMANDS}:
        found |= _files(root / "parity") | _helpers(root)
    tests = [path for path in found if (root / "tests") in path.parents and path.suffix == ".py"]
    texts = [path.read_text() for path in tests]
    for word, folder in FOLDERS.items():
        if any(word in text for text in texts):
            found |= _files(root / folder)
    return {path for path in found if path.is_file()}


def _helpers(root: Path) -> set[Path]:
    """Everything below `tests/` but tests, and the record itself."""
    found = _files(root / "tests") - {root / RECORD}
    return {path for path in found if not path.match("test_*.py")}


def reached(start: Path, root: Path = ROOT) -> set[Path]:
    """A file, and the project's own that it imports, itself or through others, wherever in their code."""
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(path, root)
    return seen


@cache
def _imported(path: Path, root: Path) -> tuple[Path, ...]:
    names = [name.split(".") for name in imports(path.read_text()) if name.startswith(PACKAGES)]
    places = {root.joinpath(*name[:n]) for name in names for n in range(1, len(name) + 1)}
    return tuple(file for at in places for file in (at.with_suffix(".py"), at / "__init__.py") if file.is_file())


def imports(text: str) -> Iterator[str]:
    """Whatever a module imports, with its module: `parity.cases`, `parity.cases.OPS`."""
    for module, names, modules in IMPORT.findall(text):
        prefix = f"{module}." if module else ""
        parts = re.sub(r"#[^\n]*|[()]", "", names or modules).split(",")
        yield from (prefix + part.split()[0] for part in parts if part.split())


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def recorded(root: Path = ROOT) -> dict[str, str]:
    """The digest with which all exhaustive tests of a file passed, by the file."""
    path = root / RECORD
    lines = path.read_text().splitlines() if path.exists() else []
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {row[0]: row[-1] for row in rows}


def record(passed: Iterable[Path], root: Path = ROOT) -> None:
    """Writes that all exhaustive tests of these files passed."""
    rows = {name: value for name, value in recorded(root).items() if (root / name).exists()}
    rows |= {str(path.relative_to(root)): digest(path, root) for path in passed}
    (root / RECORD).write_text(HEAD + "".join(f"{name} {rows[name]}\n" for name in sorted(rows)))


class Exhaustive:
    """Leaves out what is recorded, says how many tests that are, and records what passed."""

    def __init__(self, config: pytest.Config, root: Path = ROOT) -> None:
        self.config, self.root = config, root
        self.everything = config.args == config.getini("testpaths") and not config.getoption("keyword")
        asked = "exhaustive" in config.getoption("markexpr")
        self.recorded = recorded(root) if self.everything and not asked and not os.environ.get(UPDATE) else {}
        self.left_out = 0
        self.passed: dict[str, bool] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = {item.path for item in items if item.get_closest_marker("exhaustive")}
        names = {path: self.recorded.get(str(path.relative_to(self.root))) for path in files}
        done = {path for path, recorded in names.items() if recorded and recorded == digest(path, self.root)}
        out = [item for item in items if item.path in done and item.get_closest_marker("exhaustive")]
        if out:
            gone = set(out)
            items[:] = [item for item in items if item not in gone]
            self.config.hook.pytest_deselected(items=out)
        self.left_out = len(out)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "exhaustive" in report.keywords:
            name = report.nodeid.partition("::")[0]
            self.passed[name] = self.passed.get(name, True) and report.outcome in ("passed", "rerun")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            terminalreporter.write_line(
                f"{self.left_out} exhaustive tests left out: they passed with these very sources ({RECORD}); "
                "pytest -m exhaustive runs them"
            )
        if os.environ.get(UPDATE) and self.everything and self.config.getoption("markexpr") in ("", "exhaustive"):
            record((self.root / name for name, passed in self.passed.items() if passed), self.root)
