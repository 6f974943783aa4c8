"""The envelope: careful code of every kind stays inside, planted faults stand outside (NumPy, LayerNorm 17 x 48)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.cases.attention import AttentionParams
from parity.cases.draw import Normal, TensorPlan, Uniform
from parity.cases.dtypes import as_dtype
from parity.cases.elementwise import GeluParams, NoParams
from parity.cases.embedding import EmbeddingParams
from parity.cases.matmul import LinearParams
from parity.cases.norm import LayerNormParams
from parity.cases.oracle import IN_SEQUENCE, evaluate
from parity.cases.primitives import ERF
from parity.config import load_plan
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.bound.envelope import ERROR_BOUND, Envelope, Size, envelope_of, envelopes, error_ratio, size
from parity.judge.bound.groups import Spread
from parity.judge.case import Cell
from parity.judge.compare.cell import ORACLE, consult_oracle
from parity.outcome import CellOutcome, Outcome, Output
from tests.conftest import CONFIGS
from tests.judge.judging import drawn, planned

N, WIDTH = 17, 48


def case_at(offset: float) -> tuple[CasePlan, dict]:
    tensors = (
        TensorPlan("x", (N, WIDTH), Normal(0, 0.7), offset=offset),
        TensorPlan("weight", (WIDTH,), Uniform(0.5, 1.5)),
        TensorPlan("bias", (WIDTH,), Uniform(-1, 1)),
        TensorPlan("grad.y", (N, WIDTH), Normal()),
    )
    case = CasePlan(
        f"offset-{offset}",
        "layer_norm",
        LayerNormParams((WIDTH,)),
        ("float32", "float64"),
        tensors,
        DEFAULT_TOLERANCES,
        WrittenAt("", 0),
    )
    return case, {plan.name: plan.sample(0, case.id, "float32") for plan in tensors}


def two_pass(x, dtype):
    mean = x.mean(-1, keepdims=True, dtype=dtype)
    return mean, ((x - mean) ** 2).mean(-1, keepdims=True, dtype=dtype)


def welford(x, dtype):
    mean, m2 = np.zeros((len(x), 1), dtype), np.zeros((len(x), 1), dtype)
    for i in range(x.shape[1]):
        delta = x[:, i : i + 1] - mean
        mean = mean + delta / dtype(i + 1)
        m2 = m2 + delta * (x[:, i : i + 1] - mean)
    return mean, m2 / dtype(x.shape[1])


def blocked(x, dtype):
    mean = x.reshape(len(x), 8, -1).sum(-1, dtype=dtype).sum(-1, keepdims=True) / dtype(x.shape[1])
    return mean, ((x - mean) ** 2).reshape(len(x), 8, -1).sum(-1).sum(-1, keepdims=True) / dtype(x.shape[1])


def double(x, dtype):
    return tuple(part.astype(dtype) for part in two_pass(x.astype(np.float64), np.float64))


def naive(x, dtype):
    mean = x.mean(-1, keepdims=True, dtype=dtype)
    return mean, (x * x).mean(-1, keepdims=True, dtype=dtype) - mean * mean


def unbiased(x, dtype):
    mean, var = two_pass(x, dtype)
    return mean, var * dtype(WIDTH / (WIDTH - 1))


def ratio_of(statistics, offset, dtype):
    case, inputs = case_at(offset)
    oracle = consult_oracle(case, inputs)
    x, weight, bias = (inputs[name].astype(dtype) for name in ("x", "weight", "bias"))
    mean, var = statistics(x, dtype)
    y = (x - mean) / np.sqrt(var + dtype(1e-5)) * weight + bias
    return error_ratio(y, oracle["y"], envelopes(case, np.dtype(dtype).name, inputs, oracle)["y"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 30.0, 700.0])
@pytest.mark.parametrize("statistics", [two_pass, welford, blocked, double])
def test_careful_code_stays_inside(statistics, offset, dtype):
    assert ratio_of(statistics, offset, dtype) < ERROR_BOUND / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("statistics", "offset"), [(naive, 30.0), (naive, 700.0), (unbiased, 0.0), (unbiased, 30.0)])
def test_planted_faults_stand_outside(statistics, offset, dtype):
    assert ratio_of(statistics, offset, dtype) >= ERROR_BOUND


def test_a_naive_variance_cannot_be_seen_without_an_offset():
    assert ratio_of(naive, 0.0, np.float32) < ERROR_BOUND


def test_a_long_sum_in_sequence_is_careful_code():
    """dbias over many rows: NumPy's blocks and a plain loop differ by far more than a unit roundoff."""
    n = 100_000
    tensors = (TensorPlan("x", (n, 1), Normal()), TensorPlan("grad.y", (n, 1), Uniform()))
    case = CasePlan(
        "long", "layer_norm", LayerNormParams((1,)), ("float32",), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0)
    )
    inputs = {plan.name: plan.sample(0, "long", "float32") for plan in tensors} | {"bias": np.zeros(1, np.float32)}
    oracle = consult_oracle(case, inputs)
    looped = np.cumsum(inputs["grad.y"].ravel(), dtype=np.float32)[-1:]
    envelope = envelopes(case, "float32", inputs, oracle)["grad.bias"]
    assert error_ratio(looped, oracle["grad.bias"], envelope) < ERROR_BOUND / 2
    assert abs(float(looped[0]) - float(oracle["grad.bias"][0])) > 8 * 2.0**-24 * n / 2


