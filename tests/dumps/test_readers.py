"""Files of tensors: real ones are read as they were written, broken and hostile ones are errors that name the file."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from parity.dumps.dump import open_dump
from parity.dumps.tensors import DumpError

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in open_dump(path).tensors}


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "x.npz", a=VALUES, f=np.asfortranarray(VALUES), be=VALUES.astype(">f8"), e=np.empty((0, 3)))
    found = tensors(tmp_path / "x.npz")
    for name, values in {"a": VALUES, "f": VALUES, "be": VALUES}.items():
        np.testing.assert_array_equal(found[name].view(), values)
    assert (found["be"].dtype, found["e"].shape) == ("float64", (0, 3))
    streamed = found["f"].stream
    assert streamed is None or [part.size for part in streamed(5)] == [5, 5, 2]


def test_safetensors_of_its_own_library(tmp_path):
    arrays = {"a": VALUES, "bf": VALUES.astype(ml_dtypes.bfloat16), "b": VALUES > 3, "s": np.array(3.0)}
    save_file(arrays, tmp_path / "x.safetensors")
    found = tensors(tmp_path / "x.safetensors")
    assert found["bf"].dtype == "bfloat16"
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name].view(), values)


def test_json_lines(tmp_path):
    lines = ['{"name": "a", "values": [[1, 2], [3, NaN]], "dtype": "bfloat16"}', "", '{"b": [1, 2], "c": "inf"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    (tmp_path / "y.json").write_text(json.dumps({"b": [[1], [2]]}, indent=1))
    found = tensors(tmp_path / "x.jsonl")
    assert [(t.dtype, t.shape, t.weak) for t in found.values()] == [
        ("bfloat16", (2, 2), False), ("int64", (2,), True), ("float64", (), True),
    ]  # fmt: skip
    assert found["b"].view().tolist() == [1, 2]
    assert tensors(tmp_path / "y.json")["b"].shape == (2, 1)


def test_a_folder_names_arrays_by_path_and_containers_by_file_if_they_must(tmp_path):
    for name in ("10.out", "2.out"):
        (tmp_path / "step").mkdir(exist_ok=True)
        np.save(tmp_path / "step" / f"{name}.npy", VALUES)
    (tmp_path / "readme.txt").write_text("x")
    dump = open_dump(tmp_path)
    assert [tensor.name for tensor in dump.tensors] == ["step.2.out", "step.10.out"]
    assert "readme.txt" in dump.notes[0]
    np.savez(tmp_path / "a.npz", y=VALUES)
    np.savez(tmp_path / "b.npz", y=VALUES)
    assert {"a.y", "b.y"} < set(tensors(tmp_path))


def test_a_capture_is_in_the_order_of_its_calls(tmp_path):
    save_file({"x": VALUES}, tmp_path / "tensors-00000.safetensors")
    layers = [{"name": "fc", "class": "Linear", "options": {"eps": 1e-5}}, {"name": 3}, 4]
    index = {"format": "parity.capture/1", "complete": False, "layers": layers}
    (tmp_path / "index.json").write_text(json.dumps(index))
    dump = open_dump(tmp_path)
    assert dump.ordered
    assert dump.options == {"fc": {"eps": 1e-5}}
    assert "interrupted" in dump.notes[0]


def npy(values: Any = VALUES) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def zipped(data: bytes, name: str = "a.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


HUGE = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 9), }".ljust(117) + b"\n"  # fmt: skip
BROKEN = {
    "truncated.npy": (npy()[:-3], "not a readable .npy"),
    "huge.npy": (HUGE, "not a readable .npy"),
    "objects.npy": (npy(np.array([{}], dtype=object)), "Python objects"),
    "empty.npy": (b"", "not a readable .npy"),
    "truncated.npz": (zipped(npy())[:-40], "not a readable zip"),
    "lies.npz": (zipped(npy()[:-8]), "has 168 bytes"),
    "empty.safetensors": (b"", "truncated"),
    "truncated.safetensors": (safetensors({"a": F32}, b"1234"), "truncated"),
    "overlap.safetensors": (safetensors({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, bytes(12)), "overlap"),
    "long.safetensors": (safetensors({"a": F32}, length=1 << 63), "truncated"),
    "shape.safetensors": (safetensors({"a": {**F32, "shape": [1 << 40, 1 << 40]}}, bytes(8)), "shape"),
    "offset.safetensors": (safetensors({"a": {**F32, "data_offsets": [-8, 0]}}, bytes(8)), "cannot be at bytes -8"),
    "twice.safetensors": (safetensors(b'{"a": 1, "a": 2}'), "a duplicate key"),
    "deep.safetensors": (safetensors(b"[" * 200_000), "not readable JSON"),
    "dtype.safetensors": (safetensors({"a": {**F32, "dtype": "F4"}}, bytes(8)), "dtype F4"),
    "ragged.jsonl": (b'{"a": [1, [2]]}', "ragged.jsonl:1: a is not a list of numbers"),
    "text.jsonl": (b'{"a": 1}\n{"b": ["x"]}', "text.jsonl:2"),
    "twice.jsonl": (b'{"a": 1}\n{"a": 1}', "2 tensors are named a"),
    "nothing.jsonl": (b"", "no tensor is in it"),
    "x.txt": (b"", "parity reads .npy"),
    "empty.pt": (b"", "damaged pickle"),
    "zip.pt": (zipped(b""), "no checkpoint of torch.save"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name):
    data, message = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DumpError) as caught:
        open_dump(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)


class Calls:
    """A pickle that runs something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


