"""Recurrent layers: lstm, gru, of one layer and one direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp_argnum

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import relu, sigmoid, sigmoid_slope, tanh_slope, with_slope
from parity.cases.exact.matmul import matmul
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import part, scalar
from parity.cases.program import primitive

LATER = "more than one step"
ANY = "any input"


@dataclass(frozen=True)
class RecurrentParams:
    """The number of features in the hidden state; it may be left out where a shape of weight_hh is given."""

    hidden_size: int | None = field(default=None, metadata={"implied": True})


def recurrent_shapes(gates: int, states: tuple[str, ...], params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (L, N, in); weight_ih: (gates H, in); weight_hh: (gates H, H); biases: (gates H,); states: (N, H)."""
    x, stated = require_x(given, (3,), "(L, N, in)"), given.get("weight_hh", ())
    size = params.hidden_size or (stated[1] if len(stated) == 2 else None)
    if size is None or size < 1:
        raise CaseError("params.hidden_size", "hidden_size is needed, or a shape for weight_hh: [gates * H, H]")
    length, n, n_in = x
    if length < 1:
        raise CaseError("inputs.x", f"shape {list(x)} has no steps")
    why = f"x {list(x)} and hidden_size {size}"
    rows, state = gates * size, (n, size)
    expected: dict[str, Shape] = {"weight_ih": (rows, n_in), "weight_hh": (rows, size)}
    expected |= {"bias_ih": (rows,), "bias_hh": (rows,)} | {f"{name}0": state for name in states}
    inputs = {"x": x} | {name: require_shape(given, name, shape, why) for name, shape in expected.items()}
    return TensorShapes(inputs=inputs, outputs={"y": (length, n, size)} | dict.fromkeys(states, state))