def test_sums_in_sequence_are_of_one_run_only():
    case, inputs = case_at(0.0)
    before = evaluate_in_float32(case, inputs)
    inside = evaluate_in_float32(case, inputs, functions=IN_SEQUENCE)
    assert np.array_equal(before, evaluate_in_float32(case, inputs))
    assert not np.array_equal(before, inside)


def evaluate_in_float32(case, inputs, **how):
    from parity.cases import OPS

    return evaluate(OPS[case.op], case.params, inputs, dtype=np.float32, **how)["grad.x"]


def test_sizes():
    assert size(np.array([3.0, -4.0, np.nan, np.inf])) == Size(pytest.approx((25 / 2) ** 0.5), 4.0)
    assert size(np.array([])) == Size(0.0, 0.0)
    assert size(np.array([1e-320, 0.0])).rms > 0


def test_where_there_is_no_scale_only_the_exact_answer_is_right():
    assert error_ratio(np.array([1e-9]), np.zeros(1, np.longdouble), Envelope(0.0, 0.0)) == np.inf
    assert error_ratio(np.array([0.0]), np.zeros(1, np.longdouble), Envelope(0.0, 0.0)) == 0
    assert error_ratio(np.array([np.nan]), np.zeros(1, np.longdouble), Envelope(1.0, 1.0)) == np.inf


def test_where_a_careful_implementation_overflows_no_backend_is_wrong():
    tensors = (
        TensorPlan("x", (2, 3), Normal()),
        TensorPlan("weight", (1, 3), Normal()),
        TensorPlan("grad.y", (2, 1), Normal()),
    )
    case = CasePlan("over", "linear", LinearParams(), ("float32",), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0))
    inputs = {
        "x": np.full((2, 3), 1e25, np.float32),
        "weight": np.full((1, 3), 1e25, np.float32),
        "grad.y": np.ones((2, 1), np.float32),
    }
    oracle = consult_oracle(case, inputs)
    envelope = envelopes(case, "float32", inputs, oracle)["y"]
    assert envelope.excused is not None
    assert envelope.excused.all()
    assert error_ratio(np.full((2, 1), np.inf, np.float32), oracle["y"], envelope) == 0


def ill_conditioned_row(dtype):
    """LayerNorm of rows around 0 and one around 1e5: the case, its inputs, and careful values in `dtype`."""
    case, inputs = case_at(0.0)
    inputs = {**inputs, "x": inputs["x"].copy()}
    inputs["x"][0] += 1e5
    x, weight, bias = (inputs[name].astype(dtype) for name in ("x", "weight", "bias"))
    mean, var = blocked(x, dtype)
    return case, inputs, (x - mean) / np.sqrt(var + dtype(1e-5)) * weight + bias


def test_an_ill_conditioned_row_does_not_excuse_another_one():
    case, inputs, values = ill_conditioned_row(np.float32)
    oracle = consult_oracle(case, inputs)
    envelope = envelopes(case, "float32", inputs, oracle)["y"]
    assert error_ratio(values, oracle["y"], envelope) < ERROR_BOUND / 2
    off = values.copy()
    off[5] += np.float32(1e-4)
    assert error_ratio(off, oracle["y"], Envelope(envelope.rms, envelope.max)) < 1
    assert error_ratio(off, oracle["y"], envelope) > 10 * ERROR_BOUND


