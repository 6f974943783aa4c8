"""Runs parts of a graph as models in ONNX Runtime, and replaces values that cross the boundaries of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from parity.models.worker.crossing import IN, OUT, key
from parity.models.worker.graphs.onnx_graph import Graph, GraphNode

BYTES_AT_ONCE = 256 << 20
CallPath = Tuple[Tuple[str, int], ...]
"""The calls of layers around a node, the outermost first."""


@dataclass(frozen=True)
class Crossed:
    """A value that crosses a boundary: its name there, and its name at the previous boundary, if any."""

    name: str
    value: str
    before: Optional[str]


class Route:
    """The boundaries of layers that values cross from node to node.

    `crossings` are in the order of the graph; `seen` maps a value and a call path to its name at the last boundary.

    Args:
        nodes: those that are run.
        returned: the values that are asked for at last.
        layers: those that are watched.
    """

    def __init__(
        self, graph: Graph, nodes: Sequence[GraphNode], returned: Collection[str], layers: Collection[str]
    ) -> None:
        self.graph, self.nodes = graph, nodes
        self.layers = [layer for layer in graph.layers if layer in layers]
        self.call_paths = {id(node): self._call_path(node) for node in nodes}
        self.made = {value: node for node in nodes for value in node.outputs if value}
        self.crossings: Dict[str, Crossed] = {}
        self.seen: Dict[Tuple[str, CallPath], Optional[str]] = {}
        self._numbers: Dict[Tuple[str, int], Dict[str, Dict[str, int]]] = {}
        for node in nodes:
            for value in node.reads:
                if value not in graph.values:
                    self._lead(value, self.call_paths[id(node)])
            for value in node.outputs:
                if value in returned:
                    self._lead(value, ())

    def _call_path(self, node: GraphNode) -> CallPath:
        return tuple((layer, node.calls[layer]) for layer in node.path if layer in self.layers)

    def _lead(self, value: str, call_path: CallPath) -> Optional[str]:
        """Add all boundaries between a value's node and a call path; returns the last one."""
        if (value, call_path) in self.seen:
            return self.seen[value, call_path]
        start: CallPath = self.call_paths[id(self.made[value])] if value in self.made else ()
        common = 0
        while common < min(len(start), len(call_path)) and start[common] == call_path[common]:
            common += 1
        at: Optional[str] = None
        for depth in range(len(start), common, -1):
            at = self._cross(start[depth - 1], OUT, value, at)
            self.seen.setdefault((value, start[: depth - 1]), at)
        for depth in range(common, len(call_path)):
            at = self._cross(call_path[depth], IN, value, at)
            self.seen.setdefault((value, call_path[: depth + 1]), at)
        self.seen[value, call_path] = at
        return at

    def _cross(self, call: Tuple[str, int], role: str, value: str, before: Optional[str]) -> Optional[str]:
        number = self.numbers(call)[role].get(value)
        if number is None:
            return before
        name = key(*call, role, number)
        self.crossings.setdefault(name, Crossed(name, value, before))
        return name

    def numbers(self, call: Tuple[str, int]) -> Dict[str, Dict[str, int]]:
        """The positions of values among the inputs and outputs of a layer's call, by role."""
        if call not in self._numbers:
            nodes = self.graph.of(*call)
            boundaries = ((IN, self.graph.given_to(nodes)), (OUT, self.graph.returned_by(nodes)))
            self._numbers[call] = {role: {value: i for i, value in enumerate(values)} for role, values in boundaries}
        return self._numbers[call]


