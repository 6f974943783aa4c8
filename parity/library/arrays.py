"""A tensor of any framework as a NumPy array. No framework is imported: an object's attributes tell what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUMERIC = "fiubc"
"""The kinds of dtypes that can be compared: float, signed, unsigned, bool, complex."""

READERS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("toarray", lambda value: value.toarray()),
    ("todense", lambda value: value.todense()),
    ("numpy", lambda value: value.numpy()),
    ("asnumpy", lambda value: value.asnumpy()),
    ("__array__", np.asanyarray),
    ("__dlpack__", lambda value: np.from_dlpack(value, device="cpu")),
)
"""Attributes of a tensor, and how its values are read with them; the first that works is used. Sparse arrays of SciPy
and jax have the first two."""

WIDENED = ("bfloat16", "float8", "float4", "complex32")
"""Prefixes of dtypes that NumPy lacks and that float32 or complex64 holds exactly."""


@dataclass(frozen=True)
class Tensor:
    """The values of one tensor, and the dtype as its framework calls it.

    `weak`: a Python number, which has no dtype of its own. `note` says how the values were read.
    """

    values: Array
    dtype: str
    weak: bool = False
    note: str = ""

    def __str__(self) -> str:
        if self.weak:
            return f"the number {self.values.item()}"
        return f"a {self.dtype} tensor of shape {list(self.values.shape)}"


def tensor_of(value: Any, where: str) -> Tensor | None:
    """A tensor or a number with its values; None for anything else.

    Raises TypeError, which begins with `where`, for a tensor whose values cannot be compared.
    """
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return number(value, where)
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value, where)
    if not is_tensor(value):
        return None
    try:
        return read(value, where)
    except TypeError as error:
        if str(error).startswith(where):
            raise
        raise unreadable(value, where, error) from error
    except Exception as error:  # a framework may raise anything
        raise unreadable(value, where, error) from error


def is_tensor(value: Any) -> bool:
    """Whether `read` can read an object's values."""
    if isinstance(value, type):
        return False
    return any(hasattr(value, name) for name, _ in READERS)


def number(value: complex, where: str) -> Tensor:
    """A Python number; a bool is not weak, because True is not 1."""
    values = np.asarray(value)
    if values.dtype.kind not in NUMERIC:
        raise TypeError(f"{where}: {value} does not fit into 64 bits; compare it separately")
    return Tensor(values, values.dtype.name, weak=not isinstance(value, bool))


def plain(value: Any, where: str) -> Tensor:
    """An array of NumPy, or of a dtype that another package adds to it."""
    refuse_masked(value, where)
    values = np.asarray(value)
    if values.dtype.name.startswith(WIDENED):
        return Tensor(values.astype(np.float32), values.dtype.name, note=widened_note(values.dtype.name))
    if values.dtype.kind not in NUMERIC:
        raise TypeError(f"{where}: an array of dtype {values.dtype} is not numeric; convert it to a numeric dtype")
    return Tensor(values, values.dtype.name)


class MaskedError(TypeError):
    """Some values are masked; another way to read them would lose the mask."""


def refuse_masked(value: Any, where: str) -> None:
    """Raise MaskedError for a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise MaskedError(f"{where}: a masked array; compare .filled(...) or .compressed(), and the mask separately")


def read(value: Any, where: str) -> Tensor:
    """A framework's tensor: detached, dense, on the host, in a NumPy dtype."""
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        return torch_like(value, where)
    problem: Exception | None = None
    for name, reader in READERS:
        if hasattr(value, name):
            try:
                return plain(reader(value), where)
            except MaskedError:
                raise
            except Exception as error:  # a framework may raise anything, and the next way may work
                problem = error
    raise problem or TypeError("it has no readable values")


def torch_like(value: Any, where: str) -> Tensor:
    """A tensor with `detach()` and `numpy()`, as torch, paddle and oneflow have it."""
    tensor, notes = value.detach(), []
    if hasattr(tensor, "cpu"):
        tensor = tensor.cpu()
    dtype, changed = str(tensor.dtype).rpartition(".")[2], False
    if getattr(tensor, "is_quantized", False) is True:
        tensor, changed = tensor.dequantize(), True
        notes.append(f"{dtype}, dequantized")
    if is_sparse(tensor):
        tensor = tensor.to_dense()
        notes.append("made dense")
    if dtype.startswith(WIDENED):
        tensor, changed = tensor.cfloat() if dtype == "complex32" else tensor.float(), True
        notes.append(widened_note(dtype))
    for lazy in ("resolve_conj", "resolve_neg"):
        tensor = getattr(tensor, lazy)() if hasattr(tensor, lazy) else tensor
    read = plain(tensor.numpy(), where)
    return Tensor(read.values, dtype if changed else read.dtype, note=", ".join(notes))


def is_sparse(tensor: Any) -> bool:
    """Whether a tensor has to be made dense: torch has a layout for it, paddle 3.3.1 a method. `numpy()` of a sparse
    paddle tensor ends the process."""
    said = getattr(tensor, "is_sparse", False)
    layout = str(getattr(tensor, "layout", "")).lower()
    return bool(said() if callable(said) else said) or "sparse" in layout or "mkldnn" in layout


def widened_note(dtype: str) -> str:
    """`bfloat16, widened to float32`."""
    return f"{dtype}, widened to {'complex64' if dtype == 'complex32' else 'float32'}"


def unreadable(value: Any, where: str, error: Exception) -> TypeError:
    """Why the values of a tensor cannot be read, in the framework's own words."""
    lines = str(error).strip().splitlines()
    said = f": {lines[0]}" if lines else ""
    return TypeError(f"{where}: the values of this {kind_of(value)} cannot be read ({type(error).__name__}{said})")


def kind_of(value: Any) -> str:
    """The type's name with its package's, as `torch.Tensor`."""
    package = type(value).__module__.partition(".")[0]
    name = type(value).__qualname__
    return name if package == "builtins" else f"{package}.{name}"


def in_dtype_of(weak: Tensor, other: Tensor) -> Tensor:
    """A Python number in the dtype of the tensor that it is compared with, if that can hold it; a bool stays a bool."""
    dtype, value = other.values.dtype, weak.values
    if dtype.kind == "b":
        return weak
    with np.errstate(all="ignore"):
        if dtype.kind == "c" or (dtype.kind == "f" and value.dtype.kind != "c"):
            held = value.astype(dtype)
            fits = bool(np.isfinite(held) == np.isfinite(value))
        else:
            held = value.astype(dtype) if value.dtype.kind in "iu" and dtype.kind in "iu" else value
            fits = bool(held == value)
    return Tensor(held if fits else value, other.dtype, weak=True)