HOSTILE = {
    "system": (Calls(os.system, "touch ran"), f"{os.name}.system"),
    "eval": (Calls(eval, "open('ran', 'w')", {}), "builtins.eval"),
    "getattr": (b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.", "builtins.getattr"),
    "function": (b"\x80\x02ccollections\nOrderedDict\n}X\x04\x00\x00\x00makeK\x01sb.", "a state for Called"),
    "memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "no tensor is in it"),
    "cycle": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "nested more than 100 deep"),
    "new": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "damaged pickle"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_runs_nothing(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, message = HOSTILE[name]
    data = content if isinstance(content, bytes) else pickle.dumps({"w": content})
    Path("x.pdparams").write_bytes(data)
    with pytest.raises(DumpError, match=r"x\.pdparams") as caught:
        open_dump(Path("x.pdparams"))
    assert message in str(caught.value)
    assert not Path("ran").exists()


def test_a_pickle_that_repeats_itself_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("parity.dumps.checkpoints.MAX_ITEMS", 1000)
    doubling = b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(40))
    (tmp_path / "x.pdparams").write_bytes(b"\x80\x02]q\x00K\x01a" + doubling + b".")
    with pytest.raises(DumpError, match="more than 1,000 values"):
        open_dump(tmp_path / "x.pdparams")


def test_nothing_outside_a_folder_is_read(tmp_path):
    (tmp_path / "out").mkdir()
    np.save(tmp_path / "secret.npy", VALUES)
    (tmp_path / "out" / "x.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(DumpError, match="a link out of the folder"):
        open_dump(tmp_path / "out")
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(DumpError, match=r"pipe\.npy: neither"):
        open_dump(tmp_path)


def test_a_pickled_array_stays_in_its_file(tmp_path):
    large = np.arange(40_000, dtype=np.float64).reshape(200, 200)
    for protocol in (2, 4, 5):
        nested = {"model": {"w": large, "f": np.asfortranarray(large[:3, :5]), "n": ("name", VALUES)}, "epoch": 3}
        (tmp_path / "x.pdparams").write_bytes(pickle.dumps(nested, protocol))
        dump = open_dump(tmp_path / "x.pdparams")
        found = {tensor.name: tensor.view() for tensor in dump.tensors}
        np.testing.assert_array_equal(found["model.w"], large)
        np.testing.assert_array_equal(found["model.f"], large[:3, :5])
        np.testing.assert_array_equal(found["model.n"], VALUES)
        assert "epoch" in dump.notes[0]
