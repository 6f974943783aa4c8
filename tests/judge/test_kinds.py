"""Mechanisms of faults: each is said where it is planted, and not where something like it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import make_vjp
from autograd.tracer import getval

from parity.config.plan import CasePlan
from tests.judge.judging import Uniform, names, planned
from tests.judge.test_inquiry import Fault, Kernel, evidence, judged

Tensors = Mapping[str, np.ndarray]


def by_autograd(forward: Callable[..., Any], *inputs: str, output: str = "y") -> Fault:
    """A fault of the forward pass, with the gradients that follow from it."""

    def fault(given: Tensors, params: Any, _right: Any) -> dict[str, Any]:
        found = {}
        for name in inputs:
            pull, y = make_vjp(lambda value, name=name: forward({**given, name: value}, params))(given[name])
            found |= {output: y, f"grad.{name}": pull(given[f"grad.{output}"])}
        return found

    return fault


def said(case: CasePlan, fault: Fault) -> str:
    """The id of the cause in float64, and its expression."""
    found = judged(case, Kernel(fault))
    (name,) = names(found, "float64")
    return f"{name}: {evidence(found).get('expression', '')}"


# Conditions.


def softplus_from(limit: float, part: float = 0.0) -> Fault:
    """softplus that is x from a number on, or from a part of the threshold."""

    def forward(given: Mapping[str, Any], params: Any) -> Any:
        z = given["x"] * params.beta
        linear = getval(z) > (part * params.threshold or limit)
        return anp.where(linear, given["x"], anp.log1p(anp.exp(anp.where(linear, 0.0, z))) / params.beta)

    return by_autograd(forward, "x")


SOFTPLUS = planned("softplus", x=(16, 33), draws={"x": Uniform(-12.0, 12.0)})


def test_a_threshold_is_fitted_by_which_elements_follow_which_branch():
    assert said(SOFTPLUS, softplus_from(7.0)).endswith(
        "linear = greater(x * beta, 7), where the reference has greater(x * beta, threshold)"
    )
    other = planned("softplus", x=(16, 33), draws={"x": Uniform(-12.0, 12.0)}, threshold=15.0)
    assert "greater(x * beta, threshold * 0.3)" in said(other, softplus_from(0.0, 0.3))


@pytest.mark.slow
def test_a_blend_of_two_branches_is_no_threshold():
    def forward(given: Mapping[str, Any], _params: Any) -> Any:
        x = given["x"]
        share = 1 / (1 + anp.exp(-(x - 7)))
        return share * x + (1 - share) * anp.log1p(anp.exp(anp.where(getval(x) > 20, 0.0, x)))

    assert "greater" not in said(SOFTPLUS, by_autograd(forward, "x"))


# Gradients that do not flow.


def lstm_with(carried: Callable[[Any, int], Any], gates: Callable[[Any], Any] = np.asarray) -> Fault:
    """An LSTM whose cell state goes to the next step as `carried` says, and its forget gate to the state as `gates`."""

    def forward(given: Mapping[str, Any], _params: Any) -> Any:
        h, c, steps = given["h0"], given["c0"], []
        for t in range(given["x"].shape[0]):
            z = given["x"][t] @ given["weight_ih"].T + given["bias_ih"] + h @ given["weight_hh"].T + given["bias_hh"]
            i, f, g, o = (z[:, k * h.shape[1] : (k + 1) * h.shape[1]] for k in range(4))
            i, f, o = (1 / (1 + anp.exp(-gate)) for gate in (i, f, o))
            c = (f if gates is np.asarray else gates(f)) * carried(c, t) + i * anp.tanh(g)
            h = o * anp.tanh(c)
            steps.append(h)
        return anp.stack(steps), h, c

    def fault(given: Tensors, params: Any, _right: Any) -> dict[str, Any]:
        found = {}
        for name in ("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h0", "c0"):
            for k, output in enumerate(("y", "h", "c")):
                pull, _ = make_vjp(lambda value, n=name, k=k: forward({**given, n: value}, params)[k])(given[name])
                found[f"grad.{name}"] = found.get(f"grad.{name}", 0.0) + pull(given[f"grad.{output}"])
        return found

    return fault


LSTM = planned("lstm", x=(4, 2, 3), hidden_size=3)


@pytest.mark.slow
def test_a_state_that_is_detached_between_steps_is_said():
    text = said(LSTM, lstm_with(lambda c, t: c if t == 0 else getval(c)))
    assert text == "reference-edit: no gradient through c in f * c (in c) in any turn"


@pytest.mark.exhaustive
def test_half_a_gradient_is_none_that_does_not_flow():
    assert "no gradient" not in said(LSTM, lstm_with(lambda c, t: c if t == 0 else (c + getval(c)) / 2))


@pytest.mark.exhaustive
def test_a_gate_that_is_detached_is_said():
    assert said(LSTM, lstm_with(lambda c, _: c, gates=getval)) == "reference-edit: no gradient through f in any turn"


# Windows, blocks, groups, bases, norms.


def channels_ahead(given: Mapping[str, Any], params: Any) -> Any:
    """local_response_norm over a channel and those behind it."""
    squares = anp.pad(given["x"] ** 2, [(0, 0), (0, params.size - 1), (0, 0)], "constant")
    n = given["x"].shape[1]
    mean = sum(squares[:, k : k + n] for k in range(params.size)) / params.size
    return given["x"] / (params.k + params.alpha * mean) ** params.beta


def halves(given: Mapping[str, Any], params: Any) -> Any:
    """The variance within two halves, without that between them."""
    n = given["x"].shape[1]
    parts = given["x"][:, : n // 2], given["x"][:, n // 2 :]
    return sum(anp.sum((p - anp.mean(p, 1, keepdims=True)) ** 2, 1) for p in parts) / (n - params.correction)


def blocks_of_eight(given: Mapping[str, Any], params: Any) -> Any:
    """The variance within blocks."""
    n = given["x"].shape[1]
    parts = [given["x"][:, i : i + 8] for i in range(0, n, 8)]
    return sum(anp.sum((p - anp.mean(p, 1, keepdims=True)) ** 2, 1) for p in parts) / (n - params.correction)


def extrapolated(given: Mapping[str, Any], params: Any) -> Any:
    """Linear interpolation without a limit below."""
    x = given["x"]
    for axis, m in ((2, params.size[0]), (3, params.size[1])):
        n = x.shape[axis]
        place = (np.arange(m) + 0.5) * n / m - 0.5
        low = np.clip(np.floor(place), 0, n - 2).astype(int)
        share = np.minimum(place - low, 1).reshape([-1 if a == axis else 1 for a in range(4)])
        at = (slice(None),) * axis
        x = x[(*at, low)] * (1 - share) + x[(*at, low + 1)] * share
    return x


def mish_in_base_2(given: Mapping[str, Any], _params: Any) -> Any:
    """x * tanh(log2(1 + 2^x))."""
    return given["x"] * anp.tanh(anp.log2(1 + anp.exp2(given["x"])))


def groups_reversed(given: Mapping[str, Any], params: Any) -> Any:
    """A product of matrices for each of a batch, in reverse order."""
    return anp.matmul(given["x"], given["other"])[::-1]


MECHANISMS = [
    (
        planned("local_response_norm", x=(3, 7, 6), size=3, alpha=1.0),
        by_autograd(channels_ahead, "x"),
        "around = pad(squares, [(0, 2), (0, 0), (0, 0)], constant)",
    ),
    (planned("var", x=(6, 12), dim=1), by_autograd(halves, "x"), "centred_in_halves(x - mean, 1, 0)"),
    (planned("var", x=(6, 21), dim=1), by_autograd(blocks_of_eight, "x"), "centred_in_blocks(x - mean, 1, 8)"),
    (
        planned("interpolate", x=(2, 3, 5, 6), size=(9, 11), mode="bilinear", align_corners=False),
        by_autograd(extrapolated, "x"),
        "- floor(",
    ),
    (planned("mish", x=(6, 9)), by_autograd(mish_in_base_2, "x"), "base 2, where the reference has base e, in exp("),
    (planned("bmm", x=(3, 4, 5)), by_autograd(groups_reversed, "x", "other"), "flipped("),
]


@pytest.mark.parametrize(("case", "fault", "text"), MECHANISMS)
def test_a_mechanism_is_said_in_the_references_names(case: CasePlan, fault: Fault, text: str) -> None:
    told = said(case, fault)
    assert told.startswith("reference-edit: ")
    assert text in told


def lamb(norm: Callable[[np.ndarray], Any]) -> Fault:
    """LAMB with another norm."""

    def fault(given: Tensors, params: Any, right: Tensors) -> dict[str, Any]:
        corrections = [1 - beta**params.step for beta in params.betas]
        root = np.sqrt(right["exp_avg_sq"] / corrections[1])
        update = right["exp_avg"] / corrections[0] / (root + params.eps) + params.weight_decay * given["param"]
        return {"param": given["param"] - params.lr * norm(given["param"]) / norm(update) * update}

    return fault


LAMB = planned("lamb", param=(8, 6), lr=0.01, weight_decay=0.1, step=4)


@pytest.mark.exhaustive
def test_a_norm_has_another_order():
    told = said(LAMB, lamb(lambda values: np.abs(values).sum()))
    assert "param_norm = sum(absolute(concatenate([ravel(param)])), axis=(0,))" in told
    assert "the same in update_norm" in told
    assert "max(square(" in said(LAMB, lamb(lambda values: np.abs(values).max()))
    assert "absolute" not in said(LAMB, lamb(lambda values: np.cbrt((np.abs(values) ** 3).sum())))


@pytest.mark.slow
def test_two_mistakes_in_one_formula_of_which_neither_alone_helps():
    def fault(given: Tensors, params: Any, right: Tensors) -> dict[str, Any]:
        rate = params.lr / (1 - params.betas[0] ** params.step)
        return {"param": given["param"] - rate * right["exp_avg"] / np.sqrt(right["exp_avg_sq"] + params.eps)}

    found = judged(planned("adam", param=(8, 6), lr=0.01, eps=0.01, step=5), Kernel(fault))
    assert names(found, "float64") == ["reference-edit", "eps-placement"]
    assert "new exp_avg_sq, where the other causes give new exp_avg_sq / (" in evidence(found)["expression"]


# Approximations.


def erf_by_three_terms(given: Tensors, _params: Any, _right: Any) -> dict[str, Any]:
    """Abramowitz and Stegun, 7.1.25, and its derivative."""
    x = given["x"]
    a = np.abs(x)
    t, e = 1 / (1 + 0.47047 * a), np.exp(-a * a)
    p = 0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3
    slope = (0.3480242 - 2 * 0.0958798 * t + 3 * 0.7478556 * t**2) * -0.47047 * t**2
    return {"y": np.sign(x) * (1 - p * e), "grad.x": given["grad.y"] * (2 * a * p - slope) * e}


ERF = planned("erf", x=(12, 20))


def test_an_approximation_is_said_with_its_largest_error():
    found = judged(ERF, Kernel(erf_by_three_terms))
    assert names(found, "float64") == names(found, "float32") == ["approximated-function"]
    told = evidence(found)["expression"]
    assert told.startswith("erf(x) with an error of up to about 2.")
    assert told.count("; ") == 1  # the gradient is that of the approximation


def root_by_bits(values: np.ndarray) -> np.ndarray:
    """1 / sqrt(values) from the bits of float32, and one step of Newton's iteration."""
    bits = values.astype(np.float32).view(np.int32)
    first = (np.int32(0x5F3759DF) - (bits >> 1)).view(np.float32).astype(np.float64)
    return np.asarray(first * (1.5 - 0.5 * values * first * first))


