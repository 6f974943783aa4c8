"""A user's model in its framework: built, loaded, run with its layers watched, and layers called alone.

A layer's `forward` is wrapped, so everything that goes into a call of a layer and comes out of it is seen and can be
replaced: `|`-separated, `encoder.0.norm|0|out|0` is the first tensor that the first call of that layer returned.
"""

from __future__ import annotations

import contextlib
import copy
import zlib
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from parity.adapters.bits import bits_of, values_of
from parity.models.worker.tape import Recorded, Tape

IN, OUT, STATE = "in", "out", "state:"
LOSS = ":loss"
"""The name under which the user's loss is a layer."""
ULP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
PLAIN = (bool, int, float, str)
CASTS = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "half"}


class PortError(ValueError):
    """A user's model cannot be used as it is; the message says what to change."""


class Step:
    """A function that is called as if it were a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.forward = function
        self._parameters: Dict[str, Any] = {}
        self._buffers: Dict[str, Any] = {}

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        return self.forward(*args)


class Slot:
    """Stands for the i-th tensor among a call's arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def key(layer: str, call: int, side: str, index: int) -> str:
    """The name of a tensor at a layer's boundary."""
    return f"{layer}|{call}|{side}|{index}"


def perturbed(values: Any, dtype: str, name: str, seed: int) -> Any:
    """Every number moved by one ulp, up or down; all stay as they are with seed 0.

    So do whole numbers: no rounding makes a mask's ones, and -10000 times its ulp would be more than rounding.
    """
    if not seed or values.dtype.kind != "f" or np.array_equal(values, np.rint(values)):
        return values
    up = np.random.RandomState(zlib.crc32(f"{name} {seed}".encode()) & 0xFFFFFFFF).randint(0, 2, values.shape) > 0
    if dtype in ULP:
        return (values * np.where(up, 1 + ULP[dtype], 1 - ULP[dtype])).astype(values.dtype)
    own = values.astype(dtype)
    return np.nextafter(own, np.where(up, np.inf, -np.inf).astype(dtype))