@pytest.mark.parametrize("shape", [(40,), (6, 8), (3, 4, 5), (2, 3, 4, 5)])
def test_groups_are_the_slices_of_a_tensor(shape):
    rng = np.random.default_rng(0)
    index = (1,) * max(1, len(shape) - 1)
    true = np.ones(shape)
    true[index] = 1e4
    runs = [np.abs(true * rng.standard_normal(shape)) for _ in range(12)]
    spread = Spread(shape)
    for errors in runs:
        spread.add(errors)
    exact, finite = np.zeros(shape, np.longdouble), np.ones(shape, np.bool_)
    envelope = envelope_of(np.max(runs, axis=0), exact, finite, spread.inflation)
    healthy = [error_ratio(true * rng.standard_normal(shape), exact, envelope) for _ in range(200)]
    assert max(healthy) < ERROR_BOUND
    off = rng.standard_normal(shape)
    off[(0,) * len(shape)] = 1e3
    assert error_ratio(off, exact, Envelope(envelope.rms, envelope.max)) < 1
    assert error_ratio(off, exact, envelope) >= ERROR_BOUND


def test_a_group_in_which_the_reference_is_exact_gives_no_scale():
    errors = np.ones((4, 5))
    errors[2] = 0
    envelope = envelope_of(errors, np.ones((4, 5)), np.ones((4, 5), np.bool_), {(0,): 1.0, (1,): 1.0})
    assert error_ratio(np.ones((4, 5)) * 2, np.ones((4, 5)), envelope) < 2


def test_joined_and_scaled_envelopes_keep_their_groups():
    values = np.array([[1e6, 1e6], [1.0, 2.0]])
    envelope = Envelope.relative(1e-3, values).scaled(2).joined(Envelope(1e-6, 1e-6))
    off = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert error_ratio(values + off, values, envelope) == pytest.approx(1 / (2e-3 * 2.5**0.5), rel=0.5)


def float16_rows(values):
    """LayerNorm of rows whose squares do not fit float16, in which a kernel's y is `values(y)`."""
    case, inputs = case_at(0.0)
    inputs = {name: values.astype(np.float16) for name, values in inputs.items()}
    inputs["x"] = (inputs["x"].astype(np.float64) * 400).astype(np.float16)
    oracle = consult_oracle(case, inputs)
    y = oracle["y"].astype(np.float32)
    return error_ratio(values(y).astype(np.float16), oracle["y"], envelopes(case, "float16", inputs, oracle)["y"])


def test_a_reference_that_overflows_in_a_narrow_type_excuses_no_backend():
    assert float16_rows(lambda y: y) < 2
    assert float16_rows(lambda y: y * np.float32(1.05)) >= ERROR_BOUND
    assert float16_rows(lambda y: np.where(np.arange(WIDTH) == 7, np.inf, y)) == np.inf