def normed_by_bits(given: Tensors, params: Any, _right: Any) -> dict[str, Any]:
    """layer_norm with a fast root."""
    centred = given["x"] - given["x"].mean(1, keepdims=True)
    root = root_by_bits((centred**2).mean(1, keepdims=True) + params.eps)
    return {"y": centred * root * given["weight"] + given["bias"]}


def read_from_a_table(given: Tensors, _params: Any, _right: Any) -> dict[str, Any]:
    """tanh between the entries of a table."""
    places = np.linspace(-8, 8, 129)
    return {"y": np.interp(given["x"], places, np.tanh(places))}


@pytest.mark.parametrize(
    ("case", "fault", "text"),
    [
        (planned("layer_norm", x=(64, 12), normalized_shape=(12,)), normed_by_bits, "sqrt(var + eps)"),
        (planned("tanh", x=(16, 33)), read_from_a_table, "tanh(x)"),
    ],
)
def test_fast_roots_and_tables_are_approximations(case: CasePlan, fault: Fault, text: str) -> None:
    assert said(case, fault).startswith(f"approximated-function: {text} with an error of up to about ")


def test_a_step_inside_of_an_op_is_approximated():
    def forward(given: Mapping[str, Any], _params: Any) -> Any:
        x = given["x"] - anp.max(given["x"], 1, keepdims=True)
        powers = anp.exp(x) * (1 + 1e-3 * anp.sin(2 * x))
        return powers / anp.sum(powers, 1, keepdims=True)

    def fault(given: Tensors, params: Any, right: Tensors) -> dict[str, Any]:
        return {"y": forward(given, params)}

    told = said(planned("softmax", x=(20, 12), dim=1), fault)
    assert told.startswith("approximated-function: exp(")


@pytest.mark.parametrize(
    "factor",
    [
        lambda x: 1 + 1e-4 * np.random.default_rng(0).normal(size=x.shape),
        lambda x: 1 + 1e-4 * (np.arange(x.shape[1]) % 3),
    ],
)
def test_an_error_that_does_not_follow_the_operand_is_no_approximation(factor):
    assert "approximated" not in said(ERF, lambda given, _p, right: {"y": right["y"] * factor(given["x"])})


def test_an_overflow_of_a_lossy_form_is_named():
    def unmasked(given: Tensors, params: Any, right: Tensors) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            grad = np.where(given["x"] > 0, given["grad.y"], 0) + 0 * np.exp(np.asarray(given["x"], np.float32))
        return {"grad.x": grad.astype(given["x"].dtype)}

    found = judged(planned("elu", ("bfloat16",), offset=100.0, x=(16, 33)), Kernel(unmasked))
    assert names(found, "bfloat16") == ["exp-overflow"]
