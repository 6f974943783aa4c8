"""Mutants of a candidate's file, and the one that repairs it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from parity.check import repair
from parity.check.candidate_process import FaultCase
from parity.check.mutants import mutants_of
from parity.check.pair import pair_of
from parity.check.place import reference_trail, with_repair

KERNEL = dedent("""
    import torch


    def attention(x, v, window: int = 3):
        '''Attention within a window.'''
        T = x.shape[0]
        i = torch.arange(T)
        keep = (i[:, None] >= i) & (i[:, None] - i <= window)
        total = torch.zeros_like(v)
        for _ in range(1):
            total += v.detach()
        s = (x @ x.T) / 2.0
        p = s.masked_fill(~keep, float("-inf")).softmax(-1)
        return p @ v[:, 1:]
""").lstrip()


def changes(line: int, text: str = KERNEL) -> set[tuple[str, str]]:
    """What is changed at a line: the code before and after."""
    return {(" ".join(m.before.split()), " ".join(m.after.split())) for m in mutants_of(text, line) if m.line == line}


def test_every_mutant_is_code_that_differs_at_its_line():
    mutants = list(mutants_of(KERNEL, 8))
    assert len(mutants) > 100
    for mutant in mutants:
        ast.parse(mutant.text)
        assert mutant.text != KERNEL
        lines = zip(KERNEL.splitlines(), mutant.text.splitlines(), strict=True)
        first = next(number for number, (one, other) in enumerate(lines, 1) if one != other)
        assert mutant.line == first, mutant
    assert [m.line for m in mutants[:5]] == [8] * 5


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (8, ("keep = (i[:, None] >= i) & (i[:, None] - i <= window)", "keep = (i[:, None] >= i) & (i[:, None] - i < window)")),
        (7, ("i = torch.arange(T)", "i = (torch.arange(T) + 1)")),
        (11, ("total += v.detach()", "")),
        (11, ("total += v.detach()", "total = v.detach()")),
        (11, ("total += v.detach()", "total += v")),
        (12, ("s = (x @ x.T) / 2.0", "s = (x @ x.T * 2.0)")),
        (12, ("s = (x @ x.T) / 2.0", "s = (x @ x.T) / 4.0")),
        (14, ("return p @ v[:, 1:]", "return p @ v[:, :]")),
        (14, ("return p @ v[:, 1:]", "return p @ v")),
        (14, ("return p @ v[:, 1:]", "return (p / p.sum(-1, keepdim=True)) @ v[:, 1:]")),
        (14, ("return p @ v[:, 1:]", "return p @ (v * s[..., None])[:, 1:]")),
    ],
)  # fmt: skip
def test_small_changes(line, change):
    assert change in changes(line)


def test_statements_in_the_other_order():
    text = "def f(x, b):\n    y = x + b\n    b = b * 2\n    return y\n"
    assert ("y = x + b; b = b * 2", "b = b * 2; y = x + b") in changes(2, text)


def test_dtypes_and_comparisons_inside_kernels_come_first():
    text = dedent("""
        @triton.jit
        def kernel(x, y, n):
            acc = tl.zeros([8], dtype=tl.float16)
            tl.store(y, acc, mask=n < 8)

        def f(x):
            y = x + 1
            kernel[(1,)](x, y, 8)
            return y
    """).lstrip()
    mutants = list(mutants_of(text, 8))
    first = [m for m in mutants if m.cost == 1 and m.line < 5]
    assert mutants[: len(first)] == first
    assert any("tl.float32" in m.after for m in first)


@pytest.mark.parametrize(
    "line",
    [
        "import shutil",
        "from os import remove",
        "import os; os.unlink(x)",
        "open(x)",
        "import urllib.request",
        "x.unlink()",
    ],
)
def test_code_that_acts_on_files_or_networks_is_not_changed(line):
    assert next(mutants_of(f"def f(x):\n    {line}\n    return x + 1\n", 3), None) is None
    assert next(mutants_of("def f(x):\n    return x + 1\n", 2)) is not None


REFERENCE = """
import torch

def attention(x, v, window=3):
    i = torch.arange(x.shape[0])
    d = i[:, None] - i
    return (x @ x.T / 2).masked_fill((d < 0) | (d >= window), float("-inf")).softmax(-1) @ v

def get_inputs():
    return [torch.randn(6, 4), torch.randn(6, 5)]
"""
CANDIDATE = """
import torch

WINDOW = 3

