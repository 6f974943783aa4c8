"""The comparator must reject: every mutation of honest outputs turns a real run red, in the mutated tensor only."""

from __future__ import annotations

import pytest

from tests.conftest import FAKES, user_config

MUTANT = """
import sys
sys.path.append({fakes!r})
import numpy as np
import honest


def layer_norm(x, weight, bias, normalized_shape, eps):
    return spoil({{"y": honest.layer_norm(x, weight, bias, normalized_shape, eps)}})


def layer_norm_backward(grad_y, x, weight, eps):
    honest_gradients = honest.layer_norm_backward(grad_y, x, weight, eps)
    return spoil({{f"grad.{{name}}": value for name, value in honest_gradients.items()}})


def spoil(outputs):
    name = {tensor!r}
    if name in outputs:
        value = outputs.pop(name)
        outputs.update({mutation})
    return outputs
"""

MUTATIONS = {
    "constant": "{name: np.full_like(value, value.mean())}",
    "zeros": "{name: np.zeros_like(value)}",
    "dropped": "{}",
    "renamed": "{name + '_': value}",
    "one-sign": "{name: np.where(np.arange(value.size).reshape(value.shape) == 1, -value, value)}",
    "doubled": "{name: 2 * value}",
    "reversed": "{name: value[..., ::-1]}",
    "one-nan": "{name: np.where(np.arange(value.size).reshape(value.shape) == 1, np.nan, value).astype(value.dtype)}",
    "inf": "{name: np.full_like(value, np.inf)}",
    "one-off-by-1e-3": "{name: value + (np.arange(value.size).reshape(value.shape) == 1) * value.dtype.type(1e-3)}",
    "shape": "{name: value.reshape(1, *value.shape)}",
    "dtype": "{name: value.astype(np.float16)}",
}


@pytest.mark.parametrize("tensor", ["y", "grad.x", "grad.weight", "grad.bias"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_red_and_names_its_tensor(parity_run, tmp_path, mutation, tensor):
    path = tmp_path / "mutant.py"
    path.write_text(MUTANT.format(fakes=str(FAKES), tensor=tensor, mutation=MUTATIONS[mutation]))
    finished = parity_run(user_config(path))
    assert finished.code == 1
    red = {row["tensor"] for row in finished.failing()}
    assert red == ({tensor, tensor + "_"} if mutation == "renamed" else {tensor})
    assert {row["actual"] for row in finished.failing()} == {"mine"}


def test_no_mutation_is_green(parity_run, tmp_path):
    path = tmp_path / "mutant.py"
    path.write_text(MUTANT.format(fakes=str(FAKES), tensor="none", mutation="{}"))
    assert parity_run(user_config(path)).code == 0
