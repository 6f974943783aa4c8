import numpy as np
import pytest

from parity.models.layouts import layout_of
from parity.models.ports import LayerInfo
from parity.models.state import MappingError, mapped, moved
from tests.models.ports import port


def layer(kind, **options):
    return LayerInfo("layer", kind, False, options)


@pytest.mark.parametrize(
    ("kind", "options", "name", "shape", "torch_name", "torch_shape"),
    [
        ("Dense", {}, "kernel", (3, 5), "weight", (5, 3)),
        ("Conv2D", {}, "kernel", (2, 4, 3, 5), "weight", (5, 3, 2, 4)),
        ("Conv1D", {}, "kernel", (2, 3, 5), "weight", (5, 3, 2)),
        ("Conv2DTranspose", {}, "kernel", (2, 4, 5, 3), "weight", (3, 5, 2, 4)),
        ("DepthwiseConv2D", {}, "kernel", (2, 4, 3, 5), "weight", (15, 1, 2, 4)),
        ("BatchNormalization", {}, "moving_variance", (3,), "running_var", (3,)),
        ("EinsumDense", {"equation": "abc,cde->abde"}, "kernel", (6, 2, 3), "weight", (6, 6)),
        ("EinsumDense", {"equation": "abc,cde->abde"}, "bias", (2, 3), "bias", (6,)),
        ("EinsumDense", {"equation": "abcd,cde->abe"}, "kernel", (2, 3, 5), "weight", (5, 6)),
        ("EinsumDense", {"equation": "ab,bc->ac"}, "kernel", (4, 5), "weight", (5, 4)),
    ],
)
def test_a_keras_tensor_in_pytorchs_layout_and_back(kind, options, name, shape, torch_name, torch_shape):
    layout = layout_of("keras", layer(kind, **options), name)
    array = np.random.default_rng(0).normal(size=shape)
    assert (layout.name, layout.shape(shape)) == (torch_name, torch_shape)
    assert layout.there(array).shape == torch_shape
    np.testing.assert_array_equal(layout.back(layout.there(array), shape), array)


def test_an_einsum_is_the_linear_of_its_kernel():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 4, 6)), rng.normal(size=(6, 2, 3))
    weight = layout_of("keras", layer("EinsumDense", equation="abc,cde->abde"), "kernel").there(kernel)
    np.testing.assert_allclose(np.einsum("abc,cde->abde", x, kernel).reshape(2, 4, 6), x @ weight.T)


def attention(adapter):
    """A projection to two heads of three, with norms before and behind it that stand in another order in Keras."""
    if adapter == "torch":
        layers = {"attend": "Linear", "attend_norm": "LayerNorm", "out": "Linear"}
        return port("torch", "torch", layers, {"attend.weight": (6, 4), "attend_norm.bias": (6,), "out.bias": (6,)})
    made = port(
        "keras", "keras", {"norm": "LayerNormalization", "dense": "Dense", "mha.query": "EinsumDense"},
        {"dense.bias": (6,), "norm.beta": (6,), "mha.query.kernel": (4, 2, 3)},
    )  # fmt: skip
    made.layers["mha.query"] = layer("EinsumDense", equation="abc,cde->abde")
    return made


def test_a_weight_is_moved_to_an_einsum_and_its_gradient_back():
    ours, theirs = attention("torch"), attention("keras")
    by_target = {move.target: move for move in mapped(ours, theirs, None)[0]}
    move = by_target["mha.query.kernel"]
    assert move.row() == {"from": "attend.weight", "shape": [2, 3, 4], "axes": [2, 0, 1]}
    weight = np.arange(24.0).reshape(6, 4)
    kernel = move.apply([weight], (4, 2, 3))
    np.testing.assert_array_equal(np.einsum("c,cde->de", np.ones(4), kernel).ravel(), weight.sum(1))
    np.testing.assert_array_equal(move.undone(kernel, (6, 4)), weight)


def test_tensors_of_one_shape_stay_with_layers_of_one_kind():
    moves = mapped(attention("torch"), attention("keras"), None)[0]
    found = {move.target: move.sources for move in moves}
    assert found["norm.beta"] == ("attend_norm.bias",)
    assert found["dense.bias"] == ("out.bias",)


def test_a_split_shape_in_a_mapping_file(tmp_path):
    path = tmp_path / "mapping.yaml"
    path.write_text("keras: {mha.query.kernel: {from: attend.weight, shape: [3, 2, 4], axes: [2, 1, 0]}}")
    moves = {move.target: move for move in mapped(attention("torch"), attention("keras"), path)[0]}
    weight = np.arange(24.0).reshape(6, 4)
    expected = weight.reshape(3, 2, 4).transpose(2, 1, 0)
    np.testing.assert_array_equal(moves["mha.query.kernel"].apply([weight], (4, 2, 3)), expected)
    path.write_text("keras: {mha.query.kernel: {from: attend.weight, shape: [5, 4]}}")
    with pytest.raises(MappingError, match=r"its source has 24 elements, which is not the shape \[5, 4\]"):
        mapped(attention("torch"), attention("keras"), path)


def test_merged_axes_come_from_pytorchs_layout_only():
    merged = layout_of("keras", layer("EinsumDense", equation="abc,cde->abde"), "kernel")
    dense = layout_of("keras", layer("Dense"), "kernel")
    assert moved(merged, merged, (4, 2, 3)) == ((), ())
    with pytest.raises(MappingError, match="the baseline's layout is another one"):
        moved(dense, merged, (4, 2, 3))
