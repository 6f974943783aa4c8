"""What the report's pictures show, against arrays whose errors are known."""

from __future__ import annotations

import numpy as np
import pytest

from parity.reporting.plots.tensors import (
    MAX_COLUMNS,
    MAX_ELEMENTS,
    MAX_ROWS,
    N_LEVELS,
    NOT_FINITE,
    Errors,
    LogBins,
    PictureError,
    axis_for,
    errors,
    histogram,
    mismatch_map,
    runs,
    thinned,
)


def of(values: object) -> Errors:
    array = np.asarray(values, dtype=np.float64)
    return Errors(array, array.shape)


def test_errors_are_distances_from_the_exact_answer():
    found = errors(np.array([1.0, 2.5, -3.0], np.float32), np.array([1.0, 2.0, 3.0]))
    assert found.values.tolist() == [0.0, 0.5, 6.0]
    assert not found.sampled


def test_what_is_finite_on_one_side_only_is_infinitely_off():
    nan, inf = np.nan, np.inf
    found = errors(np.array([nan, nan, inf, inf, inf, 1.0]), np.array([nan, 1.0, inf, -inf, 1.0, nan]))
    assert found.values.tolist() == [0.0, inf, 0.0, inf, inf, inf]


@pytest.mark.parametrize(
    ("actual", "exact"),
    [
        (np.zeros(3), np.zeros(4)),
        (np.zeros((3, 1)), np.zeros(3)),
        (np.zeros(0), np.zeros(0)),
        (np.zeros(2, "c16"), np.zeros(2)),
        (np.zeros(2, "M8[s]"), np.zeros(2)),
    ],
    ids=["size", "shape", "empty", "complex", "dates"],
)
def test_what_has_no_picture_is_told(actual, exact):
    with pytest.raises(PictureError):
        errors(actual, exact)


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (10**7,), (3, 10**4, 500), (10**9, 10**9), (2,) * 40])
def test_a_sample_has_at_most_so_many_elements(shape):
    n = 1
    for size, part in zip(shape, thinned(shape), strict=True):
        n *= len(range(*part.indices(size)))
    assert 1 <= n <= MAX_ELEMENTS
    assert n > MAX_ELEMENTS / 4 or n == np.prod(shape, dtype=float)


def test_a_histogram_counts_every_element_once():
    rng = np.random.default_rng(1)
    values = 10 ** rng.uniform(-20, 20, 5000)
    values[:10], values[10:30] = 0.0, np.inf
    found = histogram(of(values), 1e-3, axis_for([of(values)], 1e-3))
    assert (found.n_exact, found.n_infinite, found.total) == (10, 20, 5000)


def test_a_bar_stands_where_its_errors_are():
    found = histogram(of([2e-6, 2e-6, 2e-2]), 1e-6, LogBins(-2, 6))
    assert {i: n for i, n in enumerate(found.counts) if n} == {9: 2, 25: 1}


@pytest.mark.parametrize("values", [[0.0], [np.inf], [1e-300], [1e300], [5e-324, 1.7e308]])
def test_an_axis_shows_careful_code_and_what_is_off(values):
    axis = axis_for([of(values)], 1e-7)
    assert axis.low <= -1
    assert axis.high >= 2
    assert histogram(of(values), 1e-7, axis).total == len(values)


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "blocks"),
    [
        ((), "", "", (1, 1)), ((5,), "", "axis 0 (5)", (1, 5)), ((100,), "", "axis 0 (100)", (1, MAX_COLUMNS)),
        ((64, 16), "axis 0 (64)", "axis 1 (16)", (MAX_ROWS, 16)),
        ((2, 8, 6, 6), "axes 0 to 1 (2 × 8)", "axes 2 to 3 (6 × 6)", (16, 36)), ((1, 1, 3), "axis 0 (1)", "axes 1 to 2 (1 × 3)", (1, 3)),
    ],
)  # fmt: skip
def test_a_map_lays_a_tensor_out_in_rows_and_columns(shape, rows, columns, blocks):
    found = mismatch_map(of(np.ones(shape)))
    assert (found.rows, found.columns, found.levels.shape) == (rows, columns, blocks)


def test_a_map_shows_where_the_error_sits():
    values = np.full((64, 160), 1e-9)
    values[17, 83] = 1.0
    values[63, 0] = np.inf
    values[:4, 4:8] = 0.0
    found = mismatch_map(of(values))
    assert np.argwhere(found.levels == N_LEVELS).tolist() == [[4, 20]]
    assert np.argwhere(found.levels == NOT_FINITE).tolist() == [[15, 0]]
    assert np.argwhere(found.levels == 0).tolist() == [[0, 1]]
    assert (found.low, found.high) == (1e-9, 1.0)


def test_noise_within_a_decade_is_no_pattern():
    found = mismatch_map(of([1.0, 0.9, 0.95]))
    assert set(found.levels.ravel().tolist()) == {N_LEVELS}


def test_a_block_holds_the_largest_of_its_elements():
    values = np.random.default_rng(2).uniform(size=(50, 90))
    found = mismatch_map(of(values))
    assert found.high == values.max()
    assert found.levels.max() == N_LEVELS


def test_runs_make_up_the_whole_map():
    levels = np.random.default_rng(3).integers(0, 3, size=(7, 11))
    again = np.full_like(levels, -1)
    for level, row, column, length in runs(levels):
        again[row, column : column + length] = level
    assert (again == levels).all()
