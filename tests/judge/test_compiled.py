"""The compiled pass against NumPy's: the same metrics, but for the rounding of sums."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple
from functools import partial
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from parity.judge.compare import compiled, metrics
from parity.judge.compare.metrics import Metrics, compare

pytestmark = pytest.mark.slow
"""numba compiles for seconds where its cache is empty."""

Array = NDArray[Any]
CHUNK = compiled._CHUNK
TOLERANCES = (0.0, 1e-300, 1e-7, 1e-5, 0.5, 2.0, 1e20)
ATOLS = (*TOLERANCES, 1e-320, 1e-45)
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_LONG", 2 * CHUNK + 100)


@pytest.fixture
def reloaded() -> Iterator[None]:
    """The kernels are loaded again."""
    metrics._kernel.cache_clear()
    yield
    metrics._kernel.cache_clear()


def by_numpy(*arguments: Any, **options: Any) -> Metrics:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "COMPILED_FROM", 1 << 62)
        return compare(*arguments, **options)


def by_numba(*arguments: Any, **options: Any) -> Metrics:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "COMPILED_FROM", 0)
        found = compare(*arguments, **options)
    assert all(metrics._kernel(dtype) for dtype in DTYPES)
    return found


def check(actual: Any, expected: Any, rtol: float = 1.3e-6, atol: float = 1e-5) -> None:
    """Both passes say the same."""
    found, wanted = (asdict(way(actual, expected, rtol, atol)) for way in (by_numba, by_numpy))
    for root in ("rmse", "expected_rms"):
        assert_allclose(found.pop(root), wanted.pop(root), rtol=1e-12)
    assert_allclose(found.pop("cosine"), wanted.pop("cosine"), rtol=0, atol=1e-12)
    assert found.pop("frontier") in (None, wanted.pop("frontier"))  # numba takes none
    # repr: NaN is like NaN, -0.0 is not like 0.0, and no number is NumPy's.
    assert repr(found) == repr(wanted)


SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, math.inf, -math.inf, math.nan)
DRAWS: dict[str, Callable[[Any, int, np.dtype[Any]], Array]] = {
    "normal": lambda rng, n, dtype: rng.standard_normal(n).astype(dtype),
    "any bits": lambda rng, n, dtype: rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype),
    "special": lambda rng, n, dtype: rng.choice(SPECIAL, n).astype(dtype),
    "subnormal": lambda rng, n, dtype: rng.integers(-20, 20, n).astype(dtype) * np.finfo(dtype).smallest_subnormal,
    "any size": lambda rng, n, dtype: (rng.standard_normal(n) * 10.0 ** rng.integers(-300, 150, n)).astype(dtype),
    "finite size": lambda rng, n, dtype: (rng.standard_normal(n) * 10.0 ** rng.integers(-44, 38, n)).astype(dtype),
}


def some(rng: Any, array: Array, draw: Callable[..., Array]) -> Array:
    """The array with a few other elements."""
    out = array.copy()
    places = rng.integers(0, array.size, 3) if array.size else slice(0)
    out[places] = draw(rng, 3 if array.size else 0, array.dtype)
    return out


ACTUAL: dict[str, Callable[[Any, Array, Callable[..., Array]], Array]] = {
    "strangers": lambda rng, expected, draw: draw(rng, expected.size, expected.dtype),
    "equal": lambda rng, expected, draw: expected.copy(),
    "near": lambda rng, expected, draw: (expected * (1 + 1e-7 * rng.standard_normal(expected.size))).astype(
        expected.dtype
    ),
    "next": lambda rng, expected, draw: np.nextafter(expected, expected.dtype.type(np.inf)),
    "doubled": lambda rng, expected, draw: expected * 2,
    "some": some,
}


def of_lengths(*lengths: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a test pairs of tensors of all kinds, with these numbers of elements, and tolerances."""

    def pairs(seed: int, dtype: np.dtype[Any], n: int, draw: str, how: str) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        with np.errstate(all="ignore"):
            expected = DRAWS[draw](rng, n, dtype)
            return ACTUAL[how](rng, expected, DRAWS[draw]), expected

    drawn = st.builds(
        pairs,
        st.integers(0, 2**32 - 1),
        st.sampled_from(DTYPES),
        st.sampled_from(lengths),
        st.sampled_from(list(DRAWS)),
        st.sampled_from(list(ACTUAL)),
    )
    tested = given(tensors=drawn, rtol=st.sampled_from(TOLERANCES), atol=st.sampled_from(ATOLS))
    return lambda test: settings(max_examples=600, deadline=None)(tested(test))


