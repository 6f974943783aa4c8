"""The pass over parts, in which few elements are measured in float64, gives the metrics of the pass over all."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from parity.judge.compare import chunked
from parity.judge.compare.chunked import RunningMaxima, compare_parts
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.screen import screened
from tests.judge.test_compiled import DTYPES, Array, of_lengths

SHORT = 256
SUMS = ("rmse", "expected_rms", "cosine")


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chunked, "PIECE", SHORT)
    chunked.zeros.cache_clear()
    yield
    chunked.zeros.cache_clear()


def in_parts(actual: Array, expected: Array, length: int) -> Iterator[tuple[Array, Array]]:
    for i in range(0, actual.size, length):
        yield actual[i : i + length], expected[i : i + length]


def below(points: Any, frontier: Any) -> bool:
    """Whether no point is above a frontier, but for rounding."""
    (e, d), (places, heights) = (np.array([(0.0, 0.0), *chunked.concave(each)]).T for each in (points, frontier))
    return bool((d <= np.interp(e, places, heights) * (1 + 1e-13)).all())


def check(actual: Array, expected: Array, rtol: float, atol: float, known: RunningMaxima = RunningMaxima()) -> Metrics:  # noqa: B008
    """Both passes say the same."""
    found = compare_parts(in_parts(actual, expected, 4 * SHORT), actual.shape, rtol, atol, known=known)
    ours, theirs = asdict(found), asdict(compare(actual, expected, rtol, atol))
    for name in SUMS:
        assert_allclose(ours.pop(name), theirs.pop(name), rtol=1e-6, atol=1e-6 if name == "cosine" else 0)
    frontiers = ours.pop("frontier"), theirs.pop("frontier")
    if found.max_rel_diff < math.inf:
        assert below(*frontiers)
        assert below(*reversed(frontiers))
    if ours["worst_index"] != theirs["worst_index"]:
        # Equally bad, but for rounding (see below).
        assert expected.dtype == np.float64
        assert_allclose(
            *(excess(actual, expected, rtol, atol, one["worst_index"]) for one in (ours, theirs)), rtol=1e-14
        )
        for name in ("worst_index", "actual_value", "expected_value"):
            del ours[name], theirs[name]
    if expected.dtype == np.float64:
        # Of a tensor whose squares leave float64, pieces may be measured in longdouble.
        numbers = [name for name, value in theirs.items() if isinstance(value, float)]
        assert_allclose([ours.pop(name) for name in numbers], [theirs.pop(name) for name in numbers], rtol=1e-14)
    assert repr(ours) == repr(theirs)
    return found


def excess(actual: Array, expected: Array, rtol: float, atol: float, at: Any) -> Any:
    """An element's difference in tolerances; infinite beyond float64, where the first such element is the worst."""
    a, e = (np.longdouble(array[at]) for array in (actual, expected))
    with np.errstate(over="ignore"):
        return np.float64(abs(a - e) / (atol + rtol * abs(e)))


@of_lengths(1, 7, SHORT - 1, SHORT, SHORT + 1, 4 * SHORT, 9 * SHORT + 3)
def test_both_passes_agree(tensors: tuple[Array, Array], rtol: float, atol: float) -> None:
    check(*tensors, rtol, atol)


NOISE = {
    "rounding and one wrong": lambda rng, e: np.where(np.arange(e.size) == 1500, e + 1, np.nextafter(e, np.inf)),
    "absolute": lambda rng, e: e + 1e-4 * rng.standard_normal(e.size),
    "relative": lambda rng, e: e * (1 + 1e-4 * rng.standard_normal(e.size)),
    "narrow": lambda rng, e: e.astype(np.float16),
    "growing": lambda rng, e: e * np.linspace(1, 1.01, e.size),
    "not finite": lambda rng, e: np.where(np.arange(e.size) % 700 == 3, np.nan, e + 1e-3),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("limits", [(1.3e-6, 1e-5), (1e-3, 0.0), (0.0, 1e-4), (0.0, 0.0)])
def test_noise_of_every_kind(name: str, limits: tuple[float, float], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(20 * SHORT).astype(dtype)
    expected[::5] = 0
    actual = NOISE[name](rng, expected).astype(dtype)
    found = check(actual, expected, *limits)
    known = screened(in_parts(actual, expected, 4 * SHORT), actual.shape, *limits)
    assert isinstance(known, RunningMaxima) == (found.n_mismatched > 0)
    if isinstance(known, RunningMaxima):
        again = compare_parts(in_parts(actual, expected, 4 * SHORT), actual.shape, *limits, known=known)
        assert repr(again) == repr(found)


def test_few_elements_are_measured_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(40 * SHORT).astype(np.float32)
    actual = np.nextafter(expected, np.float32(np.inf))
    actual[5000] += 1
    sizes: list[int] = []
    block = chunked.metrics._block
    monkeypatch.setattr(chunked.metrics, "_block", lambda a, *others: (sizes.append(a.size), block(a, *others))[1])
    known = screened([(actual, expected)], actual.shape, 1.3e-6, 1e-5)
    assert isinstance(known, RunningMaxima)
    sizes.clear()
    compare_parts([(actual, expected)], actual.shape, 1.3e-6, 1e-5, known=known)
    assert 1 <= sum(sizes) < expected.size // 50


@pytest.mark.parametrize("fault", [math.nan, math.inf, 1e3, 1e-3])
@pytest.mark.parametrize("place", [0, SHORT - 1, SHORT, 3 * SHORT + 5, -1])
def test_one_wrong_element_is_found_wherever_it_is(place: int, fault: float) -> None:
    expected = np.random.default_rng(0).standard_normal(7 * SHORT + 5).astype(np.float32)
    actual = expected.copy()
    actual[place] += np.float32(fault)
    found = check(actual, expected, 1.3e-6, 1e-5)
    assert found.n_mismatched == 1
    assert found.worst_index == (place % actual.size,)


def test_the_number_of_threads_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(50 * SHORT + 7).astype(np.float32)
    actual = (expected + 1e-4 * rng.standard_normal(expected.size)).astype(np.float32)
    found = {repr(compare_parts([(actual, expected)], actual.shape, 1e-6, 1e-5, threads=n)) for n in (1, 2, 3, 8, 2)}
    assert len(found) == 1


SLOPPY = {
    "slope": lambda self, dtype: 10.0,
    "above": lambda self, difference, magnitude: np.zeros(difference.size, bool),
}


@pytest.mark.parametrize("name", SLOPPY)
def test_the_check_rejects_a_frontier_that_is_too_high(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(20 * SHORT).astype(np.float32)
    actual = (expected * np.linspace(1, 1.01, expected.size)).astype(np.float32)
    check(actual, expected, 1.3e-6, 1e-5)
    monkeypatch.setattr(RunningMaxima, name, SLOPPY[name])
    with pytest.raises(AssertionError):
        check(actual, expected, 1.3e-6, 1e-5)
