"""`compare` and `assert_parity`: two structures to a report, or to an error."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec

from parity.library.hints import hints
from parity.library.limits import Limits
from parity.library.measure import Judge
from parity.library.pairs import NOT_GIVEN, Pairs, TensorPair, Unpaired, Walk
from parity.library.report import ParityError, ParityWarning, Report, suspects_text

MAX_EXPLAINED = 20
P = ParamSpec("P")


def compare(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    exact: Any = None,
    tolerances: Mapping[str, tuple[float, float]] | None = None,
    equal_nan: bool = True,
    check_dtype: bool = True,
    names: tuple[str, str] = ("actual", "expected"),
) -> Report:
    """Compare tensors of any framework, numbers, and dicts, lists, tuples and dataclasses of them, in any nesting.

    `|actual - expected| <= atol + rtol * |expected|` must hold for every element. The default tolerance is that of
    the command line for the coarser dtype of both, with the row of gradients for names that begin with `grad.`;
    integers and bools are compared exactly. `rtol` and `atol` replace it for all tensors, `tolerances` for those
    whose path matches a name or glob: `{"grad.*": (rtol, atol)}`, the last that matches wins. A Python number takes
    the dtype of what it is compared with. Complex numbers are compared by modulus.

    `exact` is a more precise answer of the same structure (None for parts that have none): with it, the report says
    which of the two is wrong. NaN equals NaN unless `equal_nan` is False. A missing entry, another length, shape or
    dtype is a finding; `check_dtype=False` compares the values of different dtypes. `names` are the names of actual and
    expected in messages.

    Raises TypeError for anything but a tensor, and ValueError if there is nothing to compare or an argument is wrong.
    """
    judge = Judge(Limits(rtol, atol, tolerances or {}), equal_nan, check_dtype, names)
    rows = [judge.row(pair) for pair in tensors_of(actual, expected, exact, names)]
    if not rows:
        raise ValueError(f"there is nothing to compare: neither {names[0]} nor {names[1]} has a tensor")
    judge.limits.check_names(row.path for row in rows)
    report = Report(tuple(rows), names)
    if report.passes:
        return report
    return explained(report, judge, list(tensors_of(actual, expected, exact, names)))


def tensors_of(actual: Any, expected: Any, exact: Any, names: tuple[str, str]) -> Pairs:
    """Every tensor of both structures, in the order of a report's rows; `exact` is None if it is not given."""
    return Walk(names).pairs(actual, expected, NOT_GIVEN if exact is None else exact)


def explained(report: Report, judge: Judge, pairs: list[TensorPair | Unpaired]) -> Report:
    """The report with what the worst differences look like."""
    worst = {id(row) for row in report.failing[:MAX_EXPLAINED] if row.metrics is None or row.metrics.n_mismatched}
    whole = [pair for pair in pairs if isinstance(pair, TensorPair)]
    rows = (
        replace(row, hints=hints(pair, whole, judge)) if isinstance(pair, TensorPair) and id(row) in worst else row
        for row, pair in zip(report.rows, pairs, strict=True)
    )
    return Report(tuple(rows), report.names)


def asserting(compare: Callable[P, Report]) -> Callable[P, None]:
    """A comparison that raises where something differs, with the arguments of `compare`."""

    @functools.wraps(compare)
    def assert_parity(*args: P.args, **options: P.kwargs) -> None:
        __tracebackhide__ = True
        report = compare(*args, **options)
        if not report.passes:
            raise ParityError(report)
        warn_of_suspects(report, stacklevel=3)

    assert_parity.__name__ = assert_parity.__qualname__ = "assert_parity"
    assert_parity.__doc__ = """Raise ParityError, an AssertionError, with everything that differs.

    The arguments are those of `compare`. Warns (ParityWarning) of passes that prove little.
    """
    return assert_parity


assert_parity = asserting(compare)


def warn_of_suspects(report: Report, stacklevel: int) -> None:
    """Warn of passes that prove little, as from the caller that is `stacklevel` calls away."""
    if report.suspects:
        warnings.warn(suspects_text(report), ParityWarning, stacklevel=stacklevel)
