"""What "the reference has" is an expression of the reference, whatever other causes an explanation has."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from parity.cases.candidates import edits_of
from parity.cases.formula import Formulas
from parity.cases.op import IncompatibleError
from parity.cases.trial import Trial
from parity.judge.case import prepared
from parity.judge.diagnose.causes import standing_causes
from parity.judge.diagnose.evaluator import Alteration
from tests.judge.judging import drawn, planned

HAS = "where the reference has "
CASES = [
    planned("layer_norm", ("float64",), x=(4, 6), normalized_shape=(6,)),
    planned("elu", ("float64",), x=(4, 6), alpha=0.7),
    planned("sgd", ("float64",), param=(4, 6), momentum=0.9, step=2),
    planned("softmax", ("float64",), x=(4, 6), dim=1),
]


def expressions(evaluator):
    """All that the reference computes, with all names that it uses."""
    program = evaluator.program(Alteration())
    text = Formulas(program)
    names = [name for step in program.steps for name in (text.expression(step), text.name_of(step)) if name]
    return [*names, *program.inputs, *program.options, "base e"]


def is_one_of(own, right):
    return any(right == name or right.startswith((f"{name} (", f"{name}, in ", f"{name}; ")) for name in own)


def edits(evaluator, before, every):
    program = evaluator.program(before)
    shapes = Trial(program, evaluator.tensors(before)).shapes
    return itertools.islice(edits_of(program, shapes, next(iter(program.outputs))), 0, None, every)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_the_second_of_two_causes_is_told_beside_the_reference(case):
    evaluator = prepared(case, "float64", drawn(case))
    own = expressions(evaluator)
    first = [c.alteration for c in standing_causes(evaluator) if c.alteration is not None]
    first = first[::3] + [Alteration(edits=(edit,)) for edit in edits(evaluator, Alteration(), 71)]
    n_told = 0
    for before in first:
        for text in seconds(evaluator, before):
            _, has, right = text.partition(HAS)
            n_told += bool(has)
            assert not has or is_one_of(own, right), text
    assert n_told


def seconds(evaluator, before):
    """The texts of edits of a reference that is altered already; none if that does not run."""
    with contextlib.suppress(IncompatibleError, ValueError):
        for edit in edits(evaluator, before, 41):
            with contextlib.suppress(IncompatibleError):
                yield evaluator.expression(Alteration(edits=(edit,)), before)
