"""Ports without workers, and small ports in PyTorch with a fault or two."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from parity.models.ports import LayerInfo, RemotePort, TensorInfo

TWO = """
import numpy as np
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        return torch.softmax(scores, -1) @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = Attention()
        self.act = nn.GELU()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.act(x + self.attention(self.norm(x))).mean(1))


def build_model():
    return Net()


def make_batch():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(4, 5, 8)).astype(np.float32), "labels": rng.integers(0, 3, 4)}


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])


def accuracy(output, batch):
    return float((output.argmax(-1) == batch["labels"]).mean())
"""
"""A port with a layer that has options, code between layers, and a loss."""


def port(
    name: str, adapter: str, layers: dict[str, str], tensors: dict[str, tuple[int, ...]], **tied: str
) -> RemotePort:
    """A port with these layers (name to class) and parameters (name to shape); `a__b="c"`: a.b is tied to c."""
    made = RemotePort.__new__(RemotePort)
    made.spec, made.name = SimpleNamespace(adapter=adapter), name
    made.layers = {layer: LayerInfo(layer, kind, False, {}) for layer, kind in {"": "Net", **layers}.items()}
    shared = {key.replace("__", "."): value for key, value in tied.items()}
    trained = {key: key.rpartition(".")[2].lstrip("_") not in ("mean", "variance", "running_mean", "running_var")
               for key in tensors}  # fmt: skip
    made.tensors = {
        key: TensorInfo(key, shape, "float32", trained[key], shared.get(key, "")) for key, shape in tensors.items()
    }
    return made


def config_of(folder: Path, ports: dict[str, str], case: str) -> Path:
    """A config of PyTorch ports with these texts, the first of which is the baseline."""
    backends = []
    for name, text in ports.items():
        (folder / f"{name}.py").write_text(text)
        backends.append(f"{{name: {name}, adapter: torch, ops: ./{name}.py}}")
    path = folder / "models.yaml"
    path.write_text(f"version: 1\ndtypes: [float32]\nbackends: [{', '.join(backends)}]\ncases: [{{{case}}}]\n")
    return path


FUNCTIONS: dict[str, dict[str, str]] = {
    "model": {"build": "build_model", "batch": "make_batch"},
    "decode": {"build": "build_model", "forward": "decode", "prompts": "prompts"},
}
"""The functions that a case of a kind has in any case."""
FILE = """
import importlib

for case in CASES:
    module = importlib.import_module(f"{__file__.rpartition('/')[2][:-3]}_{case}")
    globals().update({f"{name}_{case}": value for name, value in vars(module).items()})
"""


def config_of_cases(folder: Path, cases: Mapping[str, tuple[str, str, Mapping[str, Any]]], **backend: str) -> Path:
    """A config of many cases, each of two PyTorch ports with texts of their own: all in one run, whose two workers
    start once. `backend`: what the second one is instead."""
    for i, name in enumerate(("ours", "theirs")):
        (folder / f"{name}.py").write_text(FILE.replace("CASES", repr(list(cases))))
        for case, row in cases.items():
            (folder / f"{name}_{case}.py").write_text(row[i])
    written = []
    for case, (_, _, options) in cases.items():
        kind = options.get("kind", "model")
        named = {key: name for key, name in options.items() if key in ("forward", "loss", "metric")}
        functions = {key: f"{name}_{case}" for key, name in {**FUNCTIONS[kind], **named}.items()}
        written.append({"kind": kind, **options, "id": case, **functions})
    second = {"name": "theirs", "adapter": "torch", "ops": "./theirs.py", **backend}
    config = {
        "version": 1,
        "dtypes": ["float32"],
        "backends": [{"name": "ours", "adapter": "torch", "ops": "./ours.py"}, second],
        "cases": written,
    }
    path = folder / "cases.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path
