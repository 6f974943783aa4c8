"""Where the place of a finding is: the candidate's line that computes what the reference does not."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest

from parity.check.lines import FaultLines
from parity.check.pair import pair_of
from parity.check.place import FaultCase, located

pytest.importorskip("torch")
pytestmark = pytest.mark.process

NORM = """
    import torch

    def f(x, w):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        y = (x - mean) * torch.rsqrt(var + 1e-5)
        return y * w

    def get_inputs():
        return [torch.randn(6, 10), torch.randn(10)]
"""
CLAMPED = """
    import torch

    def f(x, w):
        scale = torch.exp(w)
        return x.clamp(-1, 1) * scale

    def get_inputs():
        return [torch.randn(6, 10), torch.randn(10)]
"""


def place(folder: Path, reference: str, new: str, tensors, *, inputs=None, cause="", seconds=60.0):
    """The place for a candidate whose `tensors` differ."""
    for name, text in (("ref.py", reference), ("new.py", new)):
        (folder / name).write_text(dedent(text).lstrip())
    rng = np.random.default_rng(0)
    own = {"x": rng.normal(size=(6, 10)), "w": rng.normal(size=10), "grad.y": rng.normal(size=(6, 10))}
    own |= inputs or {}
    files = {}
    for name, array in own.items():
        files[name] = folder / f"{name}.npy"
        np.save(files[name], array.astype(np.float32))
    arriving = {"y": files.pop("grad.y")}
    if not any(name.startswith("grad.") for name in tensors):
        arriving = {}
    asked = FaultCase(files, arriving, {"arguments": "x, w"}, "float32", tensors, cause)
    return located(asked, pair_of(str(folder / "ref.py"), str(folder / "new.py")), seconds)


def test_a_wrong_formula(tmp_path):
    new = """
        import torch

        def f(x, w):
            d = x - x.mean(1)[:, None]
            var = (d * d).sum(1) / 9
            s = torch.sqrt(var + 1e-5)[:, None]
            return w * (d / s)
    """
    found = place(tmp_path, NORM, new, ["y"])
    assert str(found) == "new.py:5"
    assert found.reference_line == 5
    assert found.sentence == (
        "new.py:5 has `var = (d * d).sum(1) / 9` where ref.py:5 has `var = ((x - mean) ** 2).mean(-1, keepdim=True)`: "
        "10/9 times it; with that value there, all outputs agree"
    )


def test_a_formula_that_loses_digits(tmp_path):
    new = """
        import torch

        def f(x, w):
            mean = x.mean(-1, keepdim=True)
            square = (x * x).mean(-1, keepdim=True)
            var = square - mean * mean
            return (x - mean) * torch.rsqrt(var + 1e-5) * w
    """
    far = {"x": np.random.default_rng(1).normal(size=(6, 10)) + 1000}
    assert place(tmp_path, NORM, new, ["y"], inputs=far).line == 6


def test_an_overflow(tmp_path):
    new = """
        import torch

        def f(x, w):
            e = torch.exp(x * w)
            return e / e.sum(-1, keepdim=True)
    """
    reference = """
        import torch

        def f(x, w):
            z = x * w
            return z.softmax(-1)

        def get_inputs():
            return [torch.randn(6, 10), torch.randn(10)]
    """
    large = {"x": np.full((6, 10), 1000.0) + np.arange(10), "w": np.ones(10)}
    assert place(tmp_path, reference, new, ["y"], inputs=large).line == 4


def test_the_lines_of_an_own_backward_pass(tmp_path):
    new = """
        import torch

        class Clamp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.save_for_backward(x, scale)
                return x.clamp(-1, 1) * scale

            @staticmethod
            def backward(ctx, g):
                x, scale = ctx.saved_tensors
                dscale = (g * x.clamp(-1, 1)).sum(0)
                dx = g * scale * 1.0
                return dx, dscale

        def f(x, w):
            return Clamp.apply(x, torch.exp(w))
    """
    assert place(tmp_path, CLAMPED, new, ["grad.x"]).line in (13, 14)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("scale = torch.exp(w).detach()\n    return x.clamp(-1, 1) * scale", 4),
        (
            "with torch.no_grad():\n        v = w * 1\n        scale = torch.exp(v)\n    return x.clamp(-1, 1) * scale",
            4,
        ),
        ("scale = torch.exp(w)\n    return x.data.clamp(-1, 1) * scale", 5),
    ],
)
def test_where_gradients_end(tmp_path, body, line):
    new = f"import torch\n\ndef f(x, w):\n    {body}\n"
    assert place(tmp_path, CLAMPED, new, ["grad.w", "grad.x"]).line == line


def test_the_wrong_gradient_of_a_right_value(tmp_path):
    reference = """
        import torch

        def f(x, w):
            y = x * 2
            return y * w

        def get_inputs():
            return [torch.randn(6, 10), torch.zeros(10)]
    """
    new = """
        import torch

        def f(x, w):
            y = x + w
            return y * w
    """
    assert place(tmp_path, reference, new, ["grad.w"], inputs={"w": np.zeros(10)}).line in (4, 5)


def test_state_that_is_kept(tmp_path):
    new = """
        import torch

        SEEN = {}

        def f(x, w):
            if x.shape not in SEEN:
                SEEN[x.shape] = torch.exp(w)
            return x.clamp(-1, 1) * SEEN[x.shape]
    """
    assert place(tmp_path, CLAMPED, new, ["y"], cause="stateful").line == 7


def test_an_input_that_is_written(tmp_path):
    new = """
        import torch

        def f(x, w):
            scale = torch.exp(w)
            x.clamp_(-1, 1)
            return x * scale
    """
    assert place(tmp_path, CLAMPED, new, ["x"], cause="input-mutated").line == 5


def test_no_place_where_the_candidate_ends_its_process(tmp_path):
    new = """
        import os

        def f(x, w):
            os._exit(0)
    """
    assert place(tmp_path, CLAMPED, new, ["y"]) is None


def test_no_place_after_the_time(tmp_path):
    new = """
        import time

        def f(x, w):
            time.sleep(100)
    """
    assert place(tmp_path, CLAMPED, new, ["y"], seconds=1.0) is None


def test_a_finding_that_cannot_be_read_has_no_place(tmp_path):
    row = SimpleNamespace(case="f-given", dtype="float32", tensor="y", call=None)
    finding = SimpleNamespace(worst=SimpleNamespace(row=row), id="unexplained f", cases=(), differences=())
    assert FaultLines(None).of(tmp_path, finding) is None


def test_the_line_is_looked_for_once_before_a_cause(tmp_path):
    (tmp_path / "ref.py").write_text(
        "import torch\n\n\ndef f(x):\n    return x * 2\n\n\ndef get_inputs():\n    return [torch.randn(4)]\n"
    )
    (tmp_path / "new.py").write_text("import torch\n\n\ndef f(x):\n    return x * 3\n")
    lines = FaultLines(pair_of(f"{tmp_path}/ref.py:f", f"{tmp_path}/new.py:f"))
    params = make_dataclass("Params", [("arguments", str)])("x")
    case = SimpleNamespace(id="f-given", params=params)
    assert lines.locate(case, "float32", {"x": np.arange(1.0, 5.0, dtype=np.float32)}, ["y"])
    assert not lines.locate(case, "float32", {}, ["y"])
    row = SimpleNamespace(case="f-given", dtype="float32", tensor="y", call=None)
    hit = lines.of(tmp_path, SimpleNamespace(worst=SimpleNamespace(row=row), id="unexplained f"))
    assert str(hit) == "new.py:5"
    assert hit.repair.after == "return x * 2"


def test_numbers_that_are_not_what_they_should_be_are_refused(tmp_path):
    new = """
        import json
        import os
        import sys

        def f(x, w):
            with open(sys.argv[2] + "/trail.json", "w") as file:
                json.dump({"trails": [{"rows": [], "inputs": {"x": 7}}], "shapes": [], "dtypes": []}, file)
            with open(sys.argv[2] + "/values.bin", "w"):
                pass
            os._exit(0)
    """
    with pytest.raises((LookupError, ValueError, TypeError)):
        place(tmp_path, CLAMPED, new, ["y"])


SCORES = """
    import torch

    def f(x, w):
        s = (x * w) @ x.T / 4
        return torch.softmax(s, -1) @ x

    def get_inputs():
        return [torch.randn(6, 10), torch.randn(10)]
