"""Every hypothesis is found by its own experiment, every transform named, and right kernels are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.exact.formats import FORMATS, on_grid, rounded
from parity.cases.oracle import IN_PAIRS, IN_SEQUENCE, evaluate
from parity.diagnoses import catalogue
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, WORK, size
from parity.judge.case import prepared
from parity.judge.diagnose.causes import standing_causes
from parity.judge.diagnose.evaluator import Alteration
from parity.judge.diagnose.expressions import expression_of
from tests.exhaustive import one_of_each
from tests.judge.judging import (
    BOTH,
    Constant,
    Integers,
    Normal,
    candidates,
    drawn,
    judged,
    kernel,
    names,
    planned,
    verdicts,
)

pytestmark = pytest.mark.slow

CASES = {
    "layer-norm": planned("layer_norm", x=(9, 4, 11), normalized_shape=(11,), eps=1e-3),
    "layer-norm-two-axes": planned("layer_norm", x=(7, 3, 5), normalized_shape=(3, 5), eps=1e-2),
    "layer-norm-offset": planned("layer_norm", x=(13, 29), normalized_shape=(29,), eps=1e-5, offset=40.0),
    "group-norm": planned("group_norm", x=(5, 6, 4, 3), num_groups=2, eps=1e-3),
    "instance-norm": planned("instance_norm", x=(4, 5, 7), eps=1e-3),
    "batch-norm": planned("batch_norm", x=(6, 5, 4), eps=1e-3, momentum=0.2),
    "batch-norm-eval": planned("batch_norm", x=(6, 5), training=False, eps=1e-3),
    "linear-square": planned("linear", x=(8, 6), out_features=6),
    "linear": planned("linear", x=(8, 6), out_features=3),
    "clip": planned("clip_grad_norm", ("float64",), grads_0=(4, 3), grads_1=(5,), max_norm=1.0),
    "clip-below": planned("clip_grad_norm", ("float64",), grads_0=(4, 3), grads_1=(5,), max_norm=100.0),
    "sgd": planned("sgd", param=(9, 7), lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd-first": planned("sgd", param=(9, 7), lr=0.1, momentum=0.9, dampening=0.3, step=1),
    "adam": planned("adam", param=(9, 7), lr=0.1, betas=(0.8, 0.97), eps=0.01, weight_decay=0.1, step=3),
    "adamw": planned("adamw", param=(9, 7), lr=0.1, betas=(0.8, 0.97), eps=0.01, weight_decay=0.1, step=3),
    "lamb": planned("lamb", param=(9, 7), lr=0.1, betas=(0.8, 0.97), eps=0.01, weight_decay=0.1, step=3),
    "lamb-without-decay": planned("lamb", param=(31, 7), lr=0.1, betas=(0.8, 0.97), eps=0.01, weight_decay=0.0),
    "rmsprop": planned("rmsprop", param=(9, 7), eps=0.01, momentum=0.9, weight_decay=0.1),
    "adagrad": planned("adagrad", param=(9, 7), eps=0.01, weight_decay=0.1, lr_decay=0.1, step=3),
    "leaky-relu": planned("leaky_relu", x=(9, 7), negative_slope=0.1),
    "softplus": planned("softplus", x=(9, 7), beta=2.0, threshold=3.0),
    "hardsigmoid": planned("hardsigmoid", x=(9, 7)),
    "selu": planned("selu", ("float64",), x=(9, 7)),
    "round": planned("round", x=(9, 7)),
    "remainder": planned("remainder", x=(9, 7)),
    "fmod": planned("fmod", x=(9, 7)),
    "sum": planned("sum", x=(6, 6), dim=1),
    "logsumexp": planned("logsumexp", x=(6, 5), dim=1),
    "prod": planned("prod", draws={"x": Integers(-1, 3)}, x=(6, 5), dim=1),
    "std": planned("std", x=(6, 5), dim=1),
    "vector-norm": planned("vector_norm", x=(6, 5), dim=1),
    "argmax": planned("argmax", draws={"x": Integers(0, 3)}, x=(6, 8), dim=1),
    "cumsum": planned("cumsum", x=(6, 5), dim=1),
    "conv": planned("conv1d", x=(2, 4, 9), weight=(6, 2, 3), stride=2, padding=2, dilation=2, groups=2),
    "conv-transpose": planned("conv_transpose1d", x=(2, 4, 5), weight=(4, 4, 3), stride=2, padding=1),
    "max-pool": planned("max_pool1d", x=(3, 3, 9), kernel_size=3, stride=2, padding=1),
    "avg-pool": planned("avg_pool1d", x=(2, 3, 8), kernel_size=3, stride=2, padding=1, ceil_mode=True),
    "adaptive-pool": planned("adaptive_avg_pool1d", x=(2, 3, 11), output_size=4),
    "nearest": planned("interpolate", x=(2, 3, 5, 7), scale_factor=1.7),
    "bicubic": planned("interpolate", x=(2, 3, 5, 7), size=8, mode="bicubic"),
    "grid-sample": planned("grid_sample", x=(2, 3, 5, 6)),
    "sort": planned("sort", x=(4, 9)),
    "clip-value": planned("clip_grad_value", grads_0=(4, 3), grads_1=(5,), clip_value=0.5),
}
VARIANTS = [
    pytest.param(
        case,
        variant,
        id=f"{name}-{variant.id}-{'-'.join(map(str, [*variant.arguments.values(), *variant.params.values(), *variant.absent]))}",
    )
    for name, case in CASES.items()
    for variant in OPS[case.op].variants(
        case.params, {p.name: p.shape for p in case.tensors if not p.name.startswith("grad.")}
    )
]


def test_every_id_is_known():
    assert {variant.values[1].id for variant in VARIANTS} <= set(catalogue())
    assert {fit.id for op in OPS.values() for fit in op.fits} <= set(catalogue())


def visible(case, variant, dtype) -> bool:
    """Whether the variant moves some tensor by far more than any rounding could."""
    inputs = drawn(case)
    right, wrong = (kernel(case, inputs, WORK[dtype], k) for k in (None, variant))
    limit = 1e4 * UNIT_ROUNDOFF[dtype]
    return any(
        size(np.asarray(wrong[n] - right[n])).rms > limit * size(right[n]).rms for n in wrong if size(right[n]).rms
    )


@pytest.mark.parametrize(("case", "variant"), one_of_each(lambda _, variant: variant.id, VARIANTS))
def test_every_variant_is_named_by_its_own_experiment(case, variant):
    found = judged(case, lambda inputs, dtype: kernel(case, inputs, dtype, variant))
    for dtype in case.dtypes:
        if not variant.unstable and visible(case, variant, dtype):
            assert variant.id in candidates(found, dtype), (dtype, [(d.id, d.evidence) for d in found.diagnoses])
            assert "semantic" in verdicts(found, dtype).values() or dtype == "float64"
        assert set(names(found, dtype)) <= {variant.id, "not-identifiable"} | candidates(found, dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_oracles_own_lines_are_clean(case):
    for looped in (False, True):

        def make(inputs, dtype, looped=looped):
            return kernel(case, inputs, dtype, functions=IN_SEQUENCE if looped else IN_PAIRS)

        found = judged(case, make)
        assert not any(c.culprit for c in found.comparisons)
        assert all(names(found, dtype) == [] for dtype in case.dtypes)


NORM = planned("layer_norm", x=(9, 14), normalized_shape=(14,))
SQUARE = planned("linear", x=(8, 6), out_features=6)
TALL = planned("linear", x=(8, 6), out_features=3)

CHANGES = {
    "swapped": (
        NORM,
        "swapped-gradients",
        lambda t: {**t, "grad.weight": t["grad.bias"], "grad.bias": t["grad.weight"]},
    ),
    "bias-gradient-twice": (NORM, "swapped-gradients", lambda t: {**t, "grad.weight": t["grad.bias"]}),
    "output-and-gradient": (NORM, "swapped-outputs", lambda t: {**t, "y": t["grad.x"], "grad.x": t["y"]}),
    "negated": (NORM, "sign-flipped", lambda t: {**t, "grad.x": -t["grad.x"]}),
    "doubled": (NORM, "scaled", lambda t: {**t, "grad.weight": 2 * t["grad.weight"]}),
    "odd-factor": (NORM, "scaled", lambda t: {**t, "grad.x": t["grad.x"] * t["grad.x"].dtype.type(0.83)}),
    "mean": (NORM, "mean-vs-sum", lambda t: {**t, "grad.bias": t["grad.bias"] / t["grad.bias"].dtype.type(9)}),
    "zero": (NORM, "missing-gradient", lambda t: {**t, "grad.x": 0 * t["grad.x"]}),
    "gone": (NORM, "missing-gradient", lambda t: {n: v for n, v in t.items() if n != "grad.weight"}),
    "no-output": (NORM, "missing-output", lambda t: {**t, "y": 0 * t["y"]}),
    "rolled": (NORM, "shifted", lambda t: {**t, "grad.weight": np.roll(t["grad.weight"], 1)}),
    "rolled-far": (NORM, "shifted", lambda t: {**t, "y": np.roll(t["y"], 17)}),
    "reversed": (NORM, "permuted-axes", lambda t: {**t, "y": t["y"][:, ::-1]}),
    "shuffled": (
        NORM,
        "permuted-elements",
        lambda t: {**t, "grad.weight": t["grad.weight"][np.random.default_rng(1).permutation(14)]},
    ),
    "transposed": (SQUARE, "transposed", lambda t: {**t, "grad.weight": t["grad.weight"].T}),
    "transposed-shape": (TALL, "transposed", lambda t: {**t, "grad.weight": t["grad.weight"].T}),
    "read-in-the-other-order": (
        TALL,
        "permuted-axes",
        lambda t: {**t, "grad.weight": t["grad.weight"].T.reshape(3, 6)},
    ),
    "one-row": (NORM, "localized", lambda t: {**t, "y": t["y"] + (np.arange(9) == 3)[:, None].astype(t["y"].dtype)}),
    "last-columns": (NORM, "localized", lambda t: {**t, "y": t["y"] * (np.arange(14) < 12).astype(t["y"].dtype)}),
    "bfloat16-result": (SQUARE, "reduced-precision", lambda t: {**t, "y": rounded(t["y"], FORMATS["bfloat16"])}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_transform_is_named(change):
    case, expected, function = CHANGES[change]
    found = judged(case, lambda inputs, dtype: function(kernel(case, inputs, dtype)))
    for dtype in BOTH:
        assert names(found, dtype)[0] == expected, [(d.id, d.evidence) for d in found.diagnoses]
        first = next(d for d in found.diagnoses if d.dtype == dtype and d.id == expected)
        assert first.explained
        assert first.residual_before > ERROR_BOUND > first.residual_after
        assert expected == "localized" or "where the reference has" in first.evidence["expression"]


EXPRESSIONS = {
    "negated": "grad.x = -(",
    "doubled": "grad.weight = 2 * sum(",
    "mean": "grad.bias = 1/9 * sum(grad.y, axis=0) (1/9: a mean over ",
    "zero": "grad.x = 0, where the reference has ",
    "gone": "grad.weight = nothing, where the reference has ",
    "swapped": "grad.weight = sum(grad.y, axis=0), where the reference has sum(",
    "rolled": "grad.weight = roll(sum(",
    "reversed": "y = flip(",
    "transposed": "grad.weight = transpose(",
    "bfloat16-result": "y = rounded_to(",
}


@pytest.mark.parametrize("change", EXPRESSIONS)
def test_a_transform_is_an_expression_of_the_references(change):
    case, expected, function = CHANGES[change]
    found = judged(case, lambda inputs, dtype: function(kernel(case, inputs, dtype)))
    for dtype in BOTH:
        [first] = [d for d in found.diagnoses if d.dtype == dtype and d.id == expected]
        assert first.evidence["expression"].startswith(EXPRESSIONS[change])


def test_numbers_and_operands_of_a_lower_precision_are_expressions():
    case = planned("layer_norm", x=(9, 14), normalized_shape=(14,), eps=1e-5)
    inputs, dtype = drawn(case), "float64"
    evaluator = prepared(case, dtype, inputs)
    told = [expression_of(evaluator, cause, Alteration()) for cause in standing_causes(evaluator)]
    assert "eps = 9.999999747378752e-06, where the reference has 1e-05" in told
    assert any(text.startswith("rounded_to(x, bfloat16), rounded_to(weight, bfloat16)") for text in told)
    assert all(told)


def test_an_ignored_option_explains_another_shape_and_the_gradients_that_it_lacks():
    case = planned("conv1d", x=(2, 3, 9), weight=(4, 3, 3), dilation=2)
    plain = replace(case.params, dilation=1)

    def make(inputs, dtype):
        return evaluate(OPS["conv1d"], plain, {n: v for n, v in inputs.items() if n != "grad.y"}, dtype=dtype)

    found = judged(case, make)
    assert [names(found, dtype) for dtype in BOTH] == [["option-ignored"]] * 2
    other = judged(case, lambda inputs, dtype: {"y": np.cos(make(inputs, dtype)["y"])})
    assert all("unexplained" in names(other, dtype) for dtype in BOTH)


def test_a_transform_and_a_variant_together():
    variant = next(k for k in OPS["layer_norm"].variants(NORM.params, {"x": (9, 14)}) if k.id == "variance-ddof")
    swap = CHANGES["swapped"][2]
    found = judged(NORM, lambda inputs, dtype: swap(kernel(NORM, inputs, dtype, variant)))
    for dtype in BOTH:
        assert set(names(found, dtype)) == {"swapped-gradients", "variance-ddof"}


def test_a_forward_pass_can_be_wrong_beside_a_right_backward_pass():
    variant = next(k for k in OPS["layer_norm"].variants(NORM.params, {"x": (9, 14)}) if k.id == "variance-ddof")
    found = judged(
        NORM, lambda inputs, dtype: {**kernel(NORM, inputs, dtype), "y": kernel(NORM, inputs, dtype, variant)["y"]}
    )
    assert names(found, "float64") == ["variance-ddof"]
    assert [d.tensors for d in found.diagnoses if d.dtype == "float64"] == [("y",)]


def test_an_unusual_epsilon_is_fitted():
    odd = planned("layer_norm", x=(9, 14), normalized_shape=(14,), eps=1e-3)

    def make(inputs, dtype):
        return evaluate(OPS["layer_norm"], OPS["layer_norm"].params((14,), eps=0.0437), inputs, dtype=dtype)

    found = judged(odd, make)
    for dtype in BOTH:
        assert names(found, dtype) == ["eps-value"]
    fitted = next(d.evidence["parameters"]["eps"] for d in found.diagnoses if d.dtype == "float64")
    assert fitted == pytest.approx(0.0437, rel=1e-9)


def naive(case, inputs, dtype):
    return evaluate(OPS[case.op], case.params, inputs, dtype=dtype, variance="naive")


@pytest.mark.parametrize("offset", [30.0, 400.0])
def test_a_naive_variance_is_unstable(offset):
    case = planned("layer_norm", x=(9, 64), normalized_shape=(64,), offset=offset)
    found = judged(case, lambda inputs, dtype: naive(case, inputs, dtype))
    for dtype in BOTH:
        assert names(found, dtype) == ["variance-naive"]
    assert verdicts(found, "float32")["y"] == "unstable"
    [row] = [d for d in found.diagnoses if d.dtype == "float32" and d.id == "variance-naive"]
    assert 0.02 <= row.evidence["parameters"]["variance_error_over_u_mean_square"] <= 4 * 64


def test_a_variance_that_came_out_as_nan_is_known_by_what_such_code_loses():
    case = planned("layer_norm", x=(40, 64), normalized_shape=(64,), offset=20000.0)
    found = judged(case, lambda inputs, dtype: naive(case, inputs, dtype))
    assert verdicts(found, "float32")["y"] == "nonfinite"
    assert names(found, "float32") == ["variance-naive"]
    [row] = [d for d in found.diagnoses if d.dtype == "float32" and d.id == "variance-naive"]
    sizes = row.evidence["sizes"]["y"]
    assert sizes["error"] > 4 * sizes["careful_code"]
    assert sizes["this_algorithm"] > 4 * sizes["careful_code"]


def test_a_float32_epsilon_in_float64_is_degraded():
    case = planned("layer_norm", x=(9, 14), normalized_shape=(14,), eps=1e-2)
    params = OPS["layer_norm"].params((14,), eps=float(np.float32(1e-2)))
    found = judged(case, lambda inputs, dtype: evaluate(OPS["layer_norm"], params, inputs, dtype=dtype))
    assert names(found, "float32") == []
    assert names(found, "float64") == ["attribute-precision"]
    hidden = [c for c in found.comparisons if c.dtype == "float64" and c.culprit]
    assert hidden
    assert all(c.suspect if c.verdict.passes else c.verdict.value == "degraded" for c in hidden)


def test_a_float64_op_computed_in_float32_is_degraded():
    case = planned("layer_norm", x=(9, 14), normalized_shape=(14,))
    found = judged(case, lambda inputs, dtype: {n: v.astype(dtype) for n, v in kernel(case, inputs, "float32").items()})
    assert names(found, "float64") == ["reduced-precision"]
    assert set(verdicts(found, "float64").values()) <= {"degraded", "close"}
    assert names(found, "float32") == []


def test_operands_in_bfloat16_are_named_by_the_oracle_with_such_operands():
    case = planned("linear", x=(8, 40), out_features=5)

    def make(inputs, dtype):
        coarse = {n: rounded(v, FORMATS["bfloat16"]) for n, v in inputs.items() if n != "bias"}
        return kernel(case, {**inputs, **coarse, "bias": rounded(inputs["bias"], FORMATS["bfloat16"])}, dtype)

    found = judged(case, make)
    for dtype in BOTH:
        assert names(found, dtype) == ["reduced-precision"]
        first = next(d for d in found.diagnoses if d.dtype == dtype and d.id == "reduced-precision")
        assert first.evidence["parameters"]["format"] == "bfloat16"


def test_a_strict_tolerance_makes_rounding_and_no_culprit():
    from parity.config.tolerances import ToleranceRule

    case = planned("linear", x=(8, 300), out_features=5)
    strict = case.tolerance.extended(
        [ToleranceRule(rtol=0.0, atol=0.0), ToleranceRule(tensor="grad.*", rtol=0.0, atol=0.0)]
    )
    case = type(case)(**{**case.__dict__, "tolerance": strict})
    found = judged(case, lambda inputs, dtype: kernel(case, inputs, dtype))
    for dtype in BOTH:
        assert set(verdicts(found, dtype).values()) <= {"rounding", "equal"}
        assert "rounding" in verdicts(found, dtype).values()
    assert not any(c.culprit for c in found.comparisons)
    rows = [d for d in found.diagnoses if d.id == "rounding"]
    assert rows
    assert all(d.explained and d.evidence["required_rtol"] for d in rows)


def test_a_gradient_that_is_exactly_zero_is_degenerate():
    pair = planned(
        "layer_norm",
        draws={"x": Normal(1.8, 0.01), "weight": Constant(1.0), "grad.y": Constant(1.0)},
        x=(1, 2),
        normalized_shape=(2,),
    )
    noise = {"float32": np.float32(-1.4e-3), "float64": np.float64(-1e-6)}

    def make(inputs, dtype):
        outputs = kernel(pair, inputs, dtype)
        return {
            **outputs,
            "grad.x": np.array([[1, -1]], dtype) * noise[dtype] * np.dtype(dtype).type(dtype == "float32"),
        }

    found = judged(pair, make)
    rows = [d for d in found.diagnoses if d.id == "degenerate-gradient"]
    assert [(d.dtype, d.tensors) for d in rows] == [("float32", ("grad.x",))]
    assert verdicts(found, "float32")["grad.x"] == "rounding"


def test_a_large_gradient_is_no_noise_where_zero_is_right():
    case = planned(
        "layer_norm", draws={"weight": Constant(1.0), "grad.y": Constant(1.0)}, x=(6, 9), normalized_shape=(9,)
    )
    detached = next(k for k in OPS["layer_norm"].variants(case.params, {"x": (6, 9)}) if k.id == "detached-statistics")
    found = judged(case, lambda inputs, dtype: kernel(case, inputs, dtype, detached))
    for dtype in BOTH:
        assert "detached-statistics" in candidates(found, dtype)
        assert verdicts(found, dtype)["grad.x"] == "semantic"


def test_what_the_data_cannot_tell_is_not_named_with_confidence():
    """Two rows: twice the sum is a doubled gradient as well as a sum where a mean belongs."""
    case = planned("layer_norm", x=(2, 9), normalized_shape=(9,))
    found = judged(case, lambda inputs, dtype: (t := kernel(case, inputs, dtype)) | {"grad.bias": 2 * t["grad.bias"]})
    for dtype in BOTH:
        assert names(found, dtype)[0] == "not-identifiable"
        assert {"scaled", "mean-vs-sum"} <= candidates(found, dtype)


def test_noise_is_unexplained():
    case = planned("layer_norm", x=(9, 14), normalized_shape=(14,))
    rng = np.random.default_rng(3)

    def make(inputs, dtype):
        outputs = kernel(case, inputs, dtype)
        return {**outputs, "y": outputs["y"] * (1 + 1e-2 * rng.standard_normal((9, 14))).astype(dtype)}

    found = judged(case, make)
    for dtype in BOTH:
        assert names(found, dtype) == ["unexplained"]
        assert not next(d for d in found.diagnoses if d.id == "unexplained").explained


def test_only_float32_is_judged_by_what_a_formula_leaves_and_by_size():
    case = planned("layer_norm", ("float32",), x=(9, 64), normalized_shape=(64,), offset=100.0)
    assert verdicts(judged(case, lambda i, d: naive(case, i, d)), "float32")["y"] == "unstable"
    variant = next(k for k in OPS["layer_norm"].variants(case.params, {"x": (9, 64)}) if k.id == "variance-ddof")
    assert verdicts(judged(case, lambda i, d: kernel(case, i, d, variant)), "float32")["y"] == "semantic"


def test_rounding_to_a_format():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-9, -3.14159, 0.0, np.inf, 1e-45])
    assert rounded(values, FORMATS["bfloat16"]).tolist()[:3] == [1.0, 1.0, 1 + 2.0**-7]
    assert np.array_equal(rounded(values, FORMATS["float32"])[:6], values.astype(np.float32)[:6].astype(np.float64))
    assert np.array_equal(
        rounded(np.float64([70000.0, 6.1e-5, 6e-8]), FORMATS["float16"])[1:],
        np.float16([6.1e-5, 6e-8]).astype(np.float64),
    )
    assert on_grid(np.float16([0.1, 3.3]).astype(np.float64), FORMATS["float16"])
    assert not on_grid(np.array([0.1]), FORMATS["float16"])


def test_a_mean_that_leaves_elements_out_is_not_explained_by_things_that_were_fitted():
    case = planned("layer_norm", x=(9, 96), normalized_shape=(96,), offset=100.0)

    def make(inputs, dtype):
        part = inputs["x"][:, :-3].astype(dtype).sum(-1, keepdims=True) / np.dtype(dtype).type(96)
        error = part - inputs["x"].astype(dtype).mean(-1, keepdims=True)
        return evaluate(OPS["layer_norm"], case.params, inputs, dtype=dtype, errors=(error, 0 * error))

    found = judged(case, make)
    for dtype in BOTH:
        assert not any(d.explained for d in found.diagnoses if d.dtype == dtype and d.id != "rounding")
