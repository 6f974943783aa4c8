"""Frameworks with a base class of layers, and the recording of every call of a layer by patching its `__call__`."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from parity.capture.calls import Arguments, Call, CapturedLayer, Sink, described, joined
from parity.capture.frameworks.base import Capture, Framework
from parity.capture.frameworks.visit import Placeholder, filled, visit

RECORDERS: Dict[Any, List["Recorder"]] = {}
"""The active recorders by the class whose `__call__` is patched."""


class LayeredFramework(Framework):
    """A framework whose layers are instances of one class, `base`, and are called by its `__call__`."""

    base: Any

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        """Every layer once, with its first name, in definition order; the model itself first, as ""."""
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a tensor with values, and no symbol of a graph that is being traced."""
        raise NotImplementedError

    def is_tracing(self) -> bool:
        """Whether calls are being traced into a graph, and compute nothing."""
        return False

    def alias(self, tensor: Any) -> Any:
        """The same memory as a new node of the autograd graph, whose gradient is that of one use."""
        raise NotImplementedError

    def layers(self, model: Any) -> List[CapturedLayer]:
        return [
            CapturedLayer(name, type(layer).__name__, self.options(layer)) for name, layer in self.named_layers(model)
        ]

    def options(self, layer: Any) -> Dict[str, Any]:
        """A layer's plain attributes, such as eps and stride, without those of its base class except `training`."""
        ignored = set(vars(self.base())) - {"training"}
        given = {name.lstrip("_"): described(value) for name, value in vars(layer).items() if name not in ignored}
        return {name: value for name, value in given.items() if value is not NotImplemented}

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        recorder = ModelRecorder(capture, self, model)
        start(recorder, self.base)
        return functools.partial(stop, recorder, self.base)

    def tensors(self, value: Any) -> List[Tuple[str, Any]]:
        """All tensors in a result, by name."""
        pairs: List[Tuple[str, Any]] = []

        def take(name: str, tensor: Any) -> Any:
            pairs.append((name or "0", tensor))
            return tensor

        visit(value, self.is_tensor, take)
        return pairs


