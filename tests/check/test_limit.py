"""What counts against a candidate, and what its reference's own code does, too."""

from __future__ import annotations

from typing import Any

import pytest

from parity.check.limit import NEW, REFERENCE, excused, is_asked, lost_nans, of_another_kind
from parity.config.plan import ORACLE
from parity.judge.compare.verdict import Comparison, EnvelopeRow, ErrorRatios, Verdict

KINDS = {"M-drawn": "drawn", "M-x-offset=100": "offset", "M-outlier": "outlier", "M-nan": "nan-kept", "M-x-nan": "nan"}


def row(backend: str, case: str, error: float | None, *, culprit: bool = False, **changes: Any) -> Comparison:
    given: dict[str, Any] = {
        "case": case, "dtype": "float32", "tensor": "y", "actual": backend, "expected": ORACLE,
        "verdict": Verdict.UNSTABLE if culprit else Verdict.CLOSE, "culprit": (backend,) if culprit else (),
        "suspect": False, "known": None, "max_abs_diff": error, "required_rtol": None, "worst_index": [0],
        "actual_value": 1.0, "expected_value": 1.0, "rtol": 1e-5, "atol": 1e-6, "oracle_value": 1.0,
        "error_ratio": ErrorRatios(None, None), "message": "",
    }  # fmt: skip
    return Comparison(**{**given, **changes})


@pytest.mark.parametrize(
    ("case", "own", "reference", "is_beyond", "is_excused"),
    [
        ("M-drawn", 1e-3, 1e-3, False, False),  # the reference is within its bound: the candidate is wrong
        ("M-drawn", 1e-3, 1e-3, True, True),
        ("M-drawn", 1e-1, 1e-3, True, False),
        ("M-x-offset=100", 1e-3, 1e-3, False, True),  # a slice is tiny beside what is rounded
        ("M-x-offset=100", 1e-1, 1e-3, False, False),
    ],
)
def test_the_references_own_error(case, own, reference, is_beyond, is_excused):
    rows = [row(NEW, case, own, culprit=True), row(REFERENCE, case, reference, culprit=is_beyond)]
    assert bool(excused(rows, KINDS)) == is_excused


def test_an_error_that_rounding_explains_is_excused_far_from_one():
    rounded = {"envelope": EnvelopeRow(rms=0.02, max=0.2)}
    rows = [row(NEW, "M-outlier", 0.07, culprit=True, **rounded), row(REFERENCE, "M-outlier", 5e-6)]
    assert excused(rows, KINDS)
    assert not excused([row(NEW, "M-outlier", 2.0, culprit=True, **rounded), row(REFERENCE, "M-outlier", 5e-6)], KINDS)


def test_a_nan_that_is_lost_is_only_told_where_the_reference_does_not_speak_of_nan():
    nan = {"verdict": Verdict.NONFINITE, "oracle_value": float("nan")}
    lost, kept = (row(NEW, case, None, culprit=True, **nan) for case in ("M-x-nan", "M-nan"))
    assert excused([lost, kept], KINDS) == {lost.tensor_key}
    assert lost_nans([lost, kept], KINDS) == [lost]


def test_numbers_at_the_end_of_the_range():
    kinds = {"M-tiny": "tiny", "M-scale=30": "scale"}
    own = row(NEW, "M-tiny", None, culprit=True, verdict=Verdict.NONFINITE, actual_value=float("nan"))
    for digits, is_excused in ((1e-4, True), (1e-7, False)):
        assert bool(excused([own, row(REFERENCE, "M-tiny", 1e-5, required_rtol=digits)], kinds)) == is_excused
    for digits, is_excused in ((5e-5, True), (1e-3, False)):
        own = row(NEW, "M-scale=30", 1.0, culprit=True, required_rtol=digits)
        assert bool(excused([own, row(REFERENCE, "M-scale=30", 1e-6)], kinds)) == is_excused


