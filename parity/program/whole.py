"""Code that is one step of a program: it depends on the values of its inputs, so that no recording holds for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.cases.op import Variant
from parity.cases.writable import TRACING, unwrapped, wrapped
from parity.program.opaque import Array, array_of, checked_calls, differentiable, dtype_of, tensor_of
from parity.program.worker.user_module import UserModule
from parity.torch_gradients import scalar_of

DYNAMIC = frozenset(("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount"))
"""Functions whose results have shapes that depend on values."""


class WholeCall:
    """All outputs of the code, of arrays in the order of `names`. Each output is a step that asks for the same call, so
    the last ones are kept."""

    def __init__(self, module: UserModule, names: Sequence[str], params: Mapping[str, Any]) -> None:
        self.module, self.names, self.params = module, names, params
        self.last: tuple[tuple[Array, ...], dict[str, Array]] | None = None
        self.graph: tuple[tuple[Array, ...], list[Any], dict[str, Any]] | None = None

    def __call__(self, arrays: tuple[Array, ...]) -> dict[str, Array]:
        """The outputs by name, in the dtype of the arrays."""
        import torch

        if self.last is None or not same_objects(self.last[0], arrays):
            with torch.no_grad():
                outputs = self.results(self.tensors(arrays))
            tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
            self.last = arrays, {name: array_of(value, dtype_of(arrays)) for name, value in tensors.items()}
        return self.last[1]

    def recorded(self, arrays: tuple[Array, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The inputs and the outputs as tensors, for gradients of any output."""
        import torch

        if self.graph is None or not same_objects(self.graph[0], arrays):
            tensors = self.tensors(arrays)
            for tensor in tensors:
                tensor.requires_grad_(tensor.is_floating_point())
            with torch.enable_grad():
                self.graph = arrays, tensors, self.results(tensors)
        return self.graph[1:]

    def tensors(self, arrays: Sequence[Array]) -> list[Any]:
        """The inputs as tensors, floating-point ones in the dtype in which PyTorch computes."""
        import torch

        kinds = [torch.float64 if np.asarray(array).dtype.kind == "f" else torch.int64 for array in arrays]
        return [tensor_of(array, kind, dtype_of(arrays)) for array, kind in zip(arrays, kinds, strict=True)]

    def results(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The outputs as tensors; what is no weight is a copy, which the code may write to. Raises ValueError where it
        refuses them."""
        state = self.module.state()
        given = {n: t if n in state else t.clone() for n, t in zip(self.names, tensors, strict=True)}
        try:
            with checked_calls():
                return self.module(**given, **self.params)
        except (RuntimeError, AssertionError, LookupError, TypeError) as error:
            raise ValueError(str(error)) from error


def same_objects(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Whether two sequences have the same arrays, which are not written to."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


class WholeOutput:
    """One output of the code as a function of the arrays of its inputs."""

    def __init__(self, call: WholeCall, output: str) -> None:
        self.call, self.output = call, output
        self.__name__ = getattr(call.module.entry, "__name__", "code")
        self.last: tuple[tuple[Array, ...], list[Any]] | None = None

    def __call__(self, *arrays: Array) -> Array:
        """The output, in the dtype of the arrays."""
        return self.call(arrays)[self.output].copy()

    def gradients(self, arriving: Array, arrays: Sequence[Array]) -> Sequence[Any]:
        """The gradients of all inputs; None for those that have none. Each is asked for, so the last ones are kept.
        Raises ValueError for one that arrives in another shape."""
        import torch

        if self.last is None or not same_objects(self.last[0], (arriving, *arrays)):
            tensors, outputs = self.call.recorded(tuple(arrays))
            floats, result = [tensor for tensor in tensors if tensor.requires_grad], outputs[self.output]
            own: Sequence[Any] = ()
            if tuple(result.shape) != arriving.shape:
                raise ValueError(f"a gradient of {arriving.shape} arrives at an output of {tuple(result.shape)}")
            if result.requires_grad:
                end = scalar_of([result], [tensor_of(arriving, result.dtype, dtype_of(arrays))])
                own = torch.autograd.grad(end, floats, allow_unused=True, retain_graph=True)
            given = dict(zip(map(id, floats), own, strict=False))
            self.last = (arriving, *arrays), [given.get(id(tensor)) for tensor in tensors]
        return self.last[1]

    def text_of(self, texts: Sequence[str]) -> str:
        """The call in words, with these texts for its inputs."""
        return f"{self.__name__}({', '.join(texts)})"


class WholeGradient:
    """The gradient of the input number `position`, from that of the output."""

    def __init__(self, function: WholeOutput, position: int) -> None:
        self.function, self.position = function, position
        self.__name__ = f"gradient_of_{function.__name__}"

    def __call__(self, arriving: Array, *arrays: Array) -> Array:
        """The gradient, in the dtype of the arrays."""
        own = self.function.gradients(arriving, arrays)[self.position]
        return np.zeros_like(arrays[self.position]) if own is None else array_of(own, dtype_of(arrays))

    def text_of(self, texts: Sequence[str]) -> str:
        """The gradient in words."""
        return f"gradient({self.function.text_of(texts[1:])}, {texts[1 + self.position]})"


class WholeCode:
    """The code as a function of arrays by name; `opaque` says why it has not been recorded."""

    def __init__(
        self, module: UserModule, names: Sequence[str], params: Mapping[str, Any], outputs: Sequence[str], why: str
    ) -> None:
        self.names, self.opaque = names, [why]
        call = WholeCall(module, names, params)
        functions = {output: WholeOutput(call, output) for output in outputs}
        positions = range(len(names))
        self.steps = {n: differentiable(f, [WholeGradient(f, i) for i in positions]) for n, f in functions.items()}

    def __call__(self, inputs: Mapping[str, Any], _changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The outputs by name."""
        operands = [unwrapped(inputs[name]) for name in self.names]
        outputs = {output: step(*operands) for output, step in self.steps.items()}
        return {name: wrapped(value) for name, value in outputs.items()} if TRACING.get() else outputs

    def variants(self) -> Iterator[Variant]:
        """None: nothing is known of what the code calls."""
        yield from ()
