"""`parity.compare` and `parity.assert_parity`: what is found, where, what it looks like, and what never passes."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import pickle
import re
import subprocess
import sys
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import parity
from parity.config.errors import nearest
from parity.config.tolerances import Tolerance
from parity.diagnoses import catalogue
from parity.library import hints, pairs
from parity.library.distance import excess, measure
from tests.conftest import ROOT

W = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
B = np.random.default_rng(1).normal(size=6).astype(np.float32)
KEYS = st.sampled_from(["a", "weight", "a b", "grad.x", 3, (1, 2)])
LEAVES = st.one_of(
    hnp.arrays(st.sampled_from([np.float32, np.float64]), hnp.array_shapes(max_side=4), elements=st.integers(-9, 9)),
    hnp.arrays(np.int64, hnp.array_shapes(max_side=4), elements=st.integers(-9, 9)),
)
TREES = st.recursive(
    LEAVES, lambda t: st.lists(t, min_size=1, max_size=3) | st.dictionaries(KEYS, t, min_size=1, max_size=3)
)


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any = None


Point = namedtuple("Point", "x y")


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Every array by its path, written independently of the walk under test."""
    if isinstance(tree, dict):
        parts = [
            flat(v, f"{path}.{k}" if k in ("a", "weight", "grad.x") else f"{path}[{k!r}]") for k, v in tree.items()
        ]
    elif isinstance(tree, list):
        parts = [flat(v, f"{path}[{i}]") for i, v in enumerate(tree)]
    else:
        return {path.removeprefix("."): tree}
    return {name: leaf for part in parts for name, leaf in part.items()}


def only(report: parity.Report) -> parity.Row:
    (row,) = report.rows
    return row


def verdict(actual: Any, expected: Any, **options: Any) -> str:
    return only(parity.compare(actual, expected, **options)).verdict.value


def hint(actual: Any, expected: Any, **options: Any) -> str:
    """The hint of the worst tensor, empty where there is none."""
    report = parity.compare(actual, expected, **options)
    assert not report.passes
    return " | ".join(h.text for h in report.failing[0].hints)


# What is found


@given(TREES)
def test_a_structure_agrees_with_its_copy(tree):
    report = parity.compare(copy.deepcopy(tree), tree)
    assert report.passes
    assert [row.path for row in report.rows] == list(flat(tree))
    assert {row.verdict for row in report.rows} == {parity.Agreement.EQUAL}


@given(TREES, st.data())
def test_a_changed_element_is_found_at_its_path_and_index(tree, data):
    changed = copy.deepcopy(tree)
    path = data.draw(st.sampled_from(list(flat(tree))))
    leaf = flat(changed)[path]
    place = data.draw(st.integers(0, leaf.size - 1))
    leaf.flat[place] += 1
    report = parity.compare(changed, tree)
    (row,) = report.failing
    assert row.path == path
    assert row.worst_elements[0].index == np.unravel_index(place, leaf.shape)
    assert row.worst_elements[0].actual == leaf.flat[place]
    assert row.metrics is not None
    assert (row.metrics.n_mismatched, row.metrics.max_abs_diff) == (1, 1.0)


@given(TREES)
def test_all_findings_are_reported(tree):
    changed = copy.deepcopy(tree)
    for leaf in flat(changed).values():
        leaf += 1
    report = parity.compare(changed, tree)
    assert [row.path for row in report.rows if not row.verdict.passes] == list(flat(tree))
    assert sorted(row.path for row in report.failing) == sorted(flat(tree))


@given(hnp.arrays(np.float32, (4, 3), elements=st.floats(-100, 100, width=32)), st.floats(0, 10))
def test_what_the_message_says_would_pass_does(values, size):
    actual = values + np.float32(size) * np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    text = str(parity.compare(actual, values))
    assume("would let it pass" in text)
    for name, number in re.findall(r"(rtol|atol)=(\S+)(?= or| would)", text):
        assert parity.compare(actual, values, **{name: float(number)}).passes


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_an_element_is_outside_where_the_metrics_say_so(data):
    numbers = hnp.arrays(np.float64, 5, elements=st.floats(width=32))
    actual, expected = data.draw(numbers), data.draw(numbers)
    tolerance = Tolerance(0.1, 0.1)
    assert int((excess(actual, expected, tolerance) > 1).sum()) == measure(actual, expected, tolerance).n_mismatched


