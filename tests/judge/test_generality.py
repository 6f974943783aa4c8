"""The judge knows no op: neither its tensors nor its name; and every variant of every op can be evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.op import IncompatibleError, Variant
from parity.cases.oracle import evaluate
from parity.judge.bound.envelope import envelopes
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.causes import Cause, from_variant, standing_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator
from parity.judge.diagnose.explanation import unaltered
from parity.judge.diagnose.search import search
from tests.conftest import ROOT
from tests.judge.judging import drawn, kernel, planned

CORE = sorted(
    path for path in (ROOT / "parity" / "judge").rglob("*.py") if "catalogue" not in path.parts and path.stem != "known"
)
TENSORS = {item.name for op in OPS.values() for item in op.inputs} | {name for op in OPS.values() for name in op.upstream}


def op_names_in(source: str) -> Iterator[str]:
    """The string constants that name an op or one of its tensors (`weight`, `grad.weight`, `grads.0`)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "grad.":
            tensor = node.value.removeprefix("grad.").split(".")[0]
            if tensor in TENSORS or node.value in OPS:
                yield node.value


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_of_the_judge_names_no_op_and_no_tensor(path: Path):
    assert list(op_names_in(path.read_text())) == []


def test_the_check_of_names_can_fail():
    source = "a = t['weight'], t['grad.x']\nb = name.startswith(('grad.', 'grads.'))\nif op == 'linear': c = 'a weight'"
    assert sorted(op_names_in(source)) == ["grad.x", "grads.", "linear", "weight"]


SMALL = {
    "layer_norm": planned("layer_norm", x=(3, 5), normalized_shape=(5,)),
    "linear": planned("linear", x=(4, 3), out_features=3),
}


def evaluator_of(case) -> Evaluator:
    inputs = drawn(case)
    oracle = consult_oracle(case, inputs)
    return Evaluator(case, "float32", inputs, oracle, envelopes(case, "float32", inputs, oracle))


def with_variants(monkeypatch, *variants: Variant) -> Evaluator:
    evaluator = evaluator_of(SMALL["layer_norm"])
    monkeypatch.setattr(evaluator, "op", evaluator.op.__class__(**{**vars(evaluator.op), "variants": lambda *_: variants}))
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
    evaluator = evaluator_of(SMALL["layer_norm"])
    start = unaltered(evaluator, kernel(evaluator.case, evaluator.inputs, "float32"))
    one, other = (from_variant(Variant("variance-ddof", {"ddof": ddof})) for ddof in (1, 0))
    with pytest.raises(IncompatibleError):
        one.alteration.with_(other.alteration)
    assert start.extended(one) is not None
    assert start.extended(one, other) is None


def test_options_that_the_reference_refuses_together_give_no_explanation():
    evaluator = evaluator_of(SMALL["layer_norm"])
    start = unaltered(evaluator, kernel(evaluator.case, evaluator.inputs, "float32"))
    both = Alteration(arguments={"centered": False}).with_(Alteration(arguments={"folded": True}))
    with pytest.raises(IncompatibleError):
        evaluator.values_of(both)
    assert evaluator.predict(both) is None
    assert start.extended(Cause("both", alteration=both)) is None


def test_a_variant_that_changes_shapes_gives_no_explanation():
    case = planned("linear", x=(4, 3), out_features=2)
    evaluator = evaluator_of(case)
    wrong = [cause for cause in standing_causes(evaluator) if cause.id == "transposed"]
    assert all(evaluator.predict(cause.alteration) is not None for cause in wrong)


PARAMS = {
    "layer_norm": {"normalized_shape": (5,)},
}
