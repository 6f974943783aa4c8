"""An ONNX graph as a model with layers: nodes by the layer that they were exported from, and each layer's parameters.

A layer is a scope in the names or the metadata of nodes, as torch.onnx writes them; in a graph without scopes it is a
node, or the layer that an initializer is named after. What an exporter shares between layers is split again: every
layer gets its own parameters, and its own copy of common nodes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from parity.capture.frameworks.onnxruntime import SCOPES, scopes_of
from parity.models.worker.graphs.unfused import unfused

CLASSES = "pkg.torch.onnx.class_hierarchy"
"""Where torch.onnx.export(dynamo=True) keeps the classes of the layers around a node, and of the node."""
HEAVY = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization", "Gather"))
"""Nodes that exporters never share between layers, even if they compute the same."""
FLOAT = 1
"""ONNX's data type number of float32."""
AROUND = frozenset(("Cast", "Reshape", "QuantizeLinear"))
"""Nodes that optimizers insert before or after others."""
WIDENING = frozenset(("DequantizeLinear",))
"""Nodes that optimizers insert after others."""
PARAMETERS: Mapping[str, Sequence[str]] = {
    "Gemm": ("", "weight", "bias"),
    "MatMul": ("", "weight"),
    "Conv": ("", "weight", "bias"),
    "ConvTranspose": ("", "weight", "bias"),
    "BatchNormalization": ("", "weight", "bias", "running_mean", "running_var"),
    "InstanceNormalization": ("", "weight", "bias"),
    "LayerNormalization": ("", "weight", "bias"),
    "GroupNormalization": ("", "weight", "bias"),
    "RMSNormalization": ("", "weight"),
    "PRelu": ("", "weight"),
    "Gather": ("weight",),
    "Mul": ("weight", "weight"),
    "Add": ("bias", "bias"),
}
"""PyTorch's names of a node's inputs that are parameters, by position."""
BUFFERS = ("running_mean", "running_var")


