"""`parity capture`: unchanged scripts of each framework, in its own interpreter, and ONNX models."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from parity.capture.safetensors import entries, read
from tests.conftest import call
from tests.exhaustive import one_of_each

SHARED = """
import sys
import numpy as np

RATE = float(sys.argv[sys.argv.index("--rate") + 1])
X = (np.arange(12).reshape(3, 4) * RATE - 1).astype("float32")
W = (np.arange(8).reshape(4, 2) / 8 - 0.4).astype("float32")
"""
SCRIPTS = {
    "torch": """
import torch
from torch import nn
from shared import W, X

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)
        self.head.weight.data, self.head.bias.data = torch.from_numpy(W.T.copy()), torch.zeros(2)

    def forward(self, x):
        return self.head(self.norm(x))

Net()(torch.from_numpy(X)).square().sum().backward()
""",
    "paddle": """
import paddle
from paddle import nn
from shared import W, X

class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)
        self.head.weight.set_value(W)
        self.head.bias.set_value(0 * W[0])

    def forward(self, x):
        return self.head(self.norm(x))

Net()(paddle.to_tensor(X)).square().sum().backward()
""",
    "oneflow": """
import oneflow as flow
from oneflow import nn
from shared import W, X

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)
        self.head.weight.data.copy_(flow.tensor(W.T.copy()))
        self.head.bias.data.zero_()

    def forward(self, x):
        return self.head(self.norm(x))

Net()(flow.tensor(X)).square().sum().backward()
""",
    "mindspore": """
import mindspore
from mindspore import nn
from shared import W, X

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm((4,), epsilon=1e-5), nn.Dense(4, 2)
        self.head.weight.set_data(mindspore.Tensor(W.T.copy()))
        self.head.bias.set_data(mindspore.Tensor(0 * W[0]))

    def construct(self, x):
        return self.head(self.norm(x))

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
net = Net()
mindspore.value_and_grad(lambda x: net(x).square().sum(), None, net.trainable_params())(mindspore.Tensor(X))
""",
    "keras": """
import keras
import tensorflow
from shared import W, X

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm, self.head = keras.layers.LayerNormalization(epsilon=1e-5, name="norm"), keras.layers.Dense(2, name="head")

    def call(self, x):
        return self.head(self.norm(x))

net = Net()
net.norm.build((3, 4))
net.head.build((3, 4))
net.head.kernel.assign(W)
with tensorflow.GradientTape() as tape:
    loss = tensorflow.reduce_sum(net(X) ** 2)
tape.gradient(loss, net.trainable_variables)
""",
}


def captured(folder, script, *arguments, name="dump"):
    """The index and the tensors of a captured script."""
    out = folder / name
    done = call("capture", script, "--out", out, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    index = json.loads((out / "index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    return index, {name: read(path, entry) for path in files for name, entry in entries(path).items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, and the dumps that tests have made of them."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "shared.py").write_text(SHARED)
    for framework, text in SCRIPTS.items():
        (folder / f"{framework}_script.py").write_text(text)
    return folder


def of_script(folder, framework):
    arguments = ("-b", framework, "--gradients", "--rate", "0.25")
    return captured(folder, f"{framework}_script.py", *arguments, name=framework)


@pytest.mark.process
@pytest.mark.frameworks
@pytest.mark.parametrize("framework", SCRIPTS)
def test_an_unchanged_script(folder, framework, capfd):
    index, tensors = of_script(folder, framework)
    assert index["complete"]
    assert (
        f"{len(tensors)} tensors of {len(index['layers'])} layers are in {folder / framework}."
        in capfd.readouterr().err
    )
    assert list(index["frameworks"]) == [framework]
    assert [call["layer"] for call in index["calls"]] == ["Net", "Net.norm", "Net.head"]
    x = np.arange(12).reshape(3, 4) * 0.25 - 1
    w = np.arange(8).reshape(4, 2) / 8 - 0.4
    h = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    expected = {
        "Net.call0.input.0": x,
        "Net.norm.call0.output.0": h,
        "Net.head.call0.input.0": h,
        "Net.call0.output.0": h @ w,
        "Net.head.call0.grad.output.0": 2 * h @ w,
        "Net.norm.call0.grad.output.0": 2 * h @ w @ w.T,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(tensors[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    kernel = tensors["Net.head.kernel" if framework == "keras" else "Net.head.weight"]
    np.testing.assert_array_equal(kernel if kernel.shape == (4, 2) else kernel.T, w.astype(np.float32))


@pytest.mark.process
@pytest.mark.frameworks
def test_dumps_of_two_frameworks_are_compared(folder):
    for framework in ("torch", "oneflow"):
        if not (folder / framework).exists():
            of_script(folder, framework)
    done = call("compare", "torch", "oneflow", "--out", "compared", cwd=folder)
    assert "18 pairs of tensors: 18 by exact name" in done.stdout
    assert done.returncode == 0, done.stdout


TWICE = """
import numpy as np

from parity.capture.frameworks import framework
from parity.capture.frameworks.recorder import Recorder, start, stop

here = framework({framework!r})
nn = here.framework.nn


class Net(here.base):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        h = self.linear(self.linear(x))
        return {{"h": h * mask, "none": None}}