ANY = st.sampled_from([0.0, -0.0, 1.0, 1.05, -1.0, 2.0, 1e-300, 1e300, -1e300, np.nan, np.inf, -np.inf])


@given(hnp.arrays(np.float64, (2, 4), elements=ANY), hnp.arrays(np.float64, (2, 4), elements=ANY), st.booleans())
@settings(max_examples=500, deadline=None)
def test_a_pass_is_what_numpy_calls_one(left, right, equal_nan):
    for kind in (lambda v: v[0], lambda v: v[0] + 1j * v[1]):
        with np.errstate(all="ignore"):
            actual, expected = kind(left), kind(right)
            wanted = np.isclose(actual, expected, rtol=0.1, atol=0.1, equal_nan=equal_nan)
        report = parity.compare(actual, expected, rtol=0.1, atol=0.1, equal_nan=equal_nan)
        assert report.passes == wanted.all()
        row = only(report)
        assert row.metrics is not None
        assert row.metrics.n_mismatched == np.count_nonzero(~wanted)


def test_many_findings_are_bounded_and_the_worst_come_first():
    expected = {f"t{i}": np.ones(3) for i in range(34)}
    actual = {f"t{i}": np.full(3, 1.0 + (i + 1) / 100) for i in range(34)}
    text = str(parity.compare(actual, expected))
    assert text.startswith("34 of 34 tensors differ: 34 outside the tolerance\n\nt33: outside")
    assert text.count(": outside,") == 20
    assert "\nand 14 more: t13, t12, t11, t10, t9, t8 and 8 more" in text


def test_structure_comes_before_nan_before_values():
    actual = {"far": W + 9, "near": W + 1, "nan": W * np.nan, "shape": B}
    report = parity.compare(actual, {"far": W, "near": W, "nan": W, "shape": W})
    assert [row.path for row in report.failing] == ["shape", "nan", "far", "near"]


# Structure


@pytest.mark.parametrize(
    ("actual", "expected", "path", "said"),
    [
        ({"a": B}, {"a": B, "weight": B}, "weight", "actual does not have it"),
        ({"a": B, "weight": B}, {"a": B}, "weight", "expected does not have it"),
        ({"wieght": B}, {"weight": B}, "weight", "actual does not have it; it has wieght"),
        ([B, B], [B], "", "actual has 2 items, expected 1; the common ones are compared"),
        ({"a": None}, {"a": B}, "a", "actual is None, expected is a float32 tensor of shape [6]"),
        ({"a": [B]}, {"a": B}, "a", "actual is a list of 1, expected is a float32 tensor of shape [6]"),
        ({"a": {"b": B}}, {"a": [B]}, "a", "actual is a dict of 1, expected is a list of 1"),
        (B.reshape(2, 3), B, "", "the shapes differ"),
        (np.ones((1,)), 1.0, "", "the shapes differ"),
        (
            B,
            B.astype(np.float64),
            "",
            "the dtypes differ; the values are equal, so check_dtype=False would let them pass",
        ),
        (B.astype(np.float64) + 1, B, "", "the dtypes differ; the values are outside"),
        (
            np.array([1]),
            np.array([True]),
            "",
            "the dtypes differ; the values are equal, so check_dtype=False would let them pass",
        ),
    ],
    ids=range(12),
)
def test_another_structure_is_a_finding(actual, expected, path, said):
    report = parity.compare(actual, expected)
    assert not report.passes
    found = {row.path: row for row in report.failing}
    assert found[path].verdict is parity.Agreement.STRUCTURE
    assert found[path].message == said
    assert said in str(report)


