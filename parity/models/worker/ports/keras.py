"""Ports of Keras 3: layers with `call`, variables, gradients by the backend that Keras is on."""

from __future__ import annotations

import contextlib
import inspect
from functools import partial
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from parity.models.worker.calls import PLAIN
from parity.models.worker.ports.base import PortError
from parity.models.worker.ports.layered import FunctionLayer, LayeredPort, PatchTarget

ACTIVATED = frozenset(
    (
        *("Dense", "EinsumDense", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
        *(f"Conv{d}D{kind}" for d in (1, 2, 3) for kind in ("", "Transpose")),
    )
)
"""Classes with the option `activation`, which is applied to their result."""


class Opened:
    """A layer whose activation becomes a layer of its own: `inner` computes the input of `step`."""

    def __init__(self, layer: Any, linear: Callable[[Any], Any]) -> None:
        self.inner, self.step = layer.call, FunctionLayer(layer.activation)
        layer.activation = linear
        # Without `functools.wraps`: Keras reads the signature of the class.
        vars(layer)["call"] = lambda *args, **kwargs: self.step(self.inner(*args, **kwargs))


class KerasPort(LayeredPort):
    """Keras where it runs eagerly. On JAX, which has no tape, it is forward only.

    `activation=` of a layer is a layer of its own, `<layer>_activation`. Another dtype is another policy, under which
    the model is built anew.
    """

    shown = "keras"
    entry = "call"

    def __init__(self, adapter: Any, build: Callable[[], Any], mode: str) -> None:
        self.build = build
        self.opened: Dict[int, Opened] = {}
        super().__init__(adapter, build, mode)
        self.differentiable = self.backend != "jax"

    @property
    def keras(self) -> Any:
        """The module."""
        return self.source.framework

    @property
    def backend(self) -> str:
        """The framework that Keras is on."""
        return str(self.source.backend)

    def built(self, build: Callable[[], Any]) -> Any:
        self.keras.config.set_floatx(self.dtype)
        self.keras.config.set_dtype_policy(self.dtype)
        model = super().built(build)
        self.opened = {}
        for name, layer in self.source.named_layers(model):
            if not layer.built:
                raise PortError(f"{build.__name__} must call the model once: {name or 'the model'} has no weights yet")
            linear = self.keras.activations.linear
            if type(layer).__name__ in ACTIVATED and layer.activation not in (None, linear):
                self.opened[id(layer)] = Opened(layer, linear)
        return model

    def seeded(self) -> None:
        self.keras.utils.set_random_seed(0)

    # Layers and tensors

    @property
    def layers(self) -> Dict[str, Any]:
        layers = {}
        for name, layer in super().layers.items():
            layers[name] = layer
            if id(layer) in self.opened:
                layers[f"{name}_activation"] = self.opened[id(layer)].step
        return layers

    def patch_target(self, module: Any) -> PatchTarget:
        opened = self.opened.get(id(module))
        return super().patch_target(module) if opened is None else (opened, "inner")

    def described(self) -> List[Dict[str, Any]]:
        given = {layer.name: layer for layer in self.source.layers(self.model)}
        rows = []
        for name, layer in self.layers.items():
            function = layer.function if isinstance(layer, FunctionLayer) else None
            function = layer.activation if type(layer) is self.keras.layers.Activation else function
            if function is None:
                kind, options, origin = given[name].kind, given[name].options, self.origin(layer)
            else:
                kind, module, options = described_function(function)
                origin = {"own": module.partition(".")[0] != "keras"}
            rows.append(
                {"name": name, "kind": kind, **origin, "options": {**options, "training": self.mode == "train"}}
            )
        return rows

    def own(self, layer: Any) -> Dict[str, Tuple[Any, bool]]:
        variables = {variable.name: (variable, True) for variable in layer._trainable_variables}
        variables.update({variable.name: (variable, False) for variable in layer._non_trainable_variables})
        return variables

    def to_array(self, tensor: Any) -> Any:
        # TensorFlow 2.21.0 cannot convert a bfloat16 scalar to an array.
        narrow = self.dtype_of(tensor) == "bfloat16"
        return np.array(self.keras.ops.convert_to_numpy(self.keras.ops.cast(tensor, "float32") if narrow else tensor))

    def dtype_of(self, tensor: Any) -> str:
        return str(self.keras.backend.standardize_dtype(tensor.dtype))

    def functions(self) -> Tuple[Collection[str], Collection[Any], Collection[Any]]:
        keras, here = self.keras, self.framework
        backends = (here,) if self.backend != "tensorflow" else (here, here.nn, here.math)
        tensors = type(keras.ops.convert_to_tensor(0.0)), keras.Variable
        return ("keras",), (keras.ops, keras.activations, keras.losses, *backends), tensors

    # State

    def assign(self, tensor: Any, array: Any) -> None:
        tensor.assign(array.reshape(tuple(tensor.shape)))

    def cast(self, dtype: str) -> None:
        self.dtype = dtype
        self.seeded()
        self.model = self.built(self.build)

    # Runs

    def called(self, *inputs: Any) -> Any:
        return self.model(*inputs, training=True) if self.mode == "train" else self.model(*inputs)

    def no_gradients(self) -> Any:
        return self.framework.no_grad() if self.backend == "torch" else contextlib.nullcontext()

    @contextlib.contextmanager
    def recorded(self, leaves: Collection[Any] = ()) -> Iterator[None]:
        if self.backend != "tensorflow":
            yield
            return
        with self.framework.GradientTape() as tape:
            for leaf in leaves:
                tape.watch(self.value(leaf))
            self.adapter.latest.tape = tape
            yield

    def value(self, tensor: Any) -> Any:
        """The backend's tensor in a variable, or the tensor itself."""
        return tensor.value if isinstance(tensor, self.keras.Variable) else tensor

    def gradients(self, outputs: List[Any], grad_outputs: List[Any], leaves: List[Any]) -> List[Any]:
        return super().gradients(outputs, grad_outputs, [self.value(leaf) for leaf in leaves])

    def backward(self, loss: Any) -> Mapping[str, Any]:
        trained = {state.name: state.tensor for state in self.tensors() if state.trained and not state.tied}
        gradients = self.gradients([loss], [self.keras.ops.ones_like(loss)], list(trained.values()))
        return {name: grad for name, grad in zip(trained, gradients) if grad is not None}

    def clear(self) -> None:
        if self.backend == "torch":
            for state in self.tensors():
                state.tensor.value.grad = None


def described_function(function: Any) -> Tuple[str, str, Dict[str, Any]]:
    """The name, module and plain options of a function that stands for a layer."""
    given = function.keywords if isinstance(function, partial) else {}
    function = function.func if isinstance(function, partial) else function
    parameters = inspect.signature(function).parameters.values()
    options = {p.name: p.default for p in parameters if p.default is None or isinstance(p.default, PLAIN)}
    name = getattr(function, "__name__", type(function).__name__)
    return name, function.__module__, {**options, **given}
