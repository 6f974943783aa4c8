"""Stored tensors that come from elsewhere: each is read, or refused with its reason; none hangs, runs or leads outside."""

from __future__ import annotations

import os
import struct
import zipfile

import numpy as np
import pytest

from parity.reporting.results.stored_tensors import KeptError, backend_folders, kept_path, load


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"")


PLANTED = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "outside": lambda path: path.symlink_to("/etc/hostname"),
    "text": lambda path: path.write_text("x"),
    "empty": lambda path: path.write_bytes(b""),
    "archive": zipped,
    "pickle": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
    "more than there is": lambda path: path.write_bytes(header("(1000000000,)")),
    "more than can be": lambda path: path.write_bytes(header("(10**21,)".replace("10**21", "1" + "0" * 21))),
    "no number": lambda path: path.write_bytes(header("(True, 4)") + b"0" * 64),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_file_is_refused(tmp_path, kind):
    PLANTED[kind](tmp_path / "x.npy")
    with pytest.raises(KeptError, match=r"x\.npy"):
        load(tmp_path, "x.npy")


def test_a_tensor_is_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0))
    assert load(tmp_path, "x.npy").tolist() == [0, 1, 2, 3, 4, 5]
    for name in ("../x.npy", "/etc/hostname", "nothing.npy"):
        with pytest.raises(KeptError):
            load(tmp_path / "deeper", name)


def test_no_two_sides_share_a_folder():
    folders = backend_folders(["oracle_", "a/b", "a b", "oracle"])
    assert len(set(folders.values())) == len(folders)
    with pytest.raises(KeptError, match="the run has no zzz"):
        kept_path({"id": "one", "inputs": {"x": {"file": "tensors/0000-x/x.npy"}}}, "float32", "zzz", "y", folders)