class Recorder:
    """Passes the tensors of each call of known layers to a sink.

    `layers` maps the id of a layer to its name and to itself, so that no other object gets this id.
    """

    def __init__(
        self,
        framework: LayeredFramework,
        layers: Dict[int, Tuple[str, Any]],
        sink: Sink,
        gradients: bool = False,
    ) -> None:
        self.framework = framework
        self.layers = layers
        self.sink = sink
        self.gradients = gradients
        self.active = True
        self.depth = 0
        self.order = 0
        self.counts: Dict[str, int] = {}

    def call(self, layer: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer's call, and record it if the layer is known."""
        if not self.active or id(layer) not in self.layers:
            return run(*args, **kwargs)
        inputs: Dict[str, Any] = {}
        call = self.begun(layer, self.with_placeholders((args, kwargs), inputs))
        for name, tensor in inputs.items():
            self.pass_values(call, "input", name, tensor)
        if self.gradients:
            aliases = self.aliases(call, inputs, getattr(layer, "inplace", False))
            args, kwargs = filled(call.arguments, {**inputs, **aliases})
        self.depth += 1
        try:
            result = run(*args, **kwargs)
        finally:
            self.depth -= 1
        return visit(result, self.framework.is_tensor, functools.partial(self.returned, call))

    def returned(self, call: Call, name: str, tensor: Any) -> Any:
        """Pass an output to the sink, and return the tensor to use from now on."""
        self.pass_values(call, "output", name or "0", tensor)
        if self.gradients and self.framework.has_history(tensor):
            return self.watched(call, "grad.output", name or "0", tensor)
        return tensor

    def begun(self, layer: Any, arguments: Arguments) -> Call:
        """Begin a call of this layer."""
        name, _ = self.layers[id(layer)]
        nth = self.counts.get(name, 0)
        call = Call(name, type(layer).__name__, self.order, self.depth, nth, arguments)
        self.counts[name] = nth + 1
        self.order += 1
        return call

    def with_placeholders(self, arguments: Any, inputs: Dict[str, Any]) -> Arguments:
        """The arguments with a `Placeholder` in place of each tensor, which goes to `inputs`."""

        def take(name: str, tensor: Any) -> Placeholder:
            inputs[name] = tensor
            return Placeholder(name)

        return tuple(visit(value, self.framework.is_tensor, take) for value in arguments)

    def aliases(self, call: Call, inputs: Mapping[str, Any], inplace: bool) -> Dict[str, Any]:
        """Aliases of the inputs that gradients flow to: one for each tensor, however often it is an argument.

        A gradient has the name of its tensor's first argument. A layer that works in place gets the tensor itself,
        whose gradient is that of this use; an alias would lose it.
        """
        aliases: Dict[int, Any] = {}
        for name, tensor in inputs.items():
            if id(tensor) in aliases or not self.framework.has_history(tensor):
                continue
            alias = tensor if inplace else self.framework.alias(tensor)
            if self.framework.has_history(alias):  # False under no_grad
                aliases[id(tensor)] = self.watched(call, "grad.input", name, alias)
        return {name: aliases[id(tensor)] for name, tensor in inputs.items() if id(tensor) in aliases}

    def watched(self, call: Call, role: str, name: str, tensor: Any) -> Any:
        """The tensor to use from now on, whose gradient goes to the sink in each backward pass."""

        def gradient(values: Any) -> None:
            if self.active:
                self.pass_values(call, role, name, values)

        return self.framework.watched(tensor, gradient)

    def pass_values(self, call: Call, role: str, name: str, tensor: Any) -> None:
        """Pass a tensor's values to the sink."""
        self.framework.pass_values(tensor, functools.partial(self.sink, call, role, name))


class ModelRecorder(Recorder):
    """Records the first calls of one model, or (None) of each outermost one, under the name of its class."""

    def __init__(self, capture: Capture, framework: LayeredFramework, model: Any) -> None:
        super().__init__(framework, {}, capture.sink, gradients=capture.gradients)
        self.capture = capture
        self.model = model
        self.stored: Dict[str, Any] = {}
        if model is not None:
            self.add(model, "")

    def add(self, model: Any, prefix: str) -> None:
        """Add the layers of a model; known ones keep their name."""
        for name, layer in self.framework.named_layers(model):
            self.layers.setdefault(id(layer), (joined(prefix, name), layer))

    def call(self, layer: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record an outermost call unless there were `steps` already."""
        if self.depth or not self.active or not self.is_known(layer, (args, kwargs)):
            return super().call(layer, run, *args, **kwargs)
        name, _ = self.layers[id(layer)]
        self.capture.is_step = self.capture.steps is None or self.counts.get(name, 0) < self.capture.steps
        if self.capture.is_step:
            return super().call(layer, run, *args, **kwargs)
        self.active = False
        try:
            return run(*args, **kwargs)
        finally:
            self.active = True

    def pass_values(self, call: Call, role: str, name: str, tensor: Any) -> None:
        """Store a tensor's values if it has any."""
        sink = functools.partial(self.sink, call, role, name)
        self.capture.pass_values(self.framework, tensor, call.tensor_name(role, name), sink)

    def is_known(self, layer: Any, arguments: Any) -> bool:
        """Whether an outermost layer is to be recorded; its model is stored before its first call.

        One with neither parameters nor inputs is no model: in OneFlow, `ones` is a layer.
        """
        if self.model is None and id(layer) not in self.layers:
            has_parameters = any(True for _ in self.framework.named_parameters(layer))
            if not has_parameters and not self.framework.tensors(arguments):
                return False
            self.meet(layer, has_parameters)
        if id(layer) in self.layers and not self.stored:
            self.stored[""] = type(self.model).__name__
            self.capture.store_model(self.framework, self.model, "")
        return id(layer) in self.layers

    def meet(self, layer: Any, has_parameters: bool) -> None:
        """Add another model; layers without parameters, such as losses, share one name per class."""
        kind = type(layer).__name__
        number = has_parameters * sum(other == kind for other in self.stored.values())
        prefix = f"{kind}{number + 1}" if number else kind
        self.add(layer, prefix)
        if prefix not in self.stored:
            self.stored[prefix] = kind
            self.capture.store_model(self.framework, layer, prefix)


def start(recorder: Recorder, base: Any) -> None:
    """Let a recorder see all calls of `base.__call__`, within the recorders that already do."""
    if base not in RECORDERS:
        RECORDERS[base] = []
        _patch(base, recorder.framework, RECORDERS[base])
    RECORDERS[base].append(recorder)


def stop(recorder: Recorder, base: Any) -> None:
    """Stop a recorder; the last one removes the patch."""
    recorder.active = False
    recorders = RECORDERS[base]
    recorders.remove(recorder)
    original = getattr(base.__call__, "parity_original", None)
    if not recorders and original is not None:  # a foreign patch on top keeps ours, which then does nothing
        base.__call__ = original
        del RECORDERS[base]


def _patch(base: Any, framework: LayeredFramework, recorders: List[Recorder]) -> None:
    original = base.__call__

    @functools.wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if framework.is_tracing():
            return original(layer, *args, **kwargs)
        run = functools.partial(original, layer)
        for recorder in recorders:
            run = functools.partial(recorder.call, layer, run)
        return run(*args, **kwargs)

    call.parity_original = original  # type: ignore[attr-defined]
    base.__call__ = call
