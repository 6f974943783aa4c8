"""What is said of the formula of a pair, by exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

from parity.check import same_formula
from parity.check.answer import SAME_FORMULA, CheckAnswer
from parity.check.prepare import prepared
from parity.check.same_formula import FieldValues, asked_case, compared, with_formula
from parity.check.screen import screen
from parity.engine.forking import Script

REFERENCE = """
import torch

def normalize(x: torch.Tensor) -> torch.Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt((centered ** 2).mean(-1, keepdim=True) + 1e-5)

def get_inputs():
    return [torch.randn(3, 8)]
"""
RIGHT = CheckAnswer("right", 0, "agrees", checks=[("given", "passed", "1 of 1")])
CANDIDATES = {
    "one-pass": "var = (x * x).mean(-1, keepdim=True) - mean ** 2",
    "unbiased": "var = x.var(-1, keepdim=True)",
    "read": "var = torch.tensor(x.numpy().var(-1, keepdims=True))",
    "endless": "while True: pass",
    "exit": "import os; os._exit(0)",
}


@pytest.fixture(autouse=True)
def time_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import PyTorch on a busy machine."""
    monkeypatch.setattr(same_formula, "SECONDS", 60.0)


def pair_in(folder: Path, line: str) -> tuple[str, str]:
    """A reference, and a candidate with this line for the variance."""
    mean = "    mean = x.mean(-1, keepdim=True)"
    end = "    return (x - mean) * torch.rsqrt(var + 1e-5)"
    texts = {"reference.py": REFERENCE, "new.py": f"import torch\n\ndef normalize(x):\n{mean}\n    {line}\n{end}\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return str(folder / "reference.py"), str(folder / "new.py")


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("one-pass", "yes", "2 outputs and gradients of one call"),
        ("unbiased", "no", "y differs by"),
        ("read", "not shown", "new cannot be computed so: RuntimeError"),
        ("exit", "not shown", "new cannot be computed so: no answer"),
    ],
)
def test_what_is_said(tmp_path: Path, name: str, state: str, reason: str):
    check = prepared(*pair_in(tmp_path, CANDIDATES[name]), tmp_path / "out", seconds=1.0)
    reply = with_formula(RIGHT, check, Script.started)
    assert reply.same_formula == state
    assert reply.checks[-1][0] == SAME_FORMULA
    assert reason in reply.checks[-1][2]


@pytest.mark.frameworks
def test_both_classes_may_be_in_one_file(tmp_path: Path):
    body = "(nn.Module):\n    def forward(self, x):\n        return x * {}\n"
    inputs = "def get_inputs():\n    return [torch.randn(3, 4)]\n\ndef get_init_inputs():\n    return []\n"
    text = (
        f"import torch\nfrom torch import nn\n\nclass Model{body.format(2)}\nclass ModelNew{body.format(3)}\n{inputs}"
    )
    (tmp_path / "both.py").write_text(text)
    path = str(tmp_path / "both.py")
    check = prepared(f"{path}:Model", f"{path}:ModelNew", tmp_path / "out", seconds=1.0)
    assert with_formula(RIGHT, check, Script.started).same_formula == "no"


@pytest.mark.frameworks
def test_code_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(same_formula, "SECONDS", 25.0)
    check = prepared(*pair_in(tmp_path, CANDIDATES["endless"]), tmp_path / "out", seconds=1.0)
    assert (
        with_formula(RIGHT, check, Script.started).checks[-1][2] == "new cannot be computed so: no answer within 25 s"
    )


@pytest.mark.frameworks
def test_another_formula_within_error_bounds_is_a_note(tmp_path: Path):
    check = prepared(*pair_in(tmp_path, CANDIDATES["unbiased"]), tmp_path / "out", seconds=1.0)
    reply = with_formula(RIGHT, check, Script.started)
    assert reply.checks[-1][1] == "not run"
    assert reply.not_judged[-1].startswith("another formula by exact arithmetic, within error bounds: y differs by")
    wrong = with_formula(replace(RIGHT, verdict="wrong", exit_code=1), check, Script.started)
    assert (wrong.checks[-1][1], list(wrong.not_judged)) == ("failed", [])