def test_what_both_lists_have_is_compared():
    report = parity.compare([B, B + 1, B], [B, B])
    assert [(row.path, row.verdict.value) for row in report.rows] == [
        ("", "structure"),
        ("[0]", "equal"),
        ("[1]", "outside"),
    ]


def test_records_have_the_names_of_their_fields():
    report = parity.compare({"l": [Layer(B, B)], "p": Point(1, 2)}, {"l": (Layer(B + 1, None),), "p": Point(1, 3)})
    assert [row.path for row in report.rows] == ["l[0].weight", "l[0].bias", "p.x", "p.y"]
    assert [row.verdict.value for row in report.rows] == ["outside", "structure", "equal", "outside"]


@pytest.mark.parametrize("nothing", [{}, [], (), None, {"a": None, "b": [{}]}])
def test_nothing_compared_is_never_a_pass(nothing):
    with pytest.raises(ValueError, match="there is nothing to compare"):
        parity.assert_parity(nothing, copy.deepcopy(nothing))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1.0}, "actual.a: a set has no order; compare a sorted list"),
        ((i for i in [1]), "actual.a: a generator can be read only once; make it a list"),
        ("text", "actual.a: a str is not a tensor"),
        (b"bytes", "actual.a: a bytes is not a tensor"),
        (np.ma.array([1.0], mask=[True]), "actual.a: a masked array; compare .filled"),
        (np.array([object()]), "actual.a: an array of dtype object is not numeric"),
        (np.array(["a"]), "actual.a: an array of dtype <U1 is not numeric"),
        (2**70, "actual.a: 1180591620717411303424 does not fit into 64 bits"),
    ],
    ids=range(8),
)
def test_what_is_no_tensor_is_refused_with_a_remedy(value, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        parity.compare({"a": value}, {"a": B})


class Masked:
    """A tensor of a framework whose array is a masked one."""

    def __init__(self, *readers):
        values = np.ma.array([1.0, 2.0], mask=[True, False])
        given = {"__array__": lambda *_: values, "asnumpy": lambda *_: values, "__dlpack__": lambda *_: None}
        for name in readers:
            setattr(type(self), name, staticmethod(given[name]))


@pytest.mark.parametrize("readers", [("__array__",), ("asnumpy",), ("__array__", "__dlpack__")])
def test_a_mask_is_not_lost_on_the_way(readers):
    value = type("Masked", (Masked,), {})(*readers)
    with pytest.raises(TypeError, match=re.escape("actual.a: a masked array; compare .filled")):
        parity.compare({"a": value}, {"a": np.array([1.0, 2.0])})


# Values


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "longdouble", "complex64", "complex128", ">f4", "<f8"]
)
def test_every_dtype_agrees_with_itself_and_not_with_another(dtype):
    values = W.astype(dtype)
    assert verdict(values, values) == "equal"
    moved = values.copy()
    moved[3, 2] *= 1 + 1e-2
    row = only(parity.compare(moved, values))
    assert (row.verdict.value, row.worst_elements[0].index) == ("outside", (3, 2))


def test_byte_order_is_no_difference():
    assert verdict(W.astype(">f4"), W) == "equal"


def test_integers_are_exact_beyond_float64_and_shown_as_they_are():
    report = parity.compare(np.array([2**53 + 1]), np.array([2**53]))
    assert only(report).worst_elements[0].actual == 2**53 + 1
    assert "9007199254740993  9007199254740992" in str(report)
    assert verdict(np.array([5]), np.array([6]), atol=1) == "close"


def test_differences_of_64_bit_integers_are_exact():
    assert excess(np.array([2**53 + 1]), np.array([2**53]), Tolerance(0.0, 0.5)) == 2.0
    assert excess(np.array([2**63 + 1], np.uint64), np.array([2**63], np.uint64), Tolerance(0.0, 0.5)) == 2.0


def test_complex_numbers_are_compared_by_modulus():
    expected = np.array([1000 + 0j], np.complex64)
    assert verdict(expected + 1e-4j, expected) == "close"
    assert verdict(expected + 1e-2j, expected) == "outside"
    assert verdict(-expected, expected) == "outside"
    row = only(parity.compare(expected + 3j, expected, rtol=0, atol=2))
    assert row.metrics is not None
    assert (row.metrics.max_abs_diff, row.excess) == (3.0, 1.5)


