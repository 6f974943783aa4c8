"""The tolerance frontier decides as the full tensors do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.judge.compare.frontier import NEVER, accepts
from parity.judge.compare.metrics import compare

RNG = np.random.default_rng(7)
N = 300_000
"""More than a block."""
EXPECTED = RNG.normal(size=N) * 10.0 ** RNG.uniform(-3, 3, N)
TOLERANCES = [
    *zip(10.0 ** RNG.uniform(-10, 1, 200), 10.0 ** RNG.uniform(-10, 1, 200), strict=True),
    (0, 0),
    (1, 0),
    (0, 1),
]


def relu(values):
    return np.where(EXPECTED > 0, values, 0)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (EXPECTED.astype(np.float32), EXPECTED),
        (EXPECTED + 1e-4 * RNG.normal(size=N), EXPECTED),
        (EXPECTED * 1.001, EXPECTED),
        (relu(EXPECTED * (1 + 1e-6 * RNG.normal(size=N))), relu(EXPECTED)),
        (RNG.normal(size=N), np.zeros(N)),
        (EXPECTED.astype(np.longdouble) + 1e-9, EXPECTED.astype(np.longdouble)),
        (EXPECTED[:50] + 1e-3, EXPECTED[:50]),
        (np.float64([[1.0]]), np.float64([[3.0]])),
        (EXPECTED, EXPECTED),
        (np.empty((0, 3)), np.empty((0, 3))),
    ],
)
def test_every_tolerance_is_decided_as_by_the_tensors(actual, expected):
    frontier = compare(actual, expected, 1e-6, 1e-6).frontier
    difference, magnitude = np.abs(actual - expected), np.abs(expected)
    wanted = [bool((difference <= atol + rtol * magnitude).all()) for rtol, atol in TOLERANCES]
    assert [accepts(frontier, *tolerance) for tolerance in TOLERANCES] == wanted
    assert len(frontier) <= 20


def test_neither_threads_nor_the_tolerance_of_the_run_change_it():
    pair = EXPECTED.astype(np.float32), EXPECTED
    assert compare(*pair, 0, 0, threads=1).frontier == compare(*pair, 1e-3, 1e-8, threads=4).frontier


def test_nan_in_one_tensor_is_never_accepted_and_nan_in_both_is_ignored():
    values = EXPECTED[:1000].copy()
    values[3] = math.nan
    assert compare(values, EXPECTED[:1000], 0, 0).frontier == (NEVER,)
    assert not accepts([NEVER], 1e300, 1e300)
    assert compare(values, values, 0, 0).frontier == ()
    assert accepts([], 0, 0)
