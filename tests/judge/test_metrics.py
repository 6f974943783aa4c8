"""The metrics against a reference that loops over elements, and the comparator against tensors it must reject."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from parity.judge.compare import workspace
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.workspace import block_length

RTOL, ATOL = 1e-3, 1e-5
LD = np.longdouble
BLOCK = block_length(np.dtype(np.float64))


def ulp_line(value: Any, dtype: Any) -> int:
    """The place of `value` on the line of all numbers of `dtype`, zero being 0."""
    size = np.dtype(dtype).itemsize
    bits = int(np.asarray(value, dtype).view(f"u{size}"))
    top = 1 << (8 * size - 1)
    return -(bits - top) if bits >= top else bits


def judged(a: Any, e: Any, wide: Any, rtol: float, atol: float) -> tuple[Any, Any, Any, Any, Any]:
    """One pair of finite numbers: |a-e|, relative difference, required rtol, excess over the tolerance, and in it."""
    a, e = wide(a), wide(e)
    diff, size = abs(a - e), abs(e)
    with np.errstate(all="ignore"):
        rel = diff / size if size else wide(math.inf if diff else 0)
        required = max((diff - wide(atol)) / size if size else wide(math.inf if diff > wide(atol) else 0), wide(0))
        allowed = wide(atol) + wide(rtol) * size
        return diff, rel, required, diff - allowed, diff / allowed if diff else wide(0)


def reference(a: NDArray[Any], e: NDArray[Any], wide: Any, rtol: float, atol: float) -> dict[str, Any]:
    """Every metric, element by element; differences in `wide`, sums in longdouble."""
    pairs = list(zip(a.ravel(), e.ravel(), strict=True))
    inside = [i for i, (x, y) in enumerate(pairs) if np.isfinite(x) and np.isfinite(y)]
    outside = set(range(len(pairs))) - set(inside)
    differ = [i for i in sorted(outside) if not (pairs[i][0] == pairs[i][1] or np.isnan(pairs[i]).all())]
    each = {i: judged(*pairs[i], wide, rtol, atol) for i in inside}
    worst = differ[0] if differ else max(inside, key=lambda i: each[i][4], default=0)
    x, y = LD(a.ravel()[inside]), LD(e.ravel()[inside])
    norms = np.sqrt((x * x).sum()), np.sqrt((y * y).sum())
    return {
        "n_elements": len(pairs),
        "n_nonfinite_mismatched": len(differ),
        "n_mismatched": len(differ) + sum(each[i][3] > 0 for i in inside),
        "max_abs_diff": float(max((each[i][0] for i in inside), default=0)),
        "max_rel_diff": float(max((each[i][1] for i in inside), default=0)),
        "required_rtol": math.inf if differ else float(max((each[i][2] for i in inside), default=0)),
        "worst_index": tuple(int(i) for i in np.unravel_index(worst, a.shape)),
        "rmse": float(np.sqrt(((x - y) ** 2).sum() / len(inside))) if inside else 0.0,
        "cosine": (float((x * y).sum() / norms[0] / norms[1]) if all(norms) else math.nan) if any(norms) else 1.0,
        "max_ulp_diff": max(
            (abs(ulp_line(a.ravel()[i], a.dtype) - ulp_line(e.ravel()[i], a.dtype)) for i in inside), default=0
        ),
        "equal": all(same(*pair) for pair in pairs),
    }


def same(a: Any, e: Any) -> bool:
    return bool((np.isnan(a) and np.isnan(e)) or (a == e and np.signbit(a) == np.signbit(e)))


def check(a: NDArray[Any], e: NDArray[Any], rtol: float, atol: float, *wides: Any) -> None:
    """`compare` gives what the reference gives in one of `wides`."""
    got = compare(a, e, rtol, atol)
    with np.errstate(all="ignore"):
        wanted = [reference(a, e, wide, rtol, atol) for wide in wides]
    for want in wanted:
        assert_allclose(got.rmse, want.pop("rmse"), rtol=1e-9)
        assert_allclose(got.cosine, want.pop("cosine"), rtol=0, atol=1e-9)
    assert {name: getattr(got, name) for name in wanted[0]} in wanted
    place = got.worst_index
    assert place is not None
    assert_allclose((got.actual_value, got.expected_value), (float(a[place]), float(e[place])), rtol=0)


def values(width: int) -> st.SearchStrategy[float]:
    tiny = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[width]
    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, tiny, -tiny, math.inf, -math.inf, math.nan])
    ordinary = st.floats(-4, 4, width=width)
    return special | ordinary | st.floats(width=width)


@st.composite
def tensors(draw: Any, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays whose elements are equal, neighbours, or strangers."""
    expected = np.array(draw(st.lists(values(width), min_size=1, max_size=12)), f"f{width // 8}")
    actual = expected.copy()
    for i in range(expected.size):
        kind = draw(st.integers(0, 3))
        if kind == 1:
            actual[i] = draw(values(width))
        elif kind == 2:
            with np.errstate(all="ignore"):
                actual[i] = np.nextafter(
                    expected[i], draw(st.sampled_from([-math.inf, math.inf])).__float__(), dtype=expected.dtype
                )
    return actual, expected