@pytest.mark.parametrize("kind", [np.float64, np.complex128])
@pytest.mark.parametrize(
    ("actual", "expected", "wanted"),
    [
        (np.nan, np.nan, "equal"),
        (np.inf, np.inf, "equal"),
        (-np.inf, np.inf, "nonfinite"),
        (np.nan, 1.0, "nonfinite"),
        (1.0, np.nan, "nonfinite"),
        (np.inf, 1.0, "nonfinite"),
        (1.0, np.inf, "nonfinite"),
        (np.nan, np.inf, "nonfinite"),
    ],
)
def test_nan_and_infinity_match_only_themselves(kind, actual, expected, wanted):
    sides = (np.array([v, 2.0], kind) for v in (actual, expected))
    assert verdict(*sides) == wanted


def test_nan_may_differ_from_nan():
    values = np.array([np.nan, 1.0])
    assert verdict(values, values, equal_nan=False) == "nonfinite"
    assert verdict(values + 0j, values + 0j, equal_nan=False) == "nonfinite"


def test_a_complex_error_of_one_roundoff_keeps_its_size():
    expected = np.array([1.0 + 1.0j])
    row = only(parity.compare(expected + 2.0**-52, expected))
    assert row.metrics is not None
    assert row.metrics.max_abs_diff == pytest.approx(2.0**-52, rel=1e-2)


@pytest.mark.parametrize(
    ("actual", "expected", "wanted"),
    [
        (0.1, np.float32(0.1), "equal"),
        (np.float16(0.1), 0.1, "equal"),
        (1, 1.0, "equal"),
        (1, 2, "outside"),
        (1.5, np.int64(1), "outside"),
        (300, np.uint8(44), "outside"),
        (1e300, np.float16(np.inf), "nonfinite"),
        (1j, np.complex64(1j), "equal"),
        (1.0, np.complex64(1), "equal"),
        (1j, np.float32(0), "outside"),
        (True, np.bool_(True), "equal"),
        (True, 1, "structure"),
    ],
    ids=range(12),
)
def test_a_python_number_takes_the_dtype_beside_it(actual, expected, wanted):
    assert verdict(actual, expected) == wanted


def test_tolerances_are_those_of_the_command_line():
    off = W * np.float32(1 + 5e-5) + np.float32(5e-6)
    assert verdict(off, W) == "outside"
    assert verdict({"grad.weight": off}, {"grad.weight": W}) == "close"
    row = only(parity.compare(W.astype(np.float16), W, check_dtype=False))
    assert row.tolerance == Tolerance(1e-3, 1e-5)


