"""The base of all frameworks: layers with names, and the recording of their calls.

Runs in the framework's own interpreter, on Python 3.8 and later, with the standard library and NumPy.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Iterator, List, Tuple

from parity.capture.frameworks import recorder as recorders
from parity.capture.frameworks.calls import CapturedLayer, described
from parity.capture.frameworks.visit import visit

if TYPE_CHECKING:
    from parity.capture.capturing import Capture


class Framework:
    """What `parity.capture` needs of a framework. A subclass imports its framework in its constructor."""

    name: ClassVar[str]
    framework: Any

    def version(self) -> str:
        """The framework's version."""
        return str(self.framework.__version__)

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        """Record the calls of a model, or (None) of each outermost one; returns a function that stops the recording."""
        raise NotImplementedError

    def layers(self, model: Any) -> List[CapturedLayer]:
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

    def pass_values(self, tensor: Any, function: Callable[[Any], None]) -> None:
        """Pass a tensor's values to `function`, now or when they are computed."""
        function(self.to_numpy(tensor))

    def compiled(self, model: Any) -> List[str]:  # noqa: ARG002 - a framework that compiles otherwise
        """The names of compiled layers, within which nothing is recorded."""
        return []

    def has_history(self, tensor: Any) -> bool:  # noqa: ARG002 - where gradients have no tape
        """Whether a gradient can flow through a tensor, and `watched` can record it."""
        return False

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        """The tensor to use from now on; its gradient is passed to `function` in each backward pass."""
        tensor.register_hook(function)
        return tensor


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
        recorder = recorders.ModelRecorder(capture, self, model)
        recorders.start(recorder, self.base)
        return functools.partial(recorders.stop, recorder, self.base)

    def tensors(self, value: Any) -> List[Tuple[str, Any]]:
        """All tensors in a result, by name."""
        pairs: List[Tuple[str, Any]] = []

        def take(name: str, tensor: Any) -> Any:
            pairs.append((name or "0", tensor))
            return tensor

        visit(value, self.is_tensor, take)
        return pairs
