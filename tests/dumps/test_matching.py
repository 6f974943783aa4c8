"""Which tensor of one side is which of the other: by name, content and order, and never by a guess."""

from __future__ import annotations

import numpy as np
import pytest

from parity.config.errors import ConfigError
from parity.dumps.mapping import mapping_text, read_mapping
from parity.dumps.matching import How, MatchingError, TensorSummary, Transform, fingerprint_of, match


def entries(shapes, arrays=None):
    marks = arrays or {}
    return [
        TensorSummary(name, tuple(shape), "float32", i, fingerprint_of(marks[name]) if name in marks else None)
        for i, (name, shape) in enumerate(shapes.items())
    ]


def pairs(matching):
    return {pair.left: (pair.right, pair.how.value, str(pair.transform)) for pair in matching.pairs}


def test_names_of_frameworks_and_wrappers():
    torch = {
        "bert.embeddings.word_embeddings.weight": (30, 8),
        "bert.encoder.layer.0.attention.query.weight": (8, 6),
        "bert.encoder.layer.0.bn.weight": (8,),
        "bert.encoder.layer.0.bn.bias": (8,),
        "bert.encoder.layer.0.bn.running_mean": (8,),
        "bert.encoder.layer.0.bn.running_var": (8,),
        "bert.conv.weight": (8, 4, 3, 3),
    }
    keras = {
        "model/conv/kernel:0": (3, 3, 4, 8),
        "embeddings/word_embeddings/embeddings:0": (30, 8),
        "model/encoder/layer_0/bn/beta:0": (8,),
        "model/encoder/layer_0/bn/gamma:0": (8,),
        "model/encoder/layer_0/bn/moving_variance:0": (8,),
        "model/encoder/layer_0/bn/moving_mean:0": (8,),
        "model/encoder/layer_0/attention/query/kernel:0": (6, 8),
    }
    found = match(entries(torch), entries(keras), by_order=False)
    assert pairs(found) == {
        "bert.embeddings.word_embeddings.weight": ("embeddings/word_embeddings/embeddings:0", "name", ""),
        "bert.encoder.layer.0.attention.query.weight": (
            "model/encoder/layer_0/attention/query/kernel:0",
            "name",
            "transpose",
        ),
        "bert.encoder.layer.0.bn.weight": ("model/encoder/layer_0/bn/gamma:0", "name", ""),
        "bert.encoder.layer.0.bn.bias": ("model/encoder/layer_0/bn/beta:0", "name", ""),
        "bert.encoder.layer.0.bn.running_mean": ("model/encoder/layer_0/bn/moving_mean:0", "name", ""),
        "bert.encoder.layer.0.bn.running_var": ("model/encoder/layer_0/bn/moving_variance:0", "name", ""),
        "bert.conv.weight": ("model/conv/kernel:0", "name", "axes [3, 2, 0, 1]"),
    }
    assert not any(pair.doubt for pair in found.pairs)


def test_a_square_weight_is_transposed_as_the_others_are():
    left = {"a.weight": (8, 6), "a.bias": (8,), "b.weight": (8, 8), "b.bias": (8,), "emb.weight": (9, 8)}
    right = {"a.weight": (6, 8), "a.bias": (8,), "b.weight": (8, 8), "b.bias": (8,), "emb.weight": (9, 8)}
    found = {pair.left: pair for pair in match(entries(left), entries(right)).pairs}
    assert found["b.weight"].transform == Transform((1, 0))
    assert "square" in found["b.weight"].doubt
    assert found["emb.weight"].transform == Transform()


def test_contents_survive_a_transpose_and_a_cast_but_not_a_twin():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 30, 40)).astype(np.float32)
    same = generator.normal(size=7)
    left = {"q": a, "k": b, "s": same, "t": same, "ones": np.ones(7)}
    right = {"x1": b.T.reshape(-1), "x2": a.astype(np.float16), "y": same, "z": same, "w": np.ones(7)}
    found = match(
        entries({name: array.shape for name, array in left.items()}, left),
        entries({name: array.shape for name, array in right.items()}, right),
        by_order=False,
    )
    assert pairs(found) == {"q": ("x2", "content", ""), "k": ("x1", "content", "reshape")}
    assert set(found.left_only) == {"s", "t", "ones"}
    assert set(found.right_only) == {"y", "z", "w"}


def test_order_needs_equal_numbers_and_says_what_it_does_not_know():
    left = {"f.0.weight": (4, 3), "f.0.bias": (4,), "g.0.weight": (4, 3), "g.0.bias": (4,), "extra": (5,), "odd": (5,)}
    right = {"u.kernel": (3, 4), "u.b": (4,), "v.kernel": (3, 4), "v.b": (4,), "more": (5,)}
    found = match(entries(left), entries(right))
    assert pairs(found) == {
        "f.0.weight": ("u.kernel", "order", "transpose"),
        "f.0.bias": ("u.b", "order", ""),
        "g.0.weight": ("v.kernel", "order", "transpose"),
        "g.0.bias": ("v.b", "order", ""),
    }
    assert found.left_only == ("extra", "odd")
    assert found.right_only == ("more",)
    assert "2 on the left (extra, odd), 1 on the right (more)" in found.notes[0]
    twisted = match(entries({"f.weight": (4,), "f.bias": (3,), "g.weight": (4,), "g.bias": (3,)}),
                    entries({"u.weight": (4,), "v.bias": (3,), "v.weight": (4,), "u.bias": (3,)}))  # fmt: skip
    assert all("other tensors of its layer" in pair.doubt for pair in twisted.pairs)


def test_a_written_mapping_gives_the_same_pairs(tmp_path):
    left = {"a.weight": (2, 3), "Größe\n<i>": (5,), "conv": (8, 4, 3, 3), "x" * 1500: (6,), "yes": (9,)}
    right = {"a/kernel": (3, 2), "taille": (5,), "c": (3, 3, 4, 8), "long": (6,), "1e3": (9,)}
    found = match(entries(left), entries(right))
    path = tmp_path / "mapping.yaml"
    path.write_text(mapping_text(found), encoding="utf-8")
    again = match(entries(left), entries(right), read_mapping(path))
    assert len(again.pairs) == 5
    assert {pair.how for pair in again.pairs} == {How.MAPPING}
    assert [(p.left, p.right, p.transform) for p in again.pairs] == [
        (p.left, p.right, p.transform) for p in found.pairs
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b\nc: b\n", "b is already mapped to a"),
        ("a: {name: b, transform: turn}\n", "transpose"),
        ("a: {name: b, transform: {axes: [0, 2]}}\n", "each number from 0 to 1 once"),
        ("- a\n", "a mapping has a line"),
        ("a: [b]\n", "expected the name"),
    ],
)
def test_a_wrong_mapping_is_refused_at_its_line(tmp_path, text, message):
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mapping\.yaml") as caught:
        read_mapping(path)
    assert message in str(caught.value)


def test_a_mapping_of_a_tensor_that_is_not_there():
    with pytest.raises(MatchingError, match="the right side has no tensor 'z'"):
        match(entries({"a": (1,)}), entries({"b": (1,)}), {"a": ("z", Transform())})