class Pieces:
    """Runs parts of a graph; each part is a model of its own."""

    def __init__(self, graph: Graph, adapter: Any) -> None:
        self.graph, self.adapter = graph, adapter
        self._sessions: Dict[Any, Any] = {}

    def forget(self) -> None:
        """Drop all sessions after the graph's values have changed."""
        self._sessions.clear()

    def run(self, nodes: Sequence[GraphNode], given: Mapping[str, Any], wanted: Sequence[str]) -> List[Any]:
        """The wanted values that some nodes make of given ones."""
        types = tuple((name, str(array.dtype)) for name, array in given.items())
        marked = (tuple(wanted), types, tuple(node.name for node in nodes))
        if marked not in self._sessions:
            self._sessions[marked] = self.session(self.model(nodes, given, wanted).SerializeToString())
        return self.called(self._sessions[marked], given, wanted)

    def called(self, session: Any, given: Mapping[str, Any], wanted: Sequence[str]) -> List[Any]:
        """The wanted values of a session, which runs only what they depend on."""
        options = self.adapter.framework.RunOptions()
        options.only_execute_path_to_fetches = True
        values = {name: self.adapter.value(array) for name, array in given.items()}
        returned = session.run_with_ort_values(list(wanted), values, options)
        return [self.adapter.array(value) for value in returned]

    def in_turn(self, nodes: Sequence[GraphNode], given: Mapping[str, Any], wanted: Sequence[str]) -> Iterator[Any]:
        """The wanted values one by one, from runs that each return about BYTES_AT_ONCE."""
        session = self.session(self.model(nodes, given, wanted).SerializeToString())
        waiting, count = list(wanted), 8
        while waiting:
            now, waiting = waiting[:count], waiting[count:]
            arrays = self.called(session, given, now)
            size = sum(array.nbytes for array in arrays)
            count = max(1, min(4 * count, int(count * BYTES_AT_ONCE / max(size, 1))))
            yield from arrays

    def session(self, source: Any) -> Any:
        """A session of a model's bytes or path."""
        runtime = self.adapter.framework
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.adapter.threads
        options.log_severity_level = 3
        return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def model(self, nodes: Sequence[GraphNode], given: Mapping[str, Any], wanted: Sequence[str]) -> Any:
        """Some nodes as a model."""
        onnx, graph = self.graph.onnx, self.graph
        types = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
        inputs = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in wanted]
        used = dict.fromkeys(value for node in nodes for value in node.reads if value in graph.values)
        initializers = [onnx.numpy_helper.from_array(graph.values[name], name) for name in used]
        made = onnx.helper.make_graph([proto_of(node) for node in nodes], "piece", inputs, outputs, initializers)
        opsets = list(graph.model.opset_import)
        return onnx.helper.make_model(made, opset_imports=opsets, ir_version=graph.model.ir_version)


def proto_of(node: GraphNode) -> Any:
    """A node with the current names of its values."""
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:], proto.metadata_props[:]
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.name = node.name
    return proto


class GraphWalk:
    """A run of some nodes, piece by piece, in which values may be replaced at boundaries.

    Args:
        given: the values that come from outside, by name.
        cross: takes a name and what crosses there, and gives a function that loads what goes on, so that nothing is
            held in memory.
    """

    def __init__(
        self, pieces: Pieces, route: Route, given: Mapping[str, Any], cross: Callable[[str, Any], Callable[[], Any]]
    ) -> None:
        self.pieces, self.route, self.given, self.cross = pieces, route, given, cross
        self._passed: Dict[str, Callable[[], Any]] = {}

    def run(self) -> None:
        """Take all values across their boundaries."""
        for name in self.route.crossings:
            self._pass(name)

    def at(self, value: str, call_path: CallPath) -> Any:
        """A value as nodes with this call path see it."""
        name = self.route.seen.get((value, call_path))
        return self._raw(value) if name is None else self._pass(name)

    def _pass(self, name: str) -> Any:
        if name not in self._passed:
            crossed = self.route.crossings[name]
            array = self._raw(crossed.value) if crossed.before is None else self._pass(crossed.before)
            self._passed[name] = self.cross(name, array)
        return self._passed[name]()

    def _raw(self, value: str) -> Any:
        """A value before any boundary."""
        if value in self.given:
            return self.given[value]
        call_path = self.route.call_paths[id(self.route.made[value])]
        nodes, read = self._chain(value, call_path)
        return self.pieces.run(nodes, {name: self.at(name, call_path) for name in read}, [value])[0]

    def _chain(self, value: str, call_path: CallPath) -> Tuple[List[GraphNode], List[str]]:
        """The nodes with this call path that a value depends on, and the values that they read from elsewhere."""
        chain: Dict[int, GraphNode] = {}
        read: Dict[str, None] = {}
        waiting = [value]
        while waiting:
            name = waiting.pop()
            node = self.route.made.get(name)
            if name in self.given or node is None or self.route.call_paths[id(node)] != call_path:
                read[name] = None
            elif id(node) not in chain:
                chain[id(node)] = node
                waiting += [value for value in node.reads if value not in self.pieces.graph.values]
        return [node for node in self.route.nodes if id(node) in chain], list(read)
