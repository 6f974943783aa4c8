"""Inputs that a pair is asked because of what its file says that their values and lengths mean."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch  # noqa: F401 - the references need it

from parity.check.cases import Designer
from parity.check.meanings import is_label
from tests.check.test_check import answered
from tests.check.test_problem import designed, problem

pytestmark = [pytest.mark.frameworks, pytest.mark.process]


def test_inputs_of_equal_lengths_are_asked_with_others_where_the_reference_takes_them(tmp_path):
    body = "def f(q, k, v):\n    return (q @ k.transpose(1, 2)).softmax(-1) @ v\n"
    inputs = "def get_inputs():\n    return [torch.randn(2, 12, 16), torch.randn(2, 12, 16), torch.randn(2, 12, 16)]\n"
    ids = designed(tmp_path, f"import torch\n\n{body}\n{inputs}")
    assert {name for name in ids if re.match("f-[qkv]-length", name)} == {
        "f-q-length-12=13", "f-k-length-12=13", "f-v-length-16=17",
    }  # fmt: skip


MEANINGS = {
    "f-lengths-nothing": (
        "x, lengths",
        "torch.stack([x[i, :n].sum(0) / n if n > 0 else 0 * x[i, 0] for i, n in enumerate(lengths.tolist())])",
        "torch.randn(6, 8, 3), torch.randint(1, 9, (6,))",
    ),
    "f-mask-empty": (
        "x, mask",
        "(x * mask).sum(-1) / mask.sum(-1).clamp(min=1)",
        "torch.randn(4, 8), (torch.rand(4, 8) > 0.3).float()",
    ),
    "f-boxes-apart": (
        "boxes",
        "(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])",
        "torch.cat([torch.rand(9, 2), torch.rand(9, 2) + 1], 1)",
    ),
    "f-halves": ("x, scale", "torch.round(x / scale) * scale", "torch.randn(4, 8), torch.rand(8) * 0.1 + 0.02"),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_values_that_have_a_meaning(tmp_path, name):
    names, body, inputs = MEANINGS[name]
    text = f"import torch\n\ndef f({names}):\n    return {body}\n\ndef get_inputs():\n    return [{inputs}]\n"
    it = problem(tmp_path, text)
    (case,) = (case.case for case in Designer(it, tmp_path / "inputs").all(it.at({})) if case.id == name)
    arrays = {n: np.load(tmp_path / item["file"]) for n, item in case["inputs"].items() if "file" in item}
    if name == "f-lengths-nothing":
        assert 0 < (arrays["lengths"] == 0).sum() < 6
    elif name == "f-mask-empty":
        assert not arrays["mask"].any()
        assert case["differentiable"] == ["x"]
    elif name == "f-boxes-apart":
        boxes = arrays["boxes"]
        one, other = boxes[:, None], boxes[None]
        apart = (one[..., 2:] < other[..., :2]) | (other[..., 2:] < one[..., :2])
        assert {*map(tuple, apart.reshape(-1, 2))} == {*product((False, True), repeat=2)}
        assert (boxes[:, :2] < boxes[:, 2:]).all()
    else:
        assert (arrays["x"] % 1 == 0.5).all()
        assert (arrays["scale"] == 1).all()
        assert case["gradients"] is False


def test_a_file_that_thinks_of_no_empty_sequence_is_not_asked_one(tmp_path):
    names, body, inputs = MEANINGS["f-lengths-nothing"]
    body = body.replace(" if n > 0 else 0 * x[i, 0]", "").replace("sum(0) / n", "cumsum(0).sum(0)")
    text = f"import torch\n\ndef f({names}):\n    return {body}\n\ndef get_inputs():\n    return [{inputs}]\n"
    assert "f-lengths-nothing" not in designed(tmp_path, text)


def test_halves_are_those_of_a_step_among_the_numbers(tmp_path):
    body = "def f(x, step):\n    return torch.round(x / step) * step\n\ndef get_inputs():\n"
    it = problem(tmp_path, f"import torch\n\n{body}    return [torch.randn(4, 8), 0.25]\n")
    (case,) = (case.case for case in Designer(it, tmp_path / "inputs").all(it.at({})) if case.id == "f-halves")
    assert (np.load(tmp_path / case["inputs"]["x"]["file"]) / 0.25 % 1 == 0.5).all()


def test_a_length_that_is_too_long_for_many_blocks_is_asked_for_three(tmp_path):
    body = "def f(x):\n    return x.cumsum(1)\n\ndef get_inputs():\n    return [torch.randn(4, 16, 24)]\n"
    ids = designed(tmp_path, f"import torch\n\n{body}")
    assert {"f-length-16=17", "f-length-16=33"} <= set(ids)
    assert "f-length-16=129" not in ids


def test_turns_of_recurrent_layers_are_counted(tmp_path):
    body = "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    body += "        self.gru = torch.nn.GRU(4, 4, 3)\n\n    def forward(self, x):\n        return self.gru(x)[0]\n\n"
    it = problem(tmp_path, f"import torch\n\n{body}def get_inputs():\n    return [torch.randn(20, 2, 4)]\n")
    assert it.cost({}) is not None
    assert 20 * 3 * 8 <= it.n_counted < 20 * 3 * 8 + 20


@pytest.mark.parametrize(
    ("values", "is_known"),
    [
        ("(torch.rand(6) > 0.5).float()", True),
        ("(torch.arange(6) * 3 - 1).float()", True),
        ("torch.arange(6) / 4", False),
        ("torch.ones(6)", False),
        ("torch.randn(6)", False),
        ("torch.arange(6)", False),
    ],
)
def test_whole_numbers_in_a_floating_point_dtype_are_labels(tmp_path, values, is_known):
    body = f"def f(x, y):\n    return x * y.float()\n\ndef get_inputs():\n    return [torch.randn(6), {values}]\n"
    (_, argument) = problem(tmp_path, f"import torch\n\n{body}").at({}).arguments
    assert is_label(argument) is is_known


def test_labels_that_a_reference_makes_integers_stay_what_they_are(tmp_path):
    body = "def f(x, y):\n    return x.gather(1, y.long()[:, None])\n\n"
    inputs = "def get_inputs():\n    return [torch.randn(30, 90), (torch.arange(30) * 3).float()]\n"
    row = answered(tmp_path, f"import torch\n\n{body}{inputs}", f"import torch\n\n{body}", "--seconds", "300")
    assert row["verdict"] == "right", row