def linear_sums(dtype, offset, start):
    """A linear kernel that sums in sequence, from the bias or from zero: its error ratio in y."""
    rng = np.random.default_rng(0)
    shapes = {"x": (6, 900), "weight": (5, 900), "bias": (5,), "grad.y": (6, 5)}
    tensors = tuple(TensorPlan(name, shape, Normal()) for name, shape in shapes.items())
    case = CasePlan("gemm", "linear", LinearParams(), (dtype,), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0))
    inputs = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    inputs["bias"] += np.float32(offset)
    oracle = consult_oracle(case, inputs)
    x, weight, bias = (inputs[name].astype(dtype) for name in ("x", "weight", "bias"))
    y = np.zeros((6, 5), dtype) + (bias if start else 0)
    for k in range(900):
        y += x[:, k : k + 1] * weight[:, k]
    return error_ratio(y if start else y + bias, oracle["y"], envelopes(case, dtype, inputs, oracle)["y"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("start", [True, False])
def test_a_product_that_starts_from_the_bias_is_careful_code(dtype, start):
    assert linear_sums(dtype, 3e4, start) < ERROR_BOUND / 2


def activation(op, x, dtype, slope):
    """The error ratio in grad.x of an activation whose derivative is slope(x), of one row of equal elements."""
    tensors = tuple(TensorPlan(name, (1, 5), Normal()) for name in ("x", "grad.y"))
    params = GeluParams("tanh") if op == "gelu" else NoParams()
    case = CasePlan(f"{op}{x}", op, params, ("float32", "float64"), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0))
    inputs = {"x": np.full((1, 5), x, np.float32), "grad.y": np.ones((1, 5), np.float32)}
    oracle = consult_oracle(case, inputs)
    values = slope(inputs["x"].astype(dtype)).astype(dtype)
    return error_ratio(values, oracle["grad.x"], envelopes(case, np.dtype(dtype).name, inputs, oracle)["grad.x"])


def gelu_by_sigmoid(x):
    kind = x.dtype.type
    s = 1 / (1 + np.exp(-2 * kind(0.7978845608028654) * (x + kind(0.044715) * x**3)))
    return s + 2 * x * s * (1 - s) * kind(0.7978845608028654) * (1 + kind(0.134145) * x**2)


FROM_THE_OUTPUT = {
    "tanh": lambda x: 1 - np.tanh(x) * np.tanh(x),
    "sigmoid": lambda x: (1 - 1 / (1 + np.exp(-x))) / (1 + np.exp(-x)),
    "gelu": gelu_by_sigmoid,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("x", [0.5, 3.0, 4.5, 6.0])
@pytest.mark.parametrize("op", FROM_THE_OUTPUT)
def test_a_gradient_from_an_output_that_saturates_is_careful_code(op, x, dtype):
    """tanh's 1 - y * y at 6 has 2 digits less than 1 / cosh(x)^2, which autograd takes."""
    assert activation(op, x, dtype, FROM_THE_OUTPUT[op]) < ERROR_BOUND / 2
    assert activation(op, x, dtype, lambda v: FROM_THE_OUTPUT[op](v) + 64 * np.finfo(dtype).eps * abs(v)) >= ERROR_BOUND


def bias_sums(op, params, shapes, name, dtype):
    """The error ratio in the gradient of `name` of a kernel that adds row after row, and of one with another row less."""
    tensors = tuple(TensorPlan(tensor, shape, Uniform()) for tensor, shape in shapes.items())
    case = CasePlan("sums", op, params, (dtype,), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0))
    inputs = {plan.name: plan.sample(0, "sums", "float32") for plan in tensors}
    if op == "embedding":
        inputs["x"] = np.zeros(shapes["x"], np.int64)
    oracle = consult_oracle(case, inputs)
    rows = inputs["grad.y"].astype(dtype).reshape(-1, shapes["grad.y"][-1])
    sums = (np.cumsum(rows[start:], axis=0)[-1].reshape(oracle[name].shape) for start in (0, 1))
    envelope = envelopes(case, dtype, inputs, oracle)[name]
    return [error_ratio(values, oracle[name], envelope) for values in sums]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "params", "shapes", "name"),
    [
        ("linear", LinearParams(), {"x": (96, 64, 2), "weight": (3, 2), "bias": (3,), "grad.y": (96, 64, 3)}, "grad.bias"),
        ("embedding", EmbeddingParams(), {"x": (6000,), "weight": (1, 3), "grad.y": (6000, 3)}, "grad.weight"),
    ],
)  # fmt: skip
def test_a_gradient_summed_row_after_row_is_careful_code(op, params, shapes, name, dtype):
    """autograd sums axis by axis, NumPy's reduceat in pairs: neither has the error of one long chain."""
    whole, without_a_row = bias_sums(op, params, shapes, name, dtype)
    assert whole < ERROR_BOUND / 2
    assert without_a_row >= ERROR_BOUND


def test_the_gradient_of_an_attention_over_one_key_is_rounding_where_products_do_not_cancel():
    """y = value: grad.query is exactly zero, and a kernel has grad_y . value - grad_y . y of it, summed in two orders."""
    rng = np.random.default_rng(0)
    shapes = {"query": (2, 2, 3, 16), "key": (2, 2, 1, 16), "value": (2, 2, 1, 16), "grad.y": (2, 2, 3, 16)}
    tensors = tuple(TensorPlan(name, shape, Normal()) for name, shape in shapes.items())
    case = CasePlan(
        "one-key", "scaled_dot_product_attention", AttentionParams(), ("float32",), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0)
    )  # fmt: skip
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    key, value, grad = (inputs[name] for name in ("key", "value", "grad.y"))
    value -= (grad[..., :1, :] * value).sum(-1, keepdims=True) * grad[..., :1, :] / np.square(grad[..., :1, :]).sum(-1, keepdims=True)  # fmt: skip
    oracle = consult_oracle(case, inputs)
    forwards, backwards = (np.cumsum((grad * value)[..., ::step], axis=-1)[..., -1:] for step in (1, -1))
    outputs = {"y": np.repeat(value, 3, axis=2), "grad.query": (forwards - backwards) * key / 4}
    cell = Cell(case, "float32", inputs, oracle)
    assert "grad.query" in cell.zero_gradients
    envelope = cell.with_terms(envelopes(case, "float32", inputs, oracle))["grad.query"]
    assert 0 < error_ratio(outputs["grad.query"], oracle["grad.query"], envelope) < ERROR_BOUND / 2
    assert error_ratio(outputs["grad.query"] * 100, oracle["grad.query"], envelope) >= ERROR_BOUND