def attention(x, v):
    i = torch.arange(x.shape[0])
    keep = (i[:, None] >= i) & (i[:, None] - i <= WINDOW)
    p = (x @ x.T / 2).masked_fill(~keep, float("-inf")).softmax(-1)
    return p @ v
"""


def asked_in(folder: Path, new: str, reference: str = REFERENCE, **inputs: np.ndarray) -> tuple[FaultCase, object]:
    """A case of a pair whose output differs, and the pair."""
    for name, text in (("ref.py", reference), ("new.py", new)):
        (folder / name).write_text(text)
    rng = np.random.default_rng(0)
    given = inputs or {"x": rng.normal(size=(6, 4)), "v": rng.normal(size=(6, 5))}
    files = {name: folder / f"{name}.npy" for name in given}
    for name, path in files.items():
        np.save(path, given[name].astype(np.float32))
    asked = FaultCase(files, {}, {"arguments": ", ".join(files)}, "float32", ["y"])
    return asked, pair_of(str(folder / "ref.py"), str(folder / "new.py"))


def repaired(folder: Path, new: str, reference: str = REFERENCE, **inputs: np.ndarray):
    """The line with its repair."""
    asked, pair = asked_in(folder, new, reference, **inputs)
    return with_repair(None, asked, pair)


@pytest.mark.process
def test_the_change_that_repairs_a_candidate(tmp_path):
    hit = repaired(tmp_path, CANDIDATE)
    assert str(hit) == "new.py:8"
    assert hit.difference == (
        "new.py:8 has `keep = (i[:, None] >= i) & (i[:, None] - i <= WINDOW)`; "
        "with `keep = (i[:, None] >= i) & (i[:, None] - i < WINDOW)`, all outputs agree"
    )


@pytest.mark.process
def test_nothing_repairs_a_candidate_that_is_right_or_far_from_right(tmp_path):
    assert repaired(tmp_path, CANDIDATE.replace("<= WINDOW", "< WINDOW")) is None
    assert repaired(tmp_path, CANDIDATE.replace("return p @ v", "return p.log() @ v.sin().cumsum(1) + 7")) is None


@pytest.mark.process
def test_mutants_that_end_their_process_or_never_end(tmp_path):
    reference = "import torch\n\ndef f(x):\n    return x * 4\n\ndef get_inputs():\n    return [torch.randn(3)]\n"
    new = "import os\nimport torch\n\ndef f(x):\n    return x * 3\n"
    asked, pair = asked_in(tmp_path, new, reference, x=np.arange(1.0, 4.0))
    ends = new.replace("return", "os._exit(1)\n    return")
    never = new.replace("return", "while True:\n        x = x + 0\n    return")
    texts = [new, ends, never, new.replace("x * 3", "x * 4"), ends, new.replace("x * 3", "x * 2 * 2")]
    assert repair.agreeing(asked, pair, texts, {"y": np.arange(1.0, 4.0) * 4}, 100, shown=True) == [2, 4]
    assert repair.agreeing(asked, pair, texts, {"y": np.arange(1.0, 4.0) * 3}, 100, shown=True) == []


@pytest.mark.process
def test_a_number_that_is_the_size_of_the_batch_by_chance(tmp_path):
    reference = "import torch\n\ndef f(x):\n    return x / 7\n\ndef get_inputs():\n    return [torch.randn(7, 2)]\n"
    new = "import torch\n\ndef f(x):\n    B = x.shape[0]\n    s = B * 0 + 9\n    return x / 9 + 0 * s\n"
    asked, pair = asked_in(tmp_path, new, reference, x=np.random.default_rng(0).normal(size=(7, 2)))

    def trail(case: FaultCase):
        return reference_trail(case, pair, 0.0)

    cases = list(repair.others(asked, trail, tmp_path / "other"))
    assert [results["y"].shape for _, results in cases] == [(7, 2), (119, 2)]
    by_batch = new.replace("x / 9", "x / B")
    agreeing = [
        repair.agreeing(case, pair, [new, by_batch, new.replace("x / 9", "x / 7")], results, 100, shown=True)
        for case, results in cases
    ]
    assert agreeing == [[0, 1], [1]]


DONOR = """
import torch

def price(S, K, r, T):
    discount = torch.exp(-r * T)
    value = S - K * discount
    return value.clamp(min=0)
