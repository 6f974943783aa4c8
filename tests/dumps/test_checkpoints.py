"""Checkpoints as PyTorch and Paddle write them, read without either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.dumps.dump import open_dump
from parity.dumps.tensors import DumpError

TORCH = """
import sys, torch
folder = sys.argv[1]
torch.manual_seed(0)
linear = torch.nn.Linear(4, 3)
adam = torch.optim.Adam(linear.parameters())
linear(torch.ones(2, 4)).sum().backward()
adam.step()
tied = torch.arange(6.0)
torch.save({
    "model": linear.state_dict(), "optimizer": adam.state_dict(), "epoch": 3,
    "bf16": torch.arange(3).bfloat16(), "f8": torch.arange(3.0).to(torch.float8_e4m3fn),
    "view": torch.arange(12.0).reshape(3, 4)[1:, ::2].t(), "tied": tied, "again": tied[2:],
    "parameter": torch.nn.Parameter(torch.ones(2)), "none": torch.empty(0, 3), "one": torch.tensor(7),
}, folder + "/x.pt")
torch.save(linear, folder + "/whole.pt")
torch.save(linear.state_dict(), folder + "/old.bin", _use_new_zipfile_serialization=False)
"""
PADDLE = """
import sys, paddle
folder = sys.argv[1]
layer = paddle.nn.Sequential(paddle.nn.Linear(300, 200), paddle.nn.BatchNorm1D(200))
for protocol in (2, 4):
    paddle.save(layer.state_dict(), f"{folder}/{protocol}.pdparams", protocol=protocol)
paddle.save({"nested": {"w": paddle.ones([3])}}, f"{folder}/nested.pdparams")
"""


def made(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.frameworks
def test_torch(tmp_path):
    made(TORCH, tmp_path)
    dump = open_dump(tmp_path / "x.pt")
    found = {tensor.name: tensor for tensor in dump.tensors}
    assert found["model.weight"].shape == (3, 4)
    assert found["optimizer.state.0.exp_avg"].shape == (3, 4)
    assert (found["bf16"].dtype, found["f8"].dtype) == ("bfloat16", "float8_e4m3fn")
    assert found["f8"].view().astype(np.float32).tolist() == [0, 1, 2]
    assert found["view"].view().tolist() == [[4, 8], [6, 10]]
    assert found["again"].view().tolist() == [2, 3, 4, 5]
    assert found["none"].shape == (0, 3)
    assert found["one"].view().item() == 7
    assert "param_groups.0.lr" in dump.notes[0]
    with pytest.raises(DumpError, match=r"torch\.nn\.modules\.linear\.Linear"):
        open_dump(tmp_path / "whole.pt")
    with pytest.raises(DumpError, match=r"before 1\.6"):
        open_dump(tmp_path / "old.bin")


@pytest.mark.frameworks
def test_paddle(tmp_path):
    made(PADDLE, tmp_path)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1._mean", "1._variance"]
    for protocol in (2, 4):
        dump = open_dump(tmp_path / f"{protocol}.pdparams")
        assert [tensor.name for tensor in dump.tensors] == names
        assert dump.notes == ()
        assert np.ptp(dump.tensors[0].view()) > 0
    assert open_dump(tmp_path / "nested.pdparams").tensors[0].view().tolist() == [1, 1, 1]
