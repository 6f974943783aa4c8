"""Models of ONNX Runtime: an exported file, forward only; its layers are scopes of its graph."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Callable, ClassVar, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from parity.models.worker.crossing import OUT, Crossing, key
from parity.models.worker.graphs.kinds import kind_of
from parity.models.worker.graphs.noted import NodeCalls
from parity.models.worker.graphs.onnx_graph import Graph, GraphNode, GraphParameter
from parity.models.worker.graphs.pieces import GraphWalk, Pieces, Route
from parity.models.worker.ports.base import ClosedCall, ModelTensor, Port, PortError
from parity.models.worker.tape import TensorTape


class OnnxruntimePort(Port):
    """An ONNX model; `build` returns its path, its bytes, or a ModelProto."""

    differentiable = False
    trains: ClassVar[bool] = False
    called_by_user: ClassVar[bool] = False
    converted: ClassVar[bool] = True

    def built(self, build: Callable[[], Any]) -> Any:
        import onnx
        from google.protobuf.message import DecodeError

        self.source = build()
        if isinstance(self.source, os.PathLike):
            self.source = os.fspath(self.source)
        if not isinstance(self.source, (str, bytes, onnx.ModelProto)):
            raise PortError(
                f"{build.__name__} must return the path of an ONNX file, its bytes or a ModelProto, not a "
                f"{type(self.source).__name__}"
            )
        self.changed = False
        self.whole: Any = None
        self.routes: Dict[Any, Route] = {}
        self.kinds: Dict[str, str] = {}
        self.recorded_in = self.dtype
        try:
            self.take(Graph(onnx, self.source))
        except (DecodeError, OSError, ValueError) as error:
            raise PortError(f"this ONNX model cannot be read: {error}") from error
        return self.source

    def take(self, graph: Graph) -> None:
        """Use this graph from now on."""
        self.graph, self.pieces = graph, Pieces(graph, self.adapter)

    def named_like(self, layers: Collection[str]) -> None:
        if set(self.graph.layers) - set(layers):
            self.take(Graph(self.graph.onnx, self.source, layers))

    # Layers and tensors

    def described(self) -> List[Dict[str, Any]]:
        inner = {layer for node in self.graph.nodes for layer in node.path[:-1]}
        return [self._described(name, name in inner) for name in self.graph.layers]

    def _described(self, name: str, composite: bool) -> Dict[str, Any]:
        nodes = self.graph.of(name, 0)
        kind, options = ("", {}) if composite else kind_of(nodes, self.graph.values)
        own = composite or not kind or "." in kind
        return {"name": name, "kind": kind.rpartition(".")[2], "own": own, "options": options}

    def tensors(self) -> Iterator[ModelTensor]:
        for parameter in self.graph.parameters.values():
            yield ModelTensor(parameter.name, parameter, parameter.trained)

    def to_array(self, tensor: Any) -> Any:
        if isinstance(tensor, GraphParameter):
            array = super().to_array(self.graph.values[tensor.value])
            return array.transpose(tensor.axes) if tensor.axes else array
        return super().to_array(tensor)

    def dtype_of(self, tensor: Any) -> str:
        return str((self.graph.values[tensor.value] if isinstance(tensor, GraphParameter) else tensor).dtype)

    # State

    def assign(self, tensor: Any, array: Any) -> None:
        if np.array_equal(self.to_array(tensor), array, equal_nan=True):
            return
        shape, own = self.graph.values[tensor.value].shape, self.dtype_of(tensor)
        turned = array.transpose(np.argsort(tensor.axes)) if tensor.axes else array
        self.graph.values[tensor.value] = self.to_tensor(turned.reshape(shape), own)
        self.pieces.forget()
        self.changed = True

    def cast(self, dtype: str) -> None:
        self.graph.cast(self.dtype, dtype)
        self.pieces.forget()
        self.changed = True

    # Runs

    def run(
        self,
        batch: Mapping[str, Any],
        functions: Mapping[str, Optional[Callable[..., Any]]],  # noqa: ARG002 - of Python, not of graphs
        targets: Collection[str],
        crossing: Crossing,
        seed: int,
        gradients: bool,  # noqa: ARG002 - it has none
    ) -> None:
        feeds = self.fed(self.given(batch, targets, seed), targets)
        route = self.route(crossing.layers)
        if crossing.source is None:
            outputs = self.returned(feeds)
            self._record(route, feeds, crossing)
        else:
            walk = GraphWalk(self.pieces, route, feeds, self._crossing(crossing))
            walk.run()
            outputs = [walk.at(name, ()) for name in self.graph.outputs]
        for name, array in zip(self.names(), outputs):
            crossing.tape.put(name, self.to_array(array))

    def names(self) -> List[str]:
        """The outputs' names: its own if the baseline has them, else the baseline's if there are as many."""
        own = ["output"] if len(self.graph.outputs) == 1 else [f"output.{name}" for name in self.graph.outputs]
        if set(own) <= set(self.outputs) or len(own) != len(self.outputs):
            return own
        return list(self.outputs)

    def fed(self, given: Mapping[str, Any], targets: Collection[str]) -> Dict[str, Any]:
        """The graph's inputs: the batch's tensors by name, or in order; raises PortError."""
        names = list(self.graph.inputs)
        others = [name for name in given if name not in targets]
        chosen = names if set(names) <= set(given) else others
        if len(chosen) != len(names):
            raise PortError(f"its inputs are {', '.join(names)}, but the batch has {', '.join(others)}")
        kinds = (self.graph.onnx.helper.tensor_dtype_to_np_dtype(kind) for kind in self.graph.inputs.values())
        return {name: given[other].astype(kind) for name, other, kind in zip(names, chosen, kinds)}

    def returned(self, feeds: Mapping[str, Any]) -> List[Any]:
        """The outputs of the whole model, as a user runs it."""
        if self.changed:
            return self.pieces.run(self.graph.nodes, feeds, self.graph.outputs)
        if self.whole is None:
            made = self.source if isinstance(self.source, (str, bytes)) else self.source.SerializeToString()
            self.whole = self.pieces.session(made)
        return self.pieces.called(self.whole, feeds, self.graph.outputs)

    def route(self, layers: Collection[str]) -> Route:
        """The route of values across the boundaries of some layers."""
        watched = frozenset(layers)
        if watched not in self.routes:
            self.routes[watched] = Route(self.graph, self.graph.nodes, self.graph.outputs, watched)
        return self.routes[watched]

    def _record(self, route: Route, feeds: Mapping[str, Any], crossing: Crossing) -> None:
        """Record the tensors that cross boundaries in one run of the whole graph."""
        waiting: Dict[str, List[str]] = {}
        for crossed in route.crossings.values():
            waiting.setdefault(crossed.value, []).append(crossed.name)
        made = [value for value in waiting if value not in feeds]
        self.recorded_in = self.dtype
        arrays = self.pieces.in_turn(self.graph.nodes, feeds, made) if made else iter(())
        for value, names in waiting.items():
            array = feeds[value] if value in feeds else next(arrays)
            self.kinds[value] = str(array.dtype)
            for name in names:
                crossing.crossed(name, self.to_array(array))

    def _crossing(self, crossing: Crossing) -> Callable[[str, Any], Callable[[], Any]]:
        """The function that a walk calls at a boundary; values continue from the source, or from the tape."""

        def cross(name: str, tensor: Any) -> Callable[[], Any]:
            replaced = crossing.crossed(name, self.to_array(tensor)) is not None
            stored, dtype, shape = crossing.tape.last, self.dtype_of(tensor), tensor.shape

            def load() -> Any:
                if replaced and crossing.source is not None:
                    return self.to_tensor(crossing.source(name, np.empty(shape)), dtype)
                return self.to_tensor(stored(), dtype)

            return load

        return cross

    def kind(self, value: str) -> str:
        """The dtype of a value, adapted to the model's current dtype if it had the model's when recorded."""
        return self.dtype if self.kinds[value] == self.recorded_in else self.kinds[value]

    def given_to(self, layer: str, call: int, inputs: Mapping[int, Any]) -> Tuple[List[GraphNode], Dict[str, Any]]:
        """The nodes of a layer's call, and its inputs by value name. Raises PortError."""
        nodes = self.graph.of(layer, call)
        wanted = self.graph.given_to(nodes)
        if not nodes or len(inputs) < len(wanted):
            raise PortError(f"{layer or 'the model'} has no call {call + 1} that takes {len(inputs)} tensors")
        return nodes, {name: self.to_tensor(inputs[i], self.kind(name)) for i, name in enumerate(wanted)}

    def noted(self, closed: ClosedCall, tape: TensorTape, others: Mapping[int, Any]) -> Dict[str, Any]:
        nodes, given = self.given_to(closed.layer, closed.call, closed.inputs)
        outputs = self.graph.returned_by(nodes)
        route = Route(self.graph, nodes, outputs, frozenset(closed.children) - {closed.layer})
        loaded = {name: partial(self._held, array) for name, array in closed.values.items()}
        calls = NodeCalls(self.pieces, route, closed.layer, tape, others, loaded)
        return calls.run(given, {key(closed.layer, closed.call, OUT, i): value for i, value in enumerate(outputs)})

    def _held(self, array: Any, value: str) -> Any:
        """An array as a value of the graph."""
        return self.to_tensor(array, self.kind(value))

    def extracted(self, layer: str, call: int, path: str) -> Dict[str, Any]:
        nodes = self.graph.of(layer, call)
        inputs, outputs = self.graph.given_to(nodes), self.graph.returned_by(nodes)
        given = {name: np.empty(0, self.kinds[name]) for name in inputs}
        self.graph.onnx.save(self.pieces.model(nodes, given, outputs), path)
        return {"inputs": inputs, "outputs": outputs}

    def alone(
        self,
        layer: str,
        call: int,
        inputs: Mapping[int, Any],
        grad_outputs: Mapping[int, Any],  # noqa: ARG002 - it has no gradients
        parameters: Mapping[str, Any],
        crossing: Crossing,
    ) -> None:
        nodes, given = self.given_to(layer, call, inputs)
        own = {name: self.graph.parameters[f"{layer}.{name}" if layer else name] for name in parameters}
        before = {name: self.to_array(parameter) for name, parameter in own.items()}
        try:
            for name, array in parameters.items():
                self.assign(own[name], array)
            returned = self.graph.returned_by(nodes)
            route = Route(self.graph, nodes, returned, crossing.layers - {layer})
            walk = GraphWalk(self.pieces, route, given, self._crossing(crossing))
            walk.run()
            for i, value in enumerate(returned):
                crossing.tape.put(key(layer, call, OUT, i), self.to_array(walk.at(value, ())))
        finally:
            for name, array in before.items():
                self.assign(own[name], array)
