import numpy as np
import pytest

from parity.models.measure import once
from parity.models.orders import AxesConverter, axis_orders, written
from parity.models.ports import write
from parity.models.steps import same_kind
from parity.models.worker.tape import Recorded, regrouped

LAST = (0, 2, 3, 1)
RNG = np.random.default_rng(0)
IMAGE, SQUARE = RNG.normal(size=(2, 3, 5, 4)), RNG.normal(size=(4, 4, 4, 4))


def run(folder, tensors):
    write(tensors, folder)
    return Recorded(str(folder))


def runs(folder, base, other):
    keys = {name: name for name in base}
    return run(folder / "base", base), run(folder / "other", other), keys


def test_an_order_follows_from_shapes_and_is_tried_where_they_do_not_tell(tmp_path):
    base = {"a|0|in|0": IMAGE, "b|0|out|0": SQUARE, "c|0|out|0": SQUARE, "d|0|out|0": IMAGE}
    other = {name: array.transpose(LAST) for name, array in base.items()}
    other["c|0|out|0"], other["d|0|out|0"] = SQUARE, IMAGE
    axes = axis_orders(*runs(tmp_path, base, other))
    assert axes == {"a|0|in|0": LAST, "b|0|out|0": LAST}
    assert list(written(axes)) == [
        "axes [0, 2, 3, 1] of the baseline's: 2 tensors between layers, first the input of a",
    ]


def test_of_several_orders_the_values_tell(tmp_path):
    image = RNG.normal(size=(2, 3, 4, 4))
    columns = image.transpose(0, 3, 2, 1)
    assert axis_orders(*runs(tmp_path, {"a|0|in|0": image}, {"a|0|in|0": columns})) == {"a|0|in|0": (0, 3, 2, 1)}


def test_a_transposed_square_is_no_order_where_no_shape_shows_one(tmp_path):
    assert axis_orders(*runs(tmp_path, {"a|0|in|0": SQUARE}, {"a|0|in|0": SQUARE.transpose(LAST)})) == {}


def test_a_sight_goes_there_and_back(tmp_path):
    base, other, keys = runs(
        tmp_path,
        {"a": IMAGE, "heads": RNG.normal(size=(2, 5, 6)), "mask": np.array([[1.0, 0.0]])},
        {"a": IMAGE.transpose(LAST), "heads": RNG.normal(size=(2, 5, 2, 3)), "mask": np.array([[[True, False]]])},
    )
    converter = AxesConverter(other, {"a": LAST}, {name: base.entries[name] for name in keys})
    for name in keys:
        array = base.load(name)
        own = converter.to_port(name, array)
        assert own.shape == other.shape(name)
        np.testing.assert_array_equal(converter.to_baseline(name, own), array)
    assert converter.to_baseline("mask", other.load("mask")).dtype == np.float64


def test_a_mask_of_booleans_is_one_of_zeros_and_ones(tmp_path):
    tensors = {"flags": np.array([True, False]), "numbers": np.array([1.0, 0.0]), "added": np.array([0.0, -1e4])}
    both = run(tmp_path, tensors)
    assert same_kind(both, "numbers", both, "flags")
    assert not same_kind(both, "added", both, "flags")
    assert same_kind(both, "added", both, "numbers")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ((2, 6), (2, 2, 3), True),
        ((2, 2, 3), (4, 3), True),
        ((2, 1, 6), (2, 6), True),
        ((4, 6), (6, 4), False),
        ((2, 6), (2, 5), False),
        ((2, 3, 4), (6, 2, 2), False),
        ((), (1,), True),
    ],
)
def test_shapes_that_hold_the_same_elements_in_order(a, b, same):
    assert regrouped(a, b) is same


def test_what_is_repeated_is_taken_once():
    row = RNG.normal(size=(1, 3, 2))
    np.testing.assert_array_equal(once(np.repeat(row, 4, 0), (1, 3, 2)), row)
    other = np.concatenate([row, row + 1])
    assert once(other, (1, 3, 2)) is other
