"""Layers of torch, recorded: what goes in and comes out, in every way a model can be called."""

from __future__ import annotations

import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import parity
from parity.capture.frameworks import framework
from parity.capture.frameworks.base import Capture
from parity.capture.frameworks.recorder import Recorder, start, stop
from parity.capture.safetensors import entries, read

TORCH = framework("torch")
Pair = namedtuple("Pair", "first second")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x, mask=None, scale=1.0):
        h = self.linear(self.act(self.norm(self.linear(x)))) * scale
        return {"h": h if mask is None else h * mask, "pair": Pair(h, None)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = Block()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        mask = torch.ones(len(x), 1)
        return self.head(x + self.block(x, mask=mask, scale=2.0)["h"])


def recorded(model, *args, gradients=False, run=None):
    """All tensors of a run, by (layer, nth, role, name), and the calls in order."""
    tensors, calls = {}, {}

    def sink(call, role, name, array):
        tensors[call.layer, call.nth, role, name] = array
        calls[call.order] = call

    layers = {id(layer): (name, layer) for name, layer in TORCH.named_layers(model)}
    recorder = Recorder(TORCH, layers, sink, gradients)
    start(recorder, TORCH.base)
    try:
        (run or model)(*args)
    finally:
        stop(recorder, TORCH.base)
    return tensors, [calls[order] for order in sorted(calls)]


def backward(model):
    return lambda x: model(x).square().sum().backward()


def x_of(rows=3):
    return torch.from_numpy(np.random.RandomState(0).randn(rows, 4).astype(np.float32))


def test_calls_have_names_orders_and_depths():
    tensors, calls = recorded(Net(), x_of())
    assert [(c.layer, c.kind, c.depth, c.nth) for c in calls] == [
        ("", "Net", 0, 0),
        ("block", "Block", 1, 0),
        ("block.linear", "Linear", 2, 0),
        ("block.norm", "BatchNorm1d", 2, 0),
        ("block.act", "ReLU", 2, 0),
        ("block.linear", "Linear", 2, 1),
        ("head", "Linear", 1, 0),
    ]
    names = {key[2:] for key in tensors if key[0] == "block"}
    assert names == {("input", "0"), ("input", "mask"), ("output", "h"), ("output", "pair.0")}
    before, after = tensors["block.act", 0, "input", "0"], tensors["block.act", 0, "output", "0"]
    assert (before < 0).any(), "copied before the layer changed it in place"
    np.testing.assert_array_equal(np.maximum(before, 0), after)


def test_recording_changes_nothing_and_ends():
    model, x = Net(), x_of()
    plain = nn.Module.__call__
    expected = [model(x), torch.autograd.grad(model(x).square().sum(), list(model.parameters()))]
    tensors, _ = recorded(model, x, gradients=True, run=lambda x: expected.append(model(x)))
    assert torch.equal(expected[0], expected[2])
    assert nn.Module.__call__ is plain
    n = len(tensors)
    model(x).sum().backward()
    assert len(tensors) == n


def test_gradients_are_those_of_each_call():
    model, x = Net(), x_of().requires_grad_()
    tensors, _ = recorded(model, x, gradients=True, run=backward(model))
    h = torch.from_numpy(tensors["head", 0, "grad.output", "0"])
    np.testing.assert_allclose(tensors["head", 0, "grad.input", "0"], (h @ model.head.weight).detach(), rtol=1e-6)
    # x goes into the block and past it: its gradient has two parts, of which the block gives one.
    whole, passed = tensors["", 0, "grad.input", "0"], tensors["head", 0, "grad.input", "0"]
    np.testing.assert_allclose(tensors["block", 0, "grad.input", "0"], whole - passed, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(whole, x.grad)
    assert ("block.act", 0, "grad.input", "0") in tensors


def test_layers_have_their_options():
    model = Net()
    layers = {layer.name: layer for layer in TORCH.layers(model.eval())}
    assert list(layers) == ["", "block", "block.linear", "block.norm", "block.act", "head"]
    assert layers["block.norm"].options["eps"] == 1e-5
    assert layers["block.norm"].options["training"] is False


def dumped(model, folder, run, **options):
    with parity.capture(model, folder, **options):
        run()
    index = json.loads((folder / "index.json").read_text())
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update({name: read(path, entry) for name, entry in entries(path).items()})
    return index, tensors


def test_a_dump_has_parameters_and_gradients(tmp_path):
    model, x = Net(), x_of()
    weight = model.head.weight.detach().clone()

    def step():
        backward(model)(x)
        with torch.no_grad():
            model.head.weight.zero_()

    index, tensors = dumped(model, tmp_path / "dump", lambda: (step(), step()), gradients=True, steps=1)
    np.testing.assert_array_equal(tensors["head.weight"], weight)
    assert tensors["head.weight.grad"].shape == (2, 4)
    assert not [name for name in tensors if "call1.output" in name and not name.startswith("block.linear")]
    assert not [name for name in tensors if "repeat" in name], "the second step is not stored"
    assert index["parameters"][-1] == "head.bias"
    assert index["buffers"] == [f"block.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    assert index["frameworks"] == {"torch": torch.__version__}
    assert set(index["tensors"]) == set(tensors)


def test_an_exception_ends_its_call_only(tmp_path):
    model = Net()

    def run():
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        model(x_of())

    index, tensors = dumped(model, tmp_path / "dump", run)
    assert "call0.output.0" not in tensors
    assert "call1.output.0" in tensors
    assert [call["depth"] for call in index["calls"] if call["layer"] == ""] == [0, 0]


def test_compiled_layers_are_seen_from_outside(tmp_path, capsys):
    model = Net()
    model.block = torch.compile(model.block, backend="eager")
    index, tensors = dumped(model, tmp_path / "dump", lambda: model(x_of()))
    assert [call["layer"] for call in index["calls"]] == ["", "block", "head"]
    assert "block.call0.output.h" in tensors
    assert "block.linear.weight" in tensors
    assert "block is compiled" in capsys.readouterr().err
    torch._dynamo.reset()


def test_wrappers_leave_names_as_they_are(tmp_path):
    model = nn.DataParallel(Net())
    _, tensors = dumped(model, tmp_path / "dump", lambda: model(x_of()))
    assert "head.weight" in tensors
    assert "block.norm.call0.output.0" in tensors


def test_bfloat16_and_autocast(tmp_path):
    model = Net()
    with torch.autocast("cpu", torch.bfloat16):
        _, tensors = dumped(model, tmp_path / "dump", lambda: model(x_of()))
    assert tensors["block.linear.call0.output.0"].dtype == np.uint16
    assert tensors["block.linear.weight"].dtype == np.float32


def test_tensors_without_values_are_left_out(tmp_path):
    model = nn.Linear(4, 2)
    index, tensors = dumped(model, tmp_path / "dump", lambda: torch.func.vmap(model)(x_of()))
    assert set(tensors) == {"weight", "bias"}
    assert list(index["left_out"]) == ["call0.input.0", "call0.output.0"]


def test_every_model_of_a_script_has_a_name(tmp_path):
    with Capture(tmp_path / "dump") as taken:
        taken.begin(TORCH)
        for _ in range(2):
            nn.MSELoss()(nn.Linear(4, 2)(x_of()), torch.zeros(3, 2))
    names = {name for name in json.loads((tmp_path / "dump" / "index.json").read_text())["tensors"] if "output" in name}
    assert names == {f"{name}.output.0" for name in ("Linear.call0", "Linear2.call0", "MSELoss.call0", "MSELoss.call1")}


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(TypeError, match="dict is no model"):
        parity.capture({}, tmp_path)
    assert not list(tmp_path.iterdir())
