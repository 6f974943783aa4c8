"""ONNX Runtime: the graph runs with every value as an output, so that no value is lost by fusion.

A layer is a node, or a scope: a layer of the model that torch.onnx exported, known from the names of nodes
(`/encoder/layers.0/norm/Add`) or from their metadata. If a single value leaves a scope, that is its output.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Set, Tuple

import numpy as np

from parity.adapters.bits import bits_of
from parity.capture.calls import Call, CapturedLayer
from parity.capture.frameworks.base import Capture, Framework

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch.onnx.export(dynamo=True) keeps the names of the layers around a node, and of the node."""

BYTES_AT_ONCE = 256 << 20
"""The approximate size of the values that one run returns."""


class OnnxruntimeFramework(Framework):
    """Runs a session's graph again after each of its runs, a few values at a time."""

    name = "onnxruntime"

    def __init__(self) -> None:
        import onnx
        import onnxruntime

        self.onnx = onnx
        self.framework = onnxruntime

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        recorded = RecordedGraph(self, session_source(model), model.get_providers())
        original, runs = model.run, iter(range(capture.steps or 1 << 62))
        capture.store_model(self, recorded, "")

        def run(names: Any, feed: Mapping[str, Any], *options: Any) -> Any:
            nth = next(runs, None)
            if nth is not None and capture.open:
                recorded.record(feed, nth, capture.sink)
            return original(names, feed, *options)

        model.run = run
        return lambda: delattr(model, "run")

    def layers(self, graph: RecordedGraph) -> List[CapturedLayer]:
        return graph.layers()

    def named_parameters(self, graph: RecordedGraph) -> Iterator[Tuple[str, Any]]:
        return ((tensor.name, tensor) for tensor in graph.model.graph.initializer)

    def to_numpy(self, tensor: Any) -> Any:
        array = self.onnx.numpy_helper.to_array(tensor)
        return bits_of(array.astype(np.float32)) if array.dtype.name == "bfloat16" else array


def session_source(session: Any) -> Any:
    """The path or the bytes that a session was made of."""
    return session._model_path or session._model_bytes


