"""The safetensors format, written tensor by tensor, so that the file of a killed process can be read.

A file is the header's length (8 bytes, little-endian), the header (JSON: name to dtype, shape and offsets), and the
tensors' bytes without gaps. The format lets spaces follow the JSON, so a writer keeps a header of fixed size and adds
an entry to it after each tensor's bytes; a file gets its name once its header is whole. Only the last file of a killed
process can end with bytes of no tensor.
bfloat16 is held as its bits in uint16; actual uint16, which the format has too, is written as int32.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

HEADER_BYTES = 1 << 16
"""Room for about 500 entries."""

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "BF16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
"""The format's names to NumPy's."""

NAMES = {numpy: name for name, numpy in DTYPES.items()}
LONGEST_HEADER = 100_000_000
"""The limit of the format's own library."""

PARTIAL = ".partial"
"""The suffix of a file's name until its header is complete."""


class SafetensorsError(ValueError):
    """A file is not in this format; the message says where."""


class Writer:
    """Writes one file; its tensors are readable as soon as `add` returns.

    Raises OSError where a file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        start = b'{"__metadata__":{"format":"parity.capture"}'
        self.path = path
        self.size = 0
        partial = path.with_name(path.name + PARTIAL)
        partial.write_bytes(struct.pack("<Q", HEADER_BYTES) + (start + b"}").ljust(HEADER_BYTES))
        partial.replace(path)
        self._file = path.open("r+b")
        self._header = len(start)

    def add(self, name: str, array: Any) -> bool:
        """Write one tensor; False if the header has no room for it. uint16 is taken as the bits of bfloat16.

        Raises KeyError for a dtype that `DTYPES` lacks.
        """
        array = np.asarray(array)
        end = self.size + array.nbytes
        entry = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [self.size, end]}
        text = f",{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}".encode()
        if self._header + len(text) + 1 > HEADER_BYTES:
            return False
        self._put(8 + HEADER_BYTES + self.size, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._put(8 + self._header, text + b"}")
        self._header += len(text)
        self.size = end
        return True

    def _put(self, offset: int, data: Any) -> None:
        self._file.seek(offset)
        self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a file: its NumPy dtype (uint16 for bfloat16), its shape, and the offset of its bytes."""

    dtype: str
    shape: Tuple[int, ...]
    start: int


def entries(path: Path) -> Dict[str, TensorEntry]:
    """The tensors of a file in the order of their bytes, each within the file.

    Raises:
        SafetensorsError: the file is not in this format, or has a dtype that `DTYPES` lacks.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > min(LONGEST_HEADER, size - 8):
            raise SafetensorsError(f"{path} is not a safetensors file: it has no header of the length it names.")
        text = file.read(length)
    try:
        tensors = {name: _entry(item, 8 + length, size) for name, item in json.loads(text).items() if name[:2] != "__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorsError(f"{path} has a broken header: {error!r}.") from error
    return dict(sorted(tensors.items(), key=lambda pair: pair[1].start))


def _entry(item: Any, base: int, size: int) -> TensorEntry:
    dtype, shape, (start, end) = DTYPES[item["dtype"]], tuple(map(int, item["shape"])), item["data_offsets"]
    if min(shape, default=0) < 0 or not 0 <= start <= end <= size - base:
        raise ValueError(f"a tensor lies outside the file: {item}")
    if end - start != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"a tensor's bytes do not fit its shape: {item}")
    return TensorEntry(dtype, shape, base + start)


def read(path: Path, entry: TensorEntry) -> Any:
    """A tensor of a file, memory-mapped; bfloat16 as its bits in uint16."""
    if 0 in entry.shape:
        return np.zeros(entry.shape, entry.dtype)
    return np.memmap(os.fspath(path), entry.dtype, "r", entry.start, entry.shape)
