"""The oracle of a training's model: gradients against finite differences and PyTorch, and what every variant changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parity.cases.oracle import IN_SEQUENCE
from parity.cases.primitives import erf
from parity.diagnoses import catalogue
from parity.training.cost import CountedProducts, cost
from parity.training.model import gradients, loss_of_output
from parity.training.variants import model_variants, on
from parity.training.variants import terms as terms_of
from tests.training import torch_models
from tests.training.examples import batches, drawn, preset, training

FEATURES = {"name": "regression", "features": (5,), "targets": 2}
IMAGES = {"name": "regression", "features": (2, 6, 6), "targets": 3}
SEQUENCES = {"name": "regression", "features": (4, 6), "targets": 3}
TOKENS = {"name": "masked_lm", "vocab": 9, "sequence": 5, "masked": 0.5}
HEAD = {"linear": {"out_features": 2}}
CONV = {"conv2d": {"out_channels": 3, "kernel_size": 3, "stride": 2, "padding": 1}}
MODELS = {
    "linear": ([{"linear": {"out_features": 2}}], FEATURES),
    "no-bias": ([{"linear": {"out_features": 2, "bias": False}}], FEATURES),
    **{f: ([{"activation": f}, HEAD], FEATURES) for f in ("relu", "gelu", "tanh", "silu", "sigmoid")},
    "conv2d": ([CONV, "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "avg-pool": ([{"avg_pool2d": {"kernel_size": 3}}, "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "batch-norm": (["batch_norm", HEAD], FEATURES),
    "batch-norm-2d": ([CONV, "batch_norm", "flatten", {"linear": {"out_features": 3}}], IMAGES),
    "layer-norm": (["layer_norm", HEAD], FEATURES),
    "attention": ([{"multi_head_attention": {"num_heads": 2}}, "flatten", {"linear": {"out_features": 3}}], SEQUENCES),
    "residual": ([{"residual": [{"linear": {"out_features": 5}}, {"activation": "tanh"}]}, HEAD], FEATURES),
    "tokens": (
        [{"embedding": {"embedding_dim": 4}}, "position_embedding", {"linear": {"out_features": 9}}],
        TOKENS,
    ),
}


def model(name, **more):
    written, data = MODELS[name]
    return training(written, data, **{"batch_size": 4, "rows": 8, **more})


@pytest.mark.parametrize("name", MODELS)
def test_gradients_agree_with_finite_differences_in_longdouble(name):
    case = model(name, accumulation=2)
    tensors = {key: value.astype(np.longdouble) for key, value in drawn(case).items()}
    rows = batches(case)
    found = gradients(case, tensors, rows, dtype=np.longdouble)
    step = np.longdouble(2) ** -21
    for parameter in case.parameters:
        numeric = np.zeros(parameter.shape, np.longdouble)
        for index in np.ndindex(parameter.shape):
            sides = []
            for sign in (1, -1):
                moved = {**tensors, parameter.name: tensors[parameter.name].copy()}
                moved[parameter.name][index] += sign * step
                sides.append(gradients(case, moved, rows, dtype=np.longdouble, backward=False).loss)
            numeric[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(found.grads[parameter.name], numeric, rtol=1e-8, atol=1e-10, err_msg=parameter.name)


CASES = {**{name: lambda name=name: model(name) for name in MODELS}}
CASES |= {name: lambda name=name: preset(name) for name in ("mlp", "cnn", "bert")}
CASES |= {"accumulated": lambda: preset("bert", accumulation=4)}


@pytest.mark.parametrize("name", CASES)
def test_output_loss_gradients_and_buffers_are_those_of_pytorch(name):
    case = CASES[name]()
    values, rows = drawn(case), batches(case, dtype="float64")
    found = gradients(case, values, rows)
    trained = {p.name for p in case.parameters}
    tensors = {key: torch.tensor(value, requires_grad=key in trained) for key, value in values.items()}
    output, loss = torch_models.gradients(case, tensors, [tuple(map(torch.tensor, part)) for part in rows])
    close = {"rtol": 1e-10, "atol": 1e-13}
    np.testing.assert_allclose(found.output, output.numpy(), **close)
    np.testing.assert_allclose(found.loss, loss.numpy(), **close)
    for key, tensor in tensors.items():
        mine = found.grads[key] if key in trained else found.buffers[key]
        np.testing.assert_allclose(mine, (tensor.grad if key in trained else tensor).numpy(), **close, err_msg=key)


def test_four_micro_batches_of_8_are_one_batch_of_32_where_they_have_as_many_targets():
    many, one = (preset("bert", data={"masked": 1.0}, batch_size=32, accumulation=n) for n in (4, 1))
    tensors = drawn(one)
    found, whole = gradients(many, tensors, batches(many)), gradients(one, tensors, batches(one))
    np.testing.assert_allclose(found.output, whole.output, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.loss, whole.loss, rtol=1e-14)
    for name, grad in whole.grads.items():
        np.testing.assert_allclose(found.grads[name], grad, rtol=1e-9, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("name", ["mlp", "cnn", "bert"])
def test_sums_in_sequence_differ_by_rounding_only(name):
    case = preset(name)
    tensors, rows = drawn(case), batches(case)
    plain = gradients(case, tensors, rows, dtype="float32")
    looped = gradients(case, tensors, rows, dtype="float32", functions=IN_SEQUENCE)
    assert any(not np.array_equal(grad, looped.grads[name]) for name, grad in plain.grads.items())
    for key, grad in plain.grads.items():
        np.testing.assert_allclose(looped.grads[key], grad, rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "bert"])
def test_everything_has_the_dtype_that_was_asked_for(name, dtype):
    case = preset(name)
    found = gradients(case, drawn(case), batches(case), dtype=dtype)
    arrays = [found.output, found.loss, *found.grads.values(), *found.buffers.values()]
    assert {values.dtype for values in arrays} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_longdouble_has_digits_that_float64_lacks(name):
    case = preset(name)
    rows = batches(case)
    wide, plain, narrow = (gradients(case, drawn(case), rows, dtype=d) for d in ("longdouble", "float64", "float32"))
    errors = [float(abs(other.loss - wide.loss) / wide.loss) for other in (plain, narrow)]
    assert 0 < errors[0] < 1e-14
    assert 1e-9 < errors[1] < 1e-5


def test_nan_is_never_lost():
    case = model("relu")
    tensors = drawn(case)
    [(x, target), *_] = batches(case)
    x = x.copy()
    x[0, 0] = np.nan
    assert np.isnan(gradients(case, tensors, [(x, target)]).loss)


ERF = {0.5: "0.520499877813046537682746653891965", 2.0: "0.995322265018952734162069256367253"}


def test_erf_to_the_last_digits():
    for x, digits in ERF.items():
        assert abs(erf(np.array([x], np.longdouble))[0] / np.longdouble(digits) - 1) < 4e-19
    x = np.linspace(-8, 8, 20001)
    exact = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), exact, rtol=2e-15)
    np.testing.assert_allclose(erf(x.astype(np.float32)), exact, rtol=1e-6)
    assert np.array_equal(erf(np.array([np.inf, -np.inf])), [1.0, -1.0])
    assert np.isnan(erf(np.array([np.nan])))[0]


# Variants: what may differ in a kernel changes what the oracle says, for all layers of a kind or for one.


def arguments(variant):
    return {**variant.arguments, **variant.params, **({"absent": variant.absent} if variant.absent else {})}


def changed(found, plain):
    pairs = [(found.output, plain.output), (found.loss, plain.loss)]
    pairs += [(found.grads[n], g) for n, g in plain.grads.items()]
    pairs += [(found.buffers[n], b) for n, b in plain.buffers.items()]
    return any(not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["mlp", "cnn", "bert"])
def test_every_variant_of_a_model_changes_something(name):
    case = preset(name)
    tensors, rows = drawn(case), batches(case)
    sure = {name: 1000 * values for name, values in tensors.items()}
    both = [(given, gradients(case, given, rows)) for given in (tensors, sure)]
    ids = set()
    for key, variant in model_variants(case):
        ids.add(variant.id)
        changes = {key: arguments(variant)}
        if arguments(variant) != {"reduction": "all"} or name == "bert":
            assert any(changed(gradients(case, t, rows, variants=changes), right) for t, right in both), (key, variant)
    assert ids <= set(catalogue())


def test_a_variant_of_one_layer_leaves_the_others_alone():
    case = preset("cnn")
    tensors, rows = drawn(case), batches(case)
    first, second = (layer for layer in case.layers if layer.op == "batch_norm")
    plain = gradients(case, tensors, rows)
    found = gradients(case, tensors, rows, variants={on("batch_norm", second): {"running_ddof": 0}})
    assert np.array_equal(found.buffers[f"{first.name}.running_var"], plain.buffers[f"{first.name}.running_var"])
    assert not np.array_equal(found.buffers[f"{second.name}.running_var"], plain.buffers[f"{second.name}.running_var"])


def test_gradients_that_are_zero_have_terms_that_are_not():
    for name, zero in (("bert", "k_proj.bias"), ("cnn", "conv2d0.bias")):
        case = preset(name)
        tensors, rows = drawn(case), batches(case)
        plain, terms = (gradients(case, tensors, rows, variants=variants).grads for variants in ({}, terms_of(case)))
        [key] = [key for key in plain if key.endswith(zero)]
        assert np.abs(plain[key]).max() < 1e-15 < 1e-3 < np.abs(terms[key]).max()


def test_micro_batches_summed():
    case = preset("mlp", accumulation=4)
    tensors, rows = drawn(case), batches(case)
    plain = gradients(case, tensors, rows)
    summed = gradients(case, tensors, rows, variants={"accumulation": {"reduction": "sum"}})
    assert summed.loss == plain.loss
    for name, grad in plain.grads.items():
        np.testing.assert_allclose(summed.grads[name], 4 * grad, rtol=1e-12)


def test_ranks_share_a_micro_batch():
    case = preset("mlp", accumulation=2)
    tensors, rows = drawn(case), batches(case)
    plain = gradients(case, tensors, rows)
    mean, total, first = (
        gradients(case, tensors, rows, variants={"ranks": {"count": 2, "reduction": r}})
        for r in ("mean", "sum", "first")
    )
    lone = gradients(case, tensors, [(x[:2], target[:2]) for x, target in rows])
    for name, grad in plain.grads.items():
        np.testing.assert_allclose(mean.grads[name], grad, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(total.grads[name], 2 * grad, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(first.grads[name], lone.grads[name], rtol=1e-9, atol=1e-15)
    assert first.output.shape == plain.output.shape


def test_each_rank_has_statistics_of_its_own():
    case = preset("cnn")
    tensors, rows = drawn(case), batches(case)
    shared = gradients(case, tensors, rows, variants={"ranks": {"count": 2}})
    first = gradients(case, tensors, [(rows[0][0][:4], rows[0][1][:4])])
    assert all(np.array_equal(shared.buffers[name], values) for name, values in first.buffers.items())


def test_the_loss_of_an_output_is_that_of_the_pass():
    case = preset("bert", accumulation=4)
    rows = batches(case)
    found = gradients(case, drawn(case), rows)
    target = np.concatenate([part for _, part in rows])
    assert loss_of_output(case, found.output, target) == found.loss
    assert loss_of_output(case, found.output, target, variants={"loss": {"reduction": "sum"}}) > found.loss


def test_a_loss_without_any_target_is_nan():
    output = np.zeros((2, 3))
    case = preset("bert")
    assert np.isnan(loss_of_output(case, output, np.full(2, -100)))


def test_the_cost_grows_with_the_work():
    small, large = (cost(preset("mlp", {"hidden": (n, n)}, batch_size=8)) for n in (64, 1024))
    assert 0 < small < large / 10
    products = CountedProducts()
    assert products(np.ones((1, 5)), np.ones((5, 2))).shape == (1, 2)
    assert (products.multiplications, products.elements) == (5 * 2, 2)