def test_a_tolerance_for_some_tensors_the_last_that_matches():
    actual, expected = {"layers": [W + 1, W + 2], "y": W + 1}, {"layers": [W, W], "y": W}
    report = parity.compare(actual, expected, tolerances={"*": (0, 1.001), "layers[1]": (0, 2.001), "y": (0, 0.5)})
    assert [row.verdict.value for row in report.rows] == ["close", "close", "outside"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerances": {"wieght": (0, 0)}}, 'no tensor matches "wieght"; did you mean "weight"?'),
        ({"tolerances": {"weight": 1e-3}}, "tolerances['weight'] must be a pair (rtol, atol), not 0.001"),
        (
            {"tolerances": {"weight": (0, -1)}},
            "tolerances['weight'] atol must be a finite number of at least 0, not -1",
        ),
        ({"rtol": float("nan")}, "rtol must be a finite number of at least 0, not nan"),
        ({"rtol": "1"}, "rtol must be a finite number of at least 0, not '1'"),
        ({"exact": {}}, "exact.weight is missing; use None for parts without an exact answer"),
        ({"exact": {"weight": B}}, "exact weight has shape [6]; it must have that of expected, [8, 6]"),
        ({"exact": B}, "exact is a float32 tensor of shape [6], but a structure is compared"),
        ({"exact": {"weight": [B]}}, "exact.weight is a list of 1, but a tensor is compared"),
    ],
    ids=range(9),
)
def test_a_wrong_argument_is_named(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parity.compare({"weight": W}, {"weight": W}, **options)


# The exact answer


def test_exact_says_whose_error_is_larger():
    exact = W.astype(np.float64)
    text = str(parity.compare(W + np.float32(1e-3), W, exact=exact, names=("mine", "torch")))
    assert re.search(
        r"error from exact: mine 0.001, torch 0 \(rms\): mine is wrong, its error is \S+ times that of torch", text
    )
    text = str(parity.compare(W, W + np.float32(1e-3), exact=exact))
    assert "expected is wrong" in text
    text = str(parity.compare(W - 1, W + 1, exact=exact))
    assert "both errors are about the same" in text
    assert re.search(r"worst at +actual +expected +exact +× tol\n", text)


@pytest.mark.parametrize("actual", [W + 1, W, B], ids=["outside", "equal", "another shape"])
def test_exact_of_another_shape_is_refused_whatever_else_differs(actual):
    said = "exact has shape [6]; it must have that of expected, [8, 6]"
    with pytest.raises(ValueError, match=re.escape(said)):
        parity.compare(actual, W, exact=B.astype(np.float64))


@pytest.mark.parametrize(
    ("dtype", "exact", "said"),
    [
        ("float32", "int64", "exact is int64 and cannot be the exact answer for float32; give the answer in a wider dtype"),
        ("float32", "bool", "exact is bool and cannot"),
        ("float32", "float16", "exact is float16 and cannot"),
        ("float64", "float32", "exact is float32 and cannot"),
        ("int32", "bool", "exact is bool and cannot"),
        ("float32", "float32", None),
        ("float32", "longdouble", None),
        ("float16", "float32", None),
        ("complex64", "complex128", None),
        ("int32", "int64", None),
        ("int32", "float64", None),
    ],
)  # fmt: skip
def test_exact_needs_as_many_digits_as_the_sides(dtype, exact, said):
    side, answer = np.ones((2, 2), dtype), np.ones((2, 2), exact)
    if said is None:
        assert only(parity.compare(side, side, exact=answer)).errors is not None
    else:
        with pytest.raises(ValueError, match=said):
            parity.compare(side, side, exact=answer)
        with pytest.raises(ValueError, match="exact a is "):
            parity.compare({"a": side}, {"a": side}, exact={"a": answer})


def test_exact_may_be_a_number():
    assert only(parity.compare(np.float32(1.5), np.float32(1.0), exact=1)).errors is not None


def test_exact_may_be_left_out_for_a_part():
    report = parity.compare({"a": W + 1, "b": W}, {"a": W, "b": W}, exact={"a": None, "b": W.astype(np.longdouble)})
    assert report.rows[0].errors is None
    assert report.rows[1].errors is not None
    assert report.rows[1].errors.ratio == 1.0


# Large, deep and cyclic structures


def renamed(n, shared=0):
    """Dicts of which `n` keys have other names on the other side."""
    left = {f"block{i}.attention.weight": B for i in range(shared)}
    return left | {f"layer{i}.gamma": B for i in range(n)}, left | {f"layer{i}.weight": B for i in range(n)}


def test_many_renamed_keys_are_not_searched_for_each(monkeypatch):
    searches = []

    def counted(name, candidates):
        searches.append(len(candidates))
        return nearest(name, candidates)

    monkeypatch.setattr(pairs, "nearest", counted)
    report = parity.compare(*renamed(20_000))
    # Both sides are walked through twice: to measure them, and to say what the differences look like.
    assert searches == [pairs.MAX_CANDIDATES] * 4 * pairs.MAX_NAMED
    assert len(report.failing) == 40_000
    assert report.rows[0].message == "actual does not have it; it has layer0.gamma"
    assert report.rows[-1].message == "expected does not have it"


def test_the_nearest_key_is_found_behind_many_that_both_have():
    actual, expected = renamed(1, shared=2_000)
    report = parity.compare(actual, expected)
    assert {row.message for row in report.failing} == {
        "actual does not have it; it has layer0.gamma", "expected does not have it; it has layer0.weight"
    }  # fmt: skip


def nested(depth):
    found: Any = W
    for _ in range(depth):
        found = [found]
    return found


def test_what_contains_itself_is_named():
    cyclic: dict[str, Any] = {"w": W}
    cyclic["self"] = cyclic
    with pytest.raises(
        ValueError, match=r"^self\.self\..*\.\.\. is nested more than 100 deep or contains itself"
    ) as caught:
        parity.compare(cyclic, cyclic)
    assert len(str(caught.value)) < 200


def test_what_is_nested_too_deep_is_named():
    assert parity.compare(nested(100), nested(100)).passes
    with pytest.raises(ValueError, match=r"^\[0\]\[0\].*nested more than 100 deep"):
        parity.compare(nested(500), nested(500))


# Passes that say little


def test_a_pass_that_zeros_would_have_is_suspect_and_warned_of():
    tiny = B * np.float32(1e-7)
    with pytest.warns(parity.ParityWarning, match="zeros would have passed too: grad.bias") as caught:
        parity.assert_parity({"grad.bias": tiny * 2, "w": W}, {"grad.bias": tiny, "w": W})
    assert caught[0].filename == __file__
    assert only(parity.compare(np.full(2, np.nan), np.full(2, np.nan))).suspect == "no element is finite"
    assert only(parity.compare(np.ones((0, 3)), np.ones((0, 3)))).suspect == "it has no elements"


def test_equal_zeros_are_no_suspect():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parity.assert_parity({"bias": np.zeros(3), "w": W}, {"bias": -np.zeros(3), "w": W})


# Hints: each shown, and each not where it would be wrong

SQUARE = np.random.default_rng(2).normal(size=(6, 6))
CUBE = np.random.default_rng(3).normal(size=(2, 3, 4))
ERROR_BOUND = np.random.default_rng(4).normal(size=(8, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (SQUARE.T, SQUARE, "actual is expected transposed"),
        (W.T, W, "actual is expected transposed"),
        (np.ascontiguousarray(W.T).reshape(8, 6), W, "with its axes in the order [1, 0], written into its old shape"),
        (CUBE.transpose(2, 0, 1), CUBE, "with its axes in the order [2, 0, 1]"),
        (W.reshape(4, 12), W, "holds the values of expected in the same order; only the shape differs"),
        (W[::-1], W, "actual is expected in reverse along axis 0"),
        (np.roll(W, 1, 1), W, "actual is expected shifted by 1 along axis 1"),
        (np.roll(SQUARE, 1), SQUARE, "actual is expected shifted by 1 in memory"),
        (
            np.random.default_rng(5).permutation(W.ravel()).reshape(8, 6),
            W,
            "actual holds the values of expected in another order",
        ),
        (2 * W, W, "actual is 2 times expected"),
        (W / 2, W, "actual is 1/2 of expected"),
        (W * 8, W, "actual is 8 times expected (8 is the length of axis 0)"),
        (W / 48, W, "actual is 1/48 of expected (48 is the number of its elements)"),
        (W * np.float32(1.25), W, "actual is 1.25 times expected"),
        (-W, W, "actual is expected with the opposite sign"),
        (W * 0, W, "actual is all zeros"),
        (W, W * 0, "expected is all zeros"),
        (
            np.where(np.arange(8)[:, None] == 3, ERROR_BOUND, W),
            W,
            "confined to 6 of 48 elements: index 3 of axis 0 (length 8)",
        ),
        (
            np.where(np.arange(6) == 5, 0, W),
            W,
            "confined to 8 of 48 elements: index 5 of axis 1 (length 6); actual has zeros there",
        ),
        (W.astype(np.float16).astype(np.float32), W, "every value of actual is exact in float16"),
        (W.astype(np.float32).astype(np.float64), W.astype(np.float64) + 1e-9 * ERROR_BOUND, None),
    ],
    ids=range(21),
)
def test_a_hint_says_what_a_difference_looks_like(actual, expected, said):
    if said is None:
        assert parity.compare(actual, expected).passes
    else:
        assert said in hint(actual, expected)


def test_exchanged_tensors_are_named():
    expected = {"grad.weight": B, "grad.bias": B[::-1] ** 2}
    text = hint({"grad.weight": expected["grad.bias"], "grad.bias": expected["grad.weight"]}, expected)
    assert text == "actual holds the values of `grad.weight`; `grad.bias` and `grad.weight` are exchanged"
    copied = hint({"grad.weight": B, "grad.bias": B}, expected)
    assert copied == "actual holds the values of `grad.weight`"


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (SQUARE.T + np.where(np.eye(6) > 0, 1e-3, 0), SQUARE),
        (2 * W + np.float32(1e-3) * ERROR_BOUND, W),
        (-W + np.float32(1e-3) * ERROR_BOUND, W),
        (W + ERROR_BOUND, W),
        (np.ones((3, 3)), np.full((3, 3), 2.0)),
        (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
        (np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])),
        (W.astype(np.float16).astype(np.float32) * np.float32(1.01), W),
        (np.where(ERROR_BOUND > 1, W + 1, W), W),
        (np.array([True, False, True, False]), np.array([False, True, False, True])),
    ],
    ids=range(10),
)
def test_no_hint_where_a_hypothesis_leaves_an_element_outside_or_says_nothing(actual, expected):
    assert hint(actual, expected) == ""


