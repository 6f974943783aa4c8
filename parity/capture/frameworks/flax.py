"""JAX through Flax: `flax.linen.Module` and `flax.nnx.Module`, eager, under grad and under jit."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import numpy as np

from parity.capture.calls import CapturedLayer, joined
from parity.capture.frameworks import recorder as recorders
from parity.capture.frameworks.base import Capture
from parity.capture.frameworks.recorder import LayeredFramework


class FlaxFramework(LayeredFramework):
    """Flax's modules. Traced tensors are stored by callbacks, in every run of a compiled function.

    The layers of a linen module are known only from its calls. Gradients are those of inputs and outputs.
    """

    name = "flax"

    def __init__(self) -> None:
        import flax
        import jax
        from flax import linen, nnx

        self.framework = flax
        self.jax = jax
        self.linen = linen
        self.nnx = nnx
        self.base = linen.Module
        self.steps: Optional[int] = None

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        self.steps = capture.steps
        stack = ExitStack()
        if isinstance(model, self.nnx.Module):
            recorder = NnxRecorder(capture, self, model)
            modules = [module for _, module in self.named_layers(model)]
            for cls in {cls for module in modules for cls in type(module).__mro__ if "__call__" in vars(cls)}:
                recorders.start(recorder, cls)
                stack.callback(recorders.stop, recorder, cls)
        else:
            seen = LinenRecorder(capture, self, model)
            stack.enter_context(self.linen.intercept_methods(seen.intercepted))
        stack.callback(self.jax.effects_barrier)
        return stack.close

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        if isinstance(model, self.nnx.Module):
            pairs = [(dotted(path), node) for path, node in self.nnx.iter_graph(model)]
            modules = [(name, node) for name, node in pairs if isinstance(node, self.nnx.Module)]
            yield from sorted(modules, key=lambda pair: pair[0] != "")

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return self.named_variables(model, parameters=True)

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return self.named_variables(model, parameters=False)

    def named_variables(self, model: Any, parameters: bool) -> Iterator[Tuple[str, Any]]:
        """A module's variables: for nnx without random states, for linen those of the call that it is bound to."""
        if isinstance(model, self.nnx.Module):
            for path, node in self.nnx.iter_graph(model):
                is_state = isinstance(node, self.nnx.Variable) and not isinstance(node, self.nnx.RngState)
                if is_state and isinstance(node, self.nnx.Param) == parameters:
                    yield dotted(path), node[...]
            return
        for collection, tree in model.variables.items():
            if (collection == "params") == parameters:
                for path, value in self.jax.tree_util.tree_flatten_with_path(tree)[0]:
                    yield ".".join(str(getattr(key, "key", key)) for key in path), value

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, (self.jax.Array, np.ndarray))

    def to_numpy(self, tensor: Any) -> Any:
        array = np.asarray(tensor)
        return np.array(array.view(np.uint16) if array.dtype.name == "bfloat16" else array)

    def pass_values(self, tensor: Any, function: Callable[[Any], None]) -> None:
        runs = itertools.count()

        def ran(values: Any) -> None:
            if self.steps is None or next(runs) < self.steps:
                function(self.to_numpy(values))

        if isinstance(tensor, self.jax.core.Tracer):
            self.jax.debug.callback(ran, tensor)
        else:
            ran(tensor)

    def has_history(self, tensor: Any) -> bool:
        return isinstance(tensor, self.jax.core.Tracer) and self.jax.numpy.issubdtype(tensor.dtype, np.floating)

    def alias(self, tensor: Any) -> Any:
        return tensor

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        @self.jax.custom_vjp  # type: ignore[untyped-decorator]
        def identity(value: Any) -> Any:
            return value

        def backward(_: None, gradient: Any) -> Tuple[Any]:
            function(gradient)
            return (gradient,)

        identity.defvjp(lambda value: (value, None), backward)
        return identity(tensor)


class LinenRecorder(recorders.ModelRecorder):
    """Records the calls of linen modules, which exist while they are called; each is described at its first call."""

    def __init__(self, capture: Capture, framework: FlaxFramework, model: Any) -> None:
        super().__init__(capture, framework, None)
        self.named = model is None
        self.root = ""

    def intercepted(self, run: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], context: Any) -> Any:
        """A call of a module's method."""
        module = context.module
        if context.method_name != "__call__" or module.is_initializing():
            return run(*args, **kwargs)
        if not self.depth and self.named:
            self.root = type(module).__name__
        name = joined(self.root, ".".join(module.path))
        if name not in self.stored:
            self.describe(name, module)
        self.layers[id(module)] = (name, module)
        try:
            return self.call(module, run, *args, **kwargs)
        finally:
            del self.layers[id(module)]

    def describe(self, name: str, module: Any) -> None:
        """Add a layer, and store the variables of a whole model."""
        self.stored[name] = type(module).__name__
        layer = CapturedLayer(name, type(module).__name__, self.framework.options(module))
        self.capture.add_layers(self.framework, [layer])
        if not self.depth:
            self.capture.store_model(self.framework, module, self.root)


class NnxRecorder(recorders.ModelRecorder):
    """Records an nnx model and the copies of it that jit and grad work on."""

    def is_known(self, layer: Any, arguments: Any) -> bool:
        if id(layer) not in self.layers and type(layer) is type(self.model):
            self.layers = {id(module): (name, module) for name, module in self.framework.named_layers(layer)}
        return super().is_known(layer, arguments)


def dotted(path: Tuple[Any, ...]) -> str:
    """A path in a graph as a name."""
    return ".".join(map(str, path))
