"""Splits the fused nodes that ONNX Runtime's optimizer writes into the graphs that it saves."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

DOMAIN = "com.microsoft"
ACTIVATIONS: Mapping[str, Tuple[str, ...]] = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",)}
"""Activations with the names of their parameters."""
Part = Tuple[str, List[str], str, Dict[str, Any]]
"""An operator, its inputs, its output and its attributes."""


def fused_layer(kind: str) -> Callable[[Any, Mapping[str, Any]], Optional[List[Part]]]:
    """A Conv or a Gemm with an activation; None for an unknown activation."""

    def parts(proto: Any, given: Mapping[str, Any]) -> Optional[List[Part]]:
        options = dict(given)
        activation = str(options.pop("activation", ""))
        numbers = options.pop("activation_params", None) or [options.pop("activation_alpha", None)]
        own = {name: value for name, value in options.items() if not name.startswith("activation")}
        names = ACTIVATIONS.get(activation)
        if names is None or len(proto.input) > 3:
            return None
        y = proto.output[0]
        return [
            (kind, list(proto.input), f"{y}@{kind}", own),
            (activation, [f"{y}@{kind}"], y, dict(zip(names, numbers))),
        ]

    return parts


def skip_layer_norm(proto: Any, given: Mapping[str, Any]) -> Optional[List[Part]]:
    """A sum and the LayerNormalization after it."""
    x, skip, weight, bias, shift = [*proto.input, "", ""][:5]
    y, mean, scale, total = [*proto.output, "", "", ""][:4]
    if mean or scale:
        return None
    total = total or f"{y}@Add"
    first = f"{total}@Add" if shift else total
    parts: List[Part] = [("Add", [x, skip], first, {})]
    parts += [("Add", [first, shift], total, {})] if shift else []
    normalized = [name for name in (total, weight, bias) if name]
    return [*parts, ("LayerNormalization", normalized, y, {"axis": -1, "epsilon": given.get("epsilon", 1e-12)})]


def bias_gelu(proto: Any, given: Mapping[str, Any]) -> Optional[List[Part]]:  # noqa: ARG001 - a row's arguments
    """A sum and the GELU after it."""
    y = proto.output[0]
    return [("Add", list(proto.input), f"{y}@Add", {}), (f"{DOMAIN}:Gelu", [f"{y}@Add"], y, {})]


FUSED: Mapping[str, Callable[[Any, Mapping[str, Any]], Optional[List[Part]]]] = {
    "FusedConv": fused_layer("Conv"),
    "FusedGemm": fused_layer("Gemm"),
    "SkipLayerNormalization": skip_layer_norm,
    "BiasGelu": bias_gelu,
}
"""By operator. Source: ONNX Runtime's documentation of contributed operators."""


def unfused(onnx: Any, protos: Any) -> Iterator[Any]:
    """The nodes of a graph, with fused ones split."""
    for proto in protos:
        options = {item.name: value_of(onnx, item) for item in proto.attribute}
        parts = FUSED[proto.op_type](proto, options) if proto.domain == DOMAIN and proto.op_type in FUSED else None
        for number, (kind, inputs, output, given) in enumerate(parts or ()):
            domain, _, op = kind.rpartition(":")
            name = f"{proto.name}/{op}" if number and proto.name else proto.name
            made = onnx.helper.make_node(op, inputs, [output], name=name, domain=domain, **given)
            made.metadata_props.extend(proto.metadata_props)
            yield made
        if parts is None:
            yield proto


def value_of(onnx: Any, item: Any) -> Any:
    """An attribute's value; a word as text."""
    value = onnx.helper.get_attribute_value(item)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