def test_no_hint_where_one_element_of_a_larger_tensor_is_left():
    large = np.random.default_rng(6).normal(size=(40, 40))
    moved = large.T.copy()
    for place in range(1, 1600, 7):
        moved.flat[place] += 1e-3
        assert hint(moved, large) == ""
        moved.flat[place] = large.T.flat[place]
    assert hint(moved, large) == "actual is expected transposed"


def test_no_hint_where_only_the_dtype_differs():
    report = parity.compare({"a": W.astype(np.float64), "b": W}, {"a": W, "b": W})
    assert [row.hints for row in report.failing] == [()]


def test_no_exchange_where_one_element_is_left():
    expected = {"a": B, "b": B[::-1] ** 2}
    moved = B.copy()
    moved[2] += 1e-2
    assert hint({"a": expected["a"], "b": moved}, expected) == ""


def test_every_diagnosis_of_a_hint_can_be_explained():
    named = re.findall(r'"([a-z]+(?:-[a-z]+)+|localized|scaled)"', (ROOT / "parity/library/hints.py").read_text())
    assert len(named) >= 7
    assert set(named) <= set(catalogue())


def test_a_hint_does_not_raise_at_the_ends_of_the_range():
    huge = np.array([1e300, -1e300, 3e299, 1e-300, np.nan])
    assert not parity.compare(huge * -1, huge).passes
    assert hints.FEW_LEVELS > 1


