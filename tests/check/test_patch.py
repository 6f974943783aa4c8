"""Values of a reference in the rows of a candidate: which are tried, and in which shapes."""

from __future__ import annotations

import numpy as np

from parity.check.fault import Computation, FaultSearch, TrailRow
from parity.check.match import Known
from parity.check.patch import Patch, Patching, shaped

RNG = np.random.default_rng(0)


def computed(values, rows, output, more=()):
    """A computation of float64 values; a row is (line, function, reads, results)."""
    made = [TrailRow(function, line, reads, results) for line, function, reads, results in rows]
    return Computation(made, values, ["float64"] * len(values), {"x": 0}, {"y": output}, {}, more=more)


def tried(own, theirs):
    one = FaultSearch(own, Known(theirs.arrays()))
    other = FaultSearch(theirs, Known(own.arrays()))
    return list(Patching(one, other, [own.outputs["y"]]).patches())


def test_a_value_is_tried_with_its_axes_in_each_order_that_fits():
    array = RNG.normal(size=(3, 1, 4))
    (given,) = shaped(array, (4, 3, 1))
    np.testing.assert_array_equal(given, array[:, 0].T[..., None])
    assert len(list(shaped(RNG.normal(size=(2, 2, 3)), (3, 2, 2)))) == 2
    (flat,) = shaped(array, (12,))
    np.testing.assert_array_equal(flat, array.ravel())
    assert list(shaped(array, (13,))) == []


def test_rows_without_operands_and_outputs_are_not_patched():
    x, right, wrong = RNG.normal(size=(3, 8, 5))
    own = computed(
        [x, wrong, wrong + 1, wrong * 3], [(1, "full", (), (1,)), (2, "add", (0, 1), (2,)), (3, "mul", (2,), (3,))], 3
    )
    theirs = computed([x, right, right * 3], [(7, "add", (0,), (1,)), (8, "mul", (1,), (2,))], 2)
    patches = tried(own, theirs)
    assert {patch.row for patch in patches} == {1}
    assert [patch.reference_line for patch in patches] == [7, 8]
    np.testing.assert_array_equal(patches[0].results[1][0], right)


def test_the_rows_of_a_line_are_patched_together():
    values = RNG.normal(size=(6, 4))
    x, *steps = values
    own_values = [x, steps[0] + 1, steps[1] + 1, steps[4]]
    own = computed(own_values, [(2, "mul", (0,), (1,)), (2, "mul", (1,), (2,)), (3, "sum", (1, 2), (3,))], 3)
    theirs = computed([x, *steps[:3]], [(5, "mul", (0,), (1,)), (5, "mul", (1,), (2,)), (6, "sum", (1, 2), (3,))], 3)
    first = tried(own, theirs)[0]
    assert first.reference_line == 5
    for row, right in ((0, steps[0]), (1, steps[1])):
        np.testing.assert_array_equal(first.results[row][0], right)


def test_a_shifted_patch_has_other_numbers():
    patch = Patch({3: [np.zeros(2)]}, 4)
    np.testing.assert_array_equal(patch.shifted.results[3][0], np.full(2, 0.5))
    assert patch.shifted.row == patch.row == 3
