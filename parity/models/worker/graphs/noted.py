"""The code of a layer in a graph between its children: its nodes as calls, with the value of each."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Set

import numpy as np

from parity.models.worker.crossing import IN
from parity.models.worker.graphs.onnx_graph import GraphNode, attribute
from parity.models.worker.graphs.pieces import Pieces, Route
from parity.models.worker.tape import TensorTape
from parity.models.worker.traced import word_of
from parity.program.worker.recording import UntracedError, ValueTable

UNARY: Mapping[str, str] = {"Neg": "neg", "Not": "logical_not", "BitwiseNot": "invert"}
BINARY: Mapping[str, str] = {
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "MatMul", "Pow", "Equal", "Less", "Greater")},
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
    "And": "and",
    "Or": "or",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
}
"""The names of operators of one and of two operands in Python."""
SHAPES = ("Shape", "Size")
LISTED = 8
"""A list of at most so many integers is shown; a longer one by its name."""
SILENT: Mapping[str, Any] = {"allowzero": (0, 1), "stash_type": (1,), "pads": (0,), "strides": (1,), "dilations": (1,)}
"""Attributes with the values that are not shown: they change nothing."""
SPELLED_OUT = 1 << 16
"""Elements up to which ONNX's reference replaces a kernel that ONNX Runtime lacks."""
WORD = re.compile(r"[A-Za-z]\w{0,31}")


