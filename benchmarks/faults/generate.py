"""Draws faults: a form, a case, an edit of its source; what nobody could detect, or can't be run, is drawn again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.cases import DTYPES, OFFSETS, SCALES, case_of, drawn
from benchmarks.faults.edits import HELPERS, Candidate, Edit, apply, candidates
from benchmarks.faults.forms import FORMS, Form, run
from benchmarks.faults.measure import Truth, detectable, effect
from benchmarks.faults.scope import scope_of
from parity.cases.dtypes import COARSENESS
from parity.config.plan import CasePlan

Tensors = dict[str, NDArray[Any]]
Rng = np.random.Generator
SIZES = (6, 24, 60, 200, 600)
TRIES, CASES = 40, 40
"""Edits that are tried on a case before another case is drawn, and cases before an op is passed over."""


@dataclass(frozen=True)
class Fault:
    """An edited form and the case on which it shows."""

    op: str
    form: str
    edits: tuple[Edit, ...]
    kernel: Form
    case: CasePlan
    inputs: Tensors
    truth: Truth

    @property
    def label(self) -> str:
        """The edit itself."""
        return "; ".join(map(str, self.edits))


@cache
def tree_of(form: Form) -> ast.FunctionDef:
    """A form's syntax tree without its docstring, with the line numbers of its file."""
    lines, start = inspect.getsourcelines(form)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, start - 1)
    tree.body = tree.body[1:]
    return tree


def compiled(tree: ast.FunctionDef, form: Form) -> Form | None:
    """The function of an edited tree, with the names of the form's module and the edits' helpers; None if it is no
    Python, such as a starred value outside of a call."""
    bare = ast.FunctionDef(tree.name, arguments_of(tree), tree.body, [], None, None)
    module = ast.fix_missing_locations(ast.Module([bare], []))
    names = form.__globals__ | HELPERS
    try:
        code = compile(module, "<fault>", "exec")
    except SyntaxError:
        return None
    exec(code, names)
    return names[tree.name]  # type: ignore[no-any-return]


def arguments_of(tree: ast.FunctionDef) -> ast.arguments:
    """The arguments without annotations."""
    return ast.arguments([], [ast.arg(a.arg) for a in tree.args.args], None, [], [], None, [])


def faults(
    ops: Sequence[str], n: int, seed: int, pairs: float = 0.0, dtypes: Sequence[str] = DTYPES
) -> Iterator[Fault]:
    """`n` faults, the ops in turn; `pairs` is the share of them that have two edits.

    No two do the same. An op whose forms have no more faults to give is passed over.
    """
    rng = np.random.default_rng([seed, 1])
    seen: set[Hashable] = set()
    exhausted: set[str] = set()
    for i in range(n):
        op = ops[i % len(ops)]
        if op in exhausted:
            continue
        n_edits = 2 if rng.random() < pairs else 1
        names = (f"{op}-fault-{seed}-{i}-{attempt}" for attempt in range(CASES))
        fault = next(filter(None, (one_fault(op, name, seed, n_edits, rng, seen, dtypes) for name in names)), None)
        if fault is None:
            exhausted.add(op)
        else:
            yield fault


def one_fault(
    op: str, name: str, seed: int, n_edits: int, rng: Rng, seen: set[Hashable], dtypes: Sequence[str] = DTYPES
) -> Fault | None:
    """A fault that is new and can be detected in the finest dtype, on a case of its own; None after a number of tries."""
    offset, scale = float(rng.choice(OFFSETS[:5])), float(rng.choice(SCALES[:4]))
    case = case_of(op, rng, int(rng.choice(SIZES)), name, offset=offset, scale=scale, dtypes=dtypes)
    inputs = drawn(case, seed)
    truth = Truth.of(case, inputs)
    if not truth.finite:
        return None
    form = FORMS[op][int(rng.integers(len(FORMS[op])))]
    for _ in range(TRIES):
        tree, edits = edited(form, case, inputs, n_edits, rng)
        kernel = compiled(tree, form)
        outputs = None if kernel is None else outputs_of(kernel, case, inputs, truth)
        if kernel is None or outputs is None or not detectable(effect(outputs, truth, finest(case))):
            continue
        keys = {(op, ast.unparse(tree)), (op, behaviour(kernel, op)) if shows(kernel, form, op) else (op, name)}
        if keys.isdisjoint(seen):
            seen |= keys
            return Fault(op, form.__name__, edits, kernel, case, inputs, truth)
    return None


@cache
def probe(op: str) -> tuple[CasePlan, Tensors]:
    """A case that is the same for all kernels of an op."""
    case = case_of(op, np.random.default_rng(0), 40, f"{op}-probe")
    return case, drawn(case, 0)


def behaviour(kernel: Form, op: str) -> Hashable:
    """What a kernel computes on the op's probe, to nine digits; None where it fails."""
    case, inputs = probe(op)
    outputs = attempted(kernel, case, inputs, "float64")
    if outputs is None:
        return None
    digits = []
    for name, values in sorted(outputs.items()):
        finite = np.where(np.isfinite(values), values, 0.0)
        scale = max(float(np.max(np.abs(finite), initial=0.0)), 1e-300)
        digits.append((name, values.shape, (finite / scale).round(9).tobytes(), f"{scale:.9g}"))
    return tuple(digits)


def shows(kernel: Form, form: Form, op: str) -> bool:
    """Whether the probe tells an edited form from the healthy one."""
    found = behaviour(kernel, op)
    return found is not None and found != behaviour(form, op)


def edited(
    form: Form, case: CasePlan, inputs: Tensors, n_edits: int, rng: Rng
) -> tuple[ast.FunctionDef, tuple[Edit, ...]]:
    """A tree with random edits: first a kind of edit, then one of that kind, each equally likely."""
    tree, edits = tree_of(form), []
    scope = scope_of(form, tree, lambda: run(form, case.op, case.params, inputs, "float64"))
    for _ in range(n_edits):
        by_kind: dict[str, list[Candidate]] = {}
        for candidate in candidates(tree, scope):
            by_kind.setdefault(candidate.kind, []).append(candidate)
        of_kind = by_kind[sorted(by_kind)[int(rng.integers(len(by_kind)))]]
        tree, edit = apply(tree, of_kind[int(rng.integers(len(of_kind)))])
        edits.append(edit)
    return tree, tuple(edits)


def outputs_of(kernel: Form, case: CasePlan, inputs: Tensors, truth: Truth) -> Tensors | None:
    """A kernel's outputs in the finest dtype; None where it fails in a dtype, or returns other tensors, shapes or kinds of
    numbers than the oracle."""
    expected = {name: (values.shape, values.dtype.kind) for name, values in truth.exact.items()}
    outputs = None
    for dtype in sorted(case.dtypes, key=COARSENESS.index):
        outputs = attempted(kernel, case, inputs, dtype)
        if outputs is None or {name: (v.shape, v.dtype.kind) for name, v in outputs.items()} != expected:
            return None
    return outputs


def finest(case: CasePlan) -> str:
    """The case's dtype in which a fault shows best."""
    return max(case.dtypes, key=COARSENESS.index)


def attempted(kernel: Form, case: CasePlan, inputs: Tensors, dtype: str) -> Tensors | None:
    """A kernel's outputs; None where it fails, since an edit may do anything."""
    try:
        return run(kernel, case.op, case.params, inputs, dtype)
    except Exception:
        return None
