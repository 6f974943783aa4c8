"""Any two variants of an op are computed together, or contradict each other by saying so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.op import IncompatibleError
from parity.config import load_plan
from parity.config.plan import CasePlan
from parity.judge.case import prepared
from parity.judge.diagnose.causes import standing_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator
from parity.judge.diagnose.explanation import together
from tests.conftest import CONFIGS
from tests.judge.judging import drawn

CASES = {case.id: case for case in load_plan(sorted((CONFIGS / "ops").glob("*.yaml"))).cases}
MAX_PAIRS = 24


def pairs(case: CasePlan) -> Iterator[tuple[Evaluator, Alteration]]:
    """Some of the pairs of variants of a case that do not contradict each other as they stand."""
    evaluator = prepared(case, "float32", drawn(case))
    causes = [c for c in standing_causes(evaluator) if c.alteration is not None and not c.alteration.operands]
    every = list(combinations(causes, 2))
    for i in np.random.default_rng(len(every)).permutation(len(every))[:MAX_PAIRS]:
        try:
            both = together(every[i])
        except IncompatibleError:
            continue
        assert not both.arguments.keys() & both.unstable.keys()
        yield evaluator, Alteration({**both.arguments, **both.unstable}, {}, both.params, both.absent)


@pytest.mark.parametrize("op", OPS)
def test_two_variants_together_give_a_result_or_contradict_each_other(op):
    for case in (case for case in CASES.values() if case.op == op):
        for evaluator, alteration in pairs(case):
            try:
                values = evaluator.values_of(alteration, gradients=False)
            except IncompatibleError:
                continue
            assert values.keys() <= evaluator.base.keys()
