"""ARCHITECTURE.md's table against the imports, and what the parts that run elsewhere may use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "parity"
ROW = re.compile(r"^\| `parity/(\w+)(?:/|\.py)` \|.*\|(?P<allowed>[^|]*)\|$", re.MULTILINE)
HEAVY = (
    "numpy",
    "numba",
    "pandas",
    "rich",
    "pydantic",
    "yaml",
    "torch",
    "paddle",
    "autograd",
    "uv",
    "psutil",
    "filelock",
)


def allowed_imports() -> dict[str, set[str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return {m[1]: set(re.findall(r"`(\w+)`", m["allowed"])) for m in ROW.finditer(text)}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(source: str) -> set[str]:
    """The names that a module imports, anywhere: in functions and for types, too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_imported(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports_of(path.read_text()) if name.split(".")[0] == "parity"]
    return {p[1] for p in parts if len(p) > 1 and p[1] != "__version__"}


SOURCES = sorted(
    p for p in PACKAGE.rglob("*.py") if p.name not in ("__init__.py", "__main__.py") or p.parent != PACKAGE
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_what_the_table_allows(path):
    room = room_of(path)
    table = allowed_imports()
    assert room in table, f"{room} is not in ARCHITECTURE.md"
    allowed = table[room] | {room}
    if room == "adapters" and path.parent.name != "numpy":
        allowed -= {"cases"}
    assert rooms_imported(path) <= allowed


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Rooms that import each other in a circle, from one of them back to itself; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_room_imports_itself_through_others():
    assert " <- ".join(cycle_in(allowed_imports())) == ""


def module_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, with the packages around them that it is not in itself."""

    def imported(module: str, name: str) -> set[str]:
        around = [".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 2)]
        return {known for known in around if known in sources and not f"{module}.".startswith(f"{known}.")}

    return {m: {n for name in imports_of(text) for n in imported(m, name)} for m, text in sources.items()}


def test_no_module_imports_itself_through_others():
    files = {path.relative_to(ROOT).with_suffix(""): path.read_text() for path in PACKAGE.rglob("*.py")}
    sources = {".".join(path.parts).removesuffix(".__init__"): text for path, text in files.items()}
    assert " <- ".join(cycle_in(module_graph(sources))) == ""


@pytest.mark.parametrize("inner", ["import p.b", "def f():\n    from p.b import g", "if T:\n    from p import b", ""])
def test_a_circle_of_modules_is_seen(inner):
    sources = {"p": "", "p.a": inner, "p.b": "from p.c.d import e", "p.c": "from p import a", "p.c.d": "e = 1"}
    assert set(cycle_in(module_graph(sources))) == ({"p.a", "p.b", "p.c"} if inner else set())


@pytest.mark.parametrize("rooms", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}])
def test_a_cycle_of_rooms_is_found(rooms):
    cycle = cycle_in(rooms)
    assert cycle[0] == cycle[-1]
    assert set(cycle) == set(rooms) - {"d"}
    assert cycle_in(rooms | {"a": set()}) == []


def test_every_room_of_the_table_exists():
    assert {room_of(path) for path in SOURCES} == set(allowed_imports())


def test_the_check_can_fail(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("from parity.engine import execute\nimport parity.judge.metrics\nfrom parity import reporting\n")
    assert rooms_imported(path) == {"engine", "judge", "reporting"}


def test_every_table_of_adapters_has_the_same_rows():
    from parity.adapters import ADAPTERS
    from parity.config.backends import ADAPTERS as CONFIGURABLE
    from parity.environments.pins import PINS

    assert set(ADAPTERS) == set(CONFIGURABLE) == set(PINS)


def test_help_is_light():
    code = f"import sys; from parity.cli import main; main(['--help'], standalone_mode=False); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("module", ["parity.engine", "parity.run", "parity.config", "parity.worker.main"])
def test_no_framework_is_imported_by_the_host(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'paddle', 'oneflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if room_of(p) in ("worker", "adapters", "capture") or p.parent.name == "worker"],
    ids=lambda p: p.name,
)
def test_what_runs_in_a_worker_parses_on_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_functions_stay_small():
    long_functions = []
    for path in SOURCES:
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        long_functions += [f"{path.name}:{f.name}" for f in functions if (f.end_lineno or 0) - f.lineno >= 80]
    assert not long_functions
