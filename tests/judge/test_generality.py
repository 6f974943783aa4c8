"""The judge knows no op: neither its tensors nor its name; and every variant of every op can be evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.op import IncompatibleError, Variant
from parity.cases.oracle import evaluate
from parity.config import Overrides, load_plan
from parity.config.plan import CasePlan
from parity.diagnoses import catalogue
from parity.judge.bound.envelope import envelopes
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import Cause, from_variant
from parity.judge.diagnose.evaluator import Alteration, Evaluator
from parity.judge.diagnose.explanation import unaltered
from parity.judge.diagnose.search import search
from tests.conftest import CONFIGS, ROOT
from tests.judge.judging import drawn, kernel, planned

CORE = sorted(path for path in (ROOT / "parity" / "judge").rglob("*.py") if path.stem != "known")
TENSORS = {item.name for op in OPS.values() for item in op.inputs} | {
    name for op in OPS.values() for name in op.grad_outputs
}


def op_names_in(source: str) -> Iterator[str]:
    """The string constants that name an op or one of its tensors (`weight`, `grad.weight`, `grads.0`).

    A word that is a function of NumPy as well (`where`) names a step, or nothing.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "grad.":
            tensor = node.value.removeprefix("grad.").split(".")[0]
            if (tensor in TENSORS or node.value in OPS) and not hasattr(np, node.value):
                yield node.value


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_of_the_judge_names_no_op_and_no_tensor(path: Path):
    assert list(op_names_in(path.read_text())) == []


def test_the_check_of_names_can_fail():
    source = "a = t['weight'], t['grad.x']\nb = name.startswith(('grad.', 'grads.'))\nif op == 'linear': c = 'a weight'"
    assert sorted(op_names_in(source)) == ["grad.x", "grads.", "linear", "weight"]


NORM = planned("layer_norm", x=(3, 5), normalized_shape=(5,))


def evaluator_of(case) -> Evaluator:
    inputs = drawn(case)
    oracle = consult_oracle(case, inputs)
    return Evaluator(case, "float32", inputs, oracle, envelopes(case, "float32", inputs, oracle))


def with_variants(monkeypatch, *variants: Variant) -> Evaluator:
    evaluator = evaluator_of(NORM)
    monkeypatch.setattr(
        evaluator, "op", evaluator.op.__class__(**{**vars(evaluator.op), "variants": lambda *_: variants})
    )
    return evaluator


def test_a_variant_with_an_option_that_the_reference_lacks_is_an_error_of_the_judge(monkeypatch):
    wrong = Variant("variance-ddof", {"no_such_option": 1})
    evaluator = with_variants(monkeypatch, wrong)
    observed = {name: values + 1 for name, values in kernel(evaluator.case, evaluator.inputs, "float32").items()}
    with pytest.raises(TypeError, match="no_such_option"):
        evaluator.predict(Alteration(arguments=wrong.arguments))
    with pytest.raises(TypeError, match="no_such_option"):
        search(evaluator, observed)


def test_a_param_that_the_op_lacks_is_an_error_of_the_judge(monkeypatch):
    evaluator = with_variants(monkeypatch, Variant("eps-value", params={"no_such_param": 1}))
    observed = {name: values + 1 for name, values in kernel(evaluator.case, evaluator.inputs, "float32").items()}
    with pytest.raises(TypeError, match="no_such_param"):
        search(evaluator, observed)


def test_variants_that_contradict_each_other_give_no_explanation():
    evaluator = evaluator_of(NORM)
    start = unaltered(evaluator, kernel(evaluator.case, evaluator.inputs, "float32"))
    one, other = (from_variant(Variant("variance-ddof", {"ddof": ddof})) for ddof in (1, 0))
    with pytest.raises(IncompatibleError):
        one.alteration.with_(other.alteration)
    assert start.extended(one) is not None
    assert start.extended(one, other) is None


def test_options_that_the_reference_refuses_together_give_no_explanation():
    evaluator = evaluator_of(NORM)
    start = unaltered(evaluator, kernel(evaluator.case, evaluator.inputs, "float32"))
    both = Alteration(arguments={"centered": False}).with_(Alteration(unstable={"folded": True}))
    assert evaluator.predict(both) is None
    assert start.extended(Cause("both", alteration=both)) is None


def test_a_variant_that_changes_shapes_gives_no_explanation():
    evaluator = evaluator_of(planned("avg_pool2d", x=(2, 3, 6, 6), kernel_size=2))
    with pytest.raises(IncompatibleError, match="other shapes"):
        evaluator.values_of(Alteration(params={"kernel_size": 3}), gradients=False)


MOST_ELEMENTS, MOST_CASES = 4000, 4


def small_cases() -> Iterator[CasePlan]:
    """The smallest cases of every op in the shipped configs."""
    cases = [
        case
        for path in sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("ops/*.yaml")])
        for case in load_plan([path], Overrides()).cases
    ]
    for op in OPS:
        mine = sorted((case for case in cases if case.op == op), key=n_elements)
        yield from [case for case in mine[:MOST_CASES] if case is mine[0] or n_elements(case) <= MOST_ELEMENTS]


def n_elements(case: CasePlan) -> int:
    return sum(math.prod(tensor.shape) for tensor in case.tensors)


SMALL_CASES = list(small_cases())


def test_every_op_has_a_small_case():
    assert {case.op for case in SMALL_CASES} == set(OPS)


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: f"{case.op}-{case.id}")
def test_every_variant_of_every_op_can_be_evaluated(case: CasePlan):
    op = OPS[case.op]
    inputs = drawn(case)
    shapes = {
        name: values.shape for name, values in inputs.items() if name.removeprefix("grad.") not in op.grad_outputs
    }
    right = evaluate(op, case.params, inputs)
    for variant in op.variants(case.params, shapes):
        kept = {name: values for name, values in inputs.items() if name not in variant.absent}
        for dtype in (np.float32, np.float64, np.longdouble):
            values = evaluate(op, variant.changed(case.params), kept, dtype=dtype, **variant.arguments)
            assert values.keys() == right.keys() - {f"grad.{name}" for name in variant.absent}, variant
            assert all(v.dtype == dtype for v in values.values() if v.dtype.kind == "f"), (variant, dtype)


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.id)
def test_every_variant_of_every_op_has_an_entry_in_the_catalogue(case: CasePlan):
    op = OPS[case.op]
    shapes = {plan.name: plan.shape for plan in case.tensors if op.input(plan.name) is not None}
    ids = {variant.id for variant in op.variants(case.params, shapes)} | {fit.id for fit in op.fits}
    assert ids <= set(catalogue())
