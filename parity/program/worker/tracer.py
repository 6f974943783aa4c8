"""Records the calls of torch code as calls in which no value changes: what it does in place becomes new values.

What the functions mean in NumPy, and which have no meaning there, the host knows (`parity.program.torch_functions`).
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from parity.program.worker.recording import (
    UntracedError,
    ValueTable,
    attribute_of,
    is_inplace,
    statement_of_call,
    tensors_in,
)

CASTS = frozenset(
    ("to", "type", "type_as", "float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool")
)
"""Methods that change a tensor's dtype."""
ATTRIBUTES = frozenset(("data", "real", "imag"))
"""Attributes that cannot be set, since other tensors share them."""
READING = frozenset(
    ("item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__contains__")
)
"""Methods that give Python the values of a tensor; what is made of these is recorded as constants."""

FORMATS = ("float16", "float32", "float64")
"""Floating-point formats in which a call may compute."""
OVERWRITING = frozenset(("copy_", "fill_", "zero_"))
"""Methods whose result does not depend on what the tensor was before."""
STATISTICS = frozenset(("batch_norm", "instance_norm"))
"""Functions that write to running statistics, on which what they return then does not depend."""


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of a call: its value's mark, and its dtype."""

    mark: str
    dtype: Any


@dataclass(frozen=True)
class Original:
    """A call as it was made, with `Operand`s for tensors."""

    function: Any
    args: Any
    kwargs: Any

    @property
    def operands(self) -> List[Operand]:
        """The tensors among the arguments."""
        return list(operands_in((self.args, self.kwargs)))


