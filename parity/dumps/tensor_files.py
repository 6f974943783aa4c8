"""Readers of `.npy`, `.npz`, `.safetensors` and JSON lines."""

from __future__ import annotations

import functools
import itertools
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from parity.config.nodes import printable
from parity.dumps.tensors import (
    NARROW,
    WHOLE,
    Array,
    DumpError,
    Mapped,
    Shape,
    Stored,
    count,
    is_numeric,
    shown,
)

Contents = tuple[list[Stored], list[str]]
"""The tensors of a file, and what was left out."""

LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name, two of which at 26 and 28 are the lengths that follow."""

MAX_HEADER = 100 << 20
"""Bytes of a safetensors header: the limit of the reference implementation."""
SAFETENSORS: Mapping[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind.upper()}{bits}": np.dtype(f"<{kind}{bits // 8}") for kind in "iu" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "C64": np.dtype("<c8"),
    "BF16": NARROW["bfloat16"],
    "F8_E4M3": NARROW["float8_e4m3fn"],
    "F8_E5M2": NARROW["float8_e5m2"],
    "F8_E8M0": NARROW["float8_e8m0fnu"],
}
"""The dtypes of the format that have whole bytes."""

MAX_LINE = 64 << 20
"""Bytes of a line of JSON; larger tensors belong into another format."""


def read_npy(path: Path) -> Contents:
    """One tensor, named after the file."""
    values = mapped_npy(path)
    if not is_numeric(values.dtype):
        return [], [f"{path.name}: {values.dtype}"]
    dtype = values.dtype.newbyteorder("=").name
    return [Stored(path.stem, values.shape, dtype, 0, functools.partial(mapped_npy, path))], []


def mapped_npy(path: Path) -> Array:
    """The array of a `.npy` file; raises DumpError."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # NumPy raises what its parser of headers raises
        raise DumpError(f"{path}: not a readable .npy file: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says, in a line."""
    said = str(error).strip().splitlines()
    return printable(said[0][:300]) if said else type(error).__name__


# npz


def read_npz(path: Path) -> Contents:
    """The members of a zip of `.npy` files: mapped where they are stored as they are, else unpacked when read."""
    mapped, tensors, notes = Mapped(path), list[Stored](), list[str]()
    for info in members(path):
        if not info.filename.endswith(".npy"):
            notes.append(f"{path.name}: {printable(info.filename)}")
            continue
        name = info.filename.removesuffix(".npy")
        try:
            with zipfile.ZipFile(path) as archive, archive.open(info) as file:
                shape, fortran, dtype = npy_header(file)
                start = file.tell()
        except Exception as error:  # zipfile and NumPy raise what their parsers raise
            raise DumpError(f"{path}: {printable(info.filename)} cannot be read: {first_line(error)}") from error
        if not is_numeric(dtype):
            notes.append(f"{path.name}: {printable(name)}: {dtype}")
            continue
        n = count(shape)
        if n is None or start + n * dtype.itemsize != info.file_size:
            raise DumpError(f"{path}: {printable(info.filename)} of shape {shown(shape)} has {info.file_size} bytes")
        tensors.append(member(path, mapped, info, name, (shape, fortran, dtype, start), len(tensors)))
    return tensors, notes


def members(path: Path) -> list[zipfile.ZipInfo]:
    """The files in a zip, each name once."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except Exception as error:  # zipfile raises what its parser raises
        raise DumpError(f"{path}: not a readable zip file: {first_line(error)}") from error
    names = {info.filename for info in infos}
    if len(names) < len(infos):
        raise DumpError(f"{path}: two of its files have the same name")
    return infos


def npy_header(file: IO[bytes]) -> tuple[Shape, bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype; raises ValueError and others."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version in ((2, 0), (3, 0)):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version} of the format is unknown")


def member(
    path: Path,
    mapped: Mapped,
    info: zipfile.ZipInfo,
    name: str,
    header: tuple[Shape, bool, np.dtype[Any], int],
    order: int,
) -> Stored:
    """The tensor of a zip's member."""
    shape, fortran, dtype, start = header
    plain = dtype.newbyteorder("=").name

    def arranged(flat: Array) -> Array:
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    if info.compress_type == zipfile.ZIP_STORED:
        offset = data_offset(mapped, info) + start
        mapped.array(dtype, shape, offset)
        return Stored(name, shape, plain, order, lambda: arranged(mapped.array(dtype, shape, offset).reshape(-1)))

    def stream(length: int) -> Iterator[Array]:
        if fortran:
            flat = whole().reshape(-1)
            yield from (flat[i : i + length] for i in range(0, flat.size, length))
            return
        yield from unpacked(path, info, start, dtype, length)

    def whole() -> Array:
        if info.file_size > WHOLE:
            raise DumpError(f"{name} is compressed and too large to be rearranged; store it uncompressed")
        return arranged(np.concatenate([np.empty(0, dtype), *unpacked(path, info, start, dtype, 1 << 20)]))

    return Stored(name, shape, plain, order, whole, stream)


def data_offset(mapped: Mapped, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin."""
    head = mapped.bytes(info.header_offset, info.header_offset + LOCAL_HEADER)
    if len(head) < LOCAL_HEADER or head[:4] != b"PK\x03\x04" or info.flag_bits & 1:
        raise DumpError(f"{mapped.path}: {printable(info.filename)} is damaged or encrypted")
    lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return info.header_offset + LOCAL_HEADER + lengths


def unpacked(path: Path, info: zipfile.ZipInfo, start: int, dtype: np.dtype[Any], length: int) -> Iterator[Array]:
    """A compressed member's values, so many at a time; raises DumpError."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(info) as file:
            file.read(start)
            while data := file.read(length * dtype.itemsize):
                yield np.frombuffer(data, dtype)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DumpError(f"{path}: {printable(info.filename)} cannot be unpacked: {first_line(error)}") from error


# safetensors


def read_safetensors(path: Path) -> Contents:
    """The tensors of a safetensors file, in the order of its header."""
    mapped = Mapped(path)
    length = int.from_bytes(mapped.bytes(0, 8), "little")
    if mapped.size < 8 or length > min(MAX_HEADER, mapped.size - 8):
        raise DumpError(f"{path}: truncated, or not a safetensors file: its header would end beyond the file")
    header = parsed(path, mapped.bytes(8, 8 + length))
    header.pop("__metadata__", None)
    start, spans, tensors = 8 + length, [], list[Stored]()
    for name, entry in header.items():
        dtype, shape, begin, end = layout_of(path, name, entry)
        n = count(shape)
        if n is None or not 0 <= begin <= end or end - begin != n * dtype.itemsize or start + end > mapped.size:
            raise DumpError(f"{path}: {printable(name)} of shape {shown(shape)} cannot be at bytes {begin} to {end} of "
                            f"{mapped.size - start}: truncated, or the header is wrong")  # fmt: skip
        spans.append((begin, end, name))
        view = functools.partial(mapped.array, dtype, tuple(shape), start + begin)
        tensors.append(Stored(name, tuple(shape), dtype.name, len(tensors), view))
    spans = sorted(span for span in spans if span[0] < span[1])
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise DumpError(f"{path}: {printable(one)} and {printable(other)} overlap")
    return tensors, []


def layout_of(path: Path, name: str, entry: Any) -> tuple[np.dtype[Any], list[int], int, int]:
    """Dtype, shape, first and last byte of a header's entry."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if count(shape) is None or not (type(begin) is int and type(end) is int):
            raise TypeError
    except (TypeError, KeyError, ValueError):
        raise DumpError(f"{path}: {printable(name)} has no dtype, shape and data_offsets that can be read") from None
    if not isinstance(kind, str) or kind not in SAFETENSORS:
        raise DumpError(f"{path}: {printable(name)} has dtype {printable(str(kind)[:40])}, which parity does not read")
    return SAFETENSORS[kind], shape, begin, end


def parsed(path: Path, text: bytes, what: str = "the header") -> dict[str, Any]:
    """A JSON object whose keys are unique; raises DumpError."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: {what} is not readable JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise DumpError(f"{path}: {what} is not a JSON object")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; raises ValueError for a key that it has twice."""
    items = dict(pairs)
    if len(items) < len(pairs):
        raise ValueError("it has a duplicate key")
    return items


# JSON lines


def read_lines(path: Path) -> Contents:
    """The tensors of JSON lines: `{"name": ..., "values": ..., "dtype": ...}`, or names with their numbers.

    A file that is one object over several lines is read as one line.
    """
    tensors: list[Stored] = []
    try:
        with path.open("rb") as file:
            number, offset = 0, 0
            while line := (file.readline if is_lined(path) else file.read)(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise DumpError(f"{path}:{number}: a line of more than {MAX_LINE >> 20} MiB; store it as .npy")
                for name, (array, weak) in named(path, number, line).items() if line.strip() else ():
                    view = functools.partial(line_values, path, number, offset, len(line), name)
                    tensors.append(Stored(name, array.shape, array.dtype.name, len(tensors), view, weak=weak))
                offset += len(line)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror or error}") from error
    return tensors, []


def is_lined(path: Path) -> bool:
    """Whether a file's first line is an object of its own."""
    with path.open("rb") as file:
        first = file.readline(MAX_LINE + 1).strip()
    return not first or (first.startswith(b"{") and first.endswith(b"}"))


def line_values(path: Path, number: int, offset: int, length: int, name: str) -> Array:
    """The values of one name of a line, read again."""
    with path.open("rb") as file:
        file.seek(offset)
        arrays = named(path, number, file.read(length))
    if name not in arrays:
        raise DumpError(f"{path}:{number}: the file has changed")
    return arrays[name][0]


def named(path: Path, number: int, line: bytes) -> dict[str, tuple[Array, bool]]:
    """The arrays of a line by name, each with whether the line leaves its dtype open."""
    entry = parsed(path, line, f"line {number}")
    if isinstance(entry.get("name"), str) and "values" in entry:
        array = numbers(path, number, entry["name"], entry["values"])
        dtype, shape = entry.get("dtype"), entry.get("shape")
        if count(shape) == array.size and shape is not None:
            array = array.reshape(shape)
        if dtype is None:
            return {entry["name"]: (array, True)}
        return {entry["name"]: (typed(path, number, array, dtype), False)}
    return {name: (numbers(path, number, name, values), True) for name, values in entry.items()}


def numbers(path: Path, number: int, name: str, values: Any) -> Array:
    """Nested lists as an array; "nan", "inf" and "-inf" are numbers too."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "UO" and array.size:
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        array = np.empty(0, np.str_)
    if array.dtype.kind not in "fiub":
        raise DumpError(f"{path}:{number}: {printable(name)} is not a list of numbers of one shape")
    return array


def typed(path: Path, number: int, array: Array, dtype: Any) -> Array:
    """An array in the dtype that a line names."""
    try:
        wanted = NARROW[dtype] if dtype in NARROW else np.dtype(dtype)
        if not isinstance(dtype, str) or not is_numeric(wanted):
            raise TypeError
        with np.errstate(all="ignore"):
            return array.astype(wanted)
    except (TypeError, ValueError):
        raise DumpError(f"{path}:{number}: there is no dtype {printable(str(dtype)[:40])}") from None


READERS: Mapping[str, Callable[[Path], Contents]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".json": read_lines,
}
"""By suffix."""
