"""Products of matrices and vectors: linear, bilinear, matmul, bmm, outer, einsum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import autograd.numpy as anp
import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import NoParams
from parity.cases.exact.matmul import matmul
from parity.cases.exact.summation import total
from parity.cases.op import (
    CaseError,
    Input,
    Op,
    TensorShapes,
    Variant,
    affine_remarks,
    no_variants,
    require_shape,
    require_x,
)


@dataclass(frozen=True)
class LinearParams:
    """Both are optional: `in_features` follows from x, `out_features` from the shape of weight or bias."""

    in_features: int | None = field(default=None, metadata={"implied": True})
    out_features: int | None = field(default=None, metadata={"implied": True})


def linear_shapes(params: LinearParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, in_features); weight: (out_features, in_features); bias: (out_features,); y: (*, out_features)."""
    x = require_x(given, (), "linear")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis; the last has length in_features")
    if params.in_features is not None and params.in_features != x[-1]:
        raise CaseError("params.in_features", f"{params.in_features} is not the last axis of x, {x[-1]}")
    n_out = out_features(params, given)
    weight = require_shape(given, "weight", (n_out, x[-1]), f"x {list(x)} and out_features {n_out}")
    bias = require_shape(given, "bias", (n_out,), f"out_features {n_out}")
    return TensorShapes(inputs={"x": x, "weight": weight, "bias": bias}, outputs={"y": (*x[:-1], n_out)})


def out_features(params: LinearParams, given: Mapping[str, Shape]) -> int:
    """out_features from the params, else from the first axis of weight or bias."""
    if params.out_features is not None:
        return params.out_features
    for name, rank in (("weight", 2), ("bias", 1)):
        if len(given.get(name, ())) == rank:
            return given[name][0]
    raise CaseError("params.out_features", "out_features is needed, or a shape for weight: [out_features, in_features]")


def linear_reference(tensors: Mapping[str, Any], params: LinearParams, *, transposed: bool = False) -> dict[str, Any]:  # noqa: ARG001 - shapes say it all
    """The oracle; `transposed` multiplies with the weight as it is stored (a square weight allows it)."""
    return {"y": linear(tensors["x"], tensors["weight"], tensors.get("bias"), transposed=transposed)}


def linear(x: Any, weight: Any, bias: Any = None, *, transposed: bool = False) -> Any:
    """x @ weight^T + bias; `transposed` multiplies with a square weight as it is stored."""
    square = weight.shape[0] == weight.shape[1]
    y = matmul(x, weight if transposed and square else anp.transpose(weight))
    return y if bias is None else y + bias