"""


def test_expressions_of_the_reference_are_among_the_changes():
    new = "import torch\n\ndef price(S, K, r, T):\n    k = K / (1 + r * T)\n    return (S - k).clamp(min=0)\n"
    changed = {" ".join(m.after.split()) for m in mutants_of(new, 4, DONOR, 5)}
    assert "k = (K * torch.exp(-r * T))" in changed
    assert not any("value" in code for code in changed)


def test_nothing_is_taken_from_a_reference_that_acts_on_files():
    new = "import torch\n\ndef price(S, K, r, T):\n    k = K / (1 + r * T)\n    return (S - k).clamp(min=0)\n"
    reference = DONOR.replace("import torch", "import torch, shutil")
    assert not any("torch.exp(-r * T)" in m.after for m in mutants_of(new, 4, reference, 5))


def test_what_a_reference_returns_is_no_repair():
    new = "import torch\n\ndef f(x):\n    y = x * 2\n    return y\n"
    changed = {m.after for m in mutants_of(new, 5, "import torch\n\ndef f(x):\n    return torch.erf(x) + 1\n", 4)}
    assert "return (torch.erf(x) + 1)" not in changed
    assert "return torch.erf(x)" in changed


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("torch.relu(a * b)", "(torch.relu(a) * torch.relu(b))"),
        ("torch.tanh(a * b)", "(a * torch.tanh(b))"),
        ("(a + b) * c", "(a + b * c)"),
        ("(a + b) * c", "(a * c + b)"),
        ("a.sum() / b.sum()", "(a / b).mean()"),
        ("2 * a.sum() / b.sum()", "(2 * (a / b).sum())"),
        ("a - LR", "a - self.eps"),
        ("b.var(0)", "(b.var(0) * a.shape[0] / (a.shape[0] - 1))"),
        ("a.exp()", "a.exp().clamp(max=-7.5)"),
        ("a * b", "(a ** 2) * b"),
    ],
)  # fmt: skip
def test_forms_names_and_numbers(code, other):
    new = f"LR = 0.1\n\ndef f(self, a, b, c):\n    d = self.eps\n    return {code}\n"
    changed = {m.after for m in mutants_of(new, 5, "def f(a):\n    return a.clamp(max=-7.5)\n")}
    assert f"return {other}" in changed or f"return {other.removeprefix('(').removesuffix(')')}" in changed


def test_calls_that_do_nothing_are_no_changes():
    changed = changes(2, "def f(x):\n    return x.transpose(2, 3)\n")
    assert ("return x.transpose(2, 3)", "return x") in changed
    assert not any("3, 3" in after or "2, 2" in after for _, after in changed)


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        (2, "a = x[i:j + 1]", "a = x[i - 1:j]"),
        (3, "b = x[1:]", "b = x[:-1]"),
        (5, "return b[:n - j] * a[j:]", "return b[j:] * a[j:]"),
        (5, "return b[:n - j] * a[j:]", "return b[:n - j] * a[:-j]"),
        (5, "return b[:n - j] * a[j:]", "return (b[:n - j] * x[j:]) * a[j:]"),
        (4, "b[i] = a", "b.index_put_((i,), a, accumulate=True)"),
    ],
)
def test_parts_are_shifted_and_elements_added_up(line, before, after):
    text = "def f(x, i, j, n):\n    a = x[i:j + 1]\n    b = x[1:]\n    b[i] = a\n    return b[:n - j] * a[j:]\n"
    assert (before, after) in changes(line, text)


@pytest.mark.parametrize("statement", ["s = s + (y - m).exp().sum()", "s += (y - m).exp().sum()"])
def test_sums_of_loops_are_rescaled(statement):
    text = f"def f(x):\n    m, s = x[0], 0\n    for y in x:\n        old, m = m, m.max(y)\n        {statement}\n    return s\n"
    assert any("s * torch.exp(old - m)" in after for _, after in changes(5, text))
    assert not any("exp(old - m)" in after for _, after in changes(2, text))


ATTENTION = """
import torch


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def get_inputs():
    return [torch.randn(2, 2, 70, 8) for _ in range(3)]
"""
IN_BLOCKS = """
import torch


def attention(q, k, v, block: int = 32):
    out = torch.zeros_like(q)
    top = torch.full(q.shape[:-1], float("-inf"), dtype=q.dtype)
    total = torch.zeros_like(top)
    for j in range(0, k.shape[2], block):
        s = q @ k[:, :, j : j + block].transpose(-1, -2) / q.shape[-1] ** 0.5
        new_top = torch.maximum(top, s.amax(-1))
        correction = torch.exp(top - new_top)
        p = torch.exp(s - new_top[..., None])
        total = total * correction + p.sum(-1)
        out = out + p @ v[:, :, j : j + block]
        top = new_top
    return out / total[..., None]
