"""What is wrong with a schedule is read off its rates: by name, as an edit of its formula, or as the numbers themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from parity.reporting.text.evidence import evidence_text
from parity.training.judge.inquiry import StageFault
from parity.training.judge.recorded import UsedRates
from tests.training.runs import planned

TEXT = """
  - id: rates
    kind: train
    model: [{{linear: {{out_features: 6}}}}, {{activation: tanh}}, {{linear: {{out_features: 2}}}}]
    data: {{name: regression, features: [5], targets: 2, rows: 32}}
    optimizer: {{name: adam, lr: 0.01, groups: [{{parameters: ["linear1.*"], lr: 0.002}}, {{parameters: ["*0.bias"], lr: 0.004}}]}}
    schedule: {schedule}
    batch_size: 8
    steps: 20
"""
STEP = "{name: step, step_size: 6, gamma: 0.5}"
COSINE = "{name: cosine, T_max: 20}"
WARMUP = "{name: warmup_polynomial, warmup_steps: 4, total_iters: 17, power: 2.0, start_factor: 0.1}"
Rate = Callable[[int, float], float]


def fault_of(schedule: str, rate: Rate, folder: Path) -> StageFault | None:
    training = planned(TEXT.format(schedule=schedule), folder).params
    rates = UsedRates(training, "float32")
    own = [float(group.options["lr"]) for group in training.groups]
    rates.take(np.array([[rate(t, lr) for lr in own] for t in range(training.steps)]))
    return rates.fault


def warmed_up(t: int, lr: float, since: int = 4, length: int = 13) -> float:
    if t < 4:
        return lr * (0.1 + 0.9 * t / 4)
    return lr * float(1 - min(t - since, length) / length) ** 2


EDITS: Mapping[str, tuple[str, Rate, str]] = {
    "no floor": (
        STEP,
        lambda t, lr: lr * 0.5 ** (t / 6),
        "t / step_size, where the reference has floor(t / step_size)",
    ),
    "all steps of all": (
        WARMUP,
        lambda t, lr: warmed_up(t, lr, 0, 17),
        "since = t, where the reference has t - warmup_steps; the same in length",
    ),
    "all steps": (WARMUP, lambda t, lr: warmed_up(t, lr, 0), "since = t, where the reference has t - warmup_steps"),
    "of all": (WARMUP, lambda t, lr: warmed_up(t, lr, 4, 17), "length = total_iters, where the reference has"),
    "a shorter cosine": (
        COSINE,
        lambda t, lr: lr * (1 + math.cos(math.pi * t / 19)) / 2,
        "3.141592654 * t / (T_max - 1), where the reference has 3.141592654 * t / T_max",
    ),
    "another factor": (STEP, lambda t, lr: lr * 0.37 ** (t // 6), "0.37**floor"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_mistake_in_a_schedule_has_an_expression(name: str, tmp_path: Path) -> None:
    schedule, rate, said = EDITS[name]
    fault = fault_of(schedule, rate, tmp_path)
    assert fault is not None
    [expression] = fault.expressions
    assert said in expression
    assert fault.parts == ()


def test_another_value_of_an_option_has_its_name(tmp_path: Path) -> None:
    fault = fault_of(COSINE, EDITS["a shorter cosine"][1], tmp_path)
    assert fault is not None
    assert (fault.causes[0].id, fault.causes[0].parameters) == ("option-value", {"T_max": 19.0, "asked": 20.0})


GROUPS: Mapping[str, tuple[Rate, str, tuple[str, ...]]] = {
    "all have that of the first": (
        lambda t, _: warmed_up(t, 0.01),
        "group-options",
        ("linear1.weight", "linear1.bias", "linear0.bias"),
    ),
    "one has that of the first": (
        lambda t, lr: warmed_up(t, 0.01 if lr == 0.004 else lr),
        "group-options",
        ("linear0.bias",),
    ),
    "one has no schedule": (
        lambda t, lr: lr if lr == 0.004 else warmed_up(t, lr),
        "schedule-ignored",
        ("linear0.bias",),
    ),
    "one is edited": (
        lambda t, lr: warmed_up(t, lr, 0 if lr == 0.004 else 4),
        "reference-edit",
        ("linear0.bias",),
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_with_other_rates_is_named(name: str, tmp_path: Path) -> None:
    rate, cause, off = GROUPS[name]
    fault = fault_of(WARMUP, rate, tmp_path)
    assert fault is not None
    assert ([one.id for one in fault.causes], fault.parts) == ([cause], off)


def test_rates_that_no_edit_gives_are_shown(tmp_path: Path) -> None:
    fault = fault_of(COSINE, lambda t, lr: lr * (1 + 0.1 * math.sin(t**1.7)), tmp_path)
    assert fault is not None
    assert not fault.causes
    said = evidence_text("rates", fault.evidence["rates"])
    assert said.startswith("the rates of steps 2, 3 and 4 are 0.0108415, 0.00989279 and 0.0101887")
    assert ", exactly 0.00993844, 0.00975528 and 0.00945503" in said


def test_a_single_rate_tells_no_edits_apart(tmp_path: Path) -> None:
    fault = fault_of(COSINE, lambda t, lr: lr if t == 10 else lr * (1 + math.cos(math.pi * t / 20)) / 2, tmp_path)
    assert fault is not None
    assert fault.steps == (11,)
    assert not fault.causes