class Port:
    """A model of PyTorch's kind: layers with `forward`, named parameters and buffers, gradients in `grad`."""

    def __init__(self, adapter: Any, build: Callable[[], Any], mode: str) -> None:
        self.adapter, self.framework = adapter, adapter.framework
        self.seeded()
        self.framework.set_default_dtype(self.framework.float32)
        self.model = build()
        if not hasattr(self.model, "forward") or not hasattr(self.model, "named_parameters"):
            raise PortError(f"{build.__name__} must return a model with layers, not a {type(self.model).__name__}")
        self.model.train() if mode == "train" else self.model.eval()
        self.mode = mode
        self.dtype = "float32"
        self.loaded: Any = None
        self.calls: Dict[Tuple[str, int], Any] = {}
        self.steps: Dict[str, Any] = {}

    def seeded(self) -> None:
        """Start the framework's generator of random numbers anew."""
        seed = getattr(self.framework, "manual_seed", None) or self.framework.seed
        seed(0)

    # What it is made of

    @property
    def layers(self) -> Dict[str, Any]:
        """The layers by dotted name, in the order of definition; the model itself is ""."""
        if hasattr(self.model, "named_sublayers"):
            return dict(self.model.named_sublayers(include_self=True))
        return dict(self.model.named_modules())

    def module(self, name: str) -> Any:
        """A layer, or what is called as one."""
        return self.steps[name] if name in self.steps else self.layers[name]

    def described(self) -> List[Dict[str, Any]]:
        """The layers with the name of their class, its module, and their plain attributes."""
        return [
            {
                "name": name,
                "kind": type(layer).__name__,
                "own": not type(layer).__module__.startswith(self.framework.__name__),
                "options": plain_options(layer),
            }
            for name, layer in self.layers.items()
        ]

    def tensors(self) -> Iterator[Tuple[str, Any, bool, str]]:
        """Parameters and buffers: name, tensor, whether it is trained, and the name that it shares it with, if any."""
        seen: Dict[int, str] = {}
        for layer_name, layer in self.layers.items():
            prefix = f"{layer_name}." if layer_name else ""
            # Paddle keeps running statistics as parameters without a gradient.
            own = [(name, t, not getattr(t, "stop_gradient", False)) for name, t in layer._parameters.items()]
            own += [(*item, False) for item in layer._buffers.items()]
            for name, tensor, trained in own:
                if tensor is not None:
                    first = seen.setdefault(id(tensor), prefix + name)
                    yield prefix + name, tensor, trained, "" if first == prefix + name else first

    def to_array(self, tensor: Any) -> Any:
        """A tensor's values; bfloat16 as float32."""
        array = self.adapter.to_numpy(tensor.detach())
        return values_of(array) if array.dtype == np.uint16 else np.array(array)

    def to_tensor(self, array: Any, like: Any, requires_grad: bool = False) -> Any:
        """Values as a tensor of the dtype of `like`, a tensor or a dtype's name."""
        name = like if isinstance(like, str) else dtype_name(like)
        held = bits_of(array) if name == "bfloat16" else np.ascontiguousarray(array).reshape(array.shape).astype(name)
        return self.adapter.leaf(held, requires_grad)

    # Its state

    def load(self, state: str, dtype: str, seed: int) -> None:
        """Take parameters and buffers from a tape, in `dtype`, each perturbed by an ulp if there is a seed."""
        if self.loaded == (state, dtype, seed) and self.mode == "eval":
            return
        if dtype != self.dtype:
            self.cast(dtype)
        stored = Recorded(state)
        with self.framework.no_grad():
            for name, tensor, _, tied in self.tensors():
                if name in stored and not tied:
                    self.assign(tensor, perturbed(stored.load(name), dtype, name, seed))
        self.loaded = (state, dtype, seed)

    def assign(self, tensor: Any, array: Any) -> None:
        """Set a parameter's or buffer's values."""
        value = self.to_tensor(array.reshape(tuple(int(n) for n in tensor.shape)), tensor)
        if hasattr(tensor, "set_value"):
            tensor.set_value(value)
        else:
            tensor.copy_(value)

    def cast(self, dtype: str) -> None:
        """Convert parameters and buffers, and what the model creates without a dtype."""
        self.framework.set_default_dtype(getattr(self.framework, dtype))
        if hasattr(self.model, CASTS[dtype]):
            getattr(self.model, CASTS[dtype])()
        else:
            self.model.to(dtype=dtype)
        self.dtype = dtype

    # Runs

    def run(
        self,
        batch: Mapping[str, Any],
        functions: Mapping[str, Optional[Callable[..., Any]]],
        targets: Collection[str],
        crossing: Crossing,
        seed: int,
        gradients: bool,
    ) -> None:
        """Run the model on a batch; outputs, loss and gradients go to the crossing's tape."""
        tape = crossing.tape
        unknown = sorted(set(targets) - set(batch))
        if unknown:
            raise PortError(f"targets: the batch has no {unknown[0]!r}; it has {', '.join(sorted(batch))}")
        given = {name: self.to_tensor(perturbed(array, self.dtype, name, seed), self.held(array)) for name, array in
                 batch.items()}  # fmt: skip
        self.seeded()
        self.clear()
        with contextlib.nullcontext() if gradients else self.framework.no_grad(), crossing:
            forward = functions.get("forward")
            if forward is not None:
                output = forward(self.model, given)
            else:
                output = self.model(*(tensor for name, tensor in given.items() if name not in targets))
            outputs = dict(named(output, self.framework.Tensor))
            if not outputs:
                raise PortError("the model returns no tensor")
            for name, tensor in outputs.items():
                tape.put(name, self.to_array(tensor))
            if self.mode == "train":
                self.keep_buffers(tape)
            loss = functions.get("loss")
            if loss is None:
                return
            self.steps[LOSS] = Step(loss)
            value = crossing.step(LOSS, loss, output, given)
            tape.put("loss", self.to_array(value).reshape(()))
        if gradients:
            value.backward()
            for name, tensor, trained, tied in self.tensors():
                if trained and not tied and tensor.grad is not None:
                    tape.put(f"grad.{name}", self.to_array(tensor.grad))
            self.clear()

    def keep_buffers(self, tape: Tape) -> None:
        """Put what a run has changed beside its outputs on a tape: running statistics."""
        self.loaded = None
        for name, tensor, trained, tied in self.tensors():
            if not trained and not tied:
                array = self.to_array(tensor)
                if array.dtype.kind == "f":
                    layer, _, own = name.rpartition(".")
                    tape.put(key(layer, 0, f"{STATE}{own}", 0), array)

    def held(self, array: Any) -> str:
        """The dtype in which an array of the batch is given: floats in the model's."""
        return self.dtype if array.dtype.kind == "f" else str(array.dtype)

    def clear(self) -> None:
        """Forget all gradients."""
        for _, tensor, trained, _ in self.tensors():
            if trained and tensor.grad is not None:
                tensor.clear_grad() if hasattr(tensor, "clear_grad") else setattr(tensor, "grad", None)

    def alone(
        self,
        layer: str,
        call: int,
        inputs: Mapping[int, Any],
        upstream: Mapping[int, Any],
        parameters: Mapping[str, Any],
        crossing: Crossing,
    ) -> None:
        """Call one layer as it was called, with other tensors; its outputs and gradients go to the crossing's tape.

        `parameters` are values for the layer's own; they are put back.
        """
        if (layer, call) not in self.calls:
            raise PortError(f"{layer or 'the model'} was not called {call + 1} times")
        module = self.module(layer)
        own = {**module._parameters, **module._buffers}
        before = {name: self.to_array(own[name]) for name in own if own[name] is not None}
        leaves = {i: self.to_tensor(a, self.held(a), bool(upstream) and a.dtype.kind == "f") for i, a in inputs.items()}
        args, kwargs = filled(self.calls[layer, call], leaves)
        self.clear()
        try:
            with self.framework.no_grad():
                for name, array in parameters.items():
                    self.assign(own[name], array)
            with contextlib.nullcontext() if upstream else self.framework.no_grad(), crossing:
                outputs = tensors_in(module(*args, **kwargs), self.framework.Tensor)
            for i, tensor in enumerate(outputs):
                crossing.tape.put(key(layer, call, OUT, i), self.to_array(tensor))
            for name in before:
                crossing.tape.put(f"after.{name}", self.to_array(own[name]))
            if upstream:
                pairs = [(outputs[i], self.to_tensor(dy, outputs[i])) for i, dy in upstream.items()]
                floats = {str(i): leaf for i, leaf in leaves.items() if inputs[i].dtype.kind == "f"}
                floats.update({n: p for n, p in module._parameters.items() if p is not None})
                grads = self.adapter.gradients([y for y, _ in pairs], [dy for _, dy in pairs], list(floats.values()))
                for name, grad in zip(floats, grads):
                    if grad is not None:
                        crossing.tape.put(f"grad.{name}", self.to_array(grad))
        finally:
            with self.framework.no_grad():
                for name, array in before.items():
                    self.assign(own[name], array)
            self.clear()


