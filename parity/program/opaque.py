"""Calls that have no meaning in NumPy: one step of a program each, which calls PyTorch itself.

Such a step computes in the dtype of its operands, in float64 where that is wider and in float32 where it is float16;
its gradient is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from autograd.extend import defvjp
from numpy.typing import NDArray

from parity.cases.program import primitive
from parity.cases.writable import TRACING, unwrapped, wrapped
from parity.program.recorded import WHOLE, RecordedCall
from parity.program.recorded import written as in_words
from parity.program.worker.tracer import Operand, Original, nested
from parity.torch_gradients import scalar_of

Array = NDArray[Any]
COMPUTED = {"float16": "float32", "float32": "float32"}
"""The dtype in which PyTorch computes, by that of the operands; float64 for all others."""


class OpaqueCall:
    """A recorded call as a function of the arrays of its tensors, in the order of `marks`."""

    def __init__(self, call: RecordedCall, original: Original) -> None:
        self.call, self.original = call, original
        self.__name__ = call.function
        self.marks = tuple(dict.fromkeys(operand.mark for operand in original.operands))
        self.dtypes = {operand.mark: operand.dtype for operand in original.operands}

    def __call__(self, *arrays: Array) -> Array:
        """The result, in the dtype of the arrays."""
        import torch

        with torch.no_grad():
            return array_of(self.result(self.tensors(arrays)), dtype_of(arrays))

    def tensors(self, arrays: Sequence[Array]) -> list[Any]:
        """The operands as tensors."""
        return [tensor_of(a, self.dtypes[mark], dtype_of(arrays)) for mark, a in zip(self.marks, arrays, strict=True)]

    def result(self, tensors: Sequence[Any]) -> Any:
        """What the function itself returns, or writes to its first operand. Raises ValueError where it refuses them."""
        import torch

        copies = dict(zip(self.marks, [tensor.clone() for tensor in tensors], strict=True))

        def given(item: Any) -> Any:
            return copies[item.mark] if isinstance(item, Operand) else item

        before = torch.get_default_dtype()
        torch.set_default_dtype(next((t.dtype for t in tensors if t.dtype == torch.float64), before))
        try:
            with checked_calls():
                args, kwargs = nested(self.original.args, given), nested(self.original.kwargs, given)
                result = self.original.function(*args, **kwargs)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        finally:
            torch.set_default_dtype(before)
        if result is None:
            return copies[self.marks[0]]
        return result if self.call.part is None else result[self.call.part]

    def text_of(self, texts: Sequence[str]) -> str:
        """The call in words, with these texts for its tensors."""
        names = dict(zip(self.marks, texts, strict=True))
        return in_words(self.call, lambda mark: (names[mark], WHOLE))[0]


class OpaqueGradient:
    """The gradient of the operand number `position` of an opaque call, from that of its result."""

    def __init__(self, function: OpaqueCall, position: int) -> None:
        self.function, self.position = function, position
        self.__name__ = f"gradient_of_{function.__name__}"

    def __call__(self, arriving: Array, *arrays: Array) -> Array:
        """The gradient, in the dtype of the arrays. Raises ValueError for one that arrives in another shape."""
        import torch

        tensors = self.function.tensors(arrays)
        operand = tensors[self.position]
        if not (operand.is_floating_point() or operand.is_complex()):  # An index, such as searchsorted returns.
            return np.zeros(operand.shape, dtype_of(arrays))
        operand.requires_grad_()
        with torch.enable_grad():
            result = self.function.result(tensors)
        if tuple(result.shape) != arriving.shape:
            raise ValueError(f"a gradient of {arriving.shape} arrives at a result of {tuple(result.shape)}")
        if not result.requires_grad:
            return np.zeros_like(arrays[self.position])
        # autograd's gradients of complex numbers are the conjugates of PyTorch's.
        gradient = tensor_of(np.conj(arriving), result.dtype, dtype_of(arrays))
        own = torch.autograd.grad(scalar_of([result], [gradient]), operand, allow_unused=True)[0]
        return np.zeros_like(arrays[self.position]) if own is None else np.conj(array_of(own, dtype_of(arrays)))

    def text_of(self, texts: Sequence[str]) -> str:
        """The gradient in words."""
        arriving, *operands = texts
        return f"gradient({self.function.text_of(operands)}, {operands[self.position]}, {arriving})"


@contextmanager
def checked_calls() -> Iterator[None]:
    """Inside, PyTorch's functions check what they do not check on a CPU, where they read and write beyond their memory:
    the shapes of attention, which is computed by steps, and the labels of CTC."""
    import torch

    before, own = torch.backends.cuda.flash_sdp_enabled(), torch.ctc_loss

    def ctc_loss(log_probs: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
        n_labels = log_probs.shape[-1]
        with torch._C.DisableTorchFunction():
            if not ((targets >= 0) & (targets < n_labels)).all():
                raise ValueError(f"ctc_loss: a target is not one of the {n_labels} labels")
        return own(log_probs, targets, *args, **kwargs)

    torch.backends.cuda.enable_flash_sdp(False)
    torch.ctc_loss = ctc_loss
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
        torch.ctc_loss = own


def dtype_of(arrays: Sequence[Array]) -> np.dtype[Any]:
    """The dtype of real numbers that some arrays are computed in."""
    kinds = [array.real.dtype for array in map(np.asarray, arrays) if array.dtype.kind in "fc"]
    return np.result_type(*kinds) if kinds else np.dtype(np.float64)


def tensor_of(array: Any, dtype: Any, kind: np.dtype[Any]) -> Any:
    """An array as a tensor of this dtype; floating-point numbers in the one in which PyTorch computes for `kind`."""
    import torch

    wanted, array = COMPUTED.get(kind.name, "float64"), np.array(array)
    if dtype.is_complex:
        return torch.tensor(array.astype(np.complex128)).to(
            torch.complex64 if wanted == "float32" else torch.complex128
        )
    if dtype.is_floating_point:
        return torch.tensor(array.real.astype(wanted))
    return torch.tensor(array).to(dtype)


def array_of(tensor: Any, kind: np.dtype[Any]) -> Array:
    """A tensor as an array: one of floating-point numbers in the dtype `kind`, integers as int64."""
    array: Array = tensor.detach().cpu().resolve_conj().numpy()
    if array.dtype.kind == "f":
        return array.astype(kind)
    if array.dtype.kind == "c":
        return array.astype(np.result_type(kind, np.complex64))
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def opaque_step(call: RecordedCall, original: Original) -> Callable[[Mapping[str, Any]], Any]:
    """A call of PyTorch as a function of values by mark: one step, with a gradient."""
    function = OpaqueCall(call, original)
    step = differentiable(function, [OpaqueGradient(function, position) for position in range(len(function.marks))])

    def compute(values: Mapping[str, Any]) -> Any:
        result = step(*(unwrapped(values[mark]) for mark in function.marks))
        return wrapped(result) if TRACING.get() else result

    return compute


def differentiable(function: Callable[..., Any], gradients: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A function as one step of a program; `gradients` give that of each operand from that of the result."""
    step: Callable[..., Any] = primitive(function)

    def gradient_for(gradient: Callable[..., Any]) -> Callable[..., Any]:
        backward = primitive(gradient)
        return lambda _, *operands: lambda arriving: backward(arriving, *operands)

    defvjp(step, *map(gradient_for, gradients))
    return step