class NodeCalls(ValueTable):
    """Runs the nodes of a layer's code, each as a model of its own.

    The values go to the tape; `others` replace the results of calls, by number. The outputs of children are given:
    `returned`, by boundary.
    """

    def __init__(
        self,
        pieces: Pieces,
        route: Route,
        layer: str,
        tape: TensorTape,
        others: Mapping[int, Any],
        returned: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.pieces, self.graph, self.route, self.layer, self.tape = pieces, pieces.graph, route, layer, tape
        self.others, self.returned = others, returned
        self.inputs: Dict[str, str] = {}
        self.seen: Dict[str, Any] = {}
        self.fixed: Dict[str, Any] = dict(self.graph.values)
        self._within: Dict[str, Any] = {}

    def run(self, given: Mapping[str, Any], outputs: Mapping[str, str]) -> Dict[str, Any]:
        """The reply for the host (as of `CallRecorder`). `given`: the layer's inputs; `outputs`: the values that it
        returns, by boundary. Raises UntracedError."""
        for i, (name, array) in enumerate(given.items()):
            self.seen[name] = array
            self.inputs[self._known_as(array, name)] = f"in:{i}"
        needed = self._not_given()
        for node in self.route.nodes:
            if not self.route.call_paths[id(node)]:
                self._note(node)
                continue
            if id(node) in needed:
                self._within.update(zip(made_by(node), self._made(node)))
            for value in node.outputs:
                if (value, ()) in self.route.seen:
                    self._leave(value, node)
        entered = [(c.name, c.value) for c in self.route.crossings.values() if c.name.split("|")[2] == IN]
        wanted = {key: self.seen[value] for key, value in [*entered, *outputs.items()] if value in self.seen}
        marks = {key: self._mark(array) for key, array in wanted.items() if is_float(array)}
        return {"calls": self.rows, "names": self.names, "inputs": self.inputs, "outputs": marks, "backward": []}

    def _known_as(self, array: Any, wanted: str) -> str:
        """The mark of a new value, which goes to the tape."""
        mark = self.know(array, wanted)
        values = array.astype(np.float32) if array.dtype.kind == "V" else array
        self.tape.put(mark, values)
        return mark

    # Children

    def _not_given(self) -> Set[int]:
        """The nodes of children that must run, since the children's outputs are not given."""
        names = {
            value: name for (value, call_path), name in self.route.seen.items() if not call_path and name is not None
        }
        waiting = [value for value, name in names.items() if value in self.route.made and name not in self.returned]
        needed: Set[int] = set()
        while waiting:
            node = self.route.made[waiting.pop()]
            call_path = self.route.call_paths[id(node)]
            if call_path and id(node) not in needed:
                needed.add(id(node))
                made = (value for value in node.reads if value in self.route.made)
                waiting += [value for value in made if self.route.call_paths[id(self.route.made[value])] == call_path]
        return needed

    def _leave(self, value: str, node: GraphNode) -> None:
        """Add a child's output: the given one, or its own."""
        name = self.route.seen[value, ()]
        own = self.returned.get(name) if name is not None else None
        array = self._within[value] if own is None else own(value)
        self.seen[value] = array
        self.inputs[self._known_as(array, word_of(self.route.call_paths[id(node)][0][0]))] = f"child:{name}"

    # Nodes

    def _read(self, name: str, call_path: Any) -> Any:
        """A value as a node in this call gets it."""
        maker = self.route.made.get(name)
        inside = bool(call_path) and maker is not None and self.route.call_paths[id(maker)] == call_path
        return self._within[name] if inside else self.seen[name]

    def _made(self, node: GraphNode) -> List[Any]:
        """The results of a node. Raises UntracedError."""
        call_path = self.route.call_paths[id(node)]
        given = {name: self._read(name, call_path) for name in node.reads if name not in self.graph.values}
        try:
            return self.pieces.run([node], given, made_by(node))
        except Exception as error:
            if not self.pieces.adapter.lacks_kernel(error) or sum(a.size for a in given.values()) > SPELLED_OUT:
                raise UntracedError(f"{node.op}: {error}") from error
        return self._spelled_out(node, given)

    def _spelled_out(self, node: GraphNode, given: Mapping[str, Any]) -> List[Any]:
        """The results of a node by ONNX's reference, which has every operator in every dtype."""
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(self.pieces.model([node], given, made_by(node)))
            return [np.asarray(array) for array in evaluator.run(None, dict(given))]
        except Exception as error:
            raise UntracedError(f"{node.op} has no kernel: {error}") from error

    def _note(self, node: GraphNode) -> None:
        """Add a node of the code: its results are steps."""
        values, arrays = made_by(node), self._made(node)
        if self._is_fixed(node) and all(map(is_short, arrays)):
            self.fixed.update(zip(values, arrays))
            self.seen.update(zip(values, arrays))
            return
        row = self.call(node)
        for i, (value, array) in enumerate(zip(values, arrays)):
            other = self.others.get(len(self.rows))
            array = array if other is None else np.asarray(other).reshape(array.shape).astype(array.dtype)
            self.seen[value] = array
            mark = self._known_as(array, value if WORD.fullmatch(value) else node.op.lower())
            part = None if len(values) == 1 else i
            self.rows.append({**row, "mark": mark, "name": self.names[mark], "part": part, "labelled": False})

    def _is_fixed(self, node: GraphNode) -> bool:
        """Whether a node's result depends only on the model and on shapes."""
        return node.op in SHAPES or all(name in self.fixed for name in node.reads)

    def _mark(self, array: Any, wanted: str = "constant") -> str:
        """The mark of a value; an unknown one becomes a constant."""
        known = id(array) in self._known
        mark = self.mark_of(array) if known else self._known_as(array, wanted)
        if not known:
            self.inputs[mark] = f"constant:{self.names[mark]}"
        return mark

    # Arguments

    def call(self, node: GraphNode) -> Dict[str, Any]:
        """A node as a part of a row."""
        inputs = list(node.inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        args = [self._argument(name) for name in inputs]
        options = unusual(self.graph.onnx, node, self.graph.model)
        word = {1: UNARY, 2: {} if options else BINARY}.get(len(args), {}).get(node.op)
        if word:
            return {"function": word, "args": args, "kwargs": {}}
        index = self._index(node, inputs)
        if index:
            return {"function": "getitem", "args": [args[0], {"tuple": index}], "kwargs": {}}
        if node.op == "Cast":
            kind = self.graph.onnx.helper.tensor_dtype_to_np_dtype(options.pop("to"))
            args.append({"word": str(kind)})
        args += [self._argument(name) for name in node.captured]
        return {"function": node.op, "args": args, "kwargs": {name: shortened(v) for name, v in options.items()}}

    def _argument(self, name: str) -> Any:
        """An input in JSON."""
        if not name:
            return None
        array = self.fixed.get(name)
        if array is None:
            return {"value": self._mark(self.seen[name])}
        if is_short(array):
            return shortened(array.astype(np.float64).item() if is_float(array) and array.size == 1 else listed(array))
        own = name[len(self.layer) + 1 :] if self.layer and name.startswith(f"{self.layer}.") else name
        self.seen[name] = array
        return {"value": self._mark(array, own if re.fullmatch(r"[A-Za-z][\w.]*", own) else "constant")}

    def _index(self, node: GraphNode, inputs: Sequence[str]) -> List[Any]:
        """The index of a Gather or Slice node in JSON, if it is known."""
        x, given = self.seen.get(inputs[0]), self.fixed
        if node.op not in ("Gather", "Slice") or x is None or not all(name in given for name in inputs[1:]):
            return []
        first, *more = (given[name] for name in inputs[1:])
        if node.op == "Gather":
            axis = node.options.get("axis", 0) % x.ndim
            return [EVERYTHING] * axis + [first.tolist()] if first.ndim < 2 and first.size <= LISTED else []
        if not more:
            return []
        ends, axes, by = [*(array.tolist() for array in more), *[None] * 2][:3]
        axes, by = axes or list(range(first.size)), by or [1] * first.size
        parts = {n % x.ndim: part(a, b, step, x.shape[n]) for n, a, b, step in zip(axes, first.tolist(), ends, by)}
        return [parts.get(axis, EVERYTHING) for axis in range(max(parts) + 1)]


EVERYTHING: Mapping[str, Any] = {"slice": [None, None, None]}


def made_by(node: GraphNode) -> List[str]:
    """The values that a node makes."""
    return [value for value in node.outputs if value]


def is_float(array: Any) -> bool:
    """Whether values are floats; NumPy has no float kind for bfloat16."""
    return bool(array.dtype.kind in "fV")


def is_short(array: Any) -> bool:
    """Whether values are shown: a number, or a few integers, such as sizes, axes and scales."""
    if array.ndim == 0 or (array.size == 1 and is_float(array)):
        return bool(array.size == 1)
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and np.array_equal(array, np.rint(array)))
    return bool(whole and array.ndim == 1 and array.size <= LISTED)


def part(start: int, end: int, step: int, length: int) -> Dict[str, Any]:
    """A slice in JSON, without the ends of the axis."""
    first = None if start == 0 and step > 0 else start
    last = None if end >= length or end < -length else end
    return {"slice": [first, last, None if step == 1 else step]}


def unusual(onnx: Any, node: GraphNode, model: Any) -> Dict[str, Any]:
    """The attributes of a node that are not the operator's defaults."""
    version = next((o.version for o in model.opset_import if o.domain == node.proto.domain), 1)
    try:
        known = onnx.defs.get_schema(node.op, version, node.proto.domain).attributes
    except onnx.defs.SchemaError:
        known = {}
    plain = {n: attribute(onnx, item.default_value) for n, item in known.items() if item.default_value.name}
    kept = {name: value for name, value in node.options.items() if isinstance(value, (int, float, str, list))}
    return {n: v for n, v in kept.items() if not is_silent(n, v) and not (n in plain and plain[n] == v)}


def is_silent(name: str, value: Any) -> bool:
    """Whether an attribute is not shown."""
    return name in SILENT and set(value if isinstance(value, list) else [value]) <= set(SILENT[name])


def listed(array: Any) -> Any:
    """Integers as a list, or a single one."""
    return (array if array.dtype.kind == "b" else array.astype(np.int64)).tolist()


def shortened(value: Any) -> Any:
    """A value with the digits of float32 for its floats."""
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, float):
        short = np.float32(value)
        return float(str(short)) if float(short) == value else value
    return value