# The report and the error


def test_a_report_has_no_truth_value():
    report = parity.compare(W, W)
    assert report.passes
    assert not parity.Report(()).passes
    with pytest.raises(TypeError, match=r"ask for its \.passes"):
        bool(report)
    with pytest.raises(TypeError, match="has no truth value"):
        bool(only(report).verdict)


def test_the_error_is_an_assertion_with_the_report_and_survives_pickling():
    with pytest.raises(AssertionError) as caught:
        parity.assert_parity({"a": W + 1}, {"a": W})
    error = caught.value
    assert isinstance(error, parity.ParityError)
    assert str(error) == str(error.report)
    assert type(error).__module__ == "parity"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_pass_can_be_printed():
    assert (
        str(parity.compare({"a": W, "b": B * np.float32(1 + 1e-7)}, {"a": W, "b": B}))
        == "2 tensors agree (1 bit for bit)"
    )
    assert str(parity.compare(W, W)) == "1 tensor agrees (1 bit for bit)"


def test_inputs_are_left_as_they_are():
    actual, expected = W.copy() * np.nan, W.copy()
    actual.flags.writeable = expected.flags.writeable = False
    assert not parity.compare(actual, expected, equal_nan=False).passes


def test_a_large_tensor_is_measured_and_shows_its_worst_element(monkeypatch):
    monkeypatch.setattr("parity.library.measure.MAX_ELEMENTS", 10)
    row = only(parity.compare(W * 2, W))
    assert len(row.worst_elements) == 1


