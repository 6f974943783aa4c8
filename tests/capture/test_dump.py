"""The files of a dump: the safetensors format, shards, the index, and what a killed process leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from parity.capture.calls import Call, CapturedLayer
from parity.capture.dump import CaptureError, DumpWriter
from parity.capture.frameworks.base import Capture, rank_folder
from parity.capture.safetensors import HEADER_BYTES, SafetensorsError, Writer, entries, read
from tests.conftest import ROOT, waited_for

ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "i64": np.array([[-1, 2**62]]),
    "bool": np.array([True, False]),
    "scalar": np.float64(3.5),
    "empty": np.zeros((0, 4), np.float16),
    'a "name"\n': np.array([7], np.uint8),
}


def tensors_of(folder):
    return {
        name: read(path, entry)
        for path in sorted(folder.glob("*.safetensors"))
        for name, entry in entries(path).items()
    }


def index_of(folder):
    return json.loads((folder / "index.json").read_text())


def written(path, name, array):
    """A file with one tensor."""
    with closing(Writer(path)) as writer:
        writer.add(name, array)
    return path


def test_files_are_read_by_the_formats_own_library_after_every_tensor(tmp_path):
    path = tmp_path / "x.safetensors"
    writer = Writer(path)
    for n, (name, array) in enumerate(ARRAYS.items(), 1):
        assert writer.add(name, array)
        theirs, ours = load_file(path), entries(path)
        assert list(ours) == list(ARRAYS)[:n]
        for key, entry in ours.items():
            np.testing.assert_array_equal(read(path, entry), ARRAYS[key])
            np.testing.assert_array_equal(theirs[key], ARRAYS[key])
    writer.close()


def test_bfloat16_is_kept_as_bits(tmp_path):
    path = written(tmp_path / "x.safetensors", "x", np.array([0x3F80, 0xC000], np.uint16))
    with safe_open(path, "numpy") as file:
        assert file.get_slice("x").get_dtype() == "BF16"
    assert read(path, entries(path)["x"]).tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:6],
        lambda data: data[: HEADER_BYTES + 8 + 3],
        lambda data: data.replace(b'"F32"', b'"F99"'),
        lambda data: data.replace(b"[2,3]", b"[9,3]"),
        lambda data: data.replace(b'"shape"', b'"shapo"'),
        lambda data: data.replace(b"{", b"[", 1),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, damage):
    path = written(tmp_path / "x.safetensors", "f32", ARRAYS["f32"])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SafetensorsError, match=r"x\.safetensors"):
        entries(path)


def test_shards_are_bounded_by_bytes_and_by_the_header(tmp_path):
    dump = DumpWriter(tmp_path / "dump", shard_bytes=1000)
    for n in range(20):
        dump.add(f"x{n}", np.full(60, n, np.float32))  # 240 bytes: four to a shard
    dump.add("large", np.zeros(5000, np.uint8))
    for n in range(900):
        dump.add(f"small{n}" + "_" * 100, np.zeros(1, np.uint8))
    dump.close()
    sizes = [
        sum(entry.start > 0 for entry in entries(path).values())
        for path in sorted((tmp_path / "dump").glob("*.safetensors"))
    ]
    assert sizes[:6] == [4, 4, 4, 4, 4, 1]
    assert len(sizes) > 7, "the header of a shard has room for some hundred tensors"
    index = index_of(tmp_path / "dump")
    assert index["complete"]
    assert len(index["tensors"]) == sum(sizes) == 921
    assert tensors_of(tmp_path / "dump")["x7"][0] == 7


def test_names_say_layer_call_role_and_place(tmp_path):
    dump = DumpWriter(tmp_path / "dump")
    dump.add_layers("torch", "2", [CapturedLayer("a.b", "Linear", {"eps": 1e-5})])
    dump.record(Call("a.b", "Linear", 1, 1, 2), "grad.input", "mask", np.zeros(1))
    dump.record(Call("", "Net", 0, 0), "output", "0", np.zeros(1, np.complex64))
    dump.record(Call("", "Net", 0, 0), "output", "0", np.zeros(1))
    dump.record(Call("", "Net", 0, 0), "output", "1", np.array(["text"]))
    dump.close()
    index = index_of(tmp_path / "dump")
    assert list(index["tensors"]) == ["a.b.call2.grad.input.mask", "call0.output.0", "call0.output.0.repeat1"]
    assert [call["order"] for call in index["calls"]] == [0, 1]
    assert index["left_out"] == {"call0.output.1": "dtype <U4"}
    assert index["layers"] == [{"name": "a.b", "class": "Linear", "options": {"eps": 1e-5}}]
    assert tensors_of(tmp_path / "dump")["call0.output.0"].shape == (1, 2), "real and imaginary parts"


def test_a_dump_replaces_a_dump_and_nothing_else(tmp_path):
    for value in (1.0, 2.0):
        dump = DumpWriter(tmp_path / "dump")
        dump.add("x" if value == 1 else "y", np.full(1, value))
        dump.close()
    assert list(tensors_of(tmp_path / "dump")) == ["y"]
    (tmp_path / "dump" / "notes.txt").touch()
    with pytest.raises(CaptureError, match="name another folder"):
        DumpWriter(tmp_path / "dump")
    (tmp_path / "checkpoint").mkdir()
    written(tmp_path / "checkpoint" / "tensors-00000.safetensors", "x", ARRAYS["f32"])
    with pytest.raises(CaptureError, match="name another folder"):
        DumpWriter(tmp_path / "checkpoint")
    with pytest.raises(CaptureError, match="cannot write"):
        DumpWriter(tmp_path / "dump" / "notes.txt" / "dump")


def test_a_full_disk_ends_the_dump_and_not_the_script(tmp_path, monkeypatch, capsys):
    with Capture(tmp_path / "dump") as taken:
        monkeypatch.setattr(Writer, "_put", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(2):
            taken.sink(Call("", "Net", 0, 0), "output", "0", np.zeros(1))
    assert capsys.readouterr().err == f"parity.capture: {tmp_path}/dump is incomplete: No space left on device.\n"
    assert not index_of(tmp_path / "dump")["complete"]


@pytest.mark.process
def test_a_fork_does_not_write(tmp_path):
    with Capture(tmp_path / "dump") as taken:
        child = os.fork()
        taken.sink(Call("", "Net", 0, 0), "output", "0", np.full(3, os.getpid()))
        if child == 0:
            taken.close()
            os._exit(0)
        os.waitpid(child, 0)
        taken.sink(Call("", "Net", 0, 0), "output", "1", np.zeros(3))
    tensors = tensors_of(tmp_path / "dump")
    assert tensors["call0.output.0"].tolist() == [os.getpid()] * 3
    assert index_of(tmp_path / "dump")["complete"]
    assert list(index_of(tmp_path / "dump")["tensors"]) == list(tensors)


KILLED = """
import numpy as np
from pathlib import Path
from parity.capture.dump import DumpWriter