@dataclass
class GraphNode:
    """A node: `captured` are the values that its subgraphs use, `path` the layers around it, from the model ("") on,
    `calls` the number of its call for each of these layers."""

    proto: Any
    name: str
    inputs: List[str]
    outputs: List[str]
    captured: List[str]
    options: Dict[str, Any]
    path: List[str]
    classes: List[str]
    calls: Dict[str, int] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The operator."""
        return str(self.proto.op_type)

    @property
    def layer(self) -> str:
        """The innermost layer around it."""
        return self.path[-1]

    @property
    def reads(self) -> List[str]:
        """The values that it reads, in its subgraphs, too."""
        return [name for name in dict.fromkeys([*self.inputs, *self.captured]) if name]

    def renamed(self, names: Mapping[str, str]) -> None:
        """Rename the values that it reads and writes."""
        self.inputs = [names.get(name, name) for name in self.inputs]
        self.outputs = [names.get(name, name) for name in self.outputs]


@dataclass(frozen=True)
class GraphParameter:
    """A parameter by PyTorch's name: the graph's value, and the order of axes that gives PyTorch's layout."""

    name: str
    value: str
    axes: Tuple[int, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether it is a parameter, and no running statistic."""
        return self.name.rpartition(".")[2] not in BUFFERS


class Graph:
    """A model: `nodes` in order, `values` that are given (initializers and constants), `inputs` (with their types of
    elements) and `outputs`, `parameters` by name.

    Args:
        onnx: the package.
        source: the path of a file, its bytes, or a ModelProto.
        known: the names of layers; `act_1` is another call of `act` if there is only that.
    """

    def __init__(self, onnx: Any, source: Any, known: Collection[str] = ()) -> None:
        self.onnx = onnx
        self.model = loaded(onnx, source)
        graph = self.model.graph
        self.values: Dict[str, Any] = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self.inputs = {v.name: v.type.tensor_type.elem_type for v in graph.input if v.name not in self.values}
        self.outputs = [value.name for value in graph.output]
        self.nodes = list(self._read(unfused(onnx, graph.node)))
        self._assign_layers()
        for node in self.nodes:
            node.path = [known_name(layer, known) for layer in node.path] if known else node.path
        self._take_apart()
        self.layers: Dict[str, List[GraphNode]] = {}
        for node in self.nodes:
            for layer in node.path:
                self.layers.setdefault(layer, []).append(node)
        for layer in self.layers:
            self._number(layer)
        self.parameters = {parameter.name: parameter for parameter in self._own_values()}
        self.made = {value: node for node in self.nodes for value in node.outputs if value}

    # Reading

    def _read(self, protos: Iterable[Any]) -> Iterator[GraphNode]:
        """The nodes, without constants and identities."""
        names: Dict[str, str] = {}
        for number, proto in enumerate(protos):
            if proto.op_type == "Constant":
                self.values[proto.output[0]] = constant(self.onnx, proto)
            elif proto.op_type == "Identity" and names.get(proto.input[0], proto.input[0]) in self.values:
                names[proto.output[0]] = names.get(proto.input[0], proto.input[0])
                self.values[proto.output[0]] = self.values[names[proto.output[0]]]
            else:
                node = GraphNode(
                    proto,
                    proto.name or f"{proto.op_type}_{number}",
                    list(proto.input),
                    list(proto.output),
                    list(captured(proto)),
                    {item.name: attribute(self.onnx, item) for item in proto.attribute},
                    ["", *scopes_of(proto)],
                    classes_of(proto),
                )
                node.renamed(names)
                yield node

    def _assign_layers(self) -> None:
        """Assign a layer to nodes whose names have none."""
        unknown = [node for node in self.nodes if not is_placed(node.proto)]
        if len(unknown) == len(self.nodes):
            self._alone()
            return
        made = {value: node for node in self.nodes for value in node.outputs}
        # Forwards for nodes after a known one, backwards for nodes before one.
        for node in [*unknown, *reversed(unknown)]:
            before = [made[value] for value in node.reads if value in made]
            behind = [reader for reader in self.nodes if not set(node.outputs).isdisjoint(reader.reads)]
            heavy = [other for other in (*behind, *before) if other.op in HEAVY and other.path != [""]]
            if before and (node.op in WIDENING or (node.op == "Cast" and node.options["to"] == FLOAT)):
                node.path = before[0].path
            elif node.op in AROUND and heavy:
                node.path = heavy[0].path
            else:
                paths = [other.path for other in (*before, *behind) if other not in unknown or other.path != [""]]
                node.path = common(paths) if paths else node.path

    def _alone(self) -> None:
        """In a graph without scopes, make each node a layer: the one its parameter is named after, or its own."""
        before: Dict[str, GraphNode] = {}
        for node in self.nodes:
            owners = [value.rpartition(".")[0] for value in node.inputs if value in self.values and "." in value]
            first = next((before[value] for value in node.inputs if value in before), None)
            if node.op == "Add" and first is not None and first.op == "MatMul" and has(self.values, node.inputs):
                node.path = first.path = first.path if not owners else ["", owners[0]]
            else:
                node.path = ["", owners[0] if owners else node.name]
            before.update((value, node) for value in node.outputs)

    # Shared nodes

    def _take_apart(self) -> None:
        """Copy light nodes without parameters into every layer that uses their values: an exporter shared them."""
        made = {value: node for node in self.nodes for value in node.outputs}
        copies: Dict[Tuple[str, str], str] = {}
        nodes: List[GraphNode] = []
        left = self._leaving()
        for node in self.nodes:
            for value in node.reads:
                maker = made.get(value)
                if maker is None or maker.layer in node.path or maker.layer not in left:
                    continue
                chain = self._chain(value, maker.layer, made)
                others = left[maker.layer] - {output for one in chain for output in one.outputs}
                inside = any(value in one.reads and maker.layer in one.path for one in self.nodes)
                if others and inside and not any(one.op in HEAVY for one in chain):
                    nodes += self._copied(chain, node, copies)
                    node.renamed({value: copies[value, node.layer]})
            nodes.append(node)
        self.nodes = nodes

    def _leaving(self) -> Dict[str, Set[str]]:
        """The values that are made in each layer and read outside of it."""
        made = {value: node for node in self.nodes for value in node.outputs}
        left: Dict[str, Set[str]] = {}
        readers = [*((node.path, node.reads) for node in self.nodes), ([], self.outputs)]
        for path, values in readers:
            for value in values:
                for layer in made[value].path if value in made else ():
                    if layer not in path:
                        left.setdefault(layer, set()).add(value)
        return left

    def _chain(self, value: str, layer: str, made: Mapping[str, GraphNode]) -> List[GraphNode]:
        """The nodes in a layer that a value depends on, in order."""
        chain: Dict[int, GraphNode] = {}
        waiting = [value]
        while waiting:
            node = made.get(waiting.pop())
            if node is not None and layer in node.path and id(node) not in chain:
                chain[id(node)] = node
                waiting += node.reads
        return [node for node in self.nodes if id(node) in chain]

    def _copied(
        self, chain: Sequence[GraphNode], reader: GraphNode, copies: Dict[Tuple[str, str], str]
    ) -> Iterator[GraphNode]:
        """Copies of nodes for a reader's layer, once."""
        for node in chain:
            if (node.outputs[0], reader.layer) in copies:
                continue
            copies.update(((value, reader.layer), f"{value}@{reader.layer}") for value in node.outputs)
            copy = GraphNode(
                node.proto, f"{node.name}@{reader.layer}", node.inputs, node.outputs, node.captured, node.options,
                reader.path, reader.classes,
            )  # fmt: skip
            copy.renamed({value: other for (value, layer), other in copies.items() if layer == reader.layer})
            yield copy

    def _number(self, layer: str) -> None:
        """Number the calls of a layer: its nodes split into as many equal parts as there are uses of a parameter, or
        components that are not connected."""
        nodes = self.layers[layer]
        used = [sum(value in node.reads for node in nodes) for node in nodes for value in node.reads
                if value in self.values and self.values[value].ndim]  # fmt: skip
        for n in sorted({max(used, default=1), n_components(nodes)}, reverse=True):
            size = len(nodes) // n
            parts = [[node.op for node in nodes[i * size : (i + 1) * size]] for i in range(n)]
            if n * size == len(nodes) and all(part == parts[0] for part in parts):
                break
        else:
            n = 1
        size = max(len(nodes) // n, 1)
        for i, node in enumerate(nodes):
            node.calls[layer] = i // size if layer else 0

    # Parameters

    def _own_values(self) -> Iterator[GraphParameter]:
        """The parameters; each layer gets its own value."""
        original, self.values = self.values, {}
        inner = {layer for node in self.nodes for layer in node.path[:-1]}
        taken: Dict[str, str] = {}
        for node in self.nodes:
            names = {}
            for index, value in enumerate(node.inputs):
                if value in original:
                    role = "" if node.layer in inner else self._role(node, index, original[value])
                    name = f"{node.layer}.{role}" if role and node.layer else value
                    if taken.setdefault(name, value) != value:
                        name = value if taken.setdefault(value, value) == value else f"{value}@{node.name}"
                    names[value] = name
                    if name not in self.values:
                        self.values[name] = original[value]
                        if is_parameter(original[value]):
                            turned = role == "weight" and is_turned(node) and original[value].ndim == 2
                            yield GraphParameter(name, name, (1, 0) if turned else ())
            node.renamed(names)
            self.values.update({value: original[value] for value in node.captured if value in original})
        self.values.update({value: original[value] for value in self.outputs if value in original})

    def _role(self, node: GraphNode, index: int, array: Any) -> str:
        """The layer's name for an input, if it is a parameter."""
        roles = PARAMETERS.get(node.op, ())
        alone = node.op in ("Mul", "Add") and array.size == 1 and len(self.layers[node.layer]) > 2
        return roles[index] if index < len(roles) and array.dtype.kind in "fV" and array.ndim and not alone else ""

    # Layers

    def calls(self, layer: str) -> int:
        """How often a layer is called."""
        return 1 + max(node.calls[layer] for node in self.layers[layer])

    def of(self, layer: str, call: int) -> List[GraphNode]:
        """The nodes in a call of a layer."""
        return [node for node in self.layers.get(layer, ()) if node.calls[layer] == call]

    def given_to(self, nodes: Sequence[GraphNode]) -> List[str]:
        """The inputs of some nodes: values that none of them makes."""
        made = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in node.reads)
        return [value for value in read if value not in made and value not in self.values]

    def returned_by(self, nodes: Sequence[GraphNode]) -> List[str]:
        """The outputs of some nodes: values that others read, or the model returns."""
        mine = {id(node) for node in nodes}
        read = {value for node in self.nodes if id(node) not in mine for value in node.reads} | set(self.outputs)
        return [value for node in nodes for value in node.outputs if value in read]

    def cast(self, before: str, dtype: str) -> None:
        """Change the graph's computations in dtype `before` to `dtype`."""
        helper = self.onnx.helper
        np_types = {name: helper.tensor_dtype_to_np_dtype(getattr(self.onnx.TensorProto, TYPES[name]))
                    for name in (before, dtype)}  # fmt: skip
        old, new = (helper.np_dtype_to_tensor_dtype(np_types[name]) for name in (before, dtype))
        self.values = {name: array.astype(np_types[dtype]) if array.dtype == np_types[before] else array
                       for name, array in self.values.items()}  # fmt: skip
        self.inputs = {name: new if kind == old else kind for name, kind in self.inputs.items()}
        for node in self.nodes:
            node.proto = changed(self.onnx, node.proto, old, new)


def changed(onnx: Any, proto: Any, old: int, new: int) -> Any:
    """A copy of a node whose attributes of type `old` are of type `new`."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    kind = onnx.helper.tensor_dtype_to_np_dtype(new)
    for item in copy.attribute:
        if item.name in ("to", "dtype") and item.i == old:
            item.i = new
        if item.HasField("t") and item.t.data_type == old:
            array = onnx.numpy_helper.to_array(item.t).astype(kind)
            item.t.CopyFrom(onnx.numpy_helper.from_array(array))
        for graph in [*([item.g] if item.HasField("g") else []), *item.graphs]:
            nodes = [changed(onnx, node, old, new) for node in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return copy


TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BFLOAT16"}


def loaded(onnx: Any, source: Any) -> Any:
    """The model with its functions inlined."""
    if isinstance(source, bytes):
        model = onnx.load_from_string(source)
    else:
        model = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    if model.functions:
        from onnx.inliner import inline_local_functions

        return inline_local_functions(model)
    return model


def constant(onnx: Any, proto: Any) -> Any:
    """The value of a Constant."""
    import numpy as np

    (item,) = proto.attribute
    value = onnx.helper.get_attribute_value(item)
    if item.name == "value":
        return onnx.numpy_helper.to_array(value)
    return np.array(value, np.float32 if "float" in item.name else np.int64 if "int" in item.name else np.object_)


def attribute(onnx: Any, item: Any) -> Any:
    """An attribute's value; a number as it was written: 1e-12 instead of the nearest float32."""
    import numpy as np

    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return float(str(np.float32(value)))
    return list(value) if item.type in (6, 7) else value


def captured(proto: Any) -> Iterator[str]:
    """The outer values that the subgraphs of a node use."""
    for item in proto.attribute:
        for graph in [*([item.g] if item.HasField("g") else []), *item.graphs]:
            own = {value.name for value in [*graph.input, *graph.initializer]}
            own |= {value for node in graph.node for value in node.output}
            read = [value.name for value in graph.output]
            read += [value for node in graph.node for value in [*node.input, *captured(node)]]
            yield from (value for value in read if value and value not in own)


def classes_of(proto: Any) -> List[str]:
    """The classes of the layers around a node, if its metadata has them."""
    return next((ast.literal_eval(item.value)[:-1] for item in proto.metadata_props if item.key == CLASSES), [])


def is_placed(proto: Any) -> bool:
    """Whether a node names its layer."""
    return proto.name.startswith("/") or any(item.key == SCOPES for item in proto.metadata_props)


def known_name(layer: str, known: Collection[str]) -> str:
    """A layer's name, without the number of a call if the layer is only known without it."""
    name = ""
    for part in layer.split(".") if layer else ():
        whole, plain = (f"{name}.{word}".lstrip(".") for word in (part, re.sub(r"_\d+$", "", part)))
        name = whole if is_known(whole, known) or not is_known(plain, known) else plain
    return name


def is_known(layer: str, known: Collection[str]) -> bool:
    """Whether there is such a layer, or one within it."""
    return layer in known or any(name.startswith(f"{layer}.") for name in known)


def common(paths: Sequence[List[str]]) -> List[str]:
    """The common start of all paths."""
    return [layers[0] for layers in zip(*paths) if all(layer == layers[0] for layer in layers)]


def has(values: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether one of some values is a given vector."""
    return any(name in values and values[name].ndim == 1 for name in names)


def n_components(nodes: Sequence[GraphNode]) -> int:
    """The number of connected components of some nodes."""
    part = list(range(len(nodes)))
    makers: Dict[str, int] = {value: i for i, node in enumerate(nodes) for value in node.outputs}

    def root(i: int) -> int:
        while part[i] != i:
            i = part[i]
        return i

    for i, node in enumerate(nodes):
        for value in node.reads:
            if value in makers:
                part[root(i)] = root(makers[value])
    return len({root(i) for i in range(len(nodes))})


def is_parameter(array: Any) -> bool:
    """Whether a given value may be a parameter: a tensor of floats, no scalar."""
    return bool(array.dtype.kind in "fV" and array.ndim)


def is_turned(node: GraphNode) -> bool:
    """Whether a node's weight is the transpose of PyTorch's."""
    return node.op == "MatMul" or (node.op == "Gemm" and not node.options.get("transB"))