def test_a_nan_that_spreads_is_excused_and_one_that_is_lost_is_not():
    nan = float("nan")
    assert excused([row(NEW, "M-nan", None, culprit=True, actual_value=nan, oracle_value=0.5)], KINDS)
    assert not excused([row(NEW, "M-nan", None, culprit=True, actual_value=0.5, oracle_value=nan)], KINDS)
    assert not excused([row(NEW, "M-drawn", None, culprit=True, actual_value=nan, oracle_value=0.5)], KINDS)


FURTHER = {**KINDS, "M-x-offset=10000": "far-offset", "M-zeros": "zeros", "M-ties": "ties"}


@pytest.mark.parametrize(
    ("case", "changes", "is_excused"),
    [
        ("M-zeros", {"tensor": "grad.x"}, True),  # relu has every gradient from 0 to 1 there
        ("M-zeros", {"tensor": "grad.x", "actual_value": float("nan")}, False),
        ("M-ties", {"tensor": "grad.x"}, True),
        ("M-ties", {"tensor": "y"}, False),
        ("M-drawn", {"tensor": "grad.x"}, False),
        ("M-x-offset=10000", {"required_rtol": 1e-3}, True),
        ("M-x-offset=10000", {"required_rtol": 0.5}, False),
        ("M-x-offset=100", {"required_rtol": 1e-3}, False),
    ],
)
def test_where_an_answer_is_free(case, changes, is_excused):
    assert bool(excused([row(NEW, case, 1.0, culprit=True, **changes)], FURTHER)) == is_excused


@pytest.mark.parametrize(("reference", "is_excused"), [(Verdict.NONFINITE, True), (Verdict.CLOSE, False)])
def test_a_nan_that_the_reference_loses_too(reference, is_excused):
    own = row(NEW, "M-nan", None, culprit=True, verdict=Verdict.NONFINITE, actual_value=1.0, oracle_value=float("nan"))
    rows = [own, row(REFERENCE, "M-nan", None, verdict=reference, worst_index=[1])]
    assert bool(excused(rows, KINDS)) == is_excused


@pytest.mark.parametrize(
    ("changes", "reference", "counts"),
    [
        ({}, 1e-8, True),
        ({}, 1e-5, False),  # the reference's own code has such errors
        ({"n_mismatched": 2}, 1e-8, False),  # as where rounding changes a few codes
        ({"required_rtol": 1e-3}, 1e-8, False),
        ({"verdict": Verdict.CLOSE}, 1e-8, False),
        ({"tensor": "grad.x"}, 1e-8, False),
        ({"case": "M-nan"}, 1e-8, False),
    ],
)
def test_most_elements_may_not_differ_where_the_reference_has_hardly_any_error(changes, reference, counts):
    sizes = {"n_elements": 8, "n_mismatched": 8, "required_rtol": 0.5}
    wide = {"verdict": Verdict.ROUNDING, **sizes, **changes}
    case, tensor = wide.pop("case", "M-drawn"), {"tensor": wide.get("tensor", "y")}
    rows = [row(NEW, case, 0.03, **wide), row(REFERENCE, case, reference, **sizes | tensor)]
    assert of_another_kind(rows, KINDS) == (rows[:1] if counts else [])


@pytest.mark.parametrize(
    ("changes", "is_excused"),
    [
        ({"tensor": "grad.w"}, True),
        ({"required_rtol": 2e-5, "error_ratio": ErrorRatios(65.0, None)}, True),
        ({"required_rtol": 0.59, "error_ratio": ErrorRatios(183.0, None)}, False),
        ({"tensor": "grad.x", "verdict": Verdict.NONFINITE, "oracle_value": None}, True),
    ],
)
def test_digits_that_go_with_a_mean_of_100_deviations(changes, is_excused):
    rows = [row(NEW, "M-x-offset=100", 1.0, culprit=True, **{"verdict": Verdict.UNSTABLE, **changes})]
    rows.append(row(REFERENCE, "M-x-offset=100", 1e-6, tensor=changes.get("tensor", "y")))
    assert bool(excused(rows, KINDS)) == is_excused