class Tracer(ValueTable):
    """Records the calls on known tensors.

    A tensor that a call writes to gets a new value, and so does each known tensor that shares its memory once it is
    read (`_waiting`). PyTorch counts the writes to a tensor in `_version`. `_made` are tensors that depend on no input,
    with copies of their values: they are constants if they are read. `reads` are the places where Python gets values,
    `values` what the calls computed, `originals` the calls themselves, both by mark. `random` says of each call that
    has drawn random numbers where it is. It refuses code that makes more than `most` calls.
    """

    def __init__(self, torch: Any, formats: Collection[str] = FORMATS, most: float = math.inf) -> None:
        super().__init__((torch.__name__,))
        self.formats, self.most = formats, most
        self.torch = torch
        self.widest = torch.get_default_dtype().itemsize
        self.reads: List[str] = []
        self.values: Dict[str, Any] = {}
        self.originals: Dict[str, Original] = {}
        self.random: List[str] = []
        self._versions: Dict[int, int] = {}
        self._made: Dict[int, Tuple[Any, Any, int]] = {}
        self._waiting: Dict[int, List[Tuple[Any, Any]]] = {}

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of PyTorch."""
        return isinstance(value, self.torch.Tensor)

    def called(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Record a call of a function; returns its result."""
        if self.active:
            self.active = False
            try:
                if len(self.rows) >= self.most:
                    raise UntracedError(f"{self._source_line()}: it makes more than {self.most} calls")
                self._note(function, args, kwargs, result)
            finally:
                self.active = True
        return result

    def drew(self, function: Any) -> None:
        """Note that a call has drawn random numbers."""
        self.random.append(f"{self._source_line()}: {function.__name__.strip('_')} draws random numbers")

    def know(self, tensor: Any, wanted: str = "") -> str:
        """The mark of a tensor's value, a new one if it has none yet; an input gets the name `wanted`."""
        if id(tensor) not in self._known:
            self._versions[id(tensor)] = version_of(tensor)
        return super().know(tensor, wanted)

    def mark_of(self, tensor: Any) -> str:
        """The mark of a tensor's current value; a constant's if no call has returned it.

        Raises UntracedError if a write to it was not recorded.
        """
        before = self._versions if id(tensor) in self._known else {id(tensor): self._made_at(tensor)}
        if before[id(tensor)] != version_of(tensor):
            raise self._refused("a tensor has changed by something other than a call of torch's functions")
        active, self.active = self.active, False
        try:
            return self._before(tensor)
        finally:
            self.active = active

    def passed(self, layer: str, given: Any, returned: Any, others: Any) -> None:
        """A layer that is not entered may write to what it is given, if it returns that: its value is then that of
        `others`, which take the place of what it `returned`."""
        for tensor in tensors_in(given, self.torch.Tensor):
            if id(tensor) in self._known and self._is_written(tensor):
                pairs = [(other, own) for own, other in zip(returned, others) if shares(own, tensor)]
                if not pairs:
                    raise self._refused(f"{layer} changes its input in place and returns something else")
                self._share(pairs[0][1], self._known[id(pairs[0][0])][1])

    # Calls

    def _note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a call that returns one tensor or several, or that writes to one."""
        kwargs = dict(kwargs)
        named = attribute_of(function) or function.__name__
        if named == "__set__":
            if function.__self__.__name__ in ATTRIBUTES:
                raise self._refused(f"it sets the {function.__self__.__name__} of a tensor")
            return
        out = kwargs.pop("out", None)
        outputs = tensors_in(result, self.torch.Tensor)
        if not self._leads((args, kwargs, out)):
            self._make((args, kwargs, out, outputs))
            return
        if named in READING:
            self.reads.append(f"{self._source_line()} ({named.strip('_')})")
        if outputs and outputs[0] is not result and not is_listed(result, self.torch):
            raise self._refused(f"{named} has no translation to NumPy")
        target = self._target(named, args, kwargs, out)
        if target is None and all(id(output) in self._known for output in outputs):
            return
        self._add(named, function, (args, kwargs), result, target)

    def _add(self, named: str, function: Any, operands: Any, result: Any, target: Any) -> None:
        """Add the rows of a call that writes to `target`, or returns new tensors."""
        row = {**self.row(named.strip("_"), *operands), "parameters": parameters_of(function)}
        row["original"] = Original(function, *(nested(part, self._operand) for part in operands))
        outputs = [target] if target is not None else tensors_in(result, self.torch.Tensor)
        if any(output.is_floating_point() for output in outputs) and is_cut(operands, outputs, self.torch):
            row["cut"] = True
        if target is not None:
            self._write(target, self._rounded(named, target, operands, row))
        elif isinstance(result, self.torch.Tensor):
            self._emit(result, self._rounded(named, result, operands, row))
        else:
            for i, output in enumerate(result):
                if output is not None:
                    self._emit(output, self._rounded(named, output, operands, {**row, "part": i}))

    def add(self, mark: str, call: Mapping[str, Any]) -> None:
        """Add the row of a call."""
        row = dict(call)
        if "original" in row:
            self.originals[mark] = row.pop("original")
        super().add(mark, row)

    def _operand(self, item: Any) -> Any:
        """An argument of the call that is recorded; a tensor as an operand."""
        return Operand(self._before(item), item.dtype) if self.is_tensor(item) else item

    def _emit(self, tensor: Any, row: Dict[str, Any]) -> None:
        """Add a row whose result is this tensor, which has it as its new value."""
        self._known.pop(id(tensor), None)
        mark = self.know(tensor)
        self.add(mark, row)
        self.values[mark] = tensor.detach().clone()

    def _rounded(self, named: str, result: Any, operands: Any, row: Dict[str, Any]) -> Dict[str, Any]:
        """A call; one with a dtype that is narrower than the model's is added, and its rounding returned."""
        dtype = str(result.dtype).rpartition(".")[2]
        floats = [t for t in tensors_in(operands, self.torch.Tensor) if t.is_floating_point()]
        is_cast = named in CASTS or is_inplace(named)
        if result.is_floating_point():
            is_rounded = result.dtype.itemsize < self.widest
            if not is_rounded and not (named in CASTS and not floats):
                return row
        elif not is_cast or (not floats and dtype != "bool"):
            return row
        if dtype not in (*self.formats, "bool") and not dtype.startswith(("int", "uint")):
            raise self._refused(f"it computes in {dtype}, which cannot be a step")
        mark = self.new_mark()
        self.add(mark, row)
        return {"function": "cast", "args": [{"value": mark}, dtype], "kwargs": {}}

    # Writes

    def _target(self, named: str, args: Any, kwargs: Any, out: Any) -> Any:
        """The tensor that a call has written to; None if it is none."""
        if out is not None:
            if not isinstance(out, self.torch.Tensor):
                raise self._refused(f"{named} writes to several tensors")
            return out
        tensors = tensors_in((args, kwargs), self.torch.Tensor)
        target = tensors[0] if self._is_written(tensors[0]) else None
        is_unknown = id(tensors[0]) not in self._known and id(tensors[0]) not in self._made
        if is_unknown and named in OVERWRITING:
            return tensors[0]
        if is_unknown and (is_inplace(named) or kwargs.get("inplace")):
            raise self._refused(f"{named} writes to a tensor that was made before the call")
        for tensor in tensors[1:] if named not in STATISTICS else ():
            if self._is_written(tensor) and (target is None or not shares(tensor, target)):
                raise self._refused(f"{named} writes to its arguments")
        return target

    def _is_written(self, tensor: Any) -> bool:
        """Whether a tensor has changed since its value was noted."""
        before = self._versions[id(tensor)] if id(tensor) in self._known else self._made_at(tensor)
        return before != version_of(tensor)

    def _write(self, target: Any, row: Dict[str, Any]) -> None:
        """Add a row that gives a new value to a tensor, and to those that share its memory."""
        for tensor, _, _ in list(self._made.values()):
            if tensor is not target and id(tensor) not in self._known and shares(tensor, target):
                self._before(tensor)
        self._emit(target, row)
        self._waiting.pop(id(target), None)
        self._share(target, self._known[id(target)][1])

    def _share(self, target: Any, mark: str) -> None:
        """Let the known tensors that share a tensor's memory have its value."""
        for tensor, _ in list(self._known.values()):
            if shares(tensor, target):
                self._versions[id(tensor)] = version_of(tensor)
                if tensor is not target or self._known[id(target)][1] != mark:
                    self._waiting.setdefault(id(tensor), []).append((mark, overlap(tensor, target)))

    def _before(self, tensor: Any) -> str:
        """The mark of the last value of a tensor that was noted; a constant's if it depends on no input."""
        for mark, elements in self._waiting.pop(id(tensor), ()):
            if (elements < 0).all():
                continue
            at = super().mark_of(self.torch.as_tensor(elements))
            old = self._known.pop(id(tensor))[1]
            marks = [mark, at] if (elements >= 0).all() else [mark, at, old]
            is_current = self._versions[id(tensor)] == version_of(tensor)
            version = self._versions[id(tensor)]
            new = self.know(tensor)
            self.add(new, {"function": "written", "args": [{"value": one} for one in marks], "kwargs": {}})
            if is_current:
                self.values[new] = tensor.detach().clone()
            self._versions[id(tensor)] = version
        is_new = id(tensor) not in self._known
        mark = super().mark_of(tensor)
        if is_new:
            _, before, _ = self._made.get(id(tensor), (None, tensor.detach().clone(), 0))
            self.constants[self.names[mark]] = before
        return mark

    def _make(self, given: Any) -> None:
        """Note the values of tensors that depend on no input."""
        for tensor in tensors_in(given, self.torch.Tensor):
            self._made[id(tensor)] = (tensor, tensor.detach().clone(), version_of(tensor))
        for name, (tensor, _, version) in list(self._made.items()):
            if version != version_of(tensor):
                self._made[name] = (tensor, tensor.detach().clone(), version_of(tensor))

    def _made_at(self, tensor: Any) -> int:
        """The version of a tensor whose value was noted; the current one if it was not."""
        return self._made[id(tensor)][2] if id(tensor) in self._made else version_of(tensor)

    def _refused(self, text: str) -> UntracedError:
        """The error that the code cannot be recorded, with its place."""
        source_line = self._source_line()
        return UntracedError(f"{source_line}: {text}" if source_line else text)

    def _source_line(self) -> str:
        """`model.py:12`, the user's current statement."""
        return str(statement_of_call(self.roots)["source_line"])

    def _leads(self, given: Any) -> bool:
        """Whether a known tensor is among the arguments."""
        return any(id(tensor) in self._known for tensor in tensors_in(given, self.torch.Tensor))

    def encoded(self, value: Any) -> Any:
        """An argument in JSON; a tensor as the mark of its value before the call."""
        return {"value": self._before(value)} if self.is_tensor(value) else super().encoded(value)