tolerances = st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 0.5, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 32, 64])
@settings(max_examples=300, deadline=None)
@given(data=st.data(), rtol=tolerances, atol=tolerances)
def test_agrees_with_the_reference(width: int, data: Any, rtol: float, atol: float) -> None:
    actual, expected = data.draw(tensors(width))
    wides = (np.float64,) if width < 64 else (np.float64, LD)
    check(actual, expected, rtol, atol, *wides)


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 32, 64])
@settings(max_examples=200, deadline=None)
@given(data=st.data(), rtol=tolerances, atol=tolerances)
def test_agrees_with_the_reference_for_a_longdouble_oracle(width: int, data: Any, rtol: float, atol: float) -> None:
    actual, near = data.draw(tensors(width))
    with np.errstate(all="ignore"):
        expected = near.astype(LD) * (1 + LD(data.draw(st.integers(-8, 8))) * LD(2) ** -58)
        check(actual, expected, rtol, atol, LD)


@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_integers_of_64_bits_are_compared_exactly(pairs: list[tuple[int, int]]) -> None:
    actual, expected = np.array(pairs, np.int64).T
    got = compare(actual, expected, 0, 0)
    assert got.n_mismatched == sum(a != e for a, e in pairs)
    assert got.equal == (got.n_mismatched == 0)
    assert got.max_abs_diff == float(max(abs(a - e) for a, e in pairs))
    assert got.max_ulp_diff is None