def test_a_gradient_of_nan_alone_counts_for_a_large_scale_and_not_for_a_large_mean():
    nan = {"tensor": "grad.x", "culprit": True, "verdict": Verdict.NONFINITE, "actual_value": float("nan")}
    kinds = {**KINDS, "M-scale=30": "scale"}
    for case, is_excused in (("M-x-offset=100", True), ("M-scale=30", False)):
        rows = [row(NEW, case, 1e-7), row(NEW, case, None, **nan)]
        assert bool(excused(rows, kinds)) == is_excused


def test_far_from_one_a_gradient_counts_where_an_output_does():
    case, gradient = "M-x-offset=100", {"tensor": "grad.w", "culprit": (NEW,), "verdict": Verdict.UNSTABLE}
    rows = [row(NEW, case, 1.0, **gradient), row(REFERENCE, case, 1e-6, tensor="grad.w")]
    output = row(NEW, case, 1.0, culprit=True, required_rtol=0.5)
    assert excused(rows, KINDS) == {rows[0].tensor_key}
    assert excused([*rows, output], KINDS) == set()


def test_a_cause_is_asked_only_where_the_candidate_is_not_excused():
    def asked(own: Comparison, reference: Comparison) -> bool:
        return is_asked([own, reference], KINDS)

    wrong = {"culprit": True, "verdict": Verdict.SEMANTIC}
    assert asked(row(NEW, "M-drawn", 1e-1, **wrong), row(REFERENCE, "M-drawn", 1e-6))
    assert not asked(row(NEW, "M-outlier", 1e-3, **wrong), row(REFERENCE, "M-outlier", 1e-3))
    assert not asked(row(NEW, "M-drawn", 1e-6), row(REFERENCE, "M-drawn", 1e-1, **wrong))


def test_an_exact_answer_of_another_kind_excuses_nothing():
    structure = {"verdict": Verdict.STRUCTURE, "actual_value": None, "worst_index": None}
    own = row(NEW, "M-drawn", None, culprit=True, **structure)
    reference = row(REFERENCE, "M-drawn", None, culprit=True, **structure)
    direct = row(NEW, "M-drawn", 5.0, culprit=True, expected=REFERENCE, verdict=Verdict.SEMANTIC)
    assert excused([own, reference], KINDS)
    assert not excused([own, reference, direct], KINDS)


@pytest.mark.parametrize(
    ("case", "digits", "is_excused"),
    [
        ("M-drawn", 9e-4, True),
        ("M-drawn", 2e-3, False),
        ("M-x-offset=100", 9e-5, True),
        ("M-x-offset=100", 9e-4, False),
    ],
)
def test_digits_that_float64_has(case, digits, is_excused):
    own = row(NEW, case, 1.0, culprit=True, required_rtol=digits)
    reference = row(REFERENCE, case, 1e-6)
    assert bool(excused([own, reference], KINDS, loses_digits=True)) == is_excused
    assert not excused([own, reference], {**KINDS, "M-x-offset=100": "drawn"})


@pytest.mark.parametrize(
    ("message", "is_excused"),
    [
        ("new has shape [1, 4], oracle [4]", True),
        ("new has shape [4], oracle [1, 4]", False),
        ("new has shape [2, 1], oracle [2, 12]", True),
        ("new has shape [2], oracle [4]", True),
    ],
)
def test_axes_of_one_element_are_free_where_a_size_is_one(message, is_excused):
    own = row(NEW, "M-n=1", None, culprit=True, verdict=Verdict.STRUCTURE, message=message)
    assert bool(excused([own], {"M-n=1": "size-one"})) == is_excused
    assert not excused([own], {"M-n=1": "size"})


@pytest.mark.parametrize(("exact", "is_excused"), [(1e-149, True), (1e-30, False), (0.0, False)])
def test_a_nan_where_the_exact_answer_is_below_float32(exact, is_excused):
    own = row(
        NEW,
        "M-x-offset=100",
        None,
        culprit=True,
        verdict=Verdict.NONFINITE,
        actual_value=float("nan"),
        oracle_value=exact,
    )
    assert bool(excused([own], KINDS)) == is_excused