def test_the_message_of_one_tensor_is_whole():
    actual = W.copy()
    actual[1, 3] += np.float32(1e-3)
    actual[2, 0] = np.nan
    assert str(parity.compare(actual, W)).splitlines() == [
        "actual differs from expected: nonfinite, float32, [8, 6]",
        "  2 of 48 elements (4.17%) are outside rtol=1.3e-06, atol=1e-05, 1 of them by a NaN or Inf",
        "  largest difference where both are finite: abs 0.001, rel 0.00079, 8389 ulp; no tolerance lets it pass",
        "  worst at  actual      expected    × tol",
        "  [2, 0]    nan         -2.3250308  inf",
        "  [1, 3]    -1.2644215  -1.2654215  85.9",
    ]


def test_entries_of_one_side_take_a_line_each():
    text = str(parity.compare({"module.weight": W, "b": W.T}, {"weight": W, "b": W}))
    assert text.splitlines()[:5] == [
        "3 of 3 tensors differ: 3 in structure",
        "",
        "weight: structure, actual does not have it; it has module.weight",
        "module.weight: structure, expected does not have it; it has weight",
        "",
    ]


# What is imported


def loaded(code: str) -> str:
    names = "numpy", "torch", "paddle", "oneflow", "jax", "pandas", "rich", "pytest"
    tail = f"\nimport sys; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_parity_imports_nothing():
    assert loaded("import parity; dir(parity); parity.__version__") == "[]"


def test_comparing_arrays_imports_no_framework():
    code = "import numpy as np, parity; assert not parity.compare(np.ones(9), np.arange(9.0)).passes"
    assert loaded(code) == "['numpy']"


def test_the_names_are_there_and_others_are_not():
    assert set(parity.__all__) <= set(dir(parity))
    assert all(getattr(parity, name).__name__.rpartition(".")[2] == name for name in parity.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'assert_party'"):
        parity.assert_party  # noqa: B018 - the access is the test


def test_mypy_sees_the_names(tmp_path):
    path = tmp_path / "typed.py"
    path.write_text(
        "import parity\n"
        "report = parity.compare([1.0], [1.0], rtol=1e-3, names=('a', 'b'))\n"
        "reveal_type(report)\n"
        "reveal_type(report.rows[0].verdict)\n"
        "reveal_type(parity.assert_parity)\n"
        "parity.compare([1.0])\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", path], capture_output=True, text=True, cwd=ROOT)
    assert 'Revealed type is "parity.library.report.Report"' in done.stdout
    assert 'Revealed type is "parity.library.report.Agreement"' in done.stdout
    assert "names: " in done.stdout
    assert 'Missing positional argument "expected" in call to "compare"' in done.stdout
    assert "Found 1 error" in done.stdout


DOCS = (ROOT / "docs" / "library.md").read_text()
SHOWN = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<raised>.*?)\n```\n)?", re.DOTALL)


def test_the_documentation_s_examples_do_what_they_say():
    shared: dict[str, Any] = {}
    raised, session = 0, ""
    for block in SHOWN.finditer(DOCS):
        if ">>>" in block["code"]:
            session += block["code"]
        elif block["raised"]:
            with pytest.raises(parity.ParityError) as caught:
                exec(compile(block["code"], "docs/library.md", "exec"), shared)
            assert block["raised"] == f"parity.ParityError: {caught.value}"
            raised += 1
        else:
            exec(compile(block["code"], "docs/library.md", "exec"), shared)
    test = doctest.DocTestParser().get_doctest(session, shared, "docs/library.md", None, 0)
    output: list[str] = []
    done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append)
    assert done.failed == 0, "".join(output)
    assert done.attempted >= 8
    assert raised == 1
