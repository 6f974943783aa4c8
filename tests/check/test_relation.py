"""What one value is to another, in words."""

from __future__ import annotations

import numpy as np
import pytest

from parity.check.relation import partial_sum, relation

X = np.random.default_rng(0).normal(size=(4, 35))
ROWS = np.arange(1.0, 5.0)[:, None]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (X / 2, "1/2 times it"),
        (X * np.sqrt(1 / 8), "sqrt(1/8) times it"),
        (X * 1.2345, "1.234 times it"),
        (-X, "its negative"),
        (X + 0.1, "it plus 1/10"),
        (X * X, "the square of it"),
        (np.exp(X), "the exponential of it"),
        (X.T, "it with its axes in the order 1, 0"),
        (X[:, ::-1], "it reversed along axis 1"),
        (np.roll(X, 1, 1), "it shifted by 1 along axis 1"),
        (np.roll(X, -1, 1), "it shifted by -1 along axis 1"),
        (np.sort(X), "its elements in another order"),
        (X * ROWS, "it times another number for each index of axis 0 (1, 2, 3, 4)"),
        (X + ROWS, "it plus another number for each index of axis 0 (1, 2, 3, 4)"),
    ],
)
def test_a_relation_of_all_elements(own, words):
    assert relation(own, X, weak=False) == words


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (np.where(np.arange(35) < 32, X, 0), "equal but for indices 32 to 34 of axis 1 (of 35)"),
        (np.where(np.arange(35) == 3, 0, X), "equal but for index 3 of axis 1 (of 35)"),
        (np.where(np.arange(35) % 8 == 7, 0, X), "equal but for every 8th index from 7 on of axis 1 (of 35)"),
        (np.minimum(X, 1.0), f"equal where it is at most {X[X <= 1].max():.4g}"),
        (
            np.where(np.arange(140).reshape(4, 35) == 50, np.nan, X),
            "NaN or infinite in 1 of 140 elements, where the other is finite",
        ),
    ],
)
def test_a_relation_of_a_part_is_told_only_of_values_that_are_meant_for_the_same(own, words):
    assert relation(own, X, weak=True) == words
    assert relation(own, X, weak=False) == ""


def test_equal_values_and_others_have_no_relation():
    other = np.random.default_rng(1).normal(size=X.shape)
    assert relation(X, X.copy(), weak=True) == ""
    assert relation(other, X, weak=True) == ""
    assert relation(X[:1, :2], X[:1, :2] * 2, weak=True) == ""


def test_axes_of_one_element_do_not_count():
    assert relation(X[:, None] * 2, X, weak=False) == "2 times it"


@pytest.mark.parametrize(
    ("own", "function", "operands", "words"),
    [
        (X[:, :32].sum(1), "sum", [X], "the sum of only 0 to 31 of the 35 elements of axis 1"),
        (X[:, 3:].sum(1), "sum", [X], "the sum of only 3 to 34 of the 35 elements of axis 1"),
        (X[:, :32] @ X[:, :32].T, "linear", [X, X], "the sum of only 0 to 31 of the 35 elements of axis 1"),
        (X[:, :32] @ X.T[:32], "matmul", [X, X.T], "the sum of only 0 to 31 of the 35 elements of axis 1"),
        (X[:, :32].sum(1) / 35, "mean", [X], "the sum of only 0 to 31 of the 35 elements of axis 1"),
        (X[:, :32].mean(1), "mean", [X], ""),
        (X[:, :8].sum(1), "sum", [X], ""),  # a step on the way
        (X.sum(1), "sum", [X], ""),
        (X.max(1), "sum", [X], ""),
        (X.max(1), "amax", [X], ""),
    ],
)
def test_a_part_of_a_sum(own, function, operands, words):
    assert partial_sum(own, function, operands) == words
