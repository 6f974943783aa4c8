"""layer_norm: normalise over the last axes (Ba, Kiros, Hinton 2016; torch.nn.functional.layer_norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.cases.draw import Shape
from parity.cases.normalization import BIAS, WEIGHT, X, affine, normalize, require_positive
from parity.cases.op import CaseError, Layout, Op, require_shape, require_x


@dataclass(frozen=True)
class LayerNormParams:
    """`normalized_shape`: the last axes of x, an integer or a list; `eps` is added to the variance."""

    normalized_shape: int | tuple[int, ...]
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if isinstance(self.normalized_shape, int):
            object.__setattr__(self, "normalized_shape", (self.normalized_shape,))

    @property
    def axis_lengths(self) -> tuple[int, ...]:
        """`normalized_shape` as the list that it has become."""
        return (self.normalized_shape,) if isinstance(self.normalized_shape, int) else self.normalized_shape


def layout(params: LayerNormParams, given: Mapping[str, Shape]) -> Layout:
    """x: (*, *normalized_shape); weight, bias: normalized_shape; y: as x."""
    require_positive(params.eps)
    x = require_x(given, (), "layer_norm")
    normalized = params.axis_lengths
    if not normalized or x[-len(normalized) :] != normalized:
        raise CaseError(
            "params.normalized_shape",
            f"{list(normalized)} must be the last axes of x, whose shape is {list(x)}",
        )
    why = f"normalized_shape {list(normalized)}"
    affine_shapes = {name: require_shape(given, name, normalized, why) for name in ("weight", "bias")}
    return Layout(inputs={"x": x, **affine_shapes}, outputs={"y": x})


def forward(
    tensors: Mapping[str, Any], params: LayerNormParams, *, affine_order: str = "weight-first", **knobs: Any
) -> dict[str, Any]:
    """The oracle; knobs are those of `normalize` and `affine`."""
    x = tensors["x"]
    axes = tuple(range(x.ndim - len(params.axis_lengths), x.ndim))
    xhat = normalize(x, axes, params.eps, **knobs)
    return {"y": affine(xhat, tensors.get("weight"), tensors.get("bias"), affine_order=affine_order)}


LAYER_NORM = Op(
    name="layer_norm",
    summary="normalise over the last axes, then weight and bias",
    params=LayerNormParams,
    inputs=(X, WEIGHT, BIAS),
    layout=layout,
    forward=forward,
)
