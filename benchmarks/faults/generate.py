"""Draws faults: a form, a case, an edit of its source; what nobody could detect, or can't be run, is drawn again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
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
from parity.config.plan import CasePlan

Tensors = dict[str, NDArray[Any]]
Rng = np.random.Generator
SIZES = (6, 24, 60, 200, 600)
TRIES = 60
"""Edits that are tried on a case before another case is drawn."""


@dataclass(frozen=True)
class Fault:
    """An edited form and the case on which it shows."""

    op: str
    form: str
    edits: tuple[Edit, ...]
    source: str
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


def compiled(tree: ast.FunctionDef, form: Form) -> Form:
    """The function of an edited tree, with the names of the form's module and the edits' helpers."""
    bare = ast.FunctionDef(tree.name, arguments_of(tree), tree.body, [], None, None)
    module = ast.fix_missing_locations(ast.Module([bare], []))
    names = form.__globals__ | HELPERS
    exec(compile(module, "<fault>", "exec"), names)
    return names[tree.name]  # type: ignore[no-any-return]


def arguments_of(tree: ast.FunctionDef) -> ast.arguments:
    """The arguments without annotations."""
    return ast.arguments([], [ast.arg(a.arg) for a in tree.args.args], None, [], [], None, [])


def faults(ops: Sequence[str], n: int, seed: int, pairs: float = 0.0) -> Iterator[Fault]:
    """`n` faults, the ops in turn; `pairs` is the share of them that have two edits."""
    rng = np.random.default_rng([seed, 1])
    seen: set[tuple[str, str]] = set()
    for i in range(n):
        op = ops[i % len(ops)]
        n_edits = 2 if rng.random() < pairs else 1
        yield next(f for attempt in range(1000) if (f := one_fault(op, f"{op}-fault-{seed}-{i}-{attempt}", seed, n_edits, rng, seen)))  # fmt: skip


def one_fault(op: str, name: str, seed: int, n_edits: int, rng: Rng, seen: set[tuple[str, str]]) -> Fault | None:
    """A fault that is new and can be detected in float64, on a case of its own; None after a number of tries."""
    case = case_of(op, rng, int(rng.choice(SIZES)), name, offset=float(rng.choice(OFFSETS[:5])), scale=float(rng.choice(SCALES[:4])))  # fmt: skip
    inputs = drawn(case, seed)
    truth = Truth.of(case, inputs)
    if not truth.finite:
        return None
    form = FORMS[op][int(rng.integers(len(FORMS[op])))]
    healthy = tree_of(form)
    for _ in range(TRIES):
        drawn_edits = edited(form, healthy, case, inputs, n_edits, rng)
        if drawn_edits is None:
            return None
        tree, edits = drawn_edits
        key = (op, ast.unparse(tree))
        if key in seen:
            continue
        seen.add(key)
        kernel = compiled(tree, form)
        outputs = outputs_of(kernel, case, inputs, truth)
        if outputs is None:
            continue
        if detectable(effect(outputs, truth, "float64")):
            return Fault(op, form.__name__, edits, key[1], kernel, case, inputs, truth)
    return None


def edited(
    form: Form, healthy: ast.FunctionDef, case: CasePlan, inputs: Tensors, n_edits: int, rng: Rng
) -> tuple[ast.FunctionDef, tuple[Edit, ...]] | None:
    """A tree with random edits: first a kind of edit, then one of that kind, each equally likely."""
    scope = scope_of(form, healthy, lambda: run(form, case.op, case.params, inputs, "float64"))
    tree, edits = healthy, []
    for _ in range(n_edits):
        by_kind: dict[str, list[Candidate]] = {}
        for candidate in candidates(tree, scope):
            by_kind.setdefault(candidate.kind, []).append(candidate)
        if not by_kind:
            return None
        of_kind = by_kind[sorted(by_kind)[int(rng.integers(len(by_kind)))]]
        tree, edit = apply(tree, of_kind[int(rng.integers(len(of_kind)))])
        edits.append(edit)
    return tree, tuple(edits)


def outputs_of(kernel: Callable[..., Any], case: CasePlan, inputs: Tensors, truth: Truth) -> Tensors | None:
    """A kernel's outputs in float64; None where it fails in a dtype, or returns other tensors or shapes than the oracle."""
    expected = {name: values.shape for name, values in truth.exact.items()}
    for dtype in DTYPES:
        try:
            outputs = run(kernel, case.op, case.params, inputs, dtype)
        except Exception:  # an edit may do anything
            return None
        if {name: values.shape for name, values in outputs.items()} != expected:
            return None
    return outputs
