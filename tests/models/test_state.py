import re

import numpy as np
import pytest

from parity.models.layers import partners
from parity.models.state import UNTIED, MappingError, mapped, written
from tests.models.ports import port

LINEAR = {"a": "Linear", "a.fc": "Linear"}


def test_a_linear_of_paddle_is_transposed_even_if_it_is_square():
    ours = port("torch", "torch", {"fc": "Linear"}, {"fc.weight": (4, 4), "fc.bias": (4,)})
    theirs = port("paddle", "paddle", {"fc": "Linear"}, {"fc.weight": (4, 4), "fc.bias": (4,)})
    moves, notes = mapped(ours, theirs, None)
    assert {(move.target, move.axes) for move in moves} == {("fc.weight", (1, 0)), ("fc.bias", ())}
    assert notes == []
    values = np.arange(16.0).reshape(4, 4)
    np.testing.assert_array_equal(moves[0].apply([values], (4, 4)), values.T)


def test_running_statistics_have_another_name():
    ours = port("torch", "torch", {"bn": "BatchNorm2d"}, {"bn.running_mean": (3,), "bn.running_var": (3,)})
    theirs = port("paddle", "paddle", {"bn": "BatchNorm2D"}, {"bn._mean": (3,), "bn._variance": (3,)})
    moves, _ = mapped(ours, theirs, None)
    assert {move.target: move.sources for move in moves} == {
        "bn._mean": ("bn.running_mean",),
        "bn._variance": ("bn.running_var",),
    }


@pytest.mark.parametrize("fused_is_ours", [True, False])
def test_projections_that_are_one_parameter(fused_is_ours):
    one = {
        "layers": {"att": "Attention", "att.out": "Linear"},
        "tensors": {"att.in_weight": (12, 4), "att.out.weight": (4, 5)},
    }
    names = ("q", "k", "v")
    three = {
        "layers": {"att": "Attention", "att.out": "Linear", **{f"att.{n}": "Linear" for n in names}},
        "tensors": {**{f"att.{n}.weight": (4, 4) for n in names}, "att.out.weight": (4, 5)},
    }
    ours, theirs = (
        port(n, "torch", **p) for n, p in zip("ab", (one, three) if fused_is_ours else (three, one), strict=True)
    )
    moves, _ = mapped(ours, theirs, None)
    by_target = {move.target: move for move in moves}
    parts = [np.full((4, 4), float(i)) for i in range(3)]
    whole = np.concatenate(parts)
    if fused_is_ours:
        for i, name in enumerate(names):
            np.testing.assert_array_equal(by_target[f"att.{name}.weight"].apply([whole], (4, 4)), parts[i])
    else:
        np.testing.assert_array_equal(by_target["att.in_weight"].apply(parts, (12, 4)), whole)


def test_a_parameter_without_a_partner_is_an_error_with_the_nearest():
    ours = port("torch", "torch", {"fc": "Linear"}, {"fc.weight": (4, 3), "gate": (7,)})
    theirs = port("mine", "torch", {"fc": "Linear"}, {"fc.weight": (4, 3), "gates": (9, 9)})
    with pytest.raises(MappingError, match=r"torch's gate \[7\] has no partner in mine \(nearest: gates \[9, 9\]\)"):
        mapped(ours, theirs, None)


def test_a_parameter_that_is_shared_in_one_port_only():
    shapes = {"words.weight": (6, 4), "head.weight": (6, 4)}
    layers = {"words": "Embedding", "head": "Linear"}
    ours = port("torch", "torch", layers, shapes, head__weight="words.weight")
    theirs = port("paddle", "paddle", layers, {"words.weight": (6, 4), "head.weight": (4, 6)})
    move = next(move for move in mapped(ours, theirs, None)[0] if move.how == UNTIED)
    assert (move.target, move.sources, move.axes) == ("head.weight", ("words.weight",), (1, 0))


def test_what_is_written_is_read_again(tmp_path):
    ours = port("torch", "torch", LINEAR, {"a.fc.weight": (4, 3), "a.weight": (5, 5)})
    theirs = port("paddle", "paddle", LINEAR, {"a.fc.weight": (3, 4), "a.weight": (5, 5)})
    moves, _ = mapped(ours, theirs, None)
    path = tmp_path / "mapping.yaml"
    path.write_text(written({"paddle": moves}))
    again, _ = mapped(ours, theirs, path)
    assert [(m.target, m.sources, m.axes, m.part) for m in again] == [
        (m.target, m.sources, m.axes, m.part) for m in moves
    ]
    assert {move.how for move in again} == {"mapping"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paddle: {fc.weigth: fc.weight}", "paddle has no tensor fc.weigth; did you mean fc.weight?"),
        ("paddle: {fc.weight: {from: fc.weight, axes: [0, 2]}}", "axes must be an order of all axes"),
        ("paddle: {fc.weight: {form: fc.weight}}", "it must be {from: NAME"),
        ("[", "cannot be read"),
    ],
)
def test_a_wrong_mapping_file_names_the_place(tmp_path, text, message):
    both = [port(name, name, {"fc": "Linear"}, {"fc.weight": (4, 3)}) for name in ("torch", "paddle")]
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(MappingError, match=re.escape(message)) as error:
        mapped(both[0], both[1], path)
    assert str(path) in str(error.value)


def test_layers_are_partners_by_parameters_then_by_name_and_class():
    ours = port(
        "torch", "torch", {"bert": "Bert", "bert.fc": "Linear", "bert.act": "GELU", "drop": "Dropout"},
        {"bert.fc.weight": (2, 3)},
    )  # fmt: skip
    theirs = port(
        "paddle", "paddle", {"body": "Sequential", "body.lin": "Linear", "body.gelu": "GELU", "dropout": "Dropout"},
        {"body.lin.weight": (3, 2)},
    )  # fmt: skip
    moves, _ = mapped(ours, theirs, None)
    assert partners(ours, theirs, moves) == {
        "": "",
        "body": "bert",
        "body.lin": "bert.fc",
        "body.gelu": "bert.act",
        "dropout": "drop",
    }