@pytest.mark.exhaustive
@of_lengths(0, 1, 2, 7, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 3)
def test_both_passes_agree(tensors: tuple[Array, Array], rtol: float, atol: float) -> None:
    check(*tensors, rtol, atol)


def pair(n: int, dtype: Any = np.float32, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal(n)
    return (expected * (1 + 1e-7 * rng.standard_normal(n))).astype(dtype), expected.astype(dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layout_and_shape_change_nothing(dtype: Any) -> None:
    actual, expected = pair(6000, dtype)
    check(actual[::2], expected[::2])
    check(actual.reshape(60, 100).T, expected.reshape(100, 60))
    check(actual[7].reshape(()), expected[7].reshape(()))
    check(actual.astype(dtype.newbyteorder(">")), expected)
    actual.flags.writeable = False
    check(actual, expected)
    raw = np.frombuffer(b"." + actual.tobytes(), dtype, offset=1)
    assert not raw.flags.aligned
    check(raw, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, np.int64, np.bool_])
def test_other_dtypes_are_left_to_numpy(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.arange(3000).astype(dtype)
    monkeypatch.setattr(metrics, "_kernel", lambda dtype: pytest.fail(f"{dtype} is no dtype of the kernel"))
    monkeypatch.setattr(metrics, "COMPILED_FROM", 0)
    assert compare(expected, expected, 0, 0).equal
    assert compare(expected.astype(np.float64), expected.astype(np.float32), 0, 0).n_mismatched == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("planted", [0.0, 5.0, math.nan])
def test_the_number_of_threads_changes_nothing(dtype: Any, planted: float) -> None:
    actual, expected = pair(50 * CHUNK + 123, dtype)
    actual[5 * CHUNK :: 1001] = planted
    assert len({repr(astuple(by_numba(actual, expected, 0, 0, threads=n))) for n in (1, 2, 3, 8, 1, 2)}) == 1


@pytest.mark.parametrize("fault", [math.nan, math.inf, 1e3, -0.0])
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 3 * CHUNK + 5, -1])
def test_one_wrong_element_is_found_wherever_it_is(place: int, fault: float) -> None:
    expected = np.zeros(7 * CHUNK + 5, np.float32)
    actual = expected.copy()
    actual[place] = fault
    found = by_numba(actual, expected, 1e-6, 1e-5)
    assert not found.equal
    assert found.n_mismatched == (fault != 0)
    assert found.worst_index == ((place % actual.size,) if fault else (0,))
    check(actual, expected)


