"""What `parity validate` finds without running a plan: problems that keep it from passing, mistakes that data hide."""

from __future__ import annotations

import ast
import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters.base import parts_of
from parity.cases.branches import lines_run, untaken
from parity.cases.brought import ReferenceFile
from parity.cases.draw import File, Integers, TensorPlan, Values
from parity.cases.dtypes import largest_in
from parity.cases.user_code import described
from parity.clients import client_of
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine.starting import replaceable
from parity.judge.audit import CaseAudit
from parity.judge.compare.cell import consult_oracle
from parity.judge.failures import Failures
from parity.judge.known import foreseen as failing_entries

OPENING = frozenset(("globals", "vars", "locals", "setattr", "exec", "eval"))
"""Functions that can define names which do not appear in the source."""
MAX_READ = 1 << 16
"""Cases with more elements are not drawn for remarks."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def foreseen(plan: Plan, today: datetime.date) -> Iterator[str]:
    """A line per `known` entry that fails every run of the plan, and per `ops:` file that replaces nothing."""
    yield from failing_entries(plan, today)
    for spec in plan.backends:
        if spec.ops is not None and spec.ops.suffix != ".onnx":
            wanted = replaceable(case for case in plan.cases if case.runs_on(spec.name))
            yield from (f"{spec.name}: {problem}" for problem in ops_problem(spec, wanted))


def remarks(plan: Plan) -> Iterator[str]:
    """A line per reason for which cases show little: drawn inputs that are constant, a user's reference that is not
    finite, or has a branch that no case takes. The first of the cases is named."""
    cases: dict[str, list[str]] = {}
    reached: dict[ReferenceFile, set[int]] = {}
    for case in plan.cases:
        failures = Failures()
        with failures.contained("looking at its inputs"):
            arrays = small_inputs(case, plan.seed) if case.is_op else None
            for remark in () if arrays is None else remarks_of(case, arrays):
                cases.setdefault(remark, []).append(case.id)
            if case.brought is not None and arrays is not None:
                reached.setdefault(case.brought.source, set()).update(lines_of(case, arrays))
        for failure in failures:
            cases.setdefault(f"nothing is said of its inputs: {failure.error}", []).append(case.id)
    for remark, ids in cases.items():
        yield f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {remark}"
    for source, lines in reached.items():
        for line, text in untaken(source, lines):
            yield f"{source.path.name}:{line}: {text} in these cases, so nothing shows what that branch computes"


def small_inputs(case: CasePlan, seed: int) -> dict[str, NDArray[Any]] | None:
    """The drawn integers of a case, all inputs if it has a user's reference; None if they are large."""
    read = [t for t in case.tensors if case.brought is not None or isinstance(t.draw, Integers)]
    if sum(math.prod(tensor.shape) for tensor in read) > MAX_READ:
        return None
    return {tensor.name: tensor.sample(seed, case.id, *case.dtypes) for tensor in read}


def remarks_of(case: CasePlan, arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """What the inputs of a small case, or a user's reference of it, cannot show."""
    for tensor in case.tensors:
        value = constant(tensor, arrays[tensor.name]) if tensor.name in arrays else None
        if value is not None:
            hint = "; `high` is exclusive" if isinstance(tensor.draw, Integers) else ""
            yield f"inputs.{tensor.name} is drawn, but always {value:g}{hint}, so it hides mistakes"
    if case.brought is not None and all(np.isfinite(values).all() for values in arrays.values()):
        yield from odd_results(case, arrays)


def lines_of(case: CasePlan, arrays: Mapping[str, NDArray[Any]]) -> set[int]:
    """The lines of a user's reference that a case runs; none if it fails, which a remark says."""
    assert case.brought is not None  # noqa: S101 - for the type checker
    given = {name: values for name, values in arrays.items() if name in case.brought.tensors}
    try:
        return lines_run(case.brought, case.params, given)
    except Exception:
        return set()


def constant(tensor: TensorPlan, values: NDArray[Any]) -> float | None:
    """The only value that a drawn tensor of several elements can have."""
    if tensor.fixed or isinstance(tensor.draw, Values | File) or values.size < 2:
        return None
    by_chance = isinstance(tensor.draw, Integers) and tensor.draw.high - tensor.draw.low > 1
    return None if by_chance or (values != values.flat[0]).any() else float(values.flat[0])


def odd_results(case: CasePlan, arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """The outputs and gradients of a user's reference that have no finite value in places, or none in a dtype."""
    try:
        with np.errstate(all="ignore"):
            exact = consult_oracle(case, arrays)
    except Exception as error:
        yield f"the reference fails on these inputs: {described(error)}"
        return
    for name, values in exact.items():
        n_odd = int(np.count_nonzero(~np.isfinite(values)))
        if n_odd:
            what = "NaN" if np.isnan(values).any() else "infinite"
            yield f"the reference is {what} in {n_odd} of {values.size} elements of {name}"
        yield from beyond_range(case, name, values)


def beyond_range(case: CasePlan, name: str, values: NDArray[Any]) -> Iterator[str]:
    """The dtypes of a case in which finite results of its reference are infinite, as stress makes some on purpose."""
    sizes = np.abs(values[np.isfinite(values)])
    for dtype in () if case.stress else case.dtypes:
        n_beyond = int(np.count_nonzero(sizes > largest_in(dtype)))
        if n_beyond:
            where = f"in {n_beyond} of {values.size} elements of {name}, up to {sizes.max():.3g}"
            limit = f"beyond {dtype}'s range of {largest_in(dtype):.6g}"
            yield f"with these inputs the reference is {limit} {where}: choose another scale"


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