def pair(n: int, dtype: Any = np.float32, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Normal numbers, and the same with relative errors of about 1e-7."""
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal(n, np.float32)
    noise = rng.standard_normal(n, np.float32) * np.float32(1e-7)
    return (expected + expected * noise).astype(dtype), expected.astype(dtype)


SIZES = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5)


@pytest.mark.parametrize("n", [*SIZES, 8191, 8192, 8193])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_element_of_every_block_counts_once(n: int, dtype: Any) -> None:
    actual, expected = pair(n, dtype)
    got = compare(actual, expected, RTOL, ATOL)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    diff = np.abs(a - e)
    excess = diff / (ATOL + RTOL * np.abs(e))
    assert (got.n_elements, got.n_mismatched, got.equal) == (n, 0, False)
    assert got.max_abs_diff == diff.max()
    assert got.max_rel_diff == (diff / np.abs(e)).max()
    assert got.worst_index == (excess.argmax(),)
    assert_allclose(got.rmse, np.sqrt(np.mean(diff**2)), rtol=1e-12)
    assert_allclose(got.cosine, a @ e / np.sqrt(a @ a) / np.sqrt(e @ e), rtol=1e-12)
    bits = f"i{actual.itemsize}"
    assert got.max_ulp_diff == np.abs(actual.view(bits) - expected.view(bits)).max()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("place", [0, BLOCK - 2, -1])
@pytest.mark.parametrize("fault", [math.nan, math.inf, 1e3])
def test_one_wrong_element_is_found_wherever_it_is(n: int, place: int, fault: float) -> None:
    actual, expected = pair(n)
    actual[place] = fault
    got = compare(actual, expected, RTOL, ATOL)
    nonfinite = not math.isfinite(fault)
    assert got.worst_index == (place % n,)
    assert (got.n_mismatched, got.n_nonfinite_mismatched, got.equal) == (1, int(nonfinite), False)
    assert got.expected_value == expected[place]
    assert got.required_rtol == math.inf if nonfinite else got.required_rtol > 1


def test_the_worst_location_is_that_of_the_most_tolerances() -> None:
    found = compare(np.array([1e6 + 15, 1.0]), np.array([1e6, 0.0]), 1e-5, 1e-5)
    assert (found.n_mismatched, found.worst_index, found.actual_value) == (2, (1,), 1.0)
    assert compare(np.array([2.0, 1.0]), np.array([1.0, 0.0]), 1e-5, 0.0).worst_index == (1,)
    # Where all pass too: not the element that allows least.
    assert compare(np.array([1e6 + 9, 1e-6]), np.array([1e6, 0.0]), 1e-5, 1e-5).worst_index == (0,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, LD])
def test_a_tie_goes_to_the_first_location(dtype: Any) -> None:
    expected = np.zeros(3 * BLOCK, dtype)
    actual = expected.copy()
    actual[[BLOCK + 7, 2 * BLOCK + 1]] = 1
    assert compare(actual, expected, RTOL, ATOL).worst_index == (BLOCK + 7,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, LD])
@pytest.mark.parametrize("planted", [0.0, 5.0, math.nan])
def test_the_number_of_threads_changes_nothing(dtype: Any, planted: float) -> None:
    actual, expected = pair(7 * BLOCK + 123, dtype, seed=3)
    actual[5 * BLOCK :: 1001] = planted
    results = {repr(astuple(compare(actual, expected, RTOL, ATOL, threads=n))) for n in (1, 2, 3, 8, 1, 2)}
    assert len(results) == 1


@pytest.mark.parametrize(
    ("n", "dtype", "planted"),
    [
        (30_000_000, np.float32, 0.0),
        (3_000_000, np.float32, math.nan),
        (3_000_000, np.float64, 1e300),
        (1_000_000, LD, 0.0),
    ],
)
def test_extra_memory_stays_below_32_mib(n: int, dtype: Any, planted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.resize(pair(BLOCK, dtype)[1], n)
    actual = expected.copy()
    actual[::1000] += np.array(planted, dtype)
    tracemalloc.start()
    try:
        monkeypatch.setattr(workspace, "_LOCAL", workspace._PerThread())
        compare(actual, expected, RTOL, ATOL, threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20


def rejected(actual: NDArray[Any], expected: NDArray[Any]) -> Metrics:
    got = compare(actual, expected, 1.3e-6, 1e-5)
    assert got.n_mismatched > 0
    assert not got.equal
    assert got.required_rtol > 1.3e-6
    return got


class TestRejects:
    """What a comparator must never let through."""

    expected = np.random.default_rng(1).standard_normal((40, 50)).astype(np.float32)

    def test_a_flipped_sign(self) -> None:
        actual = self.expected.copy()
        actual[7, 9] *= -1
        got = rejected(actual, self.expected)
        assert (got.n_mismatched, got.worst_index, got.max_rel_diff) == (1, (7, 9), 2.0)
        assert got.max_ulp_diff == 2 * ulp_line(abs(self.expected[7, 9]), np.float32)

    def test_one_nan(self) -> None:
        actual = self.expected.copy()
        actual[0, 1] = math.nan
        got = rejected(actual, self.expected)
        assert (got.n_nonfinite_mismatched, got.worst_index) == (1, (0, 1))
        assert math.isnan(got.actual_value)
        assert math.isfinite(got.rmse)

    def test_a_nan_that_only_the_oracle_has(self) -> None:
        expected = self.expected.copy()
        expected[0, 1] = math.nan
        assert rejected(self.expected, expected).n_nonfinite_mismatched == 1

    def test_the_wrong_infinity(self) -> None:
        actual, expected = self.expected.copy(), self.expected.copy()
        actual[3, 3], expected[3, 3] = math.inf, -math.inf
        assert rejected(actual, expected).worst_index == (3, 3)

    def test_a_doubled_tensor(self) -> None:
        got = rejected(2 * self.expected, self.expected)
        assert (got.max_rel_diff, got.max_ulp_diff) == (1.0, 1 << 23)
        assert got.cosine == pytest.approx(1.0)

    def test_a_negated_tensor(self) -> None:
        assert rejected(-self.expected, self.expected).cosine == pytest.approx(-1.0)

    def test_zeros(self) -> None:
        got = rejected(np.zeros_like(self.expected), self.expected)
        assert math.isnan(got.cosine)
        assert got.max_rel_diff == 1.0

    def test_a_constant(self) -> None:
        rejected(np.full_like(self.expected, self.expected.mean()), self.expected)

    def test_a_reversed_tensor(self) -> None:
        rejected(self.expected[::-1], self.expected)

    def test_something_where_nothing_is_expected(self) -> None:
        got = rejected(np.full(3, 1e-3, np.float32), np.zeros(3, np.float32))
        assert (got.required_rtol, got.max_rel_diff) == (math.inf, math.inf)


def test_equal_is_bit_for_bit() -> None:
    x = np.array([1.0, math.nan, math.inf, 0.0], np.float32)
    assert compare(x, x.copy(), 0, 0).equal
    negative = x.copy()
    negative[3] = -0.0
    got = compare(negative, x, 0, 0)
    assert (got.equal, got.n_mismatched, got.max_ulp_diff) == (False, 0, 0)


def test_the_required_rtol_is_the_one_that_passes() -> None:
    actual, expected = pair(1000)
    need = compare(actual, expected, 0, 1e-9).required_rtol
    assert compare(actual, expected, need * (1 + 1e-9), 1e-9).n_mismatched == 0
    assert compare(actual, expected, need * (1 - 1e-9), 1e-9).n_mismatched == 1


@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e160, 1e300])
def test_squares_beyond_float64_do_not_spoil_the_sums(scale: float) -> None:
    expected = np.array([1.0, 2.0, 3.0, 0.0]) * scale
    actual = np.array([1.0, 2.0, 4.0, 0.0]) * scale
    got = compare(actual, expected, RTOL, 0)
    assert_allclose(got.rmse, scale / 2, rtol=1e-12)
    assert_allclose(got.cosine, 17 / math.sqrt(21 * 14), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, LD, np.int64, np.bool_])
def test_an_empty_tensor_has_no_worst_location(dtype: Any) -> None:
    got = compare(np.zeros((3, 0), dtype), np.zeros((3, 0), dtype), RTOL, ATOL)
    assert (got.n_elements, got.n_mismatched, got.worst_index) == (0, 0, None)


def test_a_scalar_has_an_empty_index() -> None:
    got = compare(np.float32(1.5), np.float32(1.0), RTOL, ATOL)
    assert (got.worst_index, got.actual_value, got.expected_value, got.max_ulp_diff) == ((), 1.5, 1.0, 1 << 22)


def test_layout_and_byte_order_change_nothing() -> None:
    actual, expected = (x.reshape(20, 50) for x in pair(1000))
    plain = compare(actual.T.copy(), expected.T.copy(), RTOL, ATOL)
    assert compare(actual.T, expected.T, RTOL, ATOL) == plain
    assert compare(actual.T.astype(">f4"), expected.T.astype("<f4"), RTOL, ATOL) == plain


def test_dtypes_without_a_common_line_have_no_ulp() -> None:
    actual, expected = pair(10)
    assert compare(actual.astype(np.float64), expected, RTOL, ATOL).max_ulp_diff is None
    assert compare(actual > 0, expected > 0, RTOL, ATOL).max_ulp_diff is None
    assert compare(actual > 0, expected > 0, RTOL, ATOL).equal


@pytest.mark.parametrize("wider", [np.float64, np.longdouble])
def test_a_wider_expected_tensor_is_rounded_before_ulps_are_counted(wider: type) -> None:
    actual, expected = pair(10)
    nudged = expected.astype(wider) * (1 + wider(1e-9))
    found = compare(actual, nudged, RTOL, ATOL).max_ulp_diff
    assert found == compare(actual, nudged.astype(np.float32), RTOL, ATOL).max_ulp_diff
    assert found is not None


def test_inputs_stay_as_they_are() -> None:
    actual, expected = pair(1000, np.float64)
    actual[3] = math.nan
    before = actual.tobytes(), expected.tobytes()
    compare(actual, expected, RTOL, ATOL)
    assert (actual.tobytes(), expected.tobytes()) == before


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "error", "words"),
    [
        (np.zeros(3), np.zeros((3, 1)), (0, 0), ValueError, "shapes differ"),
        (np.zeros(3, complex), np.zeros(3, complex), (0, 0), TypeError, "real numbers"),
        (np.zeros(3), np.zeros(3), (math.nan, 0), ValueError, "tolerances"),
        (np.zeros(3), np.zeros(3), (0, -1), ValueError, "tolerances"),
    ],
)
def test_what_cannot_be_compared_is_refused(actual: Any, expected: Any, tolerance: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        compare(actual, expected, *tolerance)
