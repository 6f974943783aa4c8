"""Keras 3 on any of its backends: `keras.Layer`."""

from __future__ import annotations

import re
from typing import Any, Callable, Iterator, Tuple

import numpy as np

from parity.capture.frameworks.recorder import LayeredFramework


class KerasFramework(LayeredFramework):
    """Keras in eager execution; `fit` and `predict` need `compile(run_eagerly=True)`.

    A layer's name is its own after those of the layers around it. A layer without a given name has that of the
    attribute that holds it, or its number in a Sequential. A variable's name follows its layer's. Gradients of inputs
    and outputs are those of a tf.GradientTape, or of torch.
    """

    name = "keras"

    def __init__(self) -> None:
        import keras

        if not hasattr(keras, "Layer"):
            raise TypeError(f"parity captures Keras 3, and this is {keras.__version__}.")
        self.framework = keras
        self.base = keras.Layer
        self.backend = keras.backend.backend()
        if self.backend == "tensorflow":
            import tensorflow

            self.tensorflow = tensorflow

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        yield from named_within(model, "", set())

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return self.named_variables(model, "_trainable_variables")

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return self.named_variables(model, "_non_trainable_variables")

    def named_variables(self, model: Any, attribute: str) -> Iterator[Tuple[str, Any]]:
        """The variables that each layer itself has."""
        for name, layer in self.named_layers(model):
            for variable in getattr(layer, attribute):
                yield f"{name}.{variable.name}".lstrip("."), variable

    def is_tensor(self, value: Any) -> bool:
        if isinstance(value, np.ndarray):
            return True
        return bool(self.framework.ops.is_tensor(value)) and hasattr(value, "__array__")

    def is_tracing(self) -> bool:
        from keras.src.backend.common import stateless_scope, symbolic_scope

        symbolic = symbolic_scope.in_symbolic_scope() or stateless_scope.in_stateless_scope()
        return bool(symbolic or (self.backend == "tensorflow" and self.tensorflow.inside_function()))

    def to_numpy(self, tensor: Any) -> Any:
        array = np.asarray(self.framework.ops.convert_to_numpy(tensor))
        return np.array(array.view(np.uint16) if array.dtype.name == "bfloat16" else array)

    def has_history(self, tensor: Any) -> bool:
        if self.backend == "torch":
            return bool(getattr(tensor, "requires_grad", False))
        is_float = self.backend == "tensorflow" and getattr(tensor, "dtype", None) is not None
        return is_float and not isinstance(tensor, (np.ndarray, self.framework.Variable)) and tensor.dtype.is_floating

    def alias(self, tensor: Any) -> Any:
        return tensor.view_as(tensor) if self.backend == "torch" else tensor

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        if self.backend == "torch":
            return super().watched(tensor, function)

        @self.tensorflow.custom_gradient  # type: ignore[untyped-decorator]
        def identity(value: Any) -> Tuple[Any, Callable[[Any], Any]]:
            def gradient(grad_output: Any) -> Any:
                function(grad_output)
                return grad_output

            return self.tensorflow.identity(value), gradient

        return identity(tensor)


def named_within(layer: Any, name: str, seen: set) -> Iterator[Tuple[str, Any]]:  # type: ignore[type-arg]
    """A layer and those within it, each once."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield name, layer
    for own, child in children(layer):
        yield from named_within(child, f"{name}.{own}".lstrip("."), seen)


def children(layer: Any) -> Iterator[Tuple[str, Any]]:
    """The layers that a layer keeps, with their names in it."""
    kept = dict(reversed([(id(item), path) for path, item in attributes(layer)]))
    inner = [child for child in layer._layers if type(child).__name__ != "InputLayer"]
    for i, child in enumerate(inner):
        number = str(i) if type(layer).__name__ == "Sequential" else child.name
        yield (kept.get(id(child), number) if is_automatic(child) else child.name), child


def attributes(layer: Any) -> Iterator[Tuple[str, Any]]:
    """The values of a layer's attributes, and the items of lists and dicts in public ones: `norm`, `blocks.0`."""
    for name, value in vars(layer).items():
        yield name.lstrip("_"), value
        if not name.startswith("_"):
            yield from items(name, value)


def items(path: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """The items of nested lists and dicts, with their paths."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in pairs:
        yield f"{path}.{key}", item
        yield from items(f"{path}.{key}", item)


def is_automatic(layer: Any) -> bool:
    """Whether Keras generated a layer's name: its class in lower case, numbered."""
    words = re.sub(r"\W+|_", "", re.sub(r"_\d+$", "", layer.name))
    return words == type(layer).__name__.lower().replace("_", "")