def test_a_masked_score_of_minus_infinity_excuses_no_element():
    [case] = (c for c in load_plan([CONFIGS / "ops" / "attention.yaml"]).cases if c.id == "attention-kept")
    inputs = drawn(case)
    found = envelopes(case, "float32", inputs, consult_oracle(case, inputs))
    assert all(envelope.excused is None for envelope in found.values())
    assert max(envelope.max for envelope in found.values()) < 1e-5


ELEMENTS = {
    "softplus": (lambda x, of: of(np.log(of(1 + of(np.exp(x))))), lambda x: np.logaddexp(0, x), -8.0),
    "expm1": (lambda x, of: of(of(np.exp(x)) - 1), np.expm1, 1e-3),
    "log1p": (lambda x, of: of(np.log(of(1 + x))), np.log1p, 1e-3),
    "sigmoid": (lambda x, of: of(1 - of(1 / of(1 + of(np.exp(x))))), lambda x: 1 / (1 + np.exp(-x)), -12.0),
    "tanh": (lambda x, of: by_exponentials(x, of), np.tanh, 1e-3),
    "gelu": (lambda x, of: of(x / 2 * of(1 + of(ERF(x / np.sqrt(2.0))))), None, -3.7),
}
"""A naive form that loses the small elements, rounding each step by `of`; a careful one; where the naive one fails."""


def by_exponentials(x, of):
    one, other = of(np.exp(x)), of(np.exp(-x))
    return of(of(one - other) / of(one + other))


def element_ratio(op, form, dtype, small):
    """The error ratio of y where one of many elements is `small`, of a form in a dtype."""
    case = planned(op, (dtype,), x=(16, 33))
    x = np.abs(np.random.default_rng(0).normal(0, 1, (16, 33)))
    x[3, 5] = small
    inputs = {**drawn(case), "x": as_dtype(x, dtype).astype(np.float64)}
    oracle = consult_oracle(case, inputs)
    cell = Cell(case, dtype, inputs, oracle)
    values = as_dtype(oracle["y"] if form is None else form(inputs["x"]), dtype)
    outputs = {"y": Output(dtype, values.shape, values)}
    cell.take(
        [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs, lacking={"grad.x": "not computed"})], ORACLE
    )
    return cell.ratios("mine").get("y", 0.0)


NARROW_ONLY = {"gelu": "in float32, 1 + erf is what released kernels compute, and the reference too"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", ELEMENTS)
def test_large_elements_do_not_excuse_small_ones(op, dtype):
    naive, careful, small = ELEMENTS[op]
    ratio = element_ratio(op, lambda x: naive(x, lambda v: as_dtype(v, dtype).astype(np.float64)), dtype, small)
    assert (ratio >= ERROR_BOUND) is not (dtype == "float32" and op in NARROW_ONLY)
    assert element_ratio(op, careful, dtype, small) < ERROR_BOUND / 4


def gelu_ratio(distribution, dtype):
    """The error ratio of y from -13 to 5, where `distribution(x)` is the normal distribution function."""
    case = planned("gelu", (dtype,), x=(8, 33))
    x = as_dtype(np.random.default_rng(0).uniform(-13, 5, (8, 33)), dtype)
    inputs = {**drawn(case), "x": x}
    oracle = consult_oracle(case, inputs)
    return error_ratio(as_dtype(x * distribution(x), dtype), oracle["y"], envelopes(case, dtype, inputs, oracle)["y"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_gelu_by_erfc_is_right_where_1_plus_erf_is_0(dtype):
    assert gelu_ratio(lambda x: np.vectorize(math.erfc)(-x * math.sqrt(0.5)) / 2, dtype) < ERROR_BOUND / 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gelu_by_erf_is_within_the_bound_and_a_wrong_one_is_not(dtype):
    root = np.sqrt(0.5).astype(dtype)
    assert gelu_ratio(lambda x: (ERF(x * root) + 1) / 2, dtype) < ERROR_BOUND / 2
    assert gelu_ratio(lambda x: (ERF(x * root) + 1) / 2 * (1 + 1e4 * np.finfo(dtype).eps), dtype) >= ERROR_BOUND
