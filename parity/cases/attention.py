"""Attention (Vaswani et al. 2017): scaled_dot_product_attention, multi_head_attention, rotary_embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval

from parity.cases.draw import Float64, Normal, Shape
from parity.cases.exact.matmul import matmul
from parity.cases.exact.summation import total
from parity.cases.matmul import linear
from parity.cases.op import (
    CaseError,
    Fit,
    IncompatibleError,
    Input,
    Op,
    TensorShapes,
    Variant,
    require_shape,
    require_x,
)
from parity.cases.primitives import last_rows, part, rows_of, scalar
from parity.cases.program import by_hand
from parity.cases.softmax import gradient_scale, positive_gradient, shared_variants, softmax

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
SCORES = "queries and keys that are not 0"
SEVERAL_KEYS = "several keys"


@dataclass(frozen=True)
class AttentionParams:
    """torch.nn.functional.scaled_dot_product_attention.

    `is_causal`: query i sees the keys 0 to i. `scale` multiplies the scores (by default 1 / sqrt(d)). `enable_gqa`:
    neighbouring query heads share a key head.
    """

    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


@dataclass(frozen=True)
class MultiHeadParams:
    """`num_heads` divides the features evenly."""

    num_heads: int


@dataclass(frozen=True)
class RotaryParams:
    """Frequency i of n is `base` ** (-i / n).

    Feature i is paired with feature i + n, or if `interleaved` feature 2i with 2i + 1.
    """

    base: float = 10000.0
    interleaved: bool = False


@dataclass(frozen=True)
class KeepMask:
    """0 and 1, and 1 for the first key: no query loses all keys."""

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        mask = rng.integers(0, 2, shape).astype(np.float64)
        mask[..., :1] = 1
        return mask


def times(factor: Any) -> Callable[[Any], Any]:
    """Scores times a number."""
    return lambda scores: scores * factor


def over_root(divisor: int) -> Callable[[Any], Any]:
    """Scores over the square root of an integer."""
    return lambda scores: scores / anp.sqrt(scalar(divisor, scores))


def attend(
    query: Any,
    key: Any,
    value: Any,
    scaled: Callable[[Any], Any],
    *,
    added: Any = None,
    kept: Any = None,
    diagonal: int | None = None,
    placement: str = "",
    axis: int = -1,
    positive: bool = False,
    block: int = 0,
    **options: Any,
) -> Any:
    """softmax(scaled(query key^T)) value over [N, heads, L, d].

    The mask `added` is added to the scaled scores; where the mask `kept` is 0, and beyond `diagonal` from the main one,
    a query does not see a key. `placement`: a mask is added `before` the scaling, `added` to the scores though it is 0
    or 1, `multiplied` with them, or with the probabilities `after` the softmax. `positive`: absolute values and
    grad_outputs, so that their products do not cancel. With a `block`, the result is that of `in_blocks`. The other
    options are those of `softmax`.
    """
    scores = matmul(query, anp.swapaxes(key, -1, -2))
    mask = added if kept is None else anp.where(kept > 0, scalar(1, query), 0.0)
    if placement and mask is None:
        raise IncompatibleError("there is no mask to be placed")
    if placement == "before":
        scores = scaled(scores + mask)
    else:
        scores = scaled(scores)
        if placement == "multiplied":
            scores = scores * mask
        elif placement == "added" or (added is not None and not placement):
            scores = scores + mask
        elif kept is not None and not placement:
            scores = anp.where(kept > 0, scores, -np.inf)
    if diagonal is not None:
        n_queries, n_keys = scores.shape[-2:]
        scores = anp.where(np.tri(n_queries, n_keys, diagonal) > 0, scores, -np.inf)
    if block and (options.keys() - {"lost"} or axis != -1 or positive):
        raise IncompatibleError("a softmax over blocks of keys has no other options")
    if block:
        return in_blocks(scores, value, block, **options)
    probabilities = softmax(scores, axis, **options)
    if placement == "after":
        probabilities = probabilities * mask
    mixed = matmul(probabilities, anp.abs(value) if positive else value)
    return positive_gradient(mixed) if positive else mixed


def in_blocks(scores: Any, value: Any, block: int, *, lost: str) -> Any:
    """softmax(scores) value over blocks of keys, as in FlashAttention (Dao et al. 2022, algorithm 1). `lost` is not
    rescaled where a later block has a larger maximum: the `values`, or the `sums` of exponentials."""
    top, values, sums = -np.inf, 0.0, 0.0
    for start in range(0, scores.shape[-1], block):
        tile = scores[..., start : start + block]
        higher = np.maximum(getval(tile).max(axis=-1, keepdims=True), top)
        powers, decay = anp.exp(tile - higher), np.exp(top - higher)
        values = matmul(powers, value[..., start : start + block, :]) + values * (1 if lost == "values" else decay)
        sums = total(powers, (-1 % powers.ndim,)) + sums * (1 if lost == "sums" else decay)
        top = higher
    return values / sums


BLOCKS = (1, 2, 3, 4, 8, 16, 32, 64, 128)


def unscaled_blocks(n_keys: int) -> Iterator[Variant]:
    """Sums over blocks of keys that keep the scale of an earlier maximum."""
    for block, lost in product((block for block in BLOCKS if block < n_keys), ("values", "sums")):
        yield Variant("online-softmax", {"block": block, "lost": lost}, shown_by=SEVERAL_KEYS)


def attention(
    tensors: Mapping[str, Any],
    params: AttentionParams,
    *,
    scale: str = "",
    causal: bool | None = None,
    diagonal: int = 0,
    dropped: bool = False,
    heads: str = "shared",
    **options: Any,
) -> dict[str, Any]:
    """torch.nn.functional.scaled_dot_product_attention.

    `scale` replaces that of the params: `none`, `root` for 1 / sqrt(d), `length` for 1 / d. `causal` replaces
    `is_causal`, whose mask ends at `diagonal`. `dropped`: a 1 in keep_mask drops a key. `heads` is one of
    HEADS. The other options are those of `attend`.
    """
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    d, kept = query.shape[-1], tensors.get("keep_mask")
    scales = {"none": times(1), "root": over_root(d), "length": times(1 / scalar(d, query)), "": over_root(d)}
    if params.scale is not None:
        scales[""] = times(params.scale)
    if key.shape[1] != query.shape[1]:
        key, value = (repeated_heads(item, query.shape[1], heads) for item in (key, value))
    if kept is not None and dropped:
        kept = 1 - kept
    last = diagonal if (params.is_causal if causal is None else causal) else None
    y = attend(query, key, value, scales[scale], added=tensors.get("attn_mask"), kept=kept, diagonal=last, **options)
    return {"y": y}


HEADS: Mapping[str, Callable[[Any, Any], Any]] = {
    "shared": rows_of,
    "tiled": rows_of,
    "overwritten": by_hand(rows_of, lambda g, _y, rows, index: last_rows(g, index, rows.shape[0])),
}
"""How query heads take their key heads: neighbours share one; every n-th does; the gradient is that of the last one."""


def repeated_heads(values: Any, n_heads: int, how: str) -> Any:
    """Keys or values [N, n, S, d] for all `n_heads`, by one of HEADS."""
    n = values.shape[1]
    index = np.arange(n_heads) % n if how == "tiled" else np.arange(n_heads) // (n_heads // n)
    return anp.swapaxes(HEADS[how](anp.swapaxes(values, 0, 1), index), 0, 1)


def attention_shapes(params: AttentionParams, given: Mapping[str, Shape]) -> TensorShapes:
    """query: (N, heads, L, d); key: (N, heads, S, d); value: (N, heads, S, e); y: (N, heads, L, e). attn_mask and
    keep_mask are absent unless a shape is given, which must broadcast to (N, heads, L, S). With `enable_gqa`, keys and
    values may have fewer heads."""
    query = given.get("query")
    if query is None or len(query) != 4:
        raise CaseError("inputs.query", "a shape (N, heads, L, d) is needed for query")
    key = given.get("key", given.get("value", query))
    heads = key[1] if len(key) == 4 and params.enable_gqa and key[1] and query[1] % key[1] == 0 else query[1]
    if len(key) != 4 or key[:2] != (query[0], heads):
        raise CaseError("inputs.key", f"shape {list(key)} does not fit a query of shape {list(query)}")
    key = require_shape(given, "key", (*key[:3], query[3]), f"query {list(query)}")
    value = given.get("value", key)
    if len(value) != 4 or value[:3] != key[:3]:
        raise CaseError("inputs.value", f"shape {list(value)} does not fit a key of shape {list(key)}")
    masks = {name: given[name] for name in ("attn_mask", "keep_mask") if name in given}
    if len(masks) + params.is_causal > 1:
        raise CaseError(f"inputs.{min(masks)}", "attn_mask, keep_mask and is_causal exclude each other")
    scores = (*query[:3], key[2])
    for name, mask in masks.items():
        require_broadcast(name, mask, scores)
    inputs = {"query": query, "key": key, "value": value, **masks}
    integers = {"keep_mask": (0, 2)} if "keep_mask" in masks else {}
    return TensorShapes(inputs=inputs, outputs={"y": (*query[:3], value[3])}, integers=integers)


def require_broadcast(name: str, mask: Shape, scores: Shape) -> None:
    """CaseError for a mask of queries and keys that does not broadcast to the scores."""
    fits = 2 <= len(mask) <= 4 and all(n in (1, m) for n, m in zip(mask[::-1], scores[::-1], strict=False))
    if not fits:
        raise CaseError(f"inputs.{name}", f"shape {list(mask)} does not broadcast to scores of {list(scores)}")


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
    scaled = over_root({"head": width // heads, "embedding": width, "none": 1}[scale])
    mixed = anp.transpose(attend(query, key, value, scaled, **options), (0, 2, 3, 1) if interleaved else (0, 2, 1, 3))
    return {"y": projected("out_proj", anp.reshape(mixed, (n, length, width)))}


def multi_head_shapes(params: MultiHeadParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, L, dim); weights: (dim, dim); biases: (dim,); y: as x."""
    x = require_x(given, (3,), "(N, L, dim)")
    if params.num_heads < 1 or x[2] % params.num_heads:
        raise CaseError("params.num_heads", f"{params.num_heads} heads do not divide {x[2]} features evenly")
    wanted = {f"{p}.{name}": shape for p in PROJECTIONS for name, shape in (("weight", (x[2],) * 2), ("bias", x[2:]))}
    inputs = {name: require_shape(given, name, shape, f"x {list(x)}") for name, shape in wanted.items()}
    return TensorShapes(inputs={"x": x, **inputs}, outputs={"y": x})


