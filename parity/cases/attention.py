"""Attention (Vaswani et al. 2017): scaled_dot_product_attention, multi_head_attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import NoParams
from parity.cases.exact.matmul import matmul
from parity.cases.exact.summation import total
from parity.cases.matmul import linear
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.oracle import evaluate
from parity.cases.primitives import scalar
from parity.cases.program import by_hand

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
SCORES = "queries and keys that are not 0"


@dataclass(frozen=True)
class MultiHeadParams:
    """`num_heads` divides the features evenly."""

    num_heads: int


def softmax(x: Any, axis: int = -1, *, detached: bool = False, fused: bool = False, shifted: bool = True) -> Any:
    """exp(x) over its sum along `axis`, `shifted` by the maximum; the sum gets no gradient if it is `detached`.

    `fused`: the gradient is that of `softmax_backward`.
    """
    if fused:
        return fused_softmax(x, axis)
    axis %= x.ndim
    powers = anp.exp(x - getval(x).max(axis=axis, keepdims=True) if shifted else x)
    sums = total(powers, (axis,))
    return powers / (getval(sums) if detached else sums)


def softmax_backward(g: Any, y: Any, x: Any, axis: int) -> Any:
    """y * (g - sum(g * y)), as kernels compute it."""
    return y * (g - total(g * y, (axis % x.ndim,)))


fused_softmax = by_hand(lambda x, axis: softmax(x, axis), softmax_backward)


positive_gradient = by_hand(lambda y: y, lambda g, *_: anp.abs(g))


def attend(
    query: Any,
    key: Any,
    value: Any,
    divisor: int,
    *,
    axis: int = -1,
    causal: bool = False,
    positive: bool = False,
    **options: Any,
) -> Any:
    """softmax(query key^T / sqrt(divisor)) value over [N, heads, L, d].

    `causal`: a query sees only the keys up to its own position. `positive`: absolute values and grad_outputs, so that
    their products do not cancel. The other options are those of `softmax`.
    """
    scores = matmul(query, anp.swapaxes(key, -1, -2)) / anp.sqrt(scalar(divisor, query))
    if causal:
        scores = anp.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    mixed = matmul(softmax(scores, axis, **options), anp.abs(value) if positive else value)
    return positive_gradient(mixed) if positive else mixed


def attention(tensors: Mapping[str, Any], _params: Any, *, scaled: bool = True, **options: Any) -> dict[str, Any]:
    """torch.nn.functional.scaled_dot_product_attention; `scaled` divides the scores by sqrt(d), the other options are
    those of `attend`."""
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    return {"y": attend(query, key, value, query.shape[-1] if scaled else 1, **options)}


def attention_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """query: (N, heads, L, d); key: (N, heads, S, d); value: (N, heads, S, e); y: (N, heads, L, e)."""
    query = given.get("query")
    if query is None or len(query) != 4:
        raise CaseError("inputs.query", "a shape (N, heads, L, d) is needed for query")
    key = given.get("key", given.get("value", query))
    if len(key) != 4 or key[:2] != query[:2]:
        raise CaseError("inputs.key", f"shape {list(key)} does not fit a query of shape {list(query)}")
    key = require_shape(given, "key", (*key[:3], query[3]), f"query {list(query)}")
    value = given.get("value", key)
    if len(value) != 4 or value[:3] != key[:3]:
        raise CaseError("inputs.value", f"shape {list(value)} does not fit a key of shape {list(key)}")
    return TensorShapes(inputs={"query": query, "key": key, "value": value}, outputs={"y": (*query[:3], value[3])})


def multi_head(
    tensors: Mapping[str, Any],
    params: MultiHeadParams,
    *,
    scale: str = "head",
    transposed: bool = False,
    interleaved: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Self-attention of x [N, L, dim] in every head, between four linear projections.

    `scale`: scores are divided by the root of the length of a head, of all heads (`embedding`), or of 1 (`none`).
    `transposed` takes the four matrices as they are stored; `interleaved` puts feature f into head f % num_heads. The
    other options are those of `attend`.
    """
    x, heads = tensors["x"], params.num_heads
    n, length, width = x.shape

    def projected(name: str, values: Any) -> Any:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        return linear(values, weight, bias, transposed=transposed)

    def split(values: Any) -> Any:
        if interleaved:
            return anp.transpose(anp.reshape(values, (n, length, width // heads, heads)), (0, 3, 1, 2))
        return anp.transpose(anp.reshape(values, (n, length, heads, width // heads)), (0, 2, 1, 3))

    query, key, value = (split(projected(name, x)) for name in PROJECTIONS[:3])
    divisor = {"head": width // heads, "embedding": width, "none": 1}[scale]
    mixed = anp.transpose(attend(query, key, value, divisor, **options), (0, 2, 3, 1) if interleaved else (0, 2, 1, 3))
    return {"y": projected("out_proj", anp.reshape(mixed, (n, length, width)))}


def multi_head_shapes(params: MultiHeadParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, L, dim); weights: (dim, dim); biases: (dim,); y: as x."""
    x = require_x(given, (3,), "(N, L, dim)")
    if params.num_heads < 1 or x[2] % params.num_heads:
        raise CaseError("params.num_heads", f"{params.num_heads} heads do not divide {x[2]} features evenly")
    wanted = {f"{p}.{name}": shape for p in PROJECTIONS for name, shape in (("weight", (x[2],) * 2), ("bias", x[2:]))}
    inputs = {name: require_shape(given, name, shape, f"x {list(x)}") for name, shape in wanted.items()}
    return TensorShapes(inputs={"x": x, **inputs}, outputs={"y": x})


def gradient_scale(op: Op, params: Any, tensors: Mapping[str, Any], gradients: bool) -> Mapping[str, Any]:
    """The size of the terms that cancel in each tensor: those of a key's bias cancel in the softmax."""
    return evaluate(op, params, tensors, dtype=np.float64, gradients=gradients, **op.terms)


def attention_variants(_params: Any, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another scale of the scores, and the variants of both kinds of attention."""
    yield Variant("scaled", {"scaled": False}, shown_by=SCORES)
    yield from softmax_variants()


def softmax_variants() -> Iterable[Variant]:
    """Another axis, masked keys, no maximum subtracted, a sum without a gradient."""
    yield Variant("wrong-axis", {"axis": -2}, shown_by=SCORES)
    yield Variant("causal-mask", {"causal": True}, shown_by="several keys")
    yield Variant("softmax-unshifted", {"shifted": False}, unstable=True, shown_by="scores so large that exp overflows")
    yield Variant("detached-statistics", {"detached": True}, shown_by="a grad_output that is not constant")


def multi_head_variants(_params: Any, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another scale of the scores, biases left out, weights not transposed, and the variants of both kinds of
    attention."""
    for scale in ("none", "embedding"):
        yield Variant("scaled", {"scale": scale}, shown_by=SCORES)
    yield from softmax_variants()
    biases = tuple(f"{name}.bias" for name in PROJECTIONS if f"{name}.bias" in shapes)
    if biases:
        yield Variant("affine-missing", absent=biases, shown_by="a bias that is not 0")
    yield Variant("transposed", {"transposed": True}, shown_by="a weight that is not symmetric")
    yield Variant("wrong-axis", {"interleaved": True}, shown_by=SCORES)


SCALED_DOT_PRODUCT_ATTENTION = Op(
    name="scaled_dot_product_attention",
    summary="softmax(query key^T / sqrt(d)) value",
    params=NoParams,
    inputs=tuple(Input(name, Normal(), differentiable=True) for name in ("query", "key", "value")),
    infer_shapes=attention_shapes,
    reference=attention,
    variants=attention_variants,
    forms=({"fused": True},),
    terms={"detached": True, "positive": True},
    gradient_scale=gradient_scale,
)
MULTI_HEAD_ATTENTION = Op(
    name="multi_head_attention",
    summary="self-attention between linear projections",
    params=MultiHeadParams,
    inputs=(
        Input("x", Normal(), differentiable=True),
        *(
            Input(f"{projection}.{name}", Normal(0.0, 0.3), differentiable=True, optional=name == "bias")
            for projection in PROJECTIONS
            for name in ("weight", "bias")
        ),
    ),
    infer_shapes=multi_head_shapes,
    reference=multi_head,
    variants=multi_head_variants,
    forms=({"fused": True},),
    terms={"detached": True, "positive": True},
    gradient_scale=gradient_scale,
)
OPS = (SCALED_DOT_PRODUCT_ATTENTION, MULTI_HEAD_ATTENTION)