model, recorded = Net(), {{}}
tensor = {tensor}
x, mask = tensor(np.arange(12, dtype=np.float32).reshape(3, 4) ** 0.5, True), tensor(np.ones((3, 1), np.float32), False)


def sink(call, role, name, array):
    recorded[call.layer, call.nth, role, name] = array


recorder = Recorder(here, {{id(layer): (name, layer) for name, layer in here.named_layers(model)}}, sink, gradients=True)
start(recorder, here.base)
(model(x, mask=mask)["h"] ** 2).sum().backward()
stop(recorder, here.base)
assert ("linear", 1, "grad.input", "0") in recorded, list(recorded)
np.testing.assert_array_equal(recorded["", 0, "input", "mask"], 1)
np.testing.assert_array_equal(recorded["", 0, "output", "h"], recorded["linear", 1, "output", "0"])
np.testing.assert_allclose(recorded["", 0, "grad.input", "0"], here.to_numpy(x.grad), rtol=1e-5)
np.testing.assert_array_equal(recorded["linear", 0, "grad.input", "0"], recorded["", 0, "grad.input", "0"])
"""
TENSORS = {
    "paddle": "lambda a, grad: here.framework.to_tensor(a, stop_gradient=not grad)",
    "oneflow": "lambda a, grad: here.framework.tensor(a, requires_grad=grad)",
}


@pytest.mark.process
@pytest.mark.frameworks
@pytest.mark.parametrize("framework", one_of_each(lambda _: "", ((name,) for name in TENSORS)))
def test_a_layer_that_is_called_twice(tmp_path, framework):
    (tmp_path / "twice.py").write_text(TWICE.format(framework=framework, tensor=TENSORS[framework]))
    index, _ = captured(tmp_path, "twice.py", "-b", framework)
    assert index["frameworks"].keys() == {framework}


MAKE_ONNX = """
import numpy as np
from onnx import TensorProto, helper, save

def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

nodes = [
    helper.make_node("MatMul", ["x", "w"], ["xw"], "/block/linear/MatMul"),
    helper.make_node("Add", ["xw", "b"], ["h"], "/block/linear/Add"),
    helper.make_node("Relu", ["h"], ["r"], "/block/Relu"),
    helper.make_node("Neg", ["r"], ["y"]),
]
weights = [
    helper.make_tensor("w", TensorProto.FLOAT, [4, 2], np.ones(8)),
    helper.make_tensor("b", TensorProto.FLOAT, [2], [-1, -2]),
]
graph = helper.make_graph(nodes, "net", [value("x", [3, 4])], [value("y", [3, 2])], weights)
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")

import onnxruntime, parity
session = onnxruntime.InferenceSession("net.onnx")
with parity.capture(session, "own", steps=1):
    for _ in range(2):
        y = session.run(["y"], {"x": np.load("x.npz")["x"]})[0]
assert y.shape == (3, 2)
"""


@pytest.mark.process
@pytest.mark.frameworks
def test_an_onnx_model(tmp_path):
    (tmp_path / "make.py").write_text(MAKE_ONNX)
    x = np.arange(12, dtype=np.float32).reshape(3, 4) - 6
    np.savez(tmp_path / "x.npz", x=x)
    captured(tmp_path, "make.py", "-b", "onnxruntime")
    index, tensors = captured(tmp_path, "net.onnx", "--inputs", "x.npz")
    linear = x.sum(1, keepdims=True) + np.array([-1, -2])
    expected = {
        "w": np.ones((4, 2)),
        "call0.input.x": x,
        "block.linear.MatMul.call0.output.0": linear - np.array([-1, -2]),
        "block.linear.call0.output.0": linear,
        "block.call0.output.0": np.maximum(linear, 0),
        "Neg_3.call0.output.0": -np.maximum(linear, 0),
        "call0.output.y": -np.maximum(linear, 0),
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)
    assert [layer["name"] for layer in index["layers"]][:4] == ["", "block", "block.linear", "block.linear.MatMul"]
    own = json.loads((tmp_path / "own" / "index.json").read_text())
    assert list(own["tensors"]) == list(index["tensors"])


@pytest.mark.process
def test_the_scripts_own_code_and_arguments(tmp_path):
    (tmp_path / "exits.py").write_text("import sys; print(sys.argv, __name__); sys.exit(len(sys.argv))")
    done = call("capture", "exits.py", "--out", "dump", "--lr", "3", "--", "--out", "x", cwd=tmp_path)
    assert done.returncode == 5
    assert not json.loads((tmp_path / "dump" / "index.json").read_text())["tensors"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nix.py"], "'nix.py' does not exist"),
        (["net.onnx"], "an ONNX model takes --inputs FILE.npz"),
        (["x.py", "--inputs", "x.py"], "a script takes none"),
        (["x.py", "-b", "torch", "--python", sys.executable], "name a backend or a Python"),
        (["x.py", "-b", "tensorflux"], "tensorflux"),
    ],
)
def test_wrong_commands(tmp_path, arguments, message):
    (tmp_path / "x.py").write_text("")
    (tmp_path / "net.onnx").write_bytes(b"")
    done = call("capture", *arguments, "--out", tmp_path / "dump", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "dump").exists()