@functools.lru_cache(maxsize=4096)
def parameters_of(function: Any) -> Optional[List[str]]:
    """The names of a function's parameters, which nobody may change; None if it does not tell."""
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return None


def is_listed(value: Any, torch: Any) -> bool:
    """Whether a value is several tensors; None stands for one that is left out."""
    if not isinstance(value, (tuple, list)) or not value:
        return False
    return all(item is None or isinstance(item, torch.Tensor) for item in value)


def is_cut(operands: Any, outputs: Any, torch: Any) -> bool:
    """Whether gradients end at a call: an operand has one, and no result has."""
    needed = any(tensor.requires_grad for tensor in tensors_in(operands, torch.Tensor))
    return needed and not any(output.requires_grad for output in outputs)


def nested(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested arguments with each item changed."""
    if isinstance(value, dict):
        return {key: nested(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [nested(item, change) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, slice):
        return slice(*(nested(end, change) for end in (value.start, value.stop, value.step)))
    return change(value)


def operands_in(value: Any) -> Iterator[Operand]:
    """All operands in nested arguments."""
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, slice):
        yield from operands_in((value.start, value.stop, value.step))
    elif isinstance(value, (dict, tuple, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from operands_in(item)


def version_of(tensor: Any) -> int:
    """How often a tensor was written to; 0 where PyTorch does not count."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return 0


def shares(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory."""
    try:
        return bool(one.numel() and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return False


def elements_of(tensor: Any) -> Any:
    """The position in memory of each element."""
    positions = np.full(tuple(tensor.shape), tensor.storage_offset(), np.int64)
    for axis, (n, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        positions += (np.arange(n) * stride).reshape((-1,) + (1,) * (tensor.ndim - axis - 1))
    return positions


def overlap(tensor: Any, target: Any) -> Any:
    """For each element of a tensor the number of the element of `target` at its position in memory, or -1."""
    own, written = elements_of(tensor), elements_of(target).ravel()
    table = np.full(max(own.max(initial=0), written.max(initial=0)) + 1, -1)
    table[written] = np.arange(written.size)
    return table[own]
