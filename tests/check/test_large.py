"""Pairs with so many weights that only their outputs are compared."""

from __future__ import annotations

import pytest

from tests.check.test_check import answered

pytestmark = [pytest.mark.frameworks, pytest.mark.process]
REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(600, 2000), nn.BatchNorm1d(2000), nn.Linear(2000, 40)

    def forward(self, x):
        h = self.up(x)
        return self.down(torch.relu(self.norm(h)))


def get_inputs():
    return [torch.rand(6, 600)]
"""
HEAD = REFERENCE.replace("class Model", "KEPT = {}\n\n\nclass ModelNew").partition("        h = ")[0]
BODIES = {
    "right": "h = x @ self.up.weight.t() + self.up.bias\n        return self.down(self.norm(h).clamp(min=0))",
    "wrong": "h = self.up(x)\n        h = self.norm(h)\n        return self.down(h.abs())",
    "kept": "KEPT.setdefault(x.shape, self.up(x))\n        return self.down(torch.relu(self.norm(KEPT[x.shape])))",
    "state": "self.kept = getattr(self, 'kept', None)\n"
    "        self.kept = h = self.up(x) if self.kept is None else self.kept\n"
    "        return self.down(torch.relu(self.norm(h)))",
    "changed": "out = self.down(torch.relu(self.norm(self.up(x))))\n        x.mul_(2)\n        return out",
    "error": "return self.down(torch.relu(self.norm(self.up(x).view(6, 2000))))",
}


@pytest.mark.parametrize(
    ("name", "verdict", "told"),
    [
        ("right", "right", "outputs of 5 calls agree"),
        ("wrong", "wrong", "new.py:17 has `return self.down(h.abs())`"),
        ("kept", "wrong", "in the case calls, in a second call, on other inputs, y["),
        ("state", "wrong", "in the case calls, in a second call, on other inputs, y["),
        ("changed", "wrong", "in the case calls, new changes x in place"),
        ("error", "wrong", "in the case size, new gives no result: "),
    ],
)
def test_outputs_of_a_few_calls_are_compared(tmp_path, name, verdict, told):
    row = answered(tmp_path, REFERENCE, f"{HEAD}        {BODIES[name]}\n", "--seconds", "300")
    assert row["verdict"] == verdict, row
    assert told in row["sentence"]
    if name == "right":
        assert [check[:2] for check in row["checks"]] == [
            [kind, "passed"] for kind in ("given", "drawn", "eval", "size", "calls")
        ]
        (note,) = row["not_judged"]
        assert note.startswith("with 1,289,")
    elif name not in ("error", "changed"):
        assert abs(row["counterexample"]["got"] - row["counterexample"]["exact"]) > row["counterexample"]["bound"]


def test_a_reference_that_refuses_negative_numbers_is_asked_others(tmp_path):
    refusing = "        assert (x >= 0).all()\n        h = self.up(x)"
    reference = REFERENCE.replace("        h = self.up(x)", refusing)
    row = answered(tmp_path, reference, f"{HEAD}        {BODIES['right']}\n", "--seconds", "300")
    assert (row["verdict"], row["checks"][1][:2]) == ("right", ["drawn", "passed"]), row
    assert row["checks"][-1] == ["calls", "passed", "3 calls"]