class RecordedGraph:
    """A model, and a session that returns all its values.

    Args:
        source: the path or the bytes of the model.
    """

    def __init__(self, framework: OnnxruntimeFramework, source: Any, providers: List[str]) -> None:
        onnx, runtime = framework.onnx, framework.framework
        is_path = not isinstance(source, bytes)
        self.model = onnx.load(source) if is_path else onnx.load_from_string(source)
        graph = self.model.graph
        self.nodes = dict(zip(names_of(graph.node), graph.node))
        self.outputs = [value.name for value in graph.output]
        self.values = [value for node in graph.node for value in node.output if value]
        changed = onnx.ModelProto()
        changed.CopyFrom(self.model)
        changed.graph.output.extend(
            onnx.ValueInfoProto(name=value) for value in self.values if value not in self.outputs
        )
        self.session = runtime.InferenceSession(changed.SerializeToString(), providers=providers)
        self.only_wanted = runtime.RunOptions()
        self.only_wanted.only_execute_path_to_fetches = True
        self.layers_by_value = self.layers_returning()

    def layers(self) -> List[CapturedLayer]:
        """The model, then each scope before the nodes in it."""
        layers = {"": CapturedLayer("", "Graph", {})}
        for name, node in self.nodes.items():
            for scope in scopes_of(node):
                layers.setdefault(scope, CapturedLayer(scope, "Scope", {}))
            options = {item.name: plain(item) for item in node.attribute}
            layers.setdefault(name, CapturedLayer(name, node.op_type, {**options, "inputs": list(node.input)}))
        return list(layers.values())

    def layers_returning(self) -> Dict[str, List[Tuple[str, str, str]]]:
        """The layers that return each value: (name, kind, where)."""
        layers_by_value: Dict[str, List[Tuple[str, str, str]]] = {value: [] for value in self.values}
        for scope, value in leaving(self.nodes.values(), self.outputs):
            layers_by_value[value].append((scope, "Scope", "0"))
        for name, node in self.nodes.items():
            if all(name != scope for output in node.output if output for scope, _, _ in layers_by_value[output]):
                for where, value in enumerate(node.output):
                    if value:
                        layers_by_value[value].append((name, node.op_type, str(where)))
        for value in self.outputs:
            layers_by_value.setdefault(value, []).append(("", "Graph", value))
        return layers_by_value

    def record(self, feed: Mapping[str, Any], nth: int, sink: Callable[[Call, str, str, Any], None]) -> None:
        """Compute all values for one feed, and pass them to `sink` in the order of the nodes."""
        order = nth * (1 + sum(map(len, self.layers_by_value.values())))
        model = Call("", "Graph", order, 0, nth)
        for name, array in feed.items():
            sink(model, "input", name, np.asarray(array))
        for value, array in self.computed(feed):
            for layer, kind, where in self.layers_by_value[value]:
                order += 1
                call = Call(layer, kind, order, 1 + layer.count("."), nth) if layer else model
                sink(call, "output", where, array)

    def computed(self, feed: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
        """All values and their arrays, in runs that each return about BYTES_AT_ONCE."""
        waiting, count = list(self.layers_by_value), 8
        while waiting:
            wanted, waiting = waiting[:count], waiting[count:]
            arrays = self.session.run(wanted, dict(feed), self.only_wanted)
            size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
            count = max(1, min(4 * count, int(count * BYTES_AT_ONCE / max(size, 1))))
            yield from zip(wanted, arrays)


def names_of(nodes: Iterable[Any]) -> Iterator[str]:
    """A dotted name for each node; without a name, its op and number."""
    taken: Set[str] = set()
    for number, node in enumerate(nodes):
        scopes = scopes_of(node)
        own = node.name.rpartition("/")[2] or f"{node.op_type}_{number}"
        name = f"{scopes[-1]}.{own}" if scopes else own
        name = name if name not in taken else f"{name}_{number}"
        taken.add(name)
        yield name


def scopes_of(node: Any) -> List[str]:
    """The layers around a node, the outermost first, as torch names them."""
    for item in node.metadata_props:
        if item.key == SCOPES:
            return [scope for scope in ast.literal_eval(item.value)[:-1] if scope]
    scopes: List[str] = []
    for part in [part for part in node.name.split("/")[:-1] if part]:
        around = scopes[-1] if scopes else ""
        # A Sequential's own name comes again in those of its layers: /features/features.0/Conv.
        repeated = around.rpartition(".")[2]
        inner = part[len(repeated) + 1 :] if repeated and part.startswith(f"{repeated}.") else part
        scopes.append(f"{around}.{inner}" if around else inner)
    return scopes


def leaving(nodes: Iterable[Any], outputs: List[str]) -> Iterator[Tuple[str, str]]:
    """Each scope that a single value leaves, with that value."""
    made: Dict[str, List[str]] = {}
    left: Dict[str, Dict[str, None]] = {}
    for node in nodes:
        inside = scopes_of(node)
        made.update((value, inside) for value in node.output)
        for value in node.input:
            for scope in made.get(value, ()):
                if scope not in inside:
                    left.setdefault(scope, {})[value] = None
    for value in outputs:
        for scope in made.get(value, ()):
            left.setdefault(scope, {})[value] = None
    for scope, values in left.items():
        if len(values) == 1:
            yield scope, next(iter(values))


def plain(attribute: Any) -> Any:
    """A node's attribute; a tensor or a graph only as its kind."""
    value = {1: attribute.f, 2: attribute.i, 6: list(attribute.floats), 7: list(attribute.ints)}.get(attribute.type)
    if attribute.type == 3:
        return attribute.s.decode(errors="replace")
    return value if value is not None else "tensor or graph"