"""


@pytest.mark.process
def test_a_lost_correction_of_an_online_softmax(tmp_path):
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(2, 2, 70, 8)) for name in ("q", "k", "v")}
    hit = repaired(tmp_path, IN_BLOCKS, ATTENTION, **given)
    assert hit.repair.after == "out = (out * correction[..., None]) + p @ v[:, :, j : j + block]"


SCALED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.randn(5, 4)]
"""
OWN_BACKWARD = """
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, -(g * x).sum(0)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return Scale.apply(x, self.weight)
"""


@pytest.mark.process
def test_the_gradient_of_a_weight_is_repaired(tmp_path):
    rng = np.random.default_rng(0)
    asked, pair = asked_in(tmp_path, OWN_BACKWARD, SCALED, x=rng.normal(size=(5, 4)), weight=rng.normal(size=4))
    np.save(tmp_path / "grad.y.npy", rng.normal(size=(5, 4)).astype(np.float32))
    asked = replace(asked, params={"arguments": "x"}, arriving={"y": tmp_path / "grad.y.npy"}, tensors=["grad.weight"])
    hit = with_repair(None, asked, pair)
    assert (str(hit), hit.repair.after) == ("new.py:14", "return g * weight, (g * x).sum(0)")


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        (2, "b[i] += a", "b.index_put_((i,), a, accumulate=True)"),
        (3, "c = (1 - k - self.m) * a + k * b + self.m * i", "c = (1 - self.m - k) * a + self.m * b + k * i"),
        (4, "return (w * c)[:, None] * b", None),
    ],
)
def test_repeated_indices_exchanged_names_and_missing_factors(line, before, after):
    text = (
        "def f(self, a, b, i, k, w):\n    b[i] += a\n    c = (1 - k - self.m) * a + k * b + self.m * i\n"
        "    return w[:, None] * b\n"
    )
    made = changes(line, text)
    expected = (before, after) if after else ("return w[:, None] * b", before)
    assert expected in made, sorted(made)[:20]


ROOTS = """
def f(x, eps):
    total = 0
    for row in x:
        y = torch.sqrt(row) + eps
        z = row * torch.rsqrt(row + eps)
        total = (y * z).floor()
    return total
"""


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (5, ("y = torch.sqrt(row) + eps", "y = torch.sqrt(row + eps)")),
        (6, ("z = row * torch.rsqrt(row + eps)", "z = row * (1 / (torch.sqrt(row) + eps))")),
        (7, ("total = (y * z).floor()", "total = total + (y * z).floor()")),
        (7, ("total = (y * z).floor()", "total = (y * z).round()")),
    ],
)
def test_numbers_at_a_root_and_sums_that_are_overwritten(line, change):
    assert change in changes(line, ROOTS)
    assert ("total = 0", "total = total + 0") not in changes(3, ROOTS)


FORGOTTEN = """
def backward(ctx, g):
    keep, scale = ctx.saved_tensors
    order = torch.argsort(scale)
    mean = scale.mean()
    delta = scale - mean
    mean = mean + delta / 3
    total = delta * delta
    big = torch.bucketize(scale, order)
    return g * w.reshape(-1)[:, None], total + big
"""


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (8, ("total = delta * delta", "total = delta * (scale - mean)")),
        (9, ("big = torch.bucketize(scale, order)", "big = torch.bucketize(scale, order, right=True)")),
        (
            10,
            ("return g * w.reshape(-1)[:, None], total + big", "return g * w.reshape(-1)[order][:, None], total + big"),
        ),
        (
            10,
            ("return g * w.reshape(-1)[:, None], total + big", "return g * keep * w.reshape(-1)[:, None], total + big"),
        ),
        (
            10,
            (
                "return g * w.reshape(-1)[:, None], total + big",
                "return torch.where(keep, g, 0.0) * w.reshape(-1)[:, None], total + big",
            ),
        ),
    ],
)
def test_forgotten_names_orders_options_and_fresh_values(line, change):
    made = {
        (before.replace("(g * keep)", "g * keep"), after.replace("(g * keep)", "g * keep"))
        for before, after in changes(line, FORGOTTEN)
    }
    assert change in made, sorted(made)[:40]


def test_numbers_of_blocks_come_after_the_code_that_uses_them():
    text = "class M:\n    BLOCK = 4\n\n    def forward(self, x):\n        total = x[: self.BLOCK] * 3\n        return total\n"
    lines = [mutant.line for mutant in mutants_of(text, 0) if mutant.cost < 4]
    assert lines.index(2) > max(i for i, line in enumerate(lines) if line in (5, 6))
