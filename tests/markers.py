"""What a test needs, read from the code it reaches; a test that needs nothing of it is `quick`.

`frameworks`: it imports one, or says so itself, since a framework in a worker leaves no trace in a test's code.
`process`: it starts one: the command line, a worker, a tool. What this reading misses, `Guard` catches when the test runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from inspect import isclass, isfunction, unwrap
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = frozenset({"torch", "paddle", "oneflow"})
STARTERS = frozenset({"subprocess", "pytester", "Workers", "parity.run.run"})
"""Names by which tests start processes; `Workers` are those of trainings."""
ON_REQUEST = frozenset({"frameworks", "process", "slow", "browser", "exhaustive"})

ONEFLOW_GRAPH = pytest.mark.flaky(reruns=2)
"""OneFlow 0.9.0 corrupts its memory in one of about a thousand runs of small graphs on a busy machine: the graph may end,
and `LazyJobStreamPolicy::DequeueNNGraph` pop its queue, before `LaunchLazyJob` has put it there."""


@cache
def imports_framework(path: Path) -> bool:
    """Whether importing this file of tests imports a framework, by itself or through another file of tests."""
    modules = set(_imported(ast.parse(path.read_text())))
    files = (ROOT / f"{name.replace('.', '/')}.py" for name in modules if name.startswith("tests."))
    return any(name.partition(".")[0] in FRAMEWORKS for name in modules) or any(
        imports_framework(file) for file in files if file.is_file()
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def mark(item: pytest.Item) -> None:
    """Add the markers of what a test needs, or `quick`."""
    names = _reached(item)
    if names & FRAMEWORKS or imports_framework(item.path):
        item.add_marker("frameworks")
    if names & STARTERS:
        item.add_marker("process")
    if not any(item.get_closest_marker(name) for name in ON_REQUEST):
        item.add_marker("quick")


EFFORT = {"frameworks": 20, "slow": 20, "process": 10}
"""How much a test of a marker costs beside a quick one, roughly."""


def effort(item: pytest.Item) -> int:
    """What a test costs, as far as its markers tell."""
    return max(EFFORT.get(marker.name, 1) for marker in [*item.iter_markers(), pytest.mark.quick])


def _reached(item: pytest.Item) -> set[str]:
    """All names in the code of a test, of its fixtures, and of what they use of the tests' own code."""
    if not isinstance(item, pytest.Function):
        return set()
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [item.function, *(definition.func for row in fixtures.values() for definition in row)]
    return set(fixtures).union(*(_names(unwrap(function)) for function in functions))


@cache
def _names(root: Callable[..., Any]) -> frozenset[str]:
    names: set[str] = set()
    own = ("tests.", root.__module__)
    seen: set[Any] = set()
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        value = unwrap(value) if callable(value) else value
        module = getattr(value, "__module__", None) or ""
        names.add(f"{module}.{getattr(value, '__name__', '')}")
        if not module.startswith(own) or not (isclass(value) or isfunction(value)) or value in seen:
            continue
        seen.add(value)
        if isclass(value):
            waiting += [getattr(part, "fget", part) for part in vars(value).values()]
        else:
            used = set(_code_names(value.__code__))
            names |= {part for name in used for part in name.split(".")}
            waiting += [value.__globals__[name] for name in used if callable(value.__globals__.get(name))]
    return frozenset(names)


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)


class Guard:
    """Fails a quick test that starts a process or imports a framework, whatever its code looked like."""

    def __init__(self) -> None:
        self.active = False
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.active = item.get_closest_marker("quick") is not None
        try:
            return (yield)
        finally:
            self.active = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system"):
            pytest.fail(f"a quick test starts a process ({event}): mark it `process`")
        if event == "import" and arguments[0].partition(".")[0] in FRAMEWORKS:
            pytest.fail(f"a quick test imports {arguments[0]}: mark it `frameworks`")
