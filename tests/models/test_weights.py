"""What parameters look like that are not the baseline's, and which parameter of an export is which."""

from types import SimpleNamespace

import numpy as np
import pytest

from parity.models.converted import named
from parity.models.state import Move, folded
from parity.models.weights import misfolded
from parity.models.worker.tape import TensorTape
from tests.models.ports import port

NAMES = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "conv.weight", "conv.bias")
EPS = 1e-5


@pytest.fixture
def stored(tmp_path):
    rng = np.random.default_rng(0)
    shapes = ((3,), (3,), (3,), (3,), (3, 2, 3, 3), (3,))
    arrays = [rng.uniform(0.5, 2.0, shape).astype(np.float32) for shape in shapes]
    tape = TensorTape(str(tmp_path))
    for name, array in zip(NAMES, arrays, strict=True):
        tape.put(name, array)
    tape.close()
    return SimpleNamespace(state=tmp_path, name="torch"), [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w, b, m, v, own: b + own * w / np.sqrt(v + EPS), "folded without the running mean"),
        (lambda w, b, m, v, own: b + (own + m) * w / np.sqrt(v + EPS), "folded with the running mean added"),
        (lambda w, b, m, v, own: b + (own - m) * w, "folded without the running variance"),
        (lambda w, b, m, v, own: (own - m) * w / np.sqrt(v + EPS), "folded without the BatchNorm's bias"),
        (lambda w, b, m, v, own: b - m * w / np.sqrt(v + EPS), "folded without the convolution's bias"),
        (lambda w, b, m, v, own: own, "folded without the BatchNorm"),
        (lambda w, b, m, v, own: b + (own - m) * w / np.sqrt(v + 1e-3), "folded with eps 0.001 instead of 1e-05"),
        (lambda w, b, m, v, own: b * 1.1, None),
    ],
)
def test_what_was_forgotten_in_a_fold(stored, change, said):
    base, (w, b, m, v, _, own) = stored
    move = Move("conv.bias", (*NAMES[:4], "conv.bias"), how="folded", eps=EPS)
    found = misfolded(change(w, b, m, v, own).astype(np.float32), move, base)
    assert (found and found[1]) == said


def test_a_folded_weight_with_another_factor_for_each_channel(stored):
    base, arrays = stored
    move = Move("conv.weight", NAMES[:5], how="folded", eps=EPS)
    right = folded(arrays[:5], EPS, (3, 2, 3, 3))
    other = right * np.array([1.0, 1.02, 0.98]).reshape(3, 1, 1, 1)
    assert misfolded(other.astype(np.float32), move, base)[1].endswith("for each channel: another running variance")
    assert misfolded(arrays[4].astype(np.float32), move, base)[1] == "folded without the BatchNorm"
    assert misfolded((right + 0.01).astype(np.float32), move, base) is None


def test_an_export_has_pytorchs_layouts_whatever_the_baseline_has():
    base = port("paddle", "paddle", {"fc": "Linear", "bn": "BatchNorm2D"}, {"fc.weight": (4, 4), "bn._mean": (3,)})
    other = port("onnx", "onnxruntime", {"fc": "", "bn": ""}, {"fc.weight": (4, 4), "bn.running_mean": (3,)})
    found = {move.target: (move.sources, move.axes) for move in named(base, other, {})}
    assert found == {"fc.weight": (("fc.weight",), (1, 0)), "bn.running_mean": (("bn._mean",), ())}
