"""A port is called again: with other inputs, and with the first ones after that."""

from __future__ import annotations

import numpy as np
import pytest

from parity.models.repeated import shuffled
from parity.reporting.results.results import read_results
from tests.conftest import call

RIGHT = """
import numpy as np
import torch
from torch import nn

KEPT = {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


def build_model():
    return Net()


def make_batch():
    return {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
"""
BODY = "        return self.b(torch.relu(self.norm(self.a(x))))\n"
PORTS = {
    "right": BODY,
    "cached": """
        if x.shape not in KEPT:
            KEPT[x.shape] = self.norm(self.a(x))
        return self.b(torch.relu(KEPT[x.shape]))
""",
    "counting": """
        self.seen += 1
        return self.b(torch.relu(self.norm(self.a(x)))) * (1 + 0.1 * (self.seen > 1))
""",
    "overwriting": """
        y = self.a(x)
        x.mul_(2)
        return self.b(torch.relu(self.norm(y)))
""",
    "reusing": """
        y = self.b(torch.relu(self.norm(self.a(x))))
        return KEPT.setdefault("y", torch.empty_like(y)).copy_(y)
""",
    "branching": """
        y = self.b(torch.relu(self.norm(self.a(x))))
        return y if abs(x).max() > 2.21 else y * 1.5
""",
}
EXPECTED = {
    "right": [],
    "cached": [
        ("stateful", "it keeps state between calls: with other inputs of the same shapes, output is that of the")
    ],
    "counting": [
        (
            "stateful",
            "it keeps state between calls: with other inputs of the same shapes, output is wrong after another",
        ),
        ("stateful", "it keeps state between calls: called again with its first inputs, output differs"),
    ],
    "overwriting": [("input-mutated", "overwrites its input x")],
    "reusing": [("stateful", "a call overwrites what an earlier call has returned")],
    "branching": [("unexplained", "output is wrong with other inputs of the same shapes, in a newly built model, too")],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    for name, body in PORTS.items():
        (folder / f"{name}.py").write_text(RIGHT.replace(BODY, body))
    (folder / "base.py").write_text(RIGHT)
    ports = "".join(f", {{name: {name}, adapter: torch, ops: ./{name}.py}}" for name in PORTS)
    (folder / "c.yaml").write_text(
        f"version: 1\nbackends: [{{name: base, adapter: torch, ops: ./base.py}}{ports}]\nbaseline: base\n"
        "dtypes: [float32]\ncases:\n  - {kind: model, id: net, build: build_model, batch: make_batch}\n"
    )
    call("run", folder / "c.yaml", "--out", folder / "out")
    return read_results(folder / "out")


@pytest.mark.parametrize("name", PORTS)
def test_what_a_further_call_does_otherwise_is_told(name, results):
    told = [(one.id, one.title) for one in results.diagnoses if one.backend == name]
    assert len(told) == len(EXPECTED[name]), told
    for (found_id, title), (expected_id, start) in zip(told, EXPECTED[name], strict=True):
        assert found_id == expected_id
        assert title.startswith(start)
    fails = [row.tensor for row in results.comparisons if row.actual == name and row.fails]
    assert bool(fails) is bool(told)
    assert all(tensor.startswith(("call2.", "call3.", "input.")) for tensor in fails)


def test_other_inputs_stay_in_the_range_of_the_first():
    rng = np.random.default_rng(0)
    for values in (np.arange(12).reshape(3, 4), np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4), np.ones(4) > 0):
        other = shuffled(values, rng)
        assert (other.dtype, other.shape) == (values.dtype, values.shape)
        assert other.min() >= values.min()
        assert other.max() <= values.max()
    assert not np.array_equal(shuffled(np.ones((2, 2)), rng), np.ones((2, 2)))