def attention_variants(params: AttentionParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Other scales of the scores, other uses of masks and heads, and the variants of both kinds of attention."""
    length, width = shapes["query"][2:]
    n_keys = shapes["key"][2]
    yield from (Variant("scaled", {"scale": scale}, shown_by=SCORES) for scale in other_scales(params, width))
    if shapes["key"][1] != shapes["query"][1]:
        yield Variant("head-grouping", {"heads": "tiled"}, shown_by="several key heads, and more query heads")
        yield Variant("repeated-rows", {"heads": "overwritten"}, shown_by="query heads that share a key head")
    yield from mask_variants(shapes)
    if params.is_causal:
        yield Variant("causal-mask", {"causal": False}, shown_by=SEVERAL_KEYS)
        for diagonal in dict.fromkeys((n_keys - length, 1, -1)):
            if diagonal:
                yield Variant("mask-alignment", {"diagonal": diagonal}, shown_by="several queries and keys")
    else:
        yield Variant("causal-mask", {"causal": True}, shown_by=SEVERAL_KEYS)
    yield from shared_variants([-2], SCORES)
    yield from unscaled_blocks(n_keys)


def other_scales(params: AttentionParams, width: int) -> Iterator[str]:
    """The other scales of scores."""
    usual = {"none": 1.0, "root": width**-0.5, "length": 1 / width}
    right = usual["root"] if params.scale is None else params.scale
    return (name for name, value in usual.items() if value != right)


def mask_variants(shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """A mask that is left out, means the opposite, or is applied elsewhere."""
    placements = {"attn_mask": ("before", "multiplied"), "keep_mask": ("added", "multiplied", "after")}
    for name in placements.keys() & shapes.keys():
        if name == "keep_mask":
            yield Variant("mask-complement", {"dropped": True}, shown_by="a mask that keeps some keys and drops some")
        yield Variant("mask-ignored", absent=(name,), shown_by="a mask that is not constant")
        for placement in placements[name]:
            yield Variant("mask-placement", {"placement": placement}, shown_by="a mask that is not constant")


def multi_head_variants(_params: Any, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Other scales of the scores, biases left out, weights not transposed, and the variants of both kinds of
    attention."""
    for scale in ("none", "embedding"):
        yield Variant("scaled", {"scale": scale}, shown_by=SCORES)
    yield Variant("causal-mask", {"diagonal": 0}, shown_by=SEVERAL_KEYS)
    yield from shared_variants([-2], SCORES)
    biases = tuple(f"{name}.bias" for name in PROJECTIONS if f"{name}.bias" in shapes)
    if biases:
        yield Variant("affine-missing", absent=biases, shown_by="a bias that is not 0")
    yield Variant("transposed", {"transposed": True}, shown_by="a weight that is not symmetric")
    yield Variant("wrong-axis", {"interleaved": True}, shown_by=SCORES)


def rotary_shapes(_params: RotaryParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, heads, L, d) with an even d; y: as x."""
    x = require_x(given, (4,), "(N, heads, L, d)")
    if x[3] % 2:
        raise CaseError("inputs.x", f"pairs of features are rotated, and {x[3]} is odd")
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def rotary_embedding(
    tensors: Mapping[str, Any],
    params: RotaryParams,
    *,
    interleaved: bool | None = None,
    backwards: bool = False,
    start: int = 0,
    axis: int = 2,
    exponent: str = "",
    mixed: bool = False,
) -> dict[str, Any]:
    """Pairs of features, rotated by position times frequency (Su et al. 2021, arXiv:2104.09864, section 3.4.2).
    `interleaved` replaces that of the params; `backwards` rotates in the other direction; positions count from `start`,
    along `axis`; with the `exponent` `single` frequency i is base ** (-i / d), half of the right exponent; `mixed`
    pairs features in one way and angles in the other."""
    x = tensors["x"]
    d, along = x.shape[-1], 4 if (params.interleaved if interleaved is None else interleaved) else 3
    seen = (*x.shape[:3], *((d // 2, 2) if along == 4 else (2, d // 2)))
    frequencies = params.base ** -(np.arange(0.0, d, 2) / scalar(2 * d if exponent == "single" else d, x))
    positions = np.arange(float(start), x.shape[axis] + start).reshape([-1 if a == axis else 1 for a in range(5)])
    if mixed:
        features = np.arange(d).reshape(seen[3:])
        by_feature = rows_of(frequencies, features % (d // 2) if along == 4 else features // 2)
    else:
        by_feature = anp.reshape(frequencies, (-1, 1) if along == 4 else (1, -1))
    angles = positions * by_feature
    pairs = anp.reshape(x, seen)
    signs = np.array([1, -1] if backwards else [-1, 1], np.int8).reshape((2, 1) if along == 3 else (2,))
    turned = part(pairs, (slice(None),) * along + (slice(None, None, -1),)) * signs
    return {"y": anp.reshape(pairs * anp.cos(angles) + turned * anp.sin(angles), x.shape)}


def rotary_variants(params: RotaryParams, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """Other pairs of features, the other direction, another start, frequencies of half the exponent, another axis."""
    positions = "several positions"
    if shapes["x"][3] > 2:
        yield Variant("rotary-pairs", {"interleaved": not params.interleaved}, shown_by=positions)
        yield Variant("rotary-pairs", {"mixed": True}, shown_by=positions)
        yield Variant("rotary-angles", {"exponent": "single"}, shown_by=positions)
    yield Variant("rotary-angles", {"backwards": True}, shown_by=positions)
    yield Variant("position-offset", {"start": 1}, shown_by="any position")
    yield Variant("wrong-axis", {"axis": 1}, shown_by="several heads")


SCALED_DOT_PRODUCT_ATTENTION = Op(
    name="scaled_dot_product_attention",
    summary="softmax(query key^T / sqrt(d)) value",
    params=AttentionParams,
    inputs=(
        *(Input(name, Normal(), differentiable=True) for name in ("query", "key", "value")),
        Input("attn_mask", Normal(), optional=True),
        Input("keep_mask", KeepMask(), optional=True, integers=True),
    ),
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
ROTARY_EMBEDDING = Op(
    name="rotary_embedding",
    summary="pairs of features rotated by their position",
    params=RotaryParams,
    inputs=(Input("x", Normal(), differentiable=True),),
    infer_shapes=rotary_shapes,
    reference=rotary_embedding,
    variants=rotary_variants,
    fits=(Fit("rotary-angles", "base", lambda params: params.base, shown_by="several positions", most=1e9),),
)
OPS = (SCALED_DOT_PRODUCT_ATTENTION, MULTI_HEAD_ATTENTION, ROTARY_EMBEDDING)
