"""Code that is one step of a program: it depends on the values of its inputs, so that no recording holds for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.cases.op import Variant
from parity.cases.writable import TRACING, unwrapped, wrapped
from parity.program.opaque import Array, array_of, differentiable, dtype_of, tensor_of, unfused_attention
from parity.program.worker.user_module import UserModule
from parity.torch_gradients import scalar_of

DYNAMIC = frozenset(("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount"))
"""Functions whose results have shapes that depend on values."""


class WholeOutput:
    """One output of the code as a function of the arrays of its inputs, in the order of `names`."""

    def __init__(self, module: UserModule, names: Sequence[str], params: Mapping[str, Any], output: str) -> None:
        self.module, self.names, self.params, self.output = module, names, params, output
        self.__name__ = getattr(module.entry, "__name__", "code")
        self.last: tuple[tuple[Array, ...], list[Any]] | None = None

    def __call__(self, *arrays: Array) -> Array:
        """The output, in the dtype of the arrays."""
        import torch

        with torch.no_grad():
            return array_of(self.result(self.tensors(arrays)), dtype_of(arrays))

    def tensors(self, arrays: Sequence[Array]) -> list[Any]:
        """The inputs as tensors, floating-point ones in the dtype in which PyTorch computes."""
        import torch

        kinds = [torch.float64 if np.asarray(array).dtype.kind == "f" else torch.int64 for array in arrays]
        return [tensor_of(array, kind, dtype_of(arrays)) for array, kind in zip(arrays, kinds, strict=True)]

    def result(self, tensors: Sequence[Any]) -> Any:
        """The output as a tensor; what is no weight is a copy, which the code may write to."""
        state = self.module.state()
        given = {n: t if n in state else t.clone() for n, t in zip(self.names, tensors, strict=True)}
        with unfused_attention():
            return self.module(**given, **self.params)[self.output]

    def gradients(self, arriving: Array, arrays: Sequence[Array]) -> Sequence[Any]:
        """The gradients of all inputs; None for those that have none. Each is asked for, so the last ones are kept."""
        import torch

        if self.last is None or [*map(id, self.last[0])] != [*map(id, (arriving, *arrays))]:
            tensors = self.tensors(arrays)
            floats = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
            with torch.enable_grad():
                result = self.result(tensors)
            weights = tensor_of(arriving, result.dtype, dtype_of(arrays))
            end = scalar_of([result], [weights])
            own = torch.autograd.grad(end, floats, allow_unused=True) if result.requires_grad else ()
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
        functions = {output: WholeOutput(module, names, params, output) for output in outputs}
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
