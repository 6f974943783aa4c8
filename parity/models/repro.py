"""A wrong layer as a script: the user's port, the layer alone, the run's tensors, and the exact answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parity.engine.inputs import save_array
from parity.models.layer_ops import Kernel
from parity.models.layouts import inverse
from parity.models.ports import Array

CALLS: Mapping[str, Mapping[str, str]] = {
    **{
        name: {
            "layers": "dict(model.named_modules())",
            "tensor": f"{name}.from_numpy({{}})",
            "set": "{}.data.copy_({})",
            "numpy": "{}.detach().numpy()",
        }
        for name in ("torch", "oneflow")
    },
    "paddle": {
        "layers": "dict(model.named_sublayers(include_self=True))",
        "tensor": "paddle.to_tensor({})",
        "set": "{}.set_value({})",
        "numpy": "{}.numpy()",
    },
}
"""By framework: the expressions by which a script gets layers, tensors and arrays."""

TEMPLATE = '''"""{layer} of {backend}, alone, with its partner's inputs in {base}: its {output} and the exact one."""

import importlib.util
import os
import sys

import numpy as np
import {framework}

PORT = {port!r}
HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    return np.load(os.path.join(HERE, name + ".npy"))


sys.path.append(os.path.dirname(PORT))
spec = importlib.util.spec_from_file_location("port", PORT)
port = importlib.util.module_from_spec(spec)
spec.loader.exec_module(port)
model = port.{build}()
model.{mode}()
layer = {layers}[{layer!r}]
{settings}
result = layer({inputs})
values, exact = {values}, load("exact-{output}")
at = np.unravel_index(np.argmax(np.abs(values - exact)), exact.shape)
print("{backend}:", values[at], "exact:", exact[at], "at", tuple(map(int, at)))
'''


GRAPH = '''"""{layer} of {backend}, alone, with its partner's inputs in {base}: its {output} and the exact one."""

import os

import numpy as np
import onnxruntime

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    return np.load(os.path.join(HERE, name + ".npy"))


session = onnxruntime.InferenceSession(os.path.join(HERE, "layer.onnx"))
values, exact = session.run([{value!r}], {{{inputs}}})[0], load("exact-{output}")
at = np.unravel_index(np.argmax(np.abs(values - exact)), exact.shape)
print("{backend}:", values[at], "exact:", exact[at], "at", tuple(map(int, at)))
'''


def of_graph(kernel: Kernel, base: str, exact: Array, folder: Path) -> Path | None:
    """Write the script of a graph's layer, and the layer as a graph of its own."""
    reply = kernel.port.extracted(kernel.state, kernel.layer.name, kernel.call, folder / "layer.onnx")
    given = [name for name, location in kernel.placed.items() if location.startswith("in:")]
    if len(given) != len(reply["inputs"]) or not reply["outputs"]:
        return None
    output = kernel.op.grad_outputs[0]
    save_array(folder / f"exact-{output}.npy", exact.astype(np.float64))
    inputs = ", ".join(f'{there!r}: load("{name}")' for there, name in zip(reply["inputs"], given, strict=True))
    path = folder / "repro.py"
    path.write_text(
        GRAPH.format(
            layer=kernel.layer.name, backend=kernel.port.name, base=base, output=output, value=reply["outputs"][0],
            inputs=inputs,
        ),
        encoding="utf-8",
    )  # fmt: skip
    return path


def write(kernel: Kernel, base: str, oracle: Mapping[str, Array], folder: Path) -> Path | None:
    """Write the script into `folder`, which has the layer's tensors; None where a script cannot show the finding."""
    framework, output = kernel.port.spec.adapter, kernel.op.grad_outputs[:1]
    if framework == "onnxruntime" and output and kernel.dtype == "float32":
        return of_graph(kernel, base, oracle[output[0]], folder)
    if framework not in CALLS or not output or kernel.dtype not in ("float32", "float64"):
        return None
    calls, settings = CALLS[framework], []
    for name, location in kernel.placed.items():
        if location.startswith("param:"):
            own, layout = kernel.own_name(name)
            axes = layout.axes
            shape = kernel.info(name).shape
            array = f'load("{name}")' + (f".transpose({inverse(axes)})" if axes else "") + f".reshape({shape}).copy()"
            settings.append(calls["set"].format(f"layer.{own}", calls["tensor"].format(array)))
    given = [
        calls["tensor"].format(f'load("{n}")') for n, location in kernel.placed.items() if location.startswith("in:")
    ]
    save_array(folder / f"exact-{output[0]}.npy", oracle[output[0]].astype(np.float64))
    path = folder / "repro.py"
    text = TEMPLATE.format(
        layer=kernel.layer.name,
        backend=kernel.port.name,
        base=base,
        output=output[0],
        framework=framework,
        port=str(kernel.port.spec.ops),
        build=kernel.port.model.build,
        mode=kernel.port.model.mode,
        layers=calls["layers"],
        settings="\n".join(settings),
        inputs=", ".join(given),
        values=calls["numpy"].format("result"),
    )
    path.write_text(text, encoding="utf-8")
    return path
