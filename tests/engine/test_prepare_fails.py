"""A case whose inputs cannot be drawn costs no other case."""

from __future__ import annotations

import pytest

from parity.cases.draw import TensorPlan
from tests.conftest import FAKES, three_cases, user_config


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 16 GiB"), RuntimeError("a mistake")])
def test_inputs_that_cannot_be_drawn_cost_one_case(parity_run, monkeypatch, error):
    sample = TensorPlan.sample

    def failing(self, seed, case, *dtypes):
        if case == "bad":
            raise error
        return sample(self, seed, case, *dtypes)

    monkeypatch.setattr(TensorPlan, "sample", failing)
    cases = three_cases()
    done = parity_run(user_config(FAKES / "honest.py", cases=cases))
    assert done.code == 3
    outcomes = {(row["case"], row["outcome"]) for row in done.results["outcomes"]}
    assert {outcome for case, outcome in outcomes if case == "bad"} == {"error"}
    assert {outcome for case, outcome in outcomes if case != "bad"} == {"ok"}
    assert f"its inputs cannot be drawn: {type(error).__name__}: {error}" in done.stdout