"""


def test_the_difference_says_what_one_value_is_to_the_other(tmp_path):
    new = """
        import torch

        def f(x, w):
            s = (x * w) @ x.T / 8
            return torch.softmax(s, -1) @ x
    """
    found = place(tmp_path, SCORES, new, ["y"])
    assert found.difference == (
        "new.py:4 has `s = (x * w) @ x.T / 8` where ref.py:4 has `s = (x * w) @ x.T / 4`: 1/2 times it"
    )


def test_the_difference_where_the_tail_of_a_sum_is_left_out(tmp_path):
    new = """
        import torch

        def f(x, w):
            total = 0
            for start in range(0, x.shape[1] // 4 * 4, 4):
                total = total + (x * w)[:, start : start + 4].sum(1)
            return total
    """
    reference = """
        import torch

        def f(x, w):
            return (x * w).sum(1)

        def get_inputs():
            return [torch.randn(6, 10), torch.randn(10)]
    """
    found = place(tmp_path, reference, new, ["y"])
    assert str(found) == "new.py:6"
    assert found.difference.endswith(": the sum of only 0 to 7 of the 10 elements of axis 1")


def test_the_difference_where_no_gradient_flows(tmp_path):
    new = """
        import torch

        def f(x, w):
            mean = x.detach().mean(-1, keepdim=True)
            var = ((x - mean) ** 2).mean(-1, keepdim=True)
            return (x - mean) * torch.rsqrt(var + 1e-5) * w
    """
    found = place(tmp_path, NORM, new, ["grad.x"])
    assert found.difference == "no gradient flows through new.py:4 `mean = x.detach().mean(-1, keepdim=True)`"


def test_a_weight_of_ones_hides_a_fault_from_outputs_only(tmp_path):
    reference = """
        import torch

        def f(x, w):
            y = torch.tanh(x)
            return y * w

        def get_inputs():
            return [torch.randn(10, 10), torch.ones(10)]
    """
    new = """
        import torch

        def f(x, w):
            y = torch.tanh(x)
            return y * w[:, None]
    """
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(10, 10)), "w": np.ones(10), "grad.y": rng.normal(size=(10, 10))}
    found = place(tmp_path, reference, new, ["grad.w"], inputs=given)
    assert found.difference.startswith("new.py:5 has `return y * w[:, None]` where ref.py:5 has `return y * w`")


def test_an_own_backward_pass_whose_result_goes_on(tmp_path):
    reference = """
        import torch

        def f(x, w):
            return torch.tanh(x * w) * 2

        def get_inputs():
            return [torch.randn(6, 10), torch.randn(10)]
    """
    new = """
        import torch

        class Tanh(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.tanh(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                y, = ctx.saved_tensors
                slope = 1 - y
                return g * slope

        def f(x, w):
            return Tanh.apply(x * w) * 2
    """
    found = place(tmp_path, reference, new, ["grad.x", "grad.w"])
    assert found.line in (13, 14)
    assert found.difference.startswith("the backward pass has another gradient at new.py:")


STEPS = """
    import torch

    def f(x, w):
        slope = torch.tensor([2.0 ** -i for i in range(1, 11)], dtype=x.dtype)
        y = torch.tanh(x * slope)
        return torch.softmax(y - w, -1)

    def get_inputs():
        return [torch.randn(6, 10), torch.randn(10)]
"""


def test_a_value_with_which_all_outputs_agree(tmp_path):
    new = """
        import torch

        def slopes(n, like):
            return 0.5 ** torch.arange(n, dtype=like.dtype)

        def f(x, w):
            rows = []
            s = slopes(10, x)
            for i in range(6):
                e = torch.exp(2 * x[i] * s)
                rows.append(torch.exp((e - 1) / (e + 1) - w))
            y = torch.stack(rows)
            return y / y.sum(1, keepdim=True)
    """
    found = place(tmp_path, STEPS, new, ["y"])
    assert found.is_shown
    assert found.difference == (
        "new.py:4 has `return 0.5 ** torch.arange(n, dtype=like.dtype)` where ref.py:4 has "
        "`slope = torch.tensor([2.0 ** -i for i in range(1, 11)], dtype=x.dtype)`: 2 times it; "
        "with that value there, all outputs agree"
    )
    assert found.sentence == found.difference


def test_a_maximum_that_any_number_replaces_is_not_at_fault(tmp_path):
    reference = """
        import torch

        def f(x, w):
            return torch.softmax(x, -1) * w

        def get_inputs():
            return [torch.randn(6, 10), torch.randn(10)]
    """
    new = """
        import torch

        def f(x, w):
            m, total, out = None, 0, []
            for block in x.split(5, -1):
                high = block.amax(-1, keepdim=True)
                m = high if m is None else torch.maximum(m, high)
                e = torch.exp(block - m)
                total = total + e.sum(-1, keepdim=True)
                out.append(e)
            return torch.cat(out, -1) / total * w
    """
    found = place(tmp_path, reference, new, ["y"])
    assert found.line not in (6, 7)
