"""Readers of checkpoints: `.pt`, `.pth` and `.bin` of PyTorch, `.pdparams` and `.pdopt` of Paddle. Weights only."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.config.nodes import printable
from parity.dumps.pickles import COMMON, MAX_ITEMS, Called, PickledArray, Span, interpreted, leaves
from parity.dumps.tensor_files import Contents, data_offset, first_line, members
from parity.dumps.tensors import NARROW, Array, DumpError, Mapped, Shape, Stored, count, shown
from parity.reporting.text.words import few

ZIP = b"PK\x03\x04"
MAX_PICKLE = 256 << 20
"""Bytes of a zip's data.pkl, which has names and shapes only."""

TORCH_DTYPES = {
    **{name: np.dtype(name) for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")},
    **{name: np.dtype(name) for name in ("uint16", "uint32", "uint64", "bool", "complex64", "complex128")},
    **NARROW,
}
"""The names of dtypes in torch."""
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class TorchDtype:
    """A dtype of torch, or the dtype of a storage's class."""

    dtype: np.dtype[Any]


@dataclass(frozen=True)
class TorchStorage:
    """The numbers of a storage, under its name in the zip."""

    key: str
    dtype: np.dtype[Any]
    n: int


@dataclass(frozen=True)
class TorchTensor:
    """A view of a storage."""

    storage: TorchStorage
    dtype: np.dtype[Any]
    offset: int
    shape: Shape
    strides: Shape


def rebuilt(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> TorchTensor:
    """`_rebuild_tensor_v2`, and `_v3`, which ends with the dtype of an untyped storage."""
    if not isinstance(storage, TorchStorage) or count(shape) is None or count([offset]) is None:
        raise ValueError("a tensor without storage, offset and shape")
    if count(strides) is None or len(strides) != len(shape):
        raise ValueError("a tensor without strides")
    dtypes = [item.dtype for item in rest if isinstance(item, TorchDtype)]
    return TorchTensor(storage, dtypes[0] if dtypes else storage.dtype, offset, tuple(shape), tuple(strides))


def parameter(data: Any, *_: Any) -> Any:
    """`_rebuild_parameter`."""
    return data


TORCH = {
    **COMMON,
    "torch._utils._rebuild_tensor_v2": Called(rebuilt),
    "torch._utils._rebuild_tensor_v3": Called(rebuilt),
    "torch._utils._rebuild_parameter": Called(parameter),
    "torch.Size": Called(tuple),
    "torch.storage.UntypedStorage": TorchDtype(np.dtype(np.uint8)),
    **{f"torch.{name}": TorchDtype(TORCH_DTYPES[dtype]) for name, dtype in STORAGES.items()},
    **{f"torch.{name}": TorchDtype(dtype) for name, dtype in TORCH_DTYPES.items()},
}
"""All names that a checkpoint of PyTorch may have."""


def read_torch(path: Path) -> Contents:
    """A zip of torch.save; its storages are mapped, and no class of torch is needed."""
    with open_file(path) as file:
        if file.read(4) != ZIP:
            return read_pickle(path)
    mapped, infos = Mapped(path), {info.filename: info for info in members(path)}
    root = root_of(path, infos)
    value = interpreted(io.BytesIO(text_of(path, infos[root + "data.pkl"])), str(path), TORCH, storage_of)
    big = text_of(path, infos.get(root + "byteorder")) == b"big"

    def view(tensor: TorchTensor) -> Array:
        return strided(mapped, infos.get(f"{root}data/{tensor.storage.key}"), tensor, big=big)

    tensors, others = list[Stored](), list[str]()
    for name, leaf in named_leaves(path, value):
        if isinstance(leaf, TorchTensor):
            view(leaf)
            tensors.append(Stored(name, leaf.shape, leaf.dtype.name, len(tensors), partial(view, leaf)))
        elif isinstance(leaf, PickledArray) and isinstance(leaf.data, bytes):
            tensors.append(pickled(name, leaf, len(tensors), None))
        else:
            others.append(name)
    return tensors, notes_of(path, others)


def root_of(path: Path, infos: Mapping[str, zipfile.ZipInfo]) -> str:
    """The folder in a zip that has the pickle; raises DumpError if the zip is no checkpoint."""
    pickles = [name for name in infos if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise DumpError(f"{path}: a zip without one data.pkl is no checkpoint of torch.save")
    root = pickles[0].removesuffix("data.pkl")
    if root + "constants.pkl" in infos:
        raise DumpError(f"{path}: a TorchScript program; save its state_dict()")
    if infos[pickles[0]].file_size > MAX_PICKLE:
        raise DumpError(f"{path}: its data.pkl is larger than {MAX_PICKLE >> 20} MiB")
    return root


def storage_of(pid: Any) -> TorchStorage:
    """The storage that a persistent id means; raises ValueError for others."""
    kind, storage_type, key, _, n = pid
    if kind != "storage" or not isinstance(storage_type, TorchDtype) or count([n]) is None:
        raise ValueError("a persistent id that is no storage")
    return TorchStorage(str(key), storage_type.dtype, n)


def open_file(path: Path) -> Any:
    """A file for reading; raises DumpError."""
    try:
        return path.open("rb")
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror or error}") from error


def text_of(path: Path, info: zipfile.ZipInfo | None) -> bytes:
    """A small member of a zip."""
    if info is None:
        return b""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(info) as file:
            return file.read(MAX_PICKLE)
    except Exception as error:  # zipfile raises what its parser raises
        raise DumpError(f"{path}: {printable(info.filename)} cannot be read: {first_line(error)}") from error


def strided(mapped: Mapped, info: zipfile.ZipInfo | None, tensor: TorchTensor, *, big: bool) -> Array:
    """A view of a storage in the zip; raises DumpError if it is not there."""
    where = f"{mapped.path}: storage {printable(tensor.storage.key[:40])}"
    if info is None:
        raise DumpError(f"{where} is missing")
    if info.compress_type != zipfile.ZIP_STORED:
        raise DumpError(f"{where} is compressed, which torch.save never does")
    dtype = tensor.dtype.newbyteorder(">") if big else tensor.dtype
    n = info.file_size // dtype.itemsize
    last = tensor.offset + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    if count(tensor.shape) and last >= n:
        raise DumpError(f"{where} is too small for a tensor of shape {shown(tensor.shape)}: the file is damaged")
    flat = mapped.array(dtype, (n,), data_offset(mapped, info))
    if not count(tensor.shape):
        return np.empty(tensor.shape, dtype)
    steps = tuple(step * dtype.itemsize for step in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps, writeable=False)


def read_pickle(path: Path) -> Contents:
    """A pickle of a dict of NumPy arrays, as Paddle writes it; large arrays stay in the file."""
    mapped = Mapped(path)
    with open_file(path) as file:
        value = interpreted(file, str(path), COMMON)
    if value == LEGACY:
        raise DumpError(f"{path}: the format of PyTorch before 1.6; load it and save it again with torch.save")
    tensors, others = list[Stored](), list[str]()
    for name, leaf in named_leaves(path, value):
        if isinstance(leaf, PickledArray):
            tensors.append(pickled(name, leaf, len(tensors), mapped))
        elif not is_internal(name):
            others.append(name)
    return tensors, notes_of(path, others)


LEGACY = 0x1950A86A20F9469CFC6C
"""The number with which such files begin (torch.serialization.MAGIC_NUMBER)."""


def is_internal(name: str) -> bool:
    """Whether Paddle keeps its own names there."""
    return name.startswith("StructuredToParameterName@@")


def pickled(name: str, array: PickledArray, order: int, mapped: Mapped | None) -> Stored:
    """A tensor in a pickle."""

    def view() -> Array:
        if isinstance(array.data, Span):
            assert mapped is not None  # noqa: S101 - only those of a zip have none, and they are bytes
            n = array.data.length // array.dtype.itemsize
            return array.arranged(mapped.array(array.dtype, (n,), array.data.start))
        return array.arranged(np.frombuffer(array.data, array.dtype))

    return Stored(name, array.shape, array.dtype.newbyteorder("=").name, order, view)


def named_leaves(path: Path, value: Any) -> Iterable[tuple[str, Any]]:
    """The values of a checkpoint by unique dotted names; raises DumpError."""
    if not isinstance(value, (dict, list, tuple, TorchTensor, PickledArray)):
        raise DumpError(f"{path}: it holds a {type(value).__name__}, not a dict of tensors")
    try:
        values = list(itertools.islice(leaves(value), MAX_ITEMS + 1))
    except ValueError as error:
        raise DumpError(f"{path}: {error}") from error
    if len(values) > MAX_ITEMS:
        raise DumpError(f"{path}: more than {MAX_ITEMS:,} values")
    named = [(name or path.stem, leaf) for name, leaf in values]
    if len({name for name, _ in named}) < len(named):
        raise DumpError(f"{path}: two values have the same dotted name")
    return named


def notes_of(path: Path, names: list[str]) -> list[str]:
    """What was left out, since it is no tensor."""
    return [f"{path.name}: {few(map(printable, names))}"] if names else []


READERS = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), read_torch),
    **dict.fromkeys((".pdparams", ".pdopt"), read_pickle),
}
"""By suffix."""
