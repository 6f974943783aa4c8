"""Files that a config names and that are something else: refused quickly, and nothing of what they hold is told."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from parity.config import ConfigError, Overrides, load_plan

SECRET = "hunter2"
HEAD = "version: 1\nbackends: [numpy]\n"
FOREIGN = {
    "passwd": f"root:x:0:0:{SECRET}:/root:/bin/bash\n",
    "key": f"-----BEGIN KEY-----\n{SECRET}\n-----END KEY-----\n",
    "yaml": f"user: admin\npassword: {SECRET}\n",
    "anchor": f"token: *{SECRET}\n",
    "tag": f"token: !{SECRET} x\n",
    "twice": f"{SECRET}: 1\n{SECRET}: 2\n",
    "documents": f"a: 1\n---\n{SECRET}: 2\n",
    "broken": f'"{SECRET}: [\n',
    "escape": f'a: "\\{SECRET}"\n',
    "directive": f"%{SECRET}\n---\na: 1\n",
    "json": f'{{"auths": {{"registry": {{"auth": "{SECRET}"}}}}}}\n',
    "compose": f'version: "3.8"\nservices: {{{SECRET}: 1}}\n',
    "empty": "",
}


def problems(folder, text: str) -> str:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_plan([folder / "config.yaml"], Overrides())
    return str(error.value)


def including(folder) -> str:
    return problems(folder, f"{HEAD}include: [foreign]\ncases: [{{op: relu, inputs: {{x: {{shape: [3]}}}}}}]\n")


def loading(folder) -> str:
    return problems(folder, f"{HEAD}cases: [{{op: relu, inputs: {{x: {{file: foreign}}}}}}]\n")


@pytest.mark.parametrize("said", [including, loading])
@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_of_a_foreign_file_is_shown(tmp_path, name, said):
    (tmp_path / "foreign").write_text(FOREIGN[name])
    message = said(tmp_path)
    assert SECRET not in message
    assert "foreign" in message
    assert "line 2" not in message


def test_what_is_wrong_in_an_included_config_is_reported(tmp_path):
    (tmp_path / "foreign").write_text("version: 1\ndtype: [float32]\n")
    assert 'did you mean "dtypes"?' in including(tmp_path)
    assert "foreign:2" in including(tmp_path)


def make_sparse(path, start: bytes) -> None:
    """A file that says that it holds a terabyte."""
    path.write_bytes(start)
    os.truncate(path, 1 << 40)


UNREADABLE = {
    "fifo": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "process": lambda path: path.symlink_to("/proc/kmsg"),
    "huge": lambda path: make_sparse(path, b"version: 1\n"),
    "header": lambda path: make_sparse(path, b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFF0)),
}


@pytest.mark.parametrize("said", [including, loading])
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_to_its_end_is_refused(tmp_path, name, said):
    UNREADABLE[name](tmp_path / "foreign")
    assert any(reason in said(tmp_path) for reason in ("not a file", "no such file", "larger than", "must be a config", "not a .npy"))  # fmt: skip


def test_names_in_a_data_file_are_not_shown(tmp_path):
    np.save(tmp_path / "foreign.npy", np.zeros(2, [(SECRET, "f8")]))
    (tmp_path / "foreign.npy").rename(tmp_path / "foreign")
    assert SECRET not in loading(tmp_path)


def test_a_config_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="this is not a file"):
        load_plan([tmp_path / "config.yaml"], Overrides())
