"""What nobody listed is found by edits of the reference, and what explains must predict other inputs as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.case import CaseJudge, Judged, prepared
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.inquiry import SMALL, Inquiry, Measurement
from parity.outcome import CellOutcome, Outcome, Output
from tests.judge.judging import drawn, names, planned

Tensors = Mapping[str, np.ndarray]
Fault = Callable[[Tensors, Any, dict[str, np.ndarray]], Mapping[str, Any]]


class Kernel:
    """The oracle with a fault, `fault(inputs, params, right outputs)`; it remembers the sizes of its calls."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.sizes: list[int] = []

    def __call__(self, case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        given = {n: v.astype(dtype) if v.dtype.kind == "f" else v for n, v in inputs.items()}
        right = evaluate(OPS[case.op], case.params, given, dtype=dtype)
        return {n: np.asarray(v, dtype) for n, v in {**right, **self.fault(given, case.params, right)}.items()}

    def ask(self, _backend: str, case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        self.sizes.append(sum(values.size for values in inputs.values()))
        return self(case, dtype, inputs)


def judged(case: CasePlan, kernel: Kernel, *, asked: bool = True) -> Judged:
    inputs = drawn(case)
    judge = CaseJudge(case, inputs, consult_oracle(case, inputs), "oracle", ask=kernel.ask if asked else None)
    for dtype in case.dtypes:
        outputs = {n: Output(str(v.dtype), v.shape, v) for n, v in kernel(case, dtype, inputs).items()}
        judge.take(dtype, [CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=outputs)])
    return judge.judged()


def evidence(found: Judged, dtype: str = "float64") -> Mapping[str, Any]:
    return next(d.evidence for d in found.diagnoses if d.dtype == dtype and d.id not in ("rounding",))


def raw_for_normalised(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    return {"grad.weight": np.sum(given["grad.y"] * given["x"], axis=0)}


NORM = planned("layer_norm", x=(6, 8), normalized_shape=(8,))
SWAPPED = "x * grad.y, where the reference has xhat * grad.y (in grad.weight)"


def test_an_unlisted_mistake_is_an_expression():
    for asked in (True, False):
        found = judged(NORM, Kernel(raw_for_normalised), asked=asked)
        for dtype in NORM.dtypes:
            assert names(found, dtype) == ["reference-edit"]
            assert evidence(found, dtype)["expression"] == SWAPPED
        assert ("further_inputs_predicted" in evidence(found)) is asked


def test_a_large_case_is_searched_in_a_small_one():
    kernel = Kernel(raw_for_normalised)
    case = planned("layer_norm", x=(64, 96), normalized_shape=(96,))
    found = judged(case, kernel)
    assert evidence(found)["expression"] == SWAPPED
    assert evidence(found)["further_inputs_predicted"] > 0
    assert kernel.sizes
    assert max(kernel.sizes) < SMALL


def test_a_number_is_fitted_only_where_other_inputs_confirm_it():
    case = planned("sgd", param=(5, 7))
    kernel = Kernel(lambda given, params, _: {"param": given["param"] - 1.37 * params.lr * given["grad"]})
    assert "1.37" in evidence(judged(case, kernel))["expression"]
    assert names(judged(case, kernel, asked=False), "float64") == ["unexplained"]


def test_what_other_inputs_contradict_is_no_explanation():
    case = planned("sgd", param=(5, 7), momentum=0.9, step=2)

    def dampened(given: Tensors, params: Any, _right: Tensors) -> Tensors:
        buffer = params.momentum * given["momentum_buffer"] + (1 - params.momentum) * given["grad"]
        return {"momentum_buffer": buffer, "param": given["param"] - params.lr * buffer}

    assert "1 - momentum" in evidence(judged(case, Kernel(dampened)))["expression"]


def negated(_given: Tensors, _params: Any, right: Tensors) -> Tensors:
    return {"y": -right["y"]}


def lost_in_float32(given: Tensors, _params: Any, right: Tensors) -> Tensors:
    return {"y": right["y"] * (1.0 + 1e-3 * (given["x"].dtype == np.float32))}


@pytest.mark.parametrize(("fault", "exact"), [(negated, {"y"}), (lost_in_float32, set())])
def test_an_error_that_is_the_same_in_float64_is_no_loss_of_digits(fault, exact):
    inputs, kernel = drawn(NORM), Kernel(fault)
    measurement = Measurement(prepared(NORM, "float32", inputs), kernel(NORM, "float32", inputs))
    result = Inquiry(measurement, partial(kernel.ask, "mine"), prepared).result()
    assert result.best.exact == exact


class Float32Kernel(Kernel):
    """A kernel that computes in float32 whatever it is given."""

    def __call__(self, case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, np.ndarray]:
        return {n: v.astype(dtype) for n, v in super().__call__(case, "float32", inputs).items()}


def test_a_mistake_is_named_in_float64_too_where_a_kernel_computes_in_float32():
    found = judged(NORM, Float32Kernel(raw_for_normalised))
    assert evidence(found, "float32")["expression"] == SWAPPED
    assert "unexplained" not in names(found, "float64")
    told = {d.id: d for d in found.diagnoses if d.dtype == "float64"}
    assert list(told)[:2] == ["reference-edit", "reduced-precision"]
    assert told["reference-edit"].evidence["expression"] == SWAPPED


def in_float32_at_first(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    """`raw_for_normalised` with its products in float32."""
    products = (given["grad.y"].astype("float32") * given["x"].astype("float32") / np.float32(3)) * np.float32(3)
    return {"grad.weight": np.sum(products.astype(given["x"].dtype), axis=0)}


@pytest.mark.slow
def test_a_mistake_is_named_in_float64_too_where_one_step_is_computed_in_float32():
    found = judged(NORM, Kernel(in_float32_at_first))
    for dtype in NORM.dtypes:
        told = {d.id: d for d in found.diagnoses if d.dtype == dtype}
        assert "unexplained" not in told
        assert told["reference-edit"].evidence["expression"] == SWAPPED
    assert "reduced-precision" in names(found, "float64")


def test_float32_digits_alone_are_no_mistake_in_a_formula():
    assert set(names(judged(NORM, Float32Kernel(lambda *_: {})), "float64")) == {"reduced-precision"}


@pytest.mark.exhaustive
def test_a_kernel_that_does_not_repeat_itself_is_said_to():
    rng = np.random.default_rng(0)
    kernel = Kernel(lambda _given, _params, right: {"y": right["y"] + rng.normal(size=right["y"].shape)})
    assert names(judged(NORM, kernel), "float64") == ["nondeterministic"]
    assert names(judged(NORM, kernel, asked=False), "float64") == ["unexplained"]


def test_a_right_kernel_is_not_asked():
    kernel = Kernel(lambda _given, _params, _right: {})
    assert names(judged(NORM, kernel), "float64") == []
    assert kernel.sizes == []


def normalised(given: Tensors, params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = given["x"]
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(np.square(centred).mean(-1, keepdims=True) + params.eps)
    return given["grad.y"] * given["weight"], centred * rstd, rstd


def means_of_another_gradient(given: Tensors, params: Any, _right: Tensors) -> Tensors:
    g, xhat, rstd = normalised(given, params)
    other = given["grad.y"]
    return {"grad.x": rstd * (g - other.mean(-1, keepdims=True) - xhat * (other * xhat).mean(-1, keepdims=True))}


def means_over_two_axes(given: Tensors, params: Any, _right: Tensors) -> Tensors:
    g, xhat, rstd = normalised(given, params)
    first, second = (v.mean((-2, -1), keepdims=True) for v in (g, g * xhat))
    return {"grad.x": rstd * (g - first - xhat * second)}


def slope_at_y(given: Tensors, _params: Any, right: Tensors) -> Tensors:
    again = 1 / (1 + np.exp(-right["y"]))
    return {"grad.x": given["grad.y"] * again * (1 - again)}


def last_row_only(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    return {"grad.bias": given["grad.y"][-1].copy()}


def channels_last(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    return {"y": np.moveaxis(given["x"], 1, -1).reshape(len(given["x"]), -1)}


def added_to_the_input(given: Tensors, _params: Any, right: Tensors) -> Tensors:
    return {"grad.x": right["grad.x"] + given["x"]}


def half_total(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    total = np.zeros(given["grad.y"].shape[1], np.float16)
    for row in given["grad.y"]:
        total = (total.astype(np.float64) + row).astype(np.float16)
    return {"grad.bias": total.astype(given["grad.y"].dtype)}


def last_window_wins(given: Tensors, params: Any, _right: Tensors) -> Tensors:
    x, g = given["x"], given["grad.y"]
    found = np.zeros_like(x)
    for row, at in np.ndindex(*x.shape[:2]):
        for i in range(g.shape[2]):
            found[row, at, i + np.argmax(x[row, at, i : i + params.kernel_size])] = g[row, at, i]
    return {"grad.x": found}


def indices_in_the_window(given: Tensors, params: Any, _right: Tensors) -> Tensors:
    x, g, m = given["x"], given["grad.y"], params.output_size
    found, n = np.zeros_like(x), x.shape[2]
    for row, at, i in np.ndindex(*g.shape):
        found[row, at, np.argmax(x[row, at, i * n // m : -(-(i + 1) * n // m)])] += g[row, at, i]
    return {"grad.x": found}


def one_block_carried(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    parts = [given["x"][:, i : i + 8] for i in range(0, given["x"].shape[1], 8)]
    before = [np.zeros((len(given["x"]), 1)), *(part.sum(1, keepdims=True) for part in parts)]
    return {"y": np.concatenate([b + part.cumsum(1) for b, part in zip(before[:-1], parts, strict=True)], 1)}


def zeros_behind_the_end(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    powers = np.exp(given["x"])
    total = powers.sum(1, keepdims=True) + -given["x"].shape[1] % 8
    part = powers / total
    return {"y": np.log(total[:, 0]), "grad.x": part * given["grad.y"][:, None]}


def divided_by_whole_blocks(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    n = -(-given["x"].shape[1] // 8) * 8
    return {"y": given["x"].sum(1) / n, "grad.x": np.broadcast_to(given["grad.y"][:, None] / n, given["x"].shape)}


def last_block_of_rows(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    return {"grad.bias": given["grad.y"][(len(given["x"]) - 1) // 8 * 8 :].sum(0)}


def suffix_not_flipped_back(given: Tensors, _params: Any, _right: Tensors) -> Tensors:
    one, x = np.ones((len(given["x"]), 1)), given["x"]
    before, after = (np.cumprod(np.concatenate([one, part[:, :-1]], 1), 1) for part in (x, x[:, ::-1]))
    return {"grad.x": given["grad.y"][:, None] * before * after}


UNLISTED = [
    (
        planned("max_pool1d", x=(2, 3, 9), kernel_size=3, stride=1),
        last_window_wins,
        "repeated-rows",
        "grad.x = placed_",
    ),
    (
        *(planned("adaptive_max_pool1d", x=(2, 3, 11), output_size=4), indices_in_the_window, "reference-edit"),
        "grad of matrix = scatter_rows(grad of windows, relative(constant[4, 4]), 11)",
    ),
    (
        *(planned("cumsum", x=(3, 27), dim=1), one_block_carried, "reference-edit"),
        "y = cumsum_in_blocks(x, axis=1, carried=last, block=8)",
    ),
    (
        *(planned("logsumexp", x=(5, 11), dim=1), zeros_behind_the_end, "reference-edit"),
        "sum(exp(x - offset), axis=(1,)) over axis 1 filled up to whole blocks of 8 with x = 0, where the reference",
    ),
    (
        *(planned("mean", x=(5, 11), dim=1), divided_by_whole_blocks, "reference-edit"),
        "y = sum(x, axis=(1,)) / 16, where the reference has sum(x, axis=(1,)) / 11",
    ),
    (
        *(planned("linear", x=(21, 4), weight=(3, 4)), last_block_of_rows, "reference-edit"),
        "grad.bias = sum(only_block(grad.y, 0, 8, -1), axis=0)",
    ),
    (
        *(planned("prod", x=(4, 6), dim=1), suffix_not_flipped_back, "reference-edit"),
        "after = factors_before(flip(x, (1,)), (1,)), where the reference has flip(",
    ),
    (NORM, means_of_another_gradient, "reference-edit", "grad.y, where the reference has weight * grad.y, in "),
    (
        *(planned("layer_norm", x=(3, 4, 8), normalized_shape=(8,)), means_over_two_axes, "reference-edit"),
        "sum(weight * grad.y, axis=(1, 2)) * 0.25",
    ),
    (planned("sigmoid", x=(4, 6)), slope_at_y, "reference-edit", "the backward pass uses y"),
    (
        planned("linear", x=(5, 4), weight=(3, 4)),
        last_row_only,
        "reference-edit",
        "grad.bias = sum(only(grad.y, 0, -1)",
    ),
    (planned("flatten", x=(3, 4, 5)), channels_last, "reference-edit", "y = reshape(with_axes(x, 0, 2, 1), (3, 20))"),
    (planned("silu", x=(4, 6)), added_to_the_input, "reference-edit", "x is added to grad.x"),
    (planned("linear", x=(40, 4), weight=(3, 4)), half_total, "narrow-accumulation", "grad.bias = running_sum(grad.y"),
]


@pytest.mark.parametrize(("case", "fault", "name", "expression"), UNLISTED)
def test_what_kernels_get_wrong_is_said_in_the_references_names(
    case: CasePlan, fault: Fault, name: str, expression: str
) -> None:
    found = judged(case, Kernel(fault))
    assert names(found, "float64") == [name]
    assert str(evidence(found)["expression"]).startswith(expression)


def test_an_option_that_is_not_the_default_is_varied():
    """That 0.5 is beta is no explanation: with another beta it is still 0.5."""
    case = planned("smooth_l1_loss", x=(6, 5), beta=0.5, reduction="none")

    def without_beta(given: Tensors, params: Any, _right: Tensors) -> Tensors:
        size = np.abs(given["x"] - given["target"])
        return {"y": np.where(size < params.beta, 0.5 * size**2 / params.beta, size - 0.5)}

    expression = evidence(judged(case, Kernel(without_beta)))["expression"]
    assert expression == "0.5 * 1, where the reference has 0.5 * beta (in y)"


def test_a_kernel_may_hold_an_option_fixed():
    """Other options are no evidence against what explains the answers for the user's own."""
    case = planned("adagrad", param=(5, 6), lr=0.1, weight_decay=0.1)

    def raw_sum(given: Tensors, params: Any, _right: Tensors) -> Tensors:
        decayed = given["grad"] + 0.1 * given["param"]
        total = given["sum"] + given["grad"] ** 2
        return {"sum": total, "param": given["param"] - 0.1 * decayed / (np.sqrt(total) + params.eps)}

    found = judged(case, Kernel(raw_sum))
    assert names(found, "float64") == ["reference-edit"]
    assert "square(grad), where the reference has square(grad + weight_decay * param)" in evidence(found)["expression"]


def naive_clamped(given: Tensors, params: Any, _right: Tensors) -> Tensors:
    """LayerNorm as autograd makes it of E[x^2] - E[x]^2, clamped at 0."""
    x, g, n = given["x"], given["grad.y"], given["x"].shape[-1]
    mean = x.mean(-1, keepdims=True)
    raw = (x * x).mean(-1, keepdims=True) - mean * mean
    rstd = 1 / np.sqrt(np.maximum(raw, 0) + x.dtype.type(params.eps))
    gx, through = g * given["weight"], raw > 0
    gvar = ((gx * (x - mean)).sum(-1, keepdims=True) * -0.5 * rstd**3) * through
    dx = gx * rstd - (gx * rstd).mean(-1, keepdims=True) + gvar * 2 * (x - mean) / n
    xhat = (x - mean) * rstd
    return {
        "y": xhat * given["weight"] + given["bias"],
        "grad.x": dx,
        "grad.weight": (g * xhat).sum(0),
    }


@pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.exhaustive)])
def test_a_variance_that_lost_all_its_digits_is_named_by_milder_inputs(n):
    case = planned("layer_norm", offset=2000.0, x=(5, n), normalized_shape=(n,))
    assert names(judged(case, Kernel(naive_clamped)), "float32") == ["variance-naive"]


@pytest.mark.exhaustive
def test_noise_at_an_offset_is_not_named_by_milder_inputs():
    def noisy(given, _params, right):
        noise = np.random.default_rng(0).normal(size=right["y"].shape).astype(right["y"].dtype)
        return {"y": right["y"] + noise * np.abs(given["x"]).max() * np.finfo(noise.dtype).eps * 1e4}

    case = planned("layer_norm", offset=2000.0, x=(5, 4), normalized_shape=(4,))
    assert "variance-naive" not in names(judged(case, Kernel(noisy)), "float32")
