"""Ports of models whose layers are objects that are called: a layer's method is wrapped, so that the inputs and outputs
of every call are recorded and can be replaced."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any, Callable, ClassVar, Collection, Dict, Iterator, List, Mapping, Optional, Tuple

from parity.capture.frameworks import framework
from parity.capture.frameworks.visit import Placeholder, filled, visit
from parity.models.worker.crossing import IN, LOSS, OUT, STATE, Crossing, key
from parity.models.worker.intercept import Interception
from parity.models.worker.ports.base import ModelTensor, Port, PortError, same
from parity.models.worker.returns import check_loss, refused, shown

PatchTarget = Tuple[Any, str]
"""An object, and the name of its attribute that is called."""


class FunctionLayer:
    """A function that is called as if it were a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        return self.function(*args)


class LayeredPort(Port):
    """A model whose layers `parity.capture` lists, under the framework's name `shown`."""

    shown: ClassVar[str]
    entry: ClassVar[str] = "forward"
    """The method that computes a layer's outputs."""

    def __init__(self, adapter: Any, build: Callable[[], Any], mode: str) -> None:
        self.source: Any = framework(self.shown)
        self.steps: Dict[str, Any] = {}
        self.interception: Optional[Interception] = None
        super().__init__(adapter, build, mode)

    def built(self, build: Callable[[], Any]) -> Any:
        model = build()
        if not isinstance(model, self.source.base):
            kind = f"{self.source.base.__module__.partition('.')[0]}'s {self.source.base.__name__}"
            raise refused("build", build, shown(model), f"return the model, an instance of {kind}")
        return model

    # Layers and tensors

    @property
    def layers(self) -> Dict[str, Any]:
        """The layers by dotted name, in the order of definition; the model itself is ""."""
        return dict(self.source.named_layers(self.model))

    def module(self, name: str) -> Any:
        """A layer, or a function that is called as one."""
        return self.steps[name] if name in self.steps else self.layers[name]

    def patch_target(self, module: Any) -> PatchTarget:
        """The attribute to patch in order to replace the function that computes a layer's outputs."""
        return module, "function" if isinstance(module, FunctionLayer) else self.entry

    def entered(self, module: Any) -> Callable[..., Any]:
        """The function that computes a layer's outputs."""
        function: Callable[..., Any] = getattr(*self.patch_target(module))
        return function

    def invoked(self, module: Any) -> Callable[..., Any]:
        """What to call for a layer: itself, or the function that computes its outputs if another object has that."""
        owner, _ = self.patch_target(module)
        call: Callable[..., Any] = module if owner is module else self.entered(module)
        return call

    def described(self) -> List[Dict[str, Any]]:
        return [
            {"name": layer.name, "kind": layer.kind, "options": layer.options, **self.origin(self.layers[layer.name])}
            for layer in self.source.layers(self.model)
        ]

    def origin(self, layer: Any) -> Dict[str, Any]:
        """Whether a layer's class is the user's `own`, and the framework's class that it `extends`."""
        root = self.source.framework.__name__
        theirs = next((cls for cls in type(layer).__mro__ if cls.__module__.partition(".")[0] == root), None)
        own = theirs is not type(layer)
        return {"own": own, "extends": theirs.__name__ if own and theirs else ""}

    def tensors(self) -> Iterator[ModelTensor]:
        seen: Dict[int, str] = {}
        for layer_name, layer in self.layers.items():
            for name, (tensor, trained) in self.parts(layer).items():
                whole = f"{layer_name}.{name}" if layer_name else name
                first = seen.setdefault(id(tensor), whole)
                yield ModelTensor(whole, tensor, trained, "" if first == whole else first)

    def own(self, layer: Any) -> Dict[str, Tuple[Any, bool]]:
        """A layer's own parameters and buffers by name, and whether each is trained."""
        raise NotImplementedError

    def parts(self, layer: Any) -> Dict[str, Tuple[Any, bool]]:
        """The same for a layer or a function that is called as one."""
        return {} if isinstance(layer, FunctionLayer) else self.own(layer)

    # Tensors in nested arguments

    def is_tensor(self, value: Any) -> bool:
        return bool(self.source.is_tensor(value))

    def tensors_in(self, value: Any) -> List[Any]:
        """All tensors of tuples, lists, mappings and dataclasses, in order."""
        return [tensor for _, tensor in self.source.tensors(value)]

    def emptied(self, value: Any) -> Any:
        """The same with numbered placeholders for tensors."""
        numbers = count()
        return visit(value, self.is_tensor, lambda _name, _tensor: Placeholder(next(numbers)))

    # Runs

    def flows(self, tensor: Any) -> bool:  # noqa: ARG002 - where tensors do not tell
        """Whether a tensor requires a gradient."""
        return False

    def no_gradients(self) -> Any:
        """A context that records nothing for gradients."""
        raise NotImplementedError

    def recorded(self, leaves: Collection[Any] = ()) -> Any:  # noqa: ARG002 - where leaves say it themselves
        """A context whose operations `backward` and `gradients` can differentiate, with respect to `leaves`, too."""
        return contextlib.nullcontext()

    def backward(self, loss: Any) -> Mapping[str, Any]:
        """The gradients of a loss for all trained parameters that have one, by name."""
        raise NotImplementedError

    def gradients(self, outputs: List[Any], grad_outputs: List[Any], leaves: List[Any]) -> List[Any]:
        """The gradients of sum(outputs * grad_outputs) for each leaf; None where none flows."""
        return list(self.adapter.gradients(outputs, grad_outputs, leaves))

    def clear(self) -> None:
        """Clear all gradients."""

    @property
    def roots(self) -> Tuple[str, ...]:
        """The names of the framework's packages, whose code is not the user's."""
        return self.shown, str(self.framework.__name__).partition(".")[0]

    def intercepted(self, record: Callable[..., Any]) -> Any:
        """A context in which `record` gets each call of the framework's functions, and returns its result."""
        if self.interception is None:
            self.interception = Interception(*self.functions())
        scopes = [*(method.__globals__ for method in self.methods()), *map(vars, self.layers.values())]
        return self.interception.handing(record, list({id(scope): scope for scope in scopes}.values()))

    def functions(self) -> Tuple[Collection[str], Collection[Any], Collection[Any]]:
        """What is wrapped if the framework has no hook for calls: the names of its packages, the modules of its
        functions, and the classes of its tensors."""
        raise NotImplementedError

    def methods(self) -> Iterator[Any]:
        """The Python functions that compute layers' outputs, and those that are called as layers."""
        computing = [getattr(type(layer), self.entry, None) for layer in self.layers.values()]
        for function in (*computing, *(step.function for step in self.steps.values())):
            if hasattr(function, "__globals__"):
                yield function

    def watching(self, crossing: Crossing) -> Watch:
        """A context in which the model's layers are watched."""
        return Watch(self, crossing)

    def run(
        self,
        batch: Mapping[str, Any],
        functions: Mapping[str, Optional[Callable[..., Any]]],
        targets: Collection[str],
        crossing: Crossing,
        seed: int,
        gradients: bool,
    ) -> None:
        tape, given = crossing.tape, self.given(batch, targets, seed)
        before = {name: self.to_array(tensor) for name, tensor in given.items()}
        tensors = dict(given)
        self.seeded()
        self.clear()
        with self.recorded() if gradients else self.no_gradients(), self.watching(crossing) as watch:
            forward = functions.get("forward")
            if forward is not None:
                output = forward(self.model, given)
            else:
                output = self.called(*(tensor for name, tensor in given.items() if name not in targets))
            outputs = [(f"output.{name}".rstrip("."), tensor) for name, tensor in named(output, self.is_tensor)]
            if not outputs and forward is not None:
                raise refused("forward", forward, shown(output), "return what the model returns, one tensor at least")
            if not outputs:
                raise PortError(f"the model's {self.entry} returned {shown(output)}; one tensor at least is compared")
            for name, tensor in outputs:
                tape.put(name, self.to_array(tensor))
            self.keep(tape, outputs, tensors, before)
            if self.mode == "train":
                self.keep_buffers(crossing)
            loss = functions.get("loss")
            if loss is None:
                return
            self.steps[LOSS] = FunctionLayer(loss)
            value = watch.step(LOSS, loss, output, given)
            check_loss(self, loss, value, differentiated=gradients)
            tape.put("loss", self.to_array(value).reshape(()))
        if gradients:
            for name, grad in self.backward(value).items():
                tape.put(f"grad.{name}", self.to_array(grad))
            self.clear()

    def keep(self, tape: Any, outputs: Any, given: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Keep the outputs if the model will be called again; store what tensors were `before` it overwrote them."""
        if self.keeps_outputs:
            self.kept = {name: (tensor, self.to_array(tensor)) for name, tensor in outputs}
        for name, tensor in given.items():
            if not same(self.to_array(tensor), before[name]):
                tape.put(f"changed.{name}", before[name])

    def called(self, *inputs: Any) -> Any:
        """The model's outputs."""
        return self.model(*inputs)

    def keep_buffers(self, crossing: Crossing) -> None:
        """Store the float buffers after a run, which may have changed them: running statistics."""
        self.loaded = None
        for state in self.tensors():
            if not state.trained and not state.tied:
                array = self.to_array(state.tensor)
                if array.dtype.kind == "f":
                    layer, _, own = state.name.rpartition(".")
                    crossing.tape.put(key(layer, 0, f"{STATE}{own}", 0), array)

    def alone(
        self,
        layer: str,
        call: int,
        inputs: Mapping[int, Any],
        grad_outputs: Mapping[int, Any],
        parameters: Mapping[str, Any],
        crossing: Crossing,
    ) -> None:
        if (layer, call) not in self.calls:
            raise PortError(f"{layer or 'the model'} was not called {call + 1} times")
        module = self.module(layer)
        own = self.parts(module)
        before = {name: self.to_array(tensor) for name, (tensor, _) in own.items()}
        leaves = {
            i: self.to_tensor(a, self.held(a), bool(grad_outputs) and a.dtype.kind == "f") for i, a in inputs.items()
        }
        args, kwargs = filled(self.calls[layer, call], leaves)
        self.clear()
        try:
            for name, array in parameters.items():
                self.assign(own[name][0], array)
            floats = {str(i): leaf for i, leaf in leaves.items() if inputs[i].dtype.kind == "f"}
            floats.update({name: tensor for name, (tensor, trained) in own.items() if trained})
            with self.recorded(floats.values()) if grad_outputs else self.no_gradients(), self.watching(crossing):
                outputs = self.tensors_in(self.invoked(module)(*args, **kwargs))
            for i, tensor in enumerate(outputs):
                crossing.tape.put(key(layer, call, OUT, i), self.to_array(tensor))
            for name in before:
                crossing.tape.put(f"after.{name}", self.to_array(own[name][0]))
            if grad_outputs:
                pairs = [(outputs[i], self.to_tensor(dy, outputs[i])) for i, dy in grad_outputs.items()]
                grads = self.gradients([y for y, _ in pairs], [dy for _, dy in pairs], list(floats.values()))
                for name, grad in zip(floats, grads):
                    if grad is not None:
                        crossing.tape.put(f"grad.{name}", self.to_array(grad))
        finally:
            for name, array in before.items():
                self.assign(own[name][0], array)
            self.clear()


class Watch:
    """Watches the boundaries of a port's layers while a context is open."""

    def __init__(self, port: LayeredPort, crossing: Crossing) -> None:
        self.port, self.crossing = port, crossing
        self._wrapped: List[Any] = []

    def __enter__(self) -> Watch:
        for name, module in self.port.layers.items():
            if name in self.crossing.layers:
                self._wrap(name, module)
        return self

    def __exit__(self, *_: Any) -> None:
        for (owner, entry), own in self._wrapped:
            if own is None:
                del owner.__dict__[entry]
            else:
                owner.__dict__[entry] = own
        self._wrapped = []

    def _wrap(self, name: str, module: Any) -> None:
        owner, entry = self.port.patch_target(module)
        original = getattr(owner, entry)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._called(name, original, args, kwargs)

        # Not by `__setattr__`, by which frameworks register layers and parameters.
        self._wrapped.append(((owner, entry), owner.__dict__.get(entry)))
        owner.__dict__[entry] = call

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as a layer; its boundaries are watched if it is among the watched layers."""
        return self._called(name, function, args, {}) if name in self.crossing.layers else function(*args)

    def _called(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = self.crossing.begun(name)
        self.port.calls[name, call] = self.port.emptied((args, kwargs))
        return self.passed(name, call, original, args, kwargs)

    def passed(self, layer: str, call: int, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of a layer, with its inputs and outputs crossing boundaries."""
        args, kwargs = self._crossed(layer, call, IN, (args, kwargs))
        return self._crossed(layer, call, OUT, original(*args, **kwargs), self.port.tensors_in((args, kwargs)))

    def _crossed(self, layer: str, call: int, role: str, value: Any, given: Any = ()) -> Any:
        """Let the tensors in `value` cross a boundary; returns it with replacements, which are written to those of
        the tensors that the layer was `given`, too: it has computed in place."""
        tensors, others = self.port.tensors_in(value), {}
        for i, tensor in enumerate(tensors):
            other = self.crossing.crossed(key(layer, call, role, i), self.port.to_array(tensor))
            if other is not None:
                others[i] = self.port.to_tensor(other, tensor)
                if any(tensor is one for one in given) and not self.port.flows(tensor):
                    self.port.assign(tensor, other)
        if not others:
            return value
        return filled(self.port.emptied(value), {i: others.get(i, tensor) for i, tensor in enumerate(tensors)})


def named(value: Any, is_tensor: Callable[[Any], bool]) -> Iterator[Tuple[str, Any]]:
    """The tensors in a model's result with their paths: `logits`, `0`; "" for the only one."""
    pairs: List[Tuple[str, Any]] = []

    def take(name: str, tensor: Any) -> Any:
        pairs.append((name, tensor))
        return tensor

    visit(value, is_tensor, take)
    return iter(pairs)
