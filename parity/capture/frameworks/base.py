"""The base of all frameworks: layers with names, the recording of their calls, and one layer run alone.

Runs in the framework's own interpreter, on Python 3.8 and later, with the standard library and NumPy.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Iterator, List, Mapping, Optional, Tuple

from parity.capture.frameworks import recorder as recorders
from parity.capture.frameworks.calls import (
    Arguments,
    Layer,
    LayerResult,
    Replace,
    Sink,
    arguments_of,
    described,
    filled,
)
from parity.capture.frameworks.visit import visit

if TYPE_CHECKING:
    from parity.capture.capturing import Capture


class Source:
    """What `parity.capture` needs of a framework. A subclass imports its framework in its constructor."""

    name: ClassVar[str]
    framework: Any

    def version(self) -> str:
        """The framework's version."""
        return str(self.framework.__version__)

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        """Record the calls of a model, or (None) of each outermost one that is called; the result ends this."""
        raise NotImplementedError

    def layers(self, model: Any) -> List[Layer]:
        """All layers in definition order, the model itself first, as ""."""
        raise NotImplementedError

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        """Every parameter once, with its first name, as the framework's tensors."""
        raise NotImplementedError

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:  # noqa: ARG002 - where there are none
        """Every buffer once, with its first name, as the framework's tensors."""
        return iter(())

    def to_numpy(self, tensor: Any) -> Any:
        """A copy of a tensor's values."""
        raise NotImplementedError

    def tell(self, tensor: Any, function: Callable[[Any], None]) -> None:
        """Give a tensor's values to `function`, now or when they are computed."""
        function(self.to_numpy(tensor))

    def compiled(self, model: Any) -> List[str]:  # noqa: ARG002 - a framework that compiles otherwise
        """The names of layers that run compiled, so that nothing within them is seen."""
        return []

    def has_history(self, tensor: Any) -> bool:  # noqa: ARG002 - where gradients have no tape
        """Whether a gradient can go through a tensor, and `watched` can tell it."""
        return False

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        """The tensor to go on with, whose gradient is given to `function` in each backward pass."""
        tensor.register_hook(function)
        return tensor


