"""A small part of the judge's benchmark: planted faults of every kind, right kernels of every kind, in real processes."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.judge.check import check
from benchmarks.judge.command import quick_report
from benchmarks.judge.report import Report
from benchmarks.judge.score import Cell

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CLEAR = 2.0
"""A fault with an effect of 8 times the yardstick may be missed, one of 16 may not."""


@cache
def report() -> Report:
    return quick_report()


def told(cells: list[Cell]) -> list[str]:
    return [str(cell) for cell in cells]


def test_the_kernels_are_what_their_labels_say(tmp_path):
    assert list(check(tmp_path)) == []


def test_every_cell_ran():
    assert told(report().failed) == []
    assert len(report().planted) > 300
    assert len(report().clean) > 50


def test_right_kernels_are_left_alone():
    assert told(report().false_alarms) == []


def test_faults_are_detected():
    assert [str(cell) for cell in report().missed if cell.effect.largest >= CLEAR * 8] == []


def test_nothing_is_named_wrong_with_confidence():
    assert told(report().confidently_wrong) == []
    assert told(report().undecided_wrong) == []


def test_faults_are_named_right_at_first_place():
    planted = report().planted
    right = [cell for cell in planted if cell.right or cell.undecided_right]
    assert len(right) / len(planted) >= 0.95
