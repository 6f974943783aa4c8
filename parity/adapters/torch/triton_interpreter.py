"""Triton's interpreter, which runs kernels with NumPy: whether it works here, and which errors are its own limits.

Imported after `TRITON_INTERPRET` is set, since Triton reads that when it is imported and when it defines a kernel.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

FOLDER = str(Path(triton.__file__).parent)
INTERPRETED = re.compile(r"'(float|int|bool)' object has no attribute|Did you forget to add @triton.jit")
"""Messages in kernels: a compiled one's numbers are tensors or constants, not Python's, and it may call functions of
Triton that were imported by name."""
ALIASES = {
    **{name: f"arc{name[1:]}" for name in ("acos", "asin", "atan", "acosh", "asinh", "atanh", "atan2")},
    "pow": "power",
    "abs": "fabs",
}
"""Functions of `libdevice` by NumPy's other names."""
PASSED_ON = (f"{os.sep}numpy{os.sep}", "<")
"""What the files of NumPy and of generated code have in their names."""


class InterpreterLimitError(NotImplementedError):
    """The interpreter would compute something else than a GPU."""


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types here
def plus_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    """y = x + 1 for n numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, x + 1, mask=at < n)


def problem() -> str:
    """Why the interpreter does not work; empty if it does."""
    if not isinstance(plus_one, interpreter.InterpretedFunction):
        return "kernels are compiled, since Triton was imported before its interpreter was chosen"
    x = torch.arange(5, dtype=torch.float32)
    y = torch.full_like(x, -1.0)
    try:
        plus_one[(3,)](x, y, 4, BLOCK=2)
    except Exception as error:
        return f"a kernel that adds 1 fails: {type(error).__name__}: {error}"
    expected = [1.0, 2.0, 3.0, 4.0, -1.0]
    return "" if y.tolist() == expected else f"a kernel that adds 1 to 0, 1, 2, 3 returns {y.tolist()[:4]}"


def adapt() -> None:
    """Let the interpreter run what needs a device only to be chosen or named, and refuse what it computes otherwise
    than a GPU does."""
    refuse_narrow_formats()
    Autotuner._bench = first_configuration
    for name in [name for name, value in vars(libdevice).items() if callable(value)]:
        setattr(libdevice, name, device_function(name))
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor


def refuse_narrow_formats() -> None:
    """Let the interpreter refuse formats that NumPy lacks: it computes with their bits as if these were integers."""
    own = interpreter.TensorHandle.__post_init__

    def checked(self: Any) -> None:
        dtype = self.dtype.scalar
        if not dtype.is_ptr() and dtype.is_floating() and interpreter._get_np_dtype(dtype).kind != "f":
            raise InterpreterLimitError(f"it computes with the bits of {dtype} as if they were integers")
        own(self)

    interpreter.TensorHandle.__post_init__ = checked


def first_configuration(_tuner: Any, *_: Any, **__: Any) -> Sequence[float]:
    """The times of a configuration, the same for all, so that a kernel's first one is chosen, and none is timed."""
    return (0.0, 0.0, 0.0)


def device_function(name: str) -> Any:
    """A function of `libdevice`, which has no code where there is no GPU: NumPy's of that name, or one that refuses."""
    own = getattr(np, ALIASES.get(name, name), None)

    def call(*given: Any, **_: Any) -> Any:
        if not isinstance(own, np.ufunc) or own.nin != len(given):
            raise InterpreterLimitError(f"libdevice.{name} is a function of a GPU")
        values = [item.handle.data if isinstance(item, tl.tensor) else item for item in given]
        like = next(item for item in given if isinstance(item, tl.tensor))
        result = np.asarray(own(*values), dtype=like.handle.data.dtype)
        dtype = tl.block_type(like.dtype, list(result.shape)) if like.type.is_block() else like.type
        return tl.tensor(interpreter.TensorHandle(result, like.dtype), dtype)

    return call


def origin(error: BaseException) -> BaseException:
    """The error inside a kernel, which the interpreter wraps; any other error itself."""
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def is_limit(error: BaseException) -> bool:
    """Whether an error is raised by the interpreter's own code, or is one that a compiled kernel does not have; not one
    that the kernel or the language's checks raise."""
    inner = origin(error)
    if isinstance(inner, InterpreterLimitError):
        return True
    files = [frame.filename for frame in traceback.extract_tb(inner.__traceback__)]
    files = [file for file in files if not any(word in file for word in PASSED_ON)]
    last = files[-1] if files else ""
    if last == interpreter.__file__ or (isinstance(inner, NotImplementedError) and last.startswith(FOLDER)):
        return True
    return inner is not error and bool(INTERPRETED.search(str(inner)))
