"""A dump: a folder of safetensors files of bounded size, and `index.json`, which describes them.

Names of tensors, for the layer LAYER (its dotted name; left out, with its point, where it is the model itself):

    LAYER.callN.input.WHERE         of the Nth call of this layer, from 0; WHERE as in calls.py
    LAYER.callN.output.WHERE
    LAYER.callN.grad.input.WHERE    the gradient from this call alone
    LAYER.callN.grad.output.WHERE
    NAME                            a parameter or a buffer, before the first call of the model
    NAME.grad                       a parameter's gradient in one backward pass

A tensor that is computed again (another backward pass through a parameter or a call, another run of a compiled
function) has the suffix `.repeat1`, `.repeat2` ...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from parity.capture.calls import Call, CapturedLayer
from parity.capture.safetensors import NAMES, PARTIAL, Writer
from parity.version import __version__

SHARD_BYTES = 512 << 20
INDEX = "index.json"
FORMAT = "parity.capture/1"


class CaptureError(Exception):
    """A dump cannot be made; the message says why, and the remedy."""


class DumpWriter:
    """Writes a dump, in memory bounded by one tensor and the index.

    Raises:
        CaptureError: the folder holds something other than a dump, or cannot be made.
    """

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self.shard_bytes = shard_bytes
        self.shards: List[Writer] = []
        self.index: Dict[str, Any] = {"format": FORMAT, "parity": __version__, "complete": False}
        self.index.update(frameworks={}, layers=[], parameters=[], buffers=[], calls=[], left_out={}, tensors={})
        self.calls: Dict[int, Dict[str, Any]] = {}
        _prepare(folder)
        self.write_index()

    def add_layers(self, framework: str, version: str, layers: List[CapturedLayer]) -> None:
        """Add a model's layers, and the framework that runs it."""
        self.index["frameworks"][framework] = version
        self.index["layers"] += [
            {"name": layer.name, "class": layer.kind, "options": dict(layer.options)} for layer in layers
        ]
        self.write_index()

    def record(self, call: Call, role: str, where: str, array: Any) -> None:
        """Store a tensor of a call: the sink of a recording."""
        known = {"order": call.order, "layer": call.layer, "class": call.kind, "call": call.nth, "depth": call.depth}
        self.calls.setdefault(call.order, known)
        self.add(call.tensor_name(role, where), array)

    def add(self, name: str, array: Any, group: Optional[str] = None) -> None:
        """Write a tensor; `group`: the list of the index that has its name, too."""
        array = np.asarray(array)
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag], -1)
        if array.dtype.name not in NAMES:
            self.index["left_out"][name] = f"dtype {array.dtype}"
            return
        name = self.free(name)
        full = not self.shards or 0 < self.shards[-1].size > self.shard_bytes - array.nbytes
        if full or not self.shards[-1].add(name, array):
            self.next_shard()
            if not self.shards[-1].add(name, array):
                raise CaptureError(f"the name of a tensor is too long: {name[:80]}...")
        self.index["tensors"][name] = self.shards[-1].path.name
        if group:
            self.index[group].append(name)

    def free(self, name: str) -> str:
        """This name, with the number of the repetition if it is taken."""
        free, number = name, 0
        while free in self.index["tensors"]:
            number += 1
            free = f"{name}.repeat{number}"
        return free

    def next_shard(self) -> None:
        """Begin another file, and write the index of the previous ones."""
        if self.shards:
            self.shards[-1].close()
        self.shards.append(Writer(self.folder / f"tensors-{len(self.shards):05}.safetensors"))
        self.write_index()

    def write_index(self) -> None:
        """Replace the index, so that a reader finds the old one or the new one."""
        self.index["calls"] = [self.calls[order] for order in sorted(self.calls)]
        partial = self.folder / f"{INDEX}{PARTIAL}"
        partial.write_text(json.dumps(self.index, separators=(",", ":")) + "\n", encoding="utf-8")
        partial.replace(self.folder / INDEX)

    def close(self, complete: bool = True) -> None:
        """Close the last file and write the index."""
        if self.shards:
            self.shards[-1].close()
        self.index["complete"] = complete
        self.write_index()


def _prepare(folder: Path) -> None:
    """Make the folder, and remove an earlier dump in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir()]
        if names and not (is_dump(folder) and all(map(_is_ours, names))):
            raise CaptureError(f"{folder} is not empty and holds more than a dump; name another folder.")
        for name in names:
            (folder / name).unlink()
    except OSError as error:
        raise CaptureError(f"cannot write to {folder}: {error.strerror or error}; name another folder.") from error


def is_dump(folder: Path) -> bool:
    """Whether a folder has the index of a dump."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(index, dict) and str(index.get("format")).startswith("parity.capture/")


def _is_ours(name: str) -> bool:
    whole = name[: -len(PARTIAL)] if name.endswith(PARTIAL) else name
    return whole == INDEX or (whole.startswith("tensors-") and whole.endswith(".safetensors"))
