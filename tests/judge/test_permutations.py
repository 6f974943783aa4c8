"""Permutations that may lead from one tensor to another."""

from __future__ import annotations

import numpy as np

from parity.judge.diagnose.permutations import turned


def orders(shape: tuple[int, ...], observed: tuple[int, ...]) -> list[list[int]]:
    values = np.arange(float(np.prod(shape))).reshape(shape)
    return [next(iter(shown.values())) for _, shown, _ in turned(values, observed)]


def test_axes_of_length_1_that_change_places_are_no_permutation():
    assert orders((1, 33), (1, 33)) == []
    assert orders((4, 1, 3), (4, 1, 3)) == [[1, 2, 0], [2, 0, 1], [2, 1, 0]]


def test_another_shape_shows_them():
    assert orders((1, 33), (33, 1)) == [[1, 0]]
