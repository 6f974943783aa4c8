"""The PyTorch layer that some nodes stand for, and its options, from the one node that does the work."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from parity.models.worker.graphs.onnx_graph import GraphNode

Options = Dict[str, Any]
Values = Mapping[str, Any]


def dims(node: GraphNode, values: Values) -> int:
    """The number of axes along which a node convolves or pools."""
    sizes = node.options.get("kernel_shape")
    weight = values.get(node.inputs[1]) if len(node.inputs) > 1 else None
    return len(sizes) if sizes else (weight.ndim - 2 if weight is not None else 2)


def window(node: GraphNode, values: Values) -> Options:
    """The options of a convolution or pooling."""
    n = dims(node, values)
    pads = node.options.get("pads", [0] * (2 * n))
    auto = node.options.get("auto_pad", "NOTSET")
    options = {
        "stride": node.options.get("strides", [1] * n),
        "padding": auto.lower() if auto.startswith("SAME") else pads[:n] if pads[:n] == pads[n:] else pads,
        "dilation": node.options.get("dilations", [1] * n),
    }
    if "kernel_shape" in node.options:
        options["kernel_size"] = node.options["kernel_shape"]
    return options


def conv(node: GraphNode, values: Values) -> Tuple[str, Options]:
    """Conv."""
    return f"Conv{dims(node, values)}d", {**window(node, values), "groups": node.options.get("group", 1)}


def conv_transpose(node: GraphNode, values: Values) -> Tuple[str, Options]:
    """ConvTranspose."""
    n = dims(node, values)
    more = {
        "groups": node.options.get("group", 1),
        "output_padding": node.options.get("output_padding", [0] * n),
    }
    return f"ConvTranspose{n}d", {**window(node, values), **more}


def max_pool(node: GraphNode, values: Values) -> Tuple[str, Options]:
    """MaxPool."""
    more = {"ceil_mode": bool(node.options.get("ceil_mode", 0))}
    return f"MaxPool{dims(node, values)}d", {**window(node, values), **more}


def avg_pool(node: GraphNode, values: Values) -> Tuple[str, Options]:
    """AveragePool."""
    options = {**window(node, values), "ceil_mode": bool(node.options.get("ceil_mode", 0))}
    del options["dilation"]
    options["count_include_pad"] = bool(node.options.get("count_include_pad", 0))
    return f"AvgPool{dims(node, values)}d", options


def linear(node: GraphNode, values: Values) -> Tuple[str, Options]:  # noqa: ARG001 - a row's arguments
    """Gemm, or MatMul and Add."""
    scales = {name: node.options.get(name, 1.0) for name in ("alpha", "beta")}
    return "Linear", {name: value for name, value in scales.items() if value != 1.0}


def layer_norm(node: GraphNode, values: Values) -> Tuple[str, Options]:
    """LayerNormalization, over as many axes as its weight has."""
    weight = values.get(node.inputs[1])
    options: Options = {"eps": node.options.get("epsilon", 1e-5)}
    if weight is not None:
        options["normalized_shape"] = list(weight.shape)
    return "LayerNorm", options


def batch_norm(node: GraphNode, values: Values) -> Tuple[str, Options]:  # noqa: ARG001 - a row's arguments
    """BatchNormalization; PyTorch's momentum is the weight of the new statistics."""
    momentum = 1.0 - float(node.options.get("momentum", 0.9))
    training = bool(node.options.get("training_mode", 0))
    return "BatchNorm2d", {"eps": node.options.get("epsilon", 1e-5), "momentum": momentum, "training": training}


def plain(kind: str, **named: Tuple[str, Any]) -> Callable[[GraphNode, Values], Tuple[str, Options]]:
    """A layer whose options are attributes: PyTorch's names to ONNX's and the defaults."""

    def of(node: GraphNode, values: Values) -> Tuple[str, Options]:  # noqa: ARG001 - a row's arguments
        return kind, {name: node.options.get(own, default) for name, (own, default) in named.items()}

    return of


KINDS: Mapping[str, Callable[[GraphNode, Values], Tuple[str, Options]]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": avg_pool,
    "Gemm": linear,
    "MatMul": linear,
    "LayerNormalization": layer_norm,
    "BatchNormalization": batch_norm,
    "GroupNormalization": plain("GroupNorm", eps=("epsilon", 1e-5), num_groups=("num_groups", None)),
    "RMSNormalization": plain("RMSNorm", eps=("epsilon", 1e-5)),
    "InstanceNormalization": plain("InstanceNorm2d", eps=("epsilon", 1e-5)),
    "Gather": plain("Embedding"),
    "Gelu": plain("GELU", approximate=("approximate", "none")),
    "Relu": plain("ReLU"),
    "Sigmoid": plain("Sigmoid"),
    "Tanh": plain("Tanh"),
    "Softplus": plain("Softplus"),
    "Softsign": plain("Softsign"),
    "Mish": plain("Mish"),
    "HardSwish": plain("Hardswish"),
    "Elu": plain("ELU", alpha=("alpha", 1.0)),
    "Celu": plain("CELU", alpha=("alpha", 1.0)),
    "Selu": plain("SELU"),
    "LeakyRelu": plain("LeakyReLU", negative_slope=("alpha", 0.01)),
    "PRelu": plain("PReLU"),
    "Softmax": plain("Softmax", dim=("axis", -1)),
    "LogSoftmax": plain("LogSoftmax", dim=("axis", -1)),
    "Flatten": plain("Flatten", start_dim=("axis", 1)),
}
"""By operator: PyTorch's class, and its options. Source: the operators' documentation."""
HELPERS: Mapping[str, Sequence[str]] = {"MatMul": ("Add",)}
"""Nodes that may accompany the one that does the work."""
NEUTRAL = ("Cast", "Reshape")
"""Nodes that compute nothing."""


def kind_of(nodes: List[GraphNode], values: Values) -> Tuple[str, Options]:
    """The class and options of a layer without children; if unknown, the class that the exporter wrote, or ""."""
    known = nodes[0].classes[len(nodes[0].path) - 1] if len(nodes[0].classes) >= len(nodes[0].path) else ""
    workers = [node for node in nodes if node.op in KINDS]
    if len(workers) == 1 and takes_parameters(workers[0], values):
        others = [node for node in nodes if node is not workers[0]]
        allowed = HELPERS.get(workers[0].op, ())
        adding = [node for node in others if node.op not in NEUTRAL]
        if all(node.op in allowed for node in adding) and len(adding) <= len(allowed):
            return KINDS[workers[0].op](workers[0], values)
    return known.rpartition(".")[2] if known.startswith("torch.nn.") else known, {}


def takes_parameters(node: GraphNode, values: Values) -> bool:
    """Whether a node has parameters, where it is a product or a look-up."""
    return node.op not in ("MatMul", "Gemm", "Gather") or any(
        values[name].dtype.kind in "fV" for name in node.inputs if name in values
    )