class Crossing:
    """Watches the boundaries of layers while a context is open.

    What a call of one of `layers` gets and returns goes to the tape under its own name. What `source(name, array)`
    gives for a tensor takes its place; None leaves it.
    """

    def __init__(
        self, port: Port, tape: Tape, layers: Collection[str], source: Optional[Callable[[str, Any], Any]] = None
    ) -> None:
        self.port, self.tape, self.source = port, tape, source
        self._names = set(layers)
        self._count: Dict[str, int] = {}
        self._wrapped: List[Any] = []

    def __enter__(self) -> Crossing:
        for name, module in self.port.layers.items():
            if name in self._names:
                self._wrap(name, module)
        return self

    def __exit__(self, *_: Any) -> None:
        for module, own in self._wrapped:
            if own is None:
                del module.forward
            else:
                module.forward = own
        self._wrapped = []

    def _wrap(self, name: str, module: Any) -> None:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._called(name, original, args, kwargs)

        self._wrapped.append((module, vars(module).get("forward")))
        module.forward = forward

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that counts as a layer, if it is among those that are watched."""
        return self._called(name, function, args, {}) if name in self._names else function(*args)

    def _called(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = self._count.get(name, 0)
        self._count[name] = call + 1
        self.port.calls[name, call] = self.emptied((args, kwargs))
        return self.passed(name, call, original, args, kwargs)

    def passed(self, layer: str, call: int, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of a layer, from boundary to boundary."""
        args, kwargs = self._crossed(layer, call, IN, (args, kwargs))
        return self._crossed(layer, call, OUT, original(*args, **kwargs))

    def emptied(self, value: Any) -> Any:
        """A value with slots for its tensors."""
        return emptied(value, self.port.framework.Tensor)

    def _crossed(self, layer: str, call: int, side: str, value: Any) -> Any:
        """What goes on after a boundary."""
        kind = self.port.framework.Tensor
        found, others = tensors_in(value, kind), {}
        for i, tensor in enumerate(found):
            name = key(layer, call, side, i)
            array = self.port.to_array(tensor)
            self.tape.put(name, array)
            other = None if self.source is None else self.source(name, array)
            if other is not None:
                others[i] = self.port.to_tensor(other, tensor)
        if not others:
            return value
        return filled(emptied(value, kind), {i: others.get(i, tensor) for i, tensor in enumerate(found)})


