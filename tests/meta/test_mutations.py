"""The comparator must reject: every mutation of honest outputs turns its case red, in the mutated tensor only."""

from __future__ import annotations

from itertools import product

import pytest

from tests.conftest import FAKES, Finished, run_in, user_config, without_searches

MUTANT = """
import sys
sys.path.append({fakes!r})
import numpy as np
import honest


def layer_norm(x, weight, bias, normalized_shape, eps):
    return spoil({{"y": honest.layer_norm(x, weight, bias, normalized_shape, eps)}}, x)


def layer_norm_backward(grad_y, x, weight, eps):
    honest_gradients = honest.layer_norm_backward(grad_y, x, weight, eps)
    return spoil({{f"grad.{{name}}": value for name, value in honest_gradients.items()}}, x)


MUTATIONS = {mutations!r}


def spoil(outputs, x):
    name, mutation = MUTATIONS.get(x.shape[-1], ("", ""))
    if name in outputs:
        value = outputs.pop(name)
        outputs.update(eval(mutation, {{"np": np, "name": name, "value": value}}))
    return outputs
"""
"""The last axis says which tensor is spoiled, and how."""

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


TENSORS = ("y", "grad.x", "grad.weight", "grad.bias")
SIZES = {6 + i: pair for i, pair in enumerate(product(MUTATIONS, TENSORS))}


def case(name: str, size: int) -> str:
    return (
        f"{{id: {name}, op: layer_norm, params: {{normalized_shape: [{size}]}}, inputs: {{x: {{shape: [4, {size}]}}}}}}"
    )


def mutated(folder, *cases: str) -> Finished:
    """A run of an op that spoils what the sizes of its cases ask for."""
    by_size = {size: (tensor, MUTATIONS[mutation]) for size, (mutation, tensor) in SIZES.items()}
    (folder / "mutant.py").write_text(MUTANT.format(fakes=str(FAKES), mutations=by_size))
    with without_searches():
        return run_in(folder, user_config(folder / "mutant.py", cases=cases), "--dtype", "float32")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
    """All mutations, and one case that is left alone."""
    cases = [case(f"{mutation}-{tensor}", size) for size, (mutation, tensor) in SIZES.items()]
    return mutated(tmp_path_factory.mktemp("mutations"), case("honest", 5), *cases)


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_red_and_names_its_tensor(finished, mutation, tensor):
    rows = finished.failing(case=f"{mutation}-{tensor}")
    assert {row["tensor"] for row in rows} == ({tensor, tensor + "_"} if mutation == "renamed" else {tensor})
    assert {row["actual"] for row in rows} == {"mine"}


def test_a_case_beside_them_is_green(finished):
    assert finished.select(case="honest")
    assert finished.failing(case="honest") == []


def test_one_mutation_fails_a_run_and_none_does_not(tmp_path):
    size = next(size for size, pair in SIZES.items() if pair == ("one-off-by-1e-3", "grad.bias"))
    assert mutated(tmp_path, case("honest", 5)).code == 0
    (tmp_path / "second").mkdir()
    assert mutated(tmp_path / "second", case("honest", 5), case("spoiled", size)).code == 1