def lstm_shapes(params: RecurrentParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (L, N, in); weight_ih: (4 H, in); weight_hh: (4 H, H); biases: (4 H,); h0 and c0: (N, H); y: (L, N, H), of
    every step; h and c: (N, H), of the last step."""
    return recurrent_shapes(4, ("h", "c"), params, given)


def gru_shapes(params: RecurrentParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (L, N, in); weight_ih: (3 H, in); weight_hh: (3 H, H); biases: (3 H,); h0: (N, H); y: (L, N, H), of every
    step; h: (N, H), of the last step."""
    return recurrent_shapes(3, ("h",), params, given)


def step_of(x: Any, t: int) -> Any:
    """x at one step, (N, *)."""
    return anp.reshape(part(x, (slice(t, t + 1),)), x.shape[1:])


@primitive
def stacked(*steps: Any) -> Any:
    """Arrays of one shape along a new first axis."""
    return np.stack(steps)


defvjp_argnum(stacked, lambda t, _y, _steps, _keywords: lambda g: step_of(g, t))


def gates_of(values: Any, names: str) -> dict[str, Any]:
    """The parts of the last axis by the names of the gates in their order."""
    n = values.shape[-1] // len(names)
    every = (slice(None),) * (values.ndim - 1)
    return {name: part(values, (*every, slice(i * n, (i + 1) * n))) for i, name in enumerate(names)}


def projected(x: Any, weight: Any, bias: Any) -> Any:
    """x times the transposed weight, plus bias."""
    y = matmul(x, anp.transpose(weight))
    return y if bias is None else y + bias


def start_of(tensors: Mapping[str, Any], name: str) -> Any:
    """An initial state; zeros where it is left out."""
    x, weight = tensors["x"], tensors["weight_hh"]
    given = tensors.get(name)
    return given if given is not None else np.zeros((x.shape[1], weight.shape[1])) * scalar(1, x)


def hard_sigmoid(x: Any) -> Any:
    """clip(0.2 x + 0.5, 0, 1), the recurrent activation of Keras 1 and 2's first releases."""
    return anp.where(x < -2.5, 0.0, anp.where(x > 2.5, scalar(1, x), 0.2 * x + 0.5))


def identity(x: Any) -> Any:
    """x."""
    return x


SQUASH: Mapping[str, Any] = {
    "tanh": anp.tanh,
    "sigmoid": sigmoid,
    "hard": hard_sigmoid,
    "relu": relu,
    "none": identity,
}
"""The activations of gates and states, by the names of the references' options."""

FUSED: Mapping[str, Any] = {
    **SQUASH,
    "tanh": with_slope(anp.tanh, tanh_slope),
    "sigmoid": with_slope(sigmoid, sigmoid_slope),
}
"""The same with the derivatives that kernels compute from the result, such as 1 - y^2."""


def lstm(
    tensors: Mapping[str, Any],
    _params: RecurrentParams,
    *,
    order: str = "ifgo",
    forget_bias: float = 0.0,
    coupled: bool = False,
    carried: bool = True,
    gate: str = "sigmoid",
    candidate: str = "tanh",
    output: str = "tanh",
    fused: bool = False,
) -> dict[str, Any]:
    """c' = f c + i g, h' = o tanh(c') (torch.nn.LSTM); gates i, f, g, o, H rows each; y is h' of every step.

    `order` of the gates in the weights' rows; `forget_bias` is added to f's, and `coupled` gates have f = 1 - i
    (Greff et al. 2015, arXiv:1503.04069, CIFG); if states are not `carried`, every step begins with h0. `gate`,
    `candidate` and `output` are the activations of the gates, of g and of c'; `fused`: see `FUSED`.
    """
    squash = FUSED if fused else SQUASH
    x, weight, bias = tensors["x"], tensors["weight_hh"], tensors.get("bias_hh")
    start, c, steps = start_of(tensors, "h0"), start_of(tensors, "c0"), []
    h, given = start, projected(x, tensors["weight_ih"], tensors.get("bias_ih"))
    for t in range(x.shape[0]):
        gates = gates_of(step_of(given, t) + projected(h if carried else start, weight, bias), order)
        forget = gates["f"] + forget_bias if forget_bias else gates["f"]
        i, f, o = (squash[gate](values) for values in (gates["i"], forget, gates["o"]))
        f = 1 - i if coupled else f
        c = f * c + i * squash[candidate](gates["g"])
        h = o * squash[output](c)
        steps.append(h)
    return {"y": stacked(*steps), "h": h, "c": c}


def gru(
    tensors: Mapping[str, Any],
    _params: RecurrentParams,
    *,
    order: str = "rzn",
    reset: str = "after",
    complement: bool = False,
    carried: bool = True,
    gate: str = "sigmoid",
    candidate: str = "tanh",
    fused: bool = False,
) -> dict[str, Any]:
    """n = tanh(W_in x + r (W_hn h)), h' = (1 - z) n + z h (torch.nn.GRU); gates r, z, n, H rows each; y is every h'.

    `order` of the gates in the weights' rows; `reset` is applied `after` or `before` the product with h (then the bias
    is added outside it), `within` (after it, with the bias outside), or is `missing`; `complement` exchanges z and
    1 - z. Else as lstm.
    """
    squash = FUSED if fused else SQUASH
    x, weight, bias = tensors["x"], tensors["weight_hh"], tensors.get("bias_hh")
    start, steps = start_of(tensors, "h0"), []
    h, given = start, projected(x, tensors["weight_ih"], tensors.get("bias_ih"))
    rows = gates_of(anp.transpose(weight), order)
    for t in range(x.shape[0]):
        before = h if carried else start
        ours, theirs = gates_of(step_of(given, t), order), gates_of(projected(before, weight, bias), order)
        r, z = (squash[gate](ours[name] + theirs[name]) for name in "rz")
        if reset in ("before", "within"):
            product = matmul(r * before, rows["n"]) if reset == "before" else r * matmul(before, rows["n"])
            inner = product if bias is None else product + gates_of(bias, order)["n"]
        else:
            inner = r * theirs["n"] if reset == "after" else theirs["n"]
        n = squash[candidate](ours["n"] + inner)
        h = z * n + (1 - z) * before if complement else (1 - z) * n + z * before
        steps.append(h)
    return {"y": stacked(*steps), "h": h}


def recurrent_variants(shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """One bias instead of two, states that are not carried, another activation of the gates."""
    for name in ("bias_ih", "bias_hh"):
        if name in shapes:
            yield Variant("affine-missing", absent=(name,), shown_by="a bias that is not 0")
    starts = tuple(name for name in ("h0", "c0") if name in shapes)
    if starts:
        yield Variant("state-not-carried", absent=starts, shown_by="an initial state that is not 0")
    if shapes["x"][0] > 1:
        yield Variant("state-not-carried", {"carried": False}, shown_by=LATER)
    yield Variant("activation-form", {"gate": "hard"}, shown_by=ANY)
    yield from (Variant("activation-form", {"candidate": name}, shown_by=ANY) for name in ("none", "relu"))


def lstm_variants(_params: RecurrentParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The orders of other formats, a forget bias, activations that are left out."""
    yield from (Variant("gate-order", {"order": order}, shown_by=ANY) for order in LSTM_ORDERS)
    yield Variant("forget-bias", {"forget_bias": 1.0}, shown_by=ANY)
    yield from (Variant("activation-form", {"output": name}, shown_by=ANY) for name in ("none", "relu"))
    yield Variant("gates-coupled", {"coupled": True}, shown_by=ANY)
    yield from recurrent_variants(shapes)


def gru_variants(_params: RecurrentParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The orders of other formats, the reset before the product or missing, z and 1 - z exchanged."""
    yield from (Variant("gate-order", {"order": order}, shown_by=ANY) for order in GRU_ORDERS)
    for reset in ("before", "missing", *(["within"] if "bias_hh" in shapes else [])):
        yield Variant("reset-placement", {"reset": reset}, shown_by=ANY)
    yield Variant("update-complement", {"complement": True}, shown_by=ANY)
    yield from recurrent_variants(shapes)


LSTM_ORDERS = ("ifog", "iofg", "igfo", "figo", "iogf")
"""TensorRT's and cuDNN's 3 earlier permutations, ONNX's (i, o, f, c), BasicLSTMCell's (i, j, f, o), and others."""
GRU_ORDERS = ("zrn", "rnz", "nrz", "nzr", "znr")
"""Keras's and ONNX's (z, r, h), and the others."""
INPUTS = (
    Input("x", Normal(), differentiable=True),
    Input("weight_ih", Normal(), differentiable=True),
    Input("weight_hh", Normal(), differentiable=True),
    Input("bias_ih", Normal(), differentiable=True, optional=True),
    Input("bias_hh", Normal(), differentiable=True, optional=True),
    Input("h0", Normal(), differentiable=True, optional=True),
)
LSTM = Op(
    name="lstm",
    summary="a long short-term memory over a sequence",
    params=RecurrentParams,
    inputs=(*INPUTS, Input("c0", Normal(), differentiable=True, optional=True)),
    infer_shapes=lstm_shapes,
    reference=lstm,
    grad_outputs=("y", "h", "c"),
    variants=lstm_variants,
    forms=({"fused": True},),
)
GRU = Op(
    name="gru",
    summary="a gated recurrent unit over a sequence",
    params=RecurrentParams,
    inputs=INPUTS,
    infer_shapes=gru_shapes,
    reference=gru,
    grad_outputs=("y", "h"),
    variants=gru_variants,
    forms=({"fused": True},),
)
OPS = (LSTM, GRU)