WRONG = {
    "sums": lambda block: ((0.0, *block[0][1:]), *block[1:]),
    "n_finite": lambda block: (block[0], block[1] + 1, *block[2:]),
    "n_mismatched": lambda block: (*block[:2], block[2] + 1, *block[3:]),
    "n_nonfinite": lambda block: (*block[:3], block[3] + 1, *block[4:]),
    "max_abs": lambda block: (*block[:4], math.nextafter(block[4], 0), *block[5:]),
    "max_rel": lambda block: (*block[:5], math.nextafter(block[5], 0), *block[6:]),
    "max_ulp": lambda block: (*block[:6], block[6] - 1, *block[7:]),
    "required": lambda block: (*block[:7], math.nextafter(block[7], 0), *block[8:]),
    "worst": lambda block: (*block[:9], block[9] + 1, *block[10:]),
    "equal": lambda block: (*block[:10], not block[10]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_check_rejects_a_wrong_kernel(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actual, expected = pair(2 * CHUNK)
    actual[5], expected[9] = 2, math.nan
    if wrong == "equal":
        actual = expected
    check(actual, expected)
    right = metrics._kernel(actual.dtype)
    assert right is not None
    monkeypatch.setattr(metrics, "_kernel", lambda dtype: lambda *arguments: WRONG[wrong](right(*arguments)))
    with pytest.raises(AssertionError):
        check(actual, expected)


SLOPPY = {
    "bounds that are too high": ("_lowered", lambda maximum, factor, like: like.dtype.type(1.01 * maximum * factor)),
    "a screening that sees nothing": ("_screened", lambda a, e, *others: (False, np.uint64(0))),
    "sums only": ("_raised", lambda a, e, start, found, rtol, atol: found),
    "no mask": ("_masked", lambda x, y, a, e: compiled._Outside(0, 0, -1, 0)),
}


def interpreted(*arguments: Any) -> tuple[Any, ...]:
    """The kernel as Python runs it."""
    return tuple(part.item() if isinstance(part, np.generic) else part for part in compiled._block(*arguments))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SLOPPY)
def test_the_check_rejects_a_kernel_with_a_wrong_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, function = SLOPPY[name]
    for helper in ("_sums", "_lowered", "_smaller", "_screened", "_raised", "_count", "_ulps", "_masked"):
        monkeypatch.setattr(compiled, helper, getattr(compiled, helper).py_func)
    monkeypatch.setattr(metrics, "_kernel", lambda dtype: interpreted)
    expected = np.ones(6 * CHUNK, np.float32)
    actual = np.linspace(1.0001, 1.0001005, 6 * CHUNK).astype(np.float32)  # errors grow by 0.5 %
    actual[3 * CHUNK + 7] = math.nan
    check(actual, expected)
    monkeypatch.setattr(compiled, part, function)
    with pytest.raises(AssertionError):
        check(actual, expected)


def without_numba(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """NumPy compares, which only the log says, once."""
    actual, expected = pair(5000)
    monkeypatch.setattr(metrics, "COMPILED_FROM", 0)
    with caplog.at_level(logging.DEBUG, metrics.__name__):
        assert compare(actual, expected, 0, 0) == compare(actual, expected, 0, 0) == by_numpy(actual, expected, 0, 0)
    assert [(record.levelname, record.name) for record in caplog.records] == [("DEBUG", metrics.__name__)]


@pytest.mark.usefixtures("reloaded")
def test_numpy_does_it_where_numba_is_missing(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.delitem(sys.modules, compiled.__name__)
    monkeypatch.setitem(sys.modules, "numba", None)
    without_numba(monkeypatch, caplog)
    assert "numba" in caplog.text


@pytest.mark.usefixtures("reloaded")
@pytest.mark.parametrize("error", [SystemError, TypeError, numba.core.errors.LoweringError])
def test_numpy_does_it_where_numba_fails(error: type[Exception], monkeypatch: Any, caplog: Any) -> None:
    def njit(*arguments: Any, **options: Any) -> Any:
        raise error("does not compile")

    monkeypatch.setattr(numba, "njit", njit)
    without_numba(monkeypatch, caplog)
    assert "does not compile" in caplog.text


@pytest.mark.usefixtures("reloaded")
def test_numpy_does_it_where_numba_may_not_compile(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    without_numba(monkeypatch, caplog)
    assert "NUMBA_DISABLE_JIT" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.usefixtures("reloaded")
def test_the_kernel_is_compiled_anew_where_there_is_no_place_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(real: Any, *arguments: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function '_block': no locator available")
        return real(*arguments, **options)

    monkeypatch.setattr(numba, "njit", partial(njit, numba.njit))
    check(*pair(5000))


def test_numba_is_loaded_for_large_tensors_only() -> None:
    code = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np
from parity.judge.compare import metrics
metrics.COMPILED_FROM = 1 << 20
for size in (metrics.COMPILED_FROM // 8 - 1, metrics.COMPILED_FROM // 8):
    zeros = np.zeros(size, np.float32)
    assert metrics.compare(zeros, zeros, 0, 0).equal
    print("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")
