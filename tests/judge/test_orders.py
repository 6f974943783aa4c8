"""Indices of equal elements in a user's reference: any order is right, a wrong index is a finding."""

from __future__ import annotations

import numpy as np
import pytest

from parity.config import load_plan
from parity.judge.bound.orders import in_order_of, index_tensors
from parity.judge.compare.cell import consult_oracle

REFERENCE = """
import numpy as np

def rank(x, y):
    order = np.argsort(x, axis=-1)
    best = np.argmax(x, axis=-1)
    return {
        "values": np.take_along_axis(x, order, axis=-1),
        "payload": np.take_along_axis(y, order, axis=-1),
        "order": order + 1.0,
        "best": best.reshape(-1, 1),
    }
"""
CONFIG = """
version: 1
backends: [{{name: mine, adapter: numpy, ops: ./mine.py}}]
baseline: oracle
cases:
  - {{id: rank, op: rank, reference: ./ref.py, gradients: false, inputs: {{x: {{values: {x}}}, y: {{values: {y}}}}}}}
"""
MINE = """
import numpy as np

def rank(x, y):
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")
    best = x.shape[-1] - 1 - np.argmax(x[..., ::-1], axis=-1)
    {fault}
    return {{
        "values": np.take_along_axis(x, order, axis=-1),
        "payload": np.take_along_axis(y, order, axis=-1),
        "order": (order + 1).astype(x.dtype),
        "best": best.reshape(-1, 1),
    }}
"""
X = np.array([[1.0, 2, 2, 0, 2], [0, 0, 3, 3, 1], [2, 2, 2, 2, 2]])
Y = np.arange(15.0).reshape(3, 5)
ORDER = np.array([[3, 0, 4, 2, 1], [1, 0, 4, 3, 2], [4, 3, 2, 1, 0]])
BEST = np.array([[4], [3], [2]])


@pytest.fixture
def case(tmp_path):
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "mine.py").write_text(MINE.format(fault="pass"))
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG.format(x=X.tolist(), y=Y.tolist()))
    [case] = load_plan([path]).cases
    return case


def results(order=ORDER, best=BEST):
    taken = [np.take_along_axis(values, order, -1) for values in (X, Y)]
    return {"values": taken[0], "payload": taken[1], "order": order + 1.0, "best": best}


def answer(case, observed):
    inputs = {"x": X, "y": Y}
    return in_order_of(case, inputs, consult_oracle(case, inputs), observed, "float64")


def test_the_exact_answer_follows_the_order_of_equal_elements(case):
    observed = results()
    exact = answer(case, observed)
    assert all(np.array_equal(exact[name], values) for name, values in observed.items())
    assert index_tensors(case, {"x": X, "y": Y}) >= {"order", "best"}


def test_an_index_of_another_element_stays_wrong(case):
    exact = answer(case, results(best=np.array([[0], [3], [2]])))
    assert exact["best"][0, 0] != 0


def test_an_index_that_comes_twice_is_no_order(case):
    order = ORDER.copy()
    order[2, 0] = order[2, 1]
    exact = answer(case, results(order))
    assert exact["order"].tolist() == consult_oracle(case, {"x": X, "y": Y})["order"].tolist()
    assert np.array_equal(exact["best"], BEST)


def test_without_equal_elements_there_is_one_order(case):
    inputs = {"x": X + 0.1 * Y, "y": Y}
    assert in_order_of(case, inputs, consult_oracle(case, inputs), results(), "float64") is None
    assert index_tensors(case, inputs) == frozenset()


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("pass", set()),
        ("best = (best + 1) % x.shape[-1]", {"best"}),
        ("order[2, 0] = order[2, 1]", {"order", "payload"}),
        ("order[0, 0] = order[0, 1]", {"order", "payload", "values"}),
    ],
)
def test_a_kernel_may_choose_among_equal_elements_only(parity_run, tmp_path, fault, wrong):
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "mine.py").write_text(MINE.format(fault=fault))
    finished = parity_run(CONFIG.format(x=X.tolist(), y=Y.tolist()))
    assert finished.code == (1 if wrong else 0), finished.stdout
    failing = {row["tensor"] for row in finished.failing() if row["culprit"]}
    assert failing == wrong
    if not wrong:
        assert {row["id"] for row in finished.results["diagnoses"]} == {"index-choice"}