def linear_variants(_params: LinearParams, shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about linear kernels."""
    square = shapes["weight"][0] == shapes["weight"][1]
    variants = (
        [Variant("transposed", {"transposed": True}, shown_by="a weight that is not symmetric")] if square else []
    )
    if "bias" in shapes:
        variants.append(Variant("affine-missing", absent=("bias",), shown_by="a bias that is not 0"))
    return tuple(variants)


@dataclass(frozen=True)
class BilinearParams:
    """`out_features` may be left out where a shape of weight is given."""

    out_features: int | None = field(default=None, metadata={"implied": True})


def bilinear_shapes(params: BilinearParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, in1); other: (*, in2); weight: (out_features, in1, in2); bias: (out_features,); y: (*, out_features)."""
    x = require_x(given, (), "")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis; the last has length in1")
    weight = given.get("weight", ())
    n_out = params.out_features or (weight[0] if len(weight) == 3 else None)
    if n_out is None:
        message = "out_features is needed, or a shape for weight: [out_features, in1, in2]"
        raise CaseError("params.out_features", message)
    n_other = weight[2] if len(weight) == 3 else given.get("other", x)[-1]
    other = require_shape(given, "other", (*x[:-1], n_other), f"x {list(x)}")
    weight = require_shape(given, "weight", (n_out, x[-1], n_other), f"x {list(x)} and other {list(other)}")
    bias = require_shape(given, "bias", (n_out,), f"out_features {n_out}")
    inputs = {"x": x, "other": other, "weight": weight, "bias": bias}
    return TensorShapes(inputs=inputs, outputs={"y": (*x[:-1], n_out)})


def bilinear(tensors: Mapping[str, Any], _params: Any, *, transposed: bool = False) -> dict[str, Any]:
    """y[o] = x weight[o] other^T + bias[o]; `transposed` exchanges x and other."""
    (x, other, weight), bias = (tensors[name] for name in ("x", "other", "weight")), tensors.get("bias")
    if transposed:
        x, other = other, x
    n_out, n_x, n_other = weight.shape
    by_output = anp.reshape(anp.transpose(weight, (1, 0, 2)), (n_x, n_out * n_other))
    mixed = anp.reshape(matmul(x, by_output), (*x.shape[:-1], n_out, n_other))
    y = anp.reshape(matmul(mixed, anp.reshape(other, (*other.shape, 1))), (*x.shape[:-1], n_out))
    return {"y": y if bias is None else y + bias}


def bilinear_variants(_params: Any, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """x and other exchanged, a bias left out."""
    if shapes["x"] == shapes["other"]:
        yield Variant("transposed", {"transposed": True}, shown_by="a weight that is not symmetric")
    if "bias" in shapes:
        yield Variant("affine-missing", absent=("bias",), shown_by="a bias that is not 0")


@dataclass(frozen=True)
class EinsumParams:
    """`equation`: the labels of the axes of x, of other and of y, as in `bij,bjk->bik`."""

    equation: str = "ij,jk->ik"


def labels_of(equation: str) -> tuple[str, str, str]:
    """The labels of x, other and y; CaseError for what is not a product of two tensors."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    x, comma, other = operands.partition(",")
    every = x + other + result
    sound = arrow and comma and every.isalpha() and all(len(set(part)) == len(part) for part in (x, other, result))
    if not sound or not set(result) <= set(x + other):
        message = f"{equation!r} must be like 'bij,bjk->bik': two tensors, no ellipsis, no label twice in one of them"
        raise CaseError("params.equation", message)
    return x, other, result


def einsum_shapes(params: EinsumParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x, other and y: an axis for each of their labels; a label of other alone is by default as long as x's last."""
    labels = labels_of(params.equation)
    x = require_x(given, (len(labels[0]),), params.equation)
    lengths = dict(zip(labels[0], x, strict=True))
    stated = given.get("other", tuple(lengths.get(n, x[-1]) for n in labels[1]))
    if len(stated) != len(labels[1]):
        raise CaseError("inputs.other", f"a shape with {len(labels[1])} axes is needed for {params.equation}")
    wanted = tuple(lengths.get(n, m) for n, m in zip(labels[1], stated, strict=True))
    other = require_shape(given, "other", wanted, f"x {list(x)}")
    lengths |= dict(zip(labels[1], other, strict=True))
    outputs = {"y": tuple(lengths[name] for name in labels[2])}
    return TensorShapes(inputs={"x": x, "other": other}, outputs=outputs)


def einsum(tensors: Mapping[str, Any], params: EinsumParams, *, transposed: str = "") -> dict[str, Any]:
    """torch.einsum of two tensors, as one product of matrices; `transposed` names a tensor with its last two axes
    exchanged."""
    labels = labels_of(params.equation)
    values = {name: swapped(tensors[name], transposed == name) for name in ("x", "other")}
    both = set(labels[0]) & set(labels[1])
    batch = [n for n in labels[0] if n in both and n in labels[2]]
    inner = [n for n in labels[0] if n in both and n not in labels[2]]
    matrices, free = [], []
    lengths: dict[str, int] = {}
    for name, own in zip(values, labels, strict=False):
        lengths |= dict(zip(own, values[name].shape, strict=True))
        alone = tuple(i for i, n in enumerate(own) if n not in both and n not in labels[2])
        summed = total(values[name], alone) if alone else values[name]
        rest = [n for n in own if n not in both and n in labels[2]]
        order = [own.index(n) for n in (*batch, *rest, *inner)] + list(alone)
        sizes = [prod(lengths[n] for n in names) for names in (batch, rest, inner)]
        matrices.append(anp.reshape(anp.transpose(summed, order), tuple(sizes)))
        free.append(rest)
    y = matmul(matrices[0], anp.swapaxes(matrices[1], -1, -2))
    axes = [*batch, *free[0], *free[1]]
    y = anp.reshape(y, tuple(lengths[n] for n in axes))
    return {"y": anp.transpose(y, [axes.index(n) for n in labels[2]])}


def swapped(values: Any, whether: bool) -> Any:
    """`values`, with their last two axes exchanged if so."""
    return anp.swapaxes(values, -1, -2) if whether else values


def product_variants(_params: Any, shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """A square matrix that is transposed."""
    for name, shape in shapes.items():
        if len(shape) > 1 and shape[-1] == shape[-2] > 1:
            yield Variant("transposed", {"transposed": name}, shown_by="matrices that are not symmetric")


def matmul_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (n,) or (*, L, n); other: (n,) or (*, n, M), by default with M = n; y: (*, L, M), without the axes that a
    vector lacks. Leading axes are broadcast.
    """
    x = require_x(given, (), "")
    other = given.get("other", (*x[:-2], *x[-1:], *x[-1:]))
    if not x or not other or x[-1] != other[max(0, len(other) - 2)]:
        raise CaseError("inputs.other", f"a shape [{x[-1] if x else 'n'}, M] is needed for other, not {list(other)}")
    try:
        stack = np.broadcast_shapes(x[:-2], other[:-2])
    except ValueError:
        raise CaseError("inputs.other", f"{list(other[:-2])} does not broadcast with {list(x[:-2])}") from None
    return TensorShapes(
        inputs={"x": x, "other": other}, outputs={"y": (*stack, *x[-2:-1], *(other[-1:] if len(other) > 1 else ()))}
    )


def matmul_reference(tensors: Mapping[str, Any], _params: Any, *, transposed: str = "") -> dict[str, Any]:
    """torch.matmul; `transposed` names a square matrix with its last two axes exchanged."""
    x, other = (swapped(tensors[name], transposed == name) for name in ("x", "other"))
    shape = (*x.shape[-2:-1], *(other.shape[-1:] if other.ndim > 1 else ()))
    x = anp.reshape(x, (1, -1)) if x.ndim == 1 else x
    other = anp.reshape(other, (-1, 1)) if other.ndim == 1 else other
    stack = np.broadcast_shapes(x.shape[:-2], other.shape[:-2])
    if other.ndim > 2:
        x, other = stacked(x, stack), stacked(other, stack)
    return {"y": anp.reshape(matmul(x, other), (*stack, *shape))}


def stacked(matrices: Any, stack: Shape) -> Any:
    """A stack of matrices, repeated to the shape of `stack`."""
    return matrices if matrices.shape[:-2] == stack else matrices * np.ones((*stack, 1, 1), np.int8)


def bmm_shapes(params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (B, L, n); other: (B, n, M), by default with M = n; y: (B, L, M)."""
    x = require_x(given, (3,), "(B, L, n)")
    if "other" in given and (len(given["other"]) != 3 or given["other"][0] != x[0]):
        raise CaseError("inputs.other", f"a shape [{x[0]}, {x[2]}, M] is needed for other")
    return matmul_shapes(params, given)


def outer_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (n,); other: (m,), by default as x; y: (n, m)."""
    x = require_x(given, (1,), "(n,)")
    other = given.get("other", x)
    if len(other) != 1:
        raise CaseError("inputs.other", f"shape {list(other)} has {len(other)} axes; (m,) has 1")
    return TensorShapes(inputs={"x": x, "other": other}, outputs={"y": (*x, *other)})


def outer(tensors: Mapping[str, Any], _params: Any) -> dict[str, Any]:
    """y[i, j] = x[i] other[j]."""
    return {"y": anp.reshape(tensors["x"], (-1, 1)) * tensors["other"]}


LINEAR = Op(
    name="linear",
    summary="x times the transposed weight, plus bias",
    params=LinearParams,
    inputs=(
        Input("x", differentiable=True),
        Input("weight", default=Normal(0.0, 1.0), differentiable=True),
        Input("bias", default=Normal(0.0, 1.0), differentiable=True, optional=True),
    ),
    infer_shapes=linear_shapes,
    reference=linear_reference,
    variants=linear_variants,
    remarks=lambda _op, _params, tensors: affine_remarks(tensors),
    rounded_together=(("x",), ("x", "weight")),
)
"""torch.nn.functional.linear: y = x W^T + b."""
BILINEAR = Op(
    name="bilinear",
    summary="x times a matrix times other, for each output, plus bias",
    params=BilinearParams,
    inputs=(LINEAR.inputs[0], Input("other", Normal(), differentiable=True), *LINEAR.inputs[1:]),
    infer_shapes=bilinear_shapes,
    reference=bilinear,
    variants=bilinear_variants,
    remarks=LINEAR.remarks,
    rounded_together=(("x", "other"), ("x", "other", "weight")),
)
"""torch.nn.functional.bilinear."""


def product(name: str, summary: str, infer_shapes: Any, reference: Any, **further: Any) -> Op:
    """A product of two tensors."""
    return Op(
        name=name,
        summary=summary,
        inputs=tuple(Input(operand, Normal(), differentiable=True) for operand in ("x", "other")),
        infer_shapes=infer_shapes,
        reference=reference,
        **{"params": NoParams, "variants": product_variants, **further},
    )


MATMUL = product("matmul", "the product of matrices or vectors, with broadcasting", matmul_shapes, matmul_reference)
BMM = product("bmm", "the products of two stacks of matrices", bmm_shapes, matmul_reference)
OUTER = product("outer", "the products of all pairs of elements", outer_shapes, outer, variants=no_variants)
EINSUM = product("einsum", "a product of two tensors by the labels of axes", einsum_shapes, einsum, params=EinsumParams)
"""torch.matmul, bmm, outer, einsum."""
OPS = (LINEAR, BILINEAR, MATMUL, BMM, OUTER, EINSUM)