@pytest.mark.frameworks
def test_the_case_that_differs_is_asked_else_the_drawn_one(tmp_path: Path):
    check = prepared(*pair_in(tmp_path, CANDIDATES["one-pass"]), tmp_path / "out", seconds=1.0)
    assert asked_case(RIGHT, check).id == "normalize-drawn"
    wrong = replace(RIGHT, counterexample={"case": "normalize-given"})
    assert asked_case(wrong, check).id == "normalize-given"


@pytest.mark.frameworks
def test_an_interrupt_keeps_the_answer(tmp_path: Path):
    def interrupted(_script: Script) -> None:
        raise KeyboardInterrupt

    check = prepared(*pair_in(tmp_path, CANDIDATES["one-pass"]), tmp_path / "out", seconds=1.0)
    reply = with_formula(RIGHT, check, interrupted)
    assert (reply.verdict, reply.checks[-1]) == ("right", (SAME_FORMULA, "not run", "interrupted"))


@pytest.mark.frameworks
def test_an_answer_without_a_run_stays_as_it_is(tmp_path: Path):
    check = prepared(*pair_in(tmp_path, CANDIDATES["one-pass"]), tmp_path / "out", seconds=1.0)
    reply = CheckAnswer("not-judged", 3, "nothing ran")
    assert with_formula(reply, check, Script.started) is reply


def values(*tensors: tuple[float, float, float], notes: frozenset[str] = frozenset()) -> FieldValues:
    """One output of one element in some interpretations."""
    return FieldValues("", [notes], [{"y": tuple(np.array([part]) for part in each)} for each in tensors])


@pytest.mark.parametrize(
    ("own", "state"),
    [
        (((1.0, 5.0, 7.0),), "yes"),
        (((1.0, 5.0, 8.0),), "yes"),
        (((1.0, 6.0, 7.0),), "yes"),
        (((1.0, 6.0, 8.0),), "not shown"),
        (((1.0 + 1e-8, 5.0, 7.0),), "not shown"),
        (((1.1, 5.0, 7.0),), "no"),
        (((np.nan, 5.0, 7.0),), "no"),
        (((1.0, 6.0, 8.0), (1.0, 6.0, 7.0)), "yes"),
    ],
)
def test_values_must_agree_and_one_kind_of_residue(own: tuple[tuple[float, float, float], ...], state: str):
    assert compared(values(*[(1.0, 5.0, 7.0)] * len(own)), values(*own)).state == state


def test_elements_without_a_root_are_left_out_of_one_reading_not_of_all():
    unknown, known = (1.0, 1.0, np.nan), (1.0, 2.0, 7.0)
    usual = [(1.0, 5.0, 7.0), (1.0, 5.0, 7.0)]
    own = [(1.0, 6.0, 8.0), (1.0, 6.0, 8.0)]
    assert compared(values(*usual, known, unknown), values(*own, (1.0, 3.0, 7.0), unknown)).state == "yes"
    assert compared(values(*usual, unknown), values(*own, (1.0, 3.0, np.nan))).state == "not shown"


def test_calls_without_a_rule_are_named():
    noted = frozenset(("linalg_qr", "sqrt"))
    reply = compared(values((1.0, 5.0, 7.0), notes=noted), values((1.0, 6.0, 8.0)))
    assert reply.reason == "y: no rule for linalg_qr; a root has two signs in a finite field"


@pytest.mark.parametrize(
    ("verdict", "state", "text"),
    [
        ("right", "yes", "formula the same by exact arithmetic: why"),
        ("unstable", "yes", "formula the same by exact arithmetic: why; what differs is rounding"),
        ("right", "not shown", "formula not shown to be the same: why"),
        ("wrong", "not shown", ""),
        ("wrong", "no", ""),
    ],
)
def test_the_line_of_an_answer(verdict: str, state: str, text: str):
    checks = [("given", "passed", "1 of 1"), (SAME_FORMULA, "not run", "why")]
    reply = CheckAnswer(verdict, 0, "agrees", checks=checks, same_formula=state)
    lines = [line.plain if isinstance(line, Text) else str(line) for line in screen(reply, 100)]
    assert [line for line in lines if line.startswith("formula")] == ([text] if text else [])
    assert not any(SAME_FORMULA in line for line in lines)
