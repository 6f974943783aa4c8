"""What `parity validate` finds without running a plan: problems that keep it from passing, mistakes that data hide."""

from __future__ import annotations

import ast
import datetime
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from parity.adapters.base import parts_of
from parity.clients import client_of
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine.starting import replaceable
from parity.judge.audit import CaseAudit
from parity.judge.known import foreseen as failing_entries

OPENING = frozenset(("globals", "vars", "locals", "setattr", "exec", "eval"))
"""Functions that can define names which do not appear in the source."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def foreseen(plan: Plan, today: datetime.date) -> Iterator[str]:
    """A line per `known` entry that fails every run of the plan, and per `ops:` file that replaces nothing."""
    yield from failing_entries(plan, today)
    for spec in plan.backends:
        if spec.ops is not None and spec.ops.suffix != ".onnx":
            wanted = replaceable(case for case in plan.cases if case.runs_on(spec.name))
            yield from (f"{spec.name}: {problem}" for problem in ops_problem(spec, wanted))


def audit_of_client(case: CasePlan, plan: Plan) -> CaseAudit:
    """Which common mistakes a case that is not an op reveals."""
    return client_of(case.op).audit(case, plan)


def ops_problem(spec: BackendSpec, wanted: Sequence[str]) -> Iterator[str]:
    """Why an `ops:` file defines none of the wanted ops; nothing if it defines one."""
    assert spec.ops is not None  # noqa: S101 - for the type checker
    try:
        names = defined_names(spec.ops)
    except SyntaxError as error:
        if spec.python is None:  # another interpreter may accept this syntax
            yield f"{spec.ops}:{error.lineno or 1}: not Python: {error.msg}"
        return
    except (OSError, ValueError) as error:
        yield f"{spec.ops}: cannot be read: {error}"
        return
    if names is None or any(op in names or names.issuperset(parts_of(op)) for op in wanted):
        return
    near = next(((name, op) for op in wanted for name in get_close_matches(op, sorted(names), 1)), None)
    hint = f'; did you mean "{near[1]}" with "{near[0]}"?' if near else ""
    yield f"{spec.ops} defines none of the ops of the cases: {', '.join(wanted)}{hint}"


def defined_names(path: Path) -> frozenset[str] | None:
    """The names that a module's source defines; None if running it may define others.

    Raises SyntaxError, OSError, or ValueError if the file is not text.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in OPENING:
            return None
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, ast.Global):
            names.update(node.names)
    return frozenset(names.union(*map(bound_names, statements(tree))))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module outside of its functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, SCOPES):
            yield from statements(child)


def bound_names(node: ast.AST) -> list[str]:
    """The names that a node itself binds."""
    if isinstance(node, SCOPES):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