class Framework(Source):
    """A framework whose layers are instances of one class, `base`, through whose `__call__` every call goes."""

    base: Any

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        """Every layer once, with its first name, in definition order; the model itself first, as ""."""
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a tensor with values; a symbol of a graph that is being traced is none."""
        raise NotImplementedError

    def is_tracing(self) -> bool:
        """Whether calls are being traced into a graph, and compute nothing."""
        return False

    def from_numpy(self, array: Any, like: Any) -> Any:
        """A tensor with the values of `array` on the device and in the dtype of `like`, out of any graph."""
        raise NotImplementedError

    def leaf(self, array: Any) -> Any:
        """A tensor with the values of `array`, in its dtype, that has a gradient if that is a floating-point one."""
        raise NotImplementedError

    def assign(self, tensor: Any, array: Any) -> None:
        """Put values into a parameter or a buffer, in its dtype."""
        raise NotImplementedError

    def alias(self, tensor: Any) -> Any:
        """The same memory as another node of the graph, so that its gradient is that of one use."""
        raise NotImplementedError

    def gradients(self, outputs: List[Any], leaves: List[Any], grad_outputs: List[Any]) -> List[Any]:
        """Gradients of sum(outputs * grad_outputs) for each leaf; None where none flows."""
        raise NotImplementedError

    def layers(self, model: Any) -> List[Layer]:
        return [Layer(name, type(layer).__name__, self.options(layer)) for name, layer in self.named_layers(model)]

    def options(self, layer: Any) -> Dict[str, Any]:
        """The plain attributes that a layer has beside those of its base class: eps, stride; and `training`."""
        ignored = set(vars(self.base())) - {"training"}
        given = {name.lstrip("_"): described(value) for name, value in vars(layer).items() if name not in ignored}
        return {name: value for name, value in given.items() if value is not NotImplemented}

    def parameters(self, model: Any) -> Dict[str, Any]:
        """All parameters as arrays; one with several names under its first."""
        return {name: self.to_numpy(tensor) for name, tensor in self.named_parameters(model)}

    def buffers(self, model: Any) -> Dict[str, Any]:
        """All buffers, such as running statistics, as arrays."""
        return {name: self.to_numpy(tensor) for name, tensor in self.named_buffers(model)}

    def load(self, model: Any, state: Mapping[str, Any]) -> None:
        """Copy arrays into the parameters and buffers of these names; the others keep their values.

        Raises:
            ValueError: no parameter or buffer has this name, or it has another shape.
        """
        tensors = {**dict(self.named_buffers(model)), **dict(self.named_parameters(model))}
        for name, array in state.items():
            if name not in tensors:
                raise ValueError(f"{type(model).__name__} has no parameter or buffer {name!r}.")
            shape = tuple(tensors[name].shape)
            if shape != tuple(array.shape):
                raise ValueError(f"{name} of {type(model).__name__} has the shape {shape}, not {tuple(array.shape)}.")
            self.assign(tensors[name], array)

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        recorder = recorders.ModelRecorder(capture, self, model)
        recorders.start(recorder, self.base)
        return functools.partial(recorders.stop, recorder, self.base)

    @contextmanager
    def recording(
        self, model: Any, sink: Sink, replace: Optional[Replace] = None, gradients: bool = False
    ) -> Iterator[None]:
        """Give the tensors of every call of a layer of `model` to `sink` while the context lasts.

        `gradients`: in backward passes within the context also those of inputs, by that call alone, and of outputs. A
        call within a compiled layer is not seen, nor is one that bypasses `__call__`.
        """
        layers = {id(layer): (name, layer) for name, layer in self.named_layers(model)}
        recorder = recorders.Recorder(self, layers, sink, replace, gradients)
        recorders.start(recorder, self.base)
        try:
            yield
        finally:
            recorders.stop(recorder, self.base)

    def run_layer(
        self,
        model: Any,
        name: str,
        inputs: Mapping[str, Any],
        grad_outputs: Optional[Mapping[str, Any]] = None,
        arguments: Optional[Arguments] = None,
    ) -> LayerResult:
        """Run one layer alone on `inputs` in their dtypes, and its backward pass from `grad_outputs`, if given.

        `arguments` of a recorded call say where the inputs go, and what the other arguments are. Without them a number
        is a position and all else a keyword. The model's buffers and gradients are afterwards what they were.

        Raises:
            KeyError: the model has no such layer, or the call no such input or output.
        """
        layer = dict(self.named_layers(model))[name]
        before = self.buffers(layer)
        try:
            leaves = {key: self.leaf(array) for key, array in inputs.items()}
            aliases = {key: self.alias(leaf) for key, leaf in leaves.items()}  # a leaf cannot be changed in place
            args, kwargs = filled(arguments or arguments_of(list(inputs)), aliases)
            outputs = dict(self.tensors(layer(*args, **kwargs)))
            computed = {key: self.to_numpy(tensor) for key, tensor in outputs.items()}
            after = self.buffers(layer)
            parameters = dict(self.named_parameters(layer))
            of_inputs, of_parameters = self.backward(outputs, grad_outputs or {}, leaves, parameters)
            return LayerResult(computed, of_inputs, of_parameters, after)
        finally:
            self.load(layer, before)

    def backward(
        self, outputs: Mapping[str, Any], grad_outputs: Mapping[str, Any], *groups: Mapping[str, Any]
    ) -> List[Dict[str, Any]]:
        """The gradients of groups of leaves, as arrays by name."""
        ends = [key for key in grad_outputs if self.has_history(outputs[key])]
        starts = [leaf for group in groups for leaf in group.values() if self.has_history(leaf)]
        if not ends or not starts:
            return [{} for _ in groups]
        upstream = [self.from_numpy(grad_outputs[key], outputs[key]) for key in ends]
        found = self.gradients([outputs[key] for key in ends], starts, upstream)
        grads = {id(leaf): self.to_numpy(grad) for leaf, grad in zip(starts, found) if grad is not None}
        return [{key: grads[id(leaf)] for key, leaf in group.items() if id(leaf) in grads} for group in groups]

    def tensors(self, value: Any) -> List[Tuple[str, Any]]:
        """All tensors in a result, by name."""
        found: List[Tuple[str, Any]] = []

        def take(name: str, tensor: Any) -> Any:
            found.append((name or "0", tensor))
            return tensor

        visit(value, self.is_tensor, take)
        return found