def dtype_name(tensor: Any) -> str:
    """`float32`."""
    return str(tensor.dtype).rpartition(".")[2].lower()


def plain_options(layer: Any) -> Dict[str, Any]:
    """A layer's attributes that are numbers, texts, or short lists of them; without those that every layer has."""
    found = {}
    for name, value in vars(layer).items():
        value = list(value) if isinstance(value, (tuple, list)) else value
        flat = value if isinstance(value, list) else [value]
        if len(flat) <= 8 and all(item is None or isinstance(item, PLAIN) for item in flat):
            found[name] = value
    return {name: value for name, value in found.items() if name not in EVERY_LAYER}


EVERY_LAYER = frozenset(
    ("call_super_init", "dump_patches", "_full_name", "_helper_string", "_init_in_dynamic_mode", "_built",
     "_is_full_backward_hook", "_dtype", "_param_attr", "_weight_attr", "_bias_attr", "_casted_by_pure_fp16", "_name",
     "_cast_to_low_precison", "_state_dict_initialized", "_has_prefix")
)  # fmt: skip


# Tensors in nested arguments: tuples, lists and mappings, in order


def tensors_in(value: Any, kind: Any) -> List[Any]:
    """All tensors, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item, kind)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item, kind)]
    return []


def emptied(value: Any, kind: Any, count: Optional[List[int]] = None) -> Any:
    """The same with slots for tensors."""
    count = [0] if count is None else count
    if isinstance(value, kind):
        count[0] += 1
        return Slot(count[0] - 1)
    return rebuilt(value, lambda item: emptied(item, kind, count))


def filled(value: Any, tensors: Mapping[int, Any]) -> Any:
    """The same with tensors for slots."""
    return tensors[value.index] if isinstance(value, Slot) else rebuilt(value, lambda item: filled(item, tensors))


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container with its items changed; anything else as it is."""
    if isinstance(value, Mapping):
        other: Any = copy.copy(value)
        for name, item in value.items():
            other[name] = change(item)
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(change, value))
    return type(value)(map(change, value)) if isinstance(value, (tuple, list)) else value


def named(value: Any, kind: Any, name: str = "output") -> Iterator[Tuple[str, Any]]:
    """The tensors of what a model returns: `output`, or `output.logits`, `output.0`."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, Mapping):
        for part, item in value.items():
            yield from named(item, kind, f"{name}.{part}")
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from named(item, kind, f"{name}.{i}")