dump = DumpWriter(Path({folder!r}), shard_bytes=1 << 20)
for n in range(10**6):
    dump.add(f"x{{n}}", np.full(1 << 14, n, np.float32))
"""


@pytest.mark.process
def test_a_killed_process_leaves_readable_shards(tmp_path):
    folder = tmp_path / "dump"
    process = subprocess.Popen([sys.executable, "-c", KILLED.format(folder=str(folder))], cwd=ROOT)
    try:
        waited_for(lambda: len(list(folder.glob("*.safetensors"))) > 3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    tensors = tensors_of(folder)
    assert list(tensors) == [f"x{n}" for n in range(len(tensors))]
    assert all((array == n).all() for n, array in enumerate(tensors.values()))
    index = index_of(folder)
    assert not index["complete"]
    assert set(index["tensors"]) <= set(tensors)
    assert len(tensors) - len(index["tensors"]) <= 17, "all but the last shard is in the index"


def test_a_file_has_its_name_only_with_its_header(tmp_path, monkeypatch):
    """A process that is killed between the two leaves a partial file, which the next dump removes."""
    folder = tmp_path / "dump"
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(Path, "write_bytes", stopped_after_a_byte)
        DumpWriter(folder).add("x", np.zeros(3))
    assert not tensors_of(folder)
    assert [path.name for path in folder.glob("tensors-*")] == ["tensors-00000.safetensors.partial"]
    with closing(DumpWriter(folder)) as dump:
        dump.add("x", np.ones(3))
    assert sorted(path.name for path in folder.iterdir()) == ["index.json", "tensors-00000.safetensors"]
    assert tensors_of(folder)["x"].tolist() == [1, 1, 1]


def stopped_after_a_byte(path, data):
    with path.open("wb") as file:
        file.write(data[:1])
    raise KeyboardInterrupt


def test_each_rank_has_a_folder():
    assert rank_folder({"RANK": "3", "WORLD_SIZE": "4"}) == "rank3"
    assert rank_folder({"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2"}) == "rank0"
    assert rank_folder({"RANK": "0", "WORLD_SIZE": "1"}) == ""
