"""Formats of other benchmarks as pairs: what is written computes what the user's files do, and problems have their sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.check import CheckError
from parity.check.formats import resolved
from parity.check.generated import loaded
from parity.check.pair import FormatPair
from parity.check.problem import NORMAL, ReferenceProblem, Sized, same
from parity.program.torch_reference import array_of
from parity.program.worker.user_module import UserModule
from tests.check.test_formats import DEFINITION, SOLUTION, file, stored

REFERENCE = """
import torch
from task import input_t
from tools import scaled


def ref_kernel(data: input_t):
    a, weights, out, config = data
    out[...] = scaled(a) * weights["w"] + config["n"]
    return out


def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a = torch.randn(size, 4, device="cuda", dtype=torch.float32, generator=gen).contiguous()
    return a, {"w": torch.randn(4, device="cuda")}, torch.empty(size, 4).cuda(), {"n": 2, "kind": "x", "none": None}
"""
TASK = """
files:
  - {name: task.py, source: task.py}
  - {name: tools.py, source: ../tools.py}
  - {name: reference.py, source: reference.py}
tests:
  - {size: 5, seed: 1}
  - {size: 9, seed: 2}
"""
SUBMISSION = """
from task import input_t
from tools import scaled


def custom_kernel(data: input_t):
    a, weights, out, config = data
    assert out.isnan().all()
    out.copy_(scaled(a) * weights["w"] + config["n"])
    return out
"""
MODULE = """
import torch


def forward_fn(x, weight):
    return x @ weight


class Model(torch.nn.Module):
    def __init__(self, features: int = 64):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(features, 3))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight)


def get_inputs(batch_size: int = 64, features: int = 64):
    return [torch.randn(batch_size, features)]
"""


def task(folder: Path) -> Path:
    file(folder / "tools.py", "def scaled(x):\n    return 3 * x\n")
    file(folder / "task/task.py", "input_t = tuple\n")
    file(folder / "task/task.yml", TASK)
    file(folder / "task/submission.py", SUBMISSION)
    return file(folder / "task/reference.py", REFERENCE).parent


def computed(found: FormatPair) -> tuple[ReferenceProblem, Sized, dict[str, np.ndarray[Any, Any]]]:
    """The problem, and what the candidate returns for its inputs."""
    problem = ReferenceProblem(found.pair)
    sized = problem.at({})
    names = loaded(found.pair.candidate.path, found.pair.candidate.own_path)
    entry = names.get(found.pair.reference.name + "New", names.get(found.pair.reference.name))
    given = {a.name: torch.tensor(a.value) for a in sized.arguments if a.is_tensor}
    given |= {weight.name: torch.tensor(weight.values) for weight in sized.weights}
    outputs = UserModule(entry)(**given, **sized.params)
    return problem, sized, {name: array_of(value.detach()) for name, value in outputs.items()}


def test_a_task_of_gpu_mode(tmp_path: Path) -> None:
    found = resolved(str(task(tmp_path)), str(tmp_path / "task"), tmp_path / "out")
    problem, sized, outputs = computed(found)
    assert same(sized.outputs, outputs)
    assert [a.name for a in sized.arguments] == ["a", "w", "out", "n"]
    assert sized.arguments[0].kind == NORMAL
    assert problem.numbers == {"size": 5}
    assert found.forward_only
    assert found.notes == ("the first of 2 tests of task.yml; others: --set NAME=VALUE",)
    assert found.pair.candidate.location == "submission.py:6"


def test_a_candidate_of_gpu_mode_cannot_import_the_reference_from_what_is_written(tmp_path: Path) -> None:
    found = resolved(str(task(tmp_path)), str(tmp_path / "task"), tmp_path / "out")
    copies = {path.name for path in (tmp_path / "out/generated/task_files").iterdir()}
    assert copies == {"task.py", "tools.py"}
    assert found.pair.candidate.path.parent != found.pair.reference.path.parent


def test_an_error_in_a_task_has_its_line(tmp_path: Path) -> None:
    folder = task(tmp_path)
    file(folder / "reference.py", REFERENCE.replace("gen.manual_seed(seed)", "raise ValueError('no data')"))
    with pytest.raises(CheckError, match=r"reference\.py:15: ValueError: no data"):
        resolved(str(folder), str(folder), tmp_path / "out")
    file(folder / "reference.py", REFERENCE.replace('"kind": "x"', '"kind": object()'))
    with pytest.raises(CheckError, match=r"generate_input.* returns a object; only tensors, numbers and texts"):
        resolved(str(folder), str(folder), tmp_path / "out")
    file(folder / "reference.py", "def ref_kernel(data):\n    return data\n")
    with pytest.raises(CheckError, match=r"reference\.py defines no function generate_input"):
        resolved(str(folder), str(folder), tmp_path / "out")


def test_a_function_of_robust_kbench(tmp_path: Path) -> None:
    reference = file(tmp_path / "func_forward.py", MODULE)
    stored(tmp_path / "config_forward.json", {"single_input_configs": [{"batch_size": 2}]})
    new = file(tmp_path / "fn.py", "def forward_fn(x, weight):\n    return (weight.T @ x.T).T\n")
    found = resolved(str(reference), str(new), tmp_path / "out")
    problem, sized, outputs = computed(found)
    assert np.allclose(sized.outputs["y"], outputs["y"], rtol=1e-4, atol=1e-4)
    assert problem.numbers == {"features": 64, "batch_size": 2}
    assert sized.params["init_features"] == 64
    assert [weight.name for weight in sized.weights] == ["weight"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("relu__default", "input.clamp(min=0)"),
        ("add__Tensor", "input + other"),
        ("_softmax", "input.softmax(a)"),
        ("mm", "input @ other"),
        ("layer_norm", "__import__('torch').nn.functional.layer_norm(input, other)"),
        ("clamp", "input.clamp(other, a)"),
        ("max_pool2d_with_indices", "__import__('torch').max_pool2d(input, other), None"),
    ],
)
def test_an_operator_of_backendbench(tmp_path: Path, name: str, text: str) -> None:
    given = "input, a, b" if name == "_softmax" else "input, other=None, a=None"
    folder = tmp_path / name
    path = file(folder / f"{name}_implementation_v1.py", f"def {name}_kernel_impl({given}):\n    return {text}\n")
    for candidate in (path, folder):
        _, sized, outputs = computed(resolved("aten", str(candidate), tmp_path / "out"))
        one, other = next(iter(sized.outputs.values())), next(iter(outputs.values()))
        assert np.allclose(one, other, atol=1e-5)


def test_operators_that_are_none_are_named(tmp_path: Path) -> None:
    path = file(tmp_path / "nope_implementation_v1.py", "def nope_kernel_impl(x):\n    return x\n")
    with pytest.raises(CheckError, match=r"torch\.ops\.aten has no operator nope"):
        resolved("aten", str(path), tmp_path / "out")
    with pytest.raises(CheckError, match=r"the operator relu has no overload Tensor, only "):
        resolved("torch.ops.aten.relu.Tensor", f"{path}:nope_kernel_impl", tmp_path / "out")
    with pytest.raises(CheckError, match=r"has no operator in its name, as relu_implementation_v1\.py has"):
        resolved("aten", str(file(tmp_path / "x.py", "")), tmp_path / "out")


@pytest.mark.parametrize("style", [True, False])
def test_a_definition_of_flashinfer_bench(tmp_path: Path, style: bool) -> None:
    definition = stored(tmp_path / "definitions/d.json", DEFINITION)
    workload = {"axes": {"M": 3}, "inputs": {"factor": {"type": "scalar", "value": 2.0}, "a": {"type": "random"}}}
    stored(tmp_path / "workloads/d.jsonl", {**workload, "uuid": "u"})
    spec = {**SOLUTION["spec"], "destination_passing_style": style}
    returning = [{"path": "main.py", "content": "def run(a, factor):\n    return factor * a\n"}]
    row = {**SOLUTION, "spec": spec, "sources": SOLUTION["sources"] if style else returning}
    found = resolved(str(definition), str(stored(tmp_path / "s.json", row)), tmp_path / "out")
    problem, sized, outputs = computed(found)
    assert list(outputs) == ["b"]
    assert same(sized.outputs, outputs)
    assert sized.outputs["b"].shape == (3, 4)
    assert np.array_equal(sized.outputs["b"], 2 * sized.arguments[0].value)
    assert problem.numbers == {"M": 3}


def test_a_solution_that_writes_nothing_returns_nan(tmp_path: Path) -> None:
    definition = stored(tmp_path / "d.json", DEFINITION)
    new = file(tmp_path / "new.py", "def run(a, factor, b):\n    b[0] = a[0]\n")
    found = resolved(str(definition), str(new), tmp_path / "out")
    assert found.notes == ("no workload sets M: 4; name one: --inputs WORKLOADS.jsonl",)
    _, _, outputs = computed(found)
    assert np.isnan(outputs["b"][1:]).all()


def test_tensors_of_a_workload_are_read_from_safetensors(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    head = json.dumps({"k": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, values.nbytes]}}).encode()
    blob = tmp_path / "blobs/t.safetensors"
    blob.parent.mkdir()
    blob.write_bytes(len(head).to_bytes(8, "little") + head + values.tobytes())
    definition = stored(tmp_path / "definitions/d.json", DEFINITION)
    item = {"type": "safetensors", "path": "blobs/t.safetensors", "tensor_key": "k"}
    stored(tmp_path / "workloads/d.jsonl", {"axes": {"M": 2}, "inputs": {"a": item}})
    _, sized, _ = computed(resolved(str(definition), str(stored(tmp_path / "s.json", SOLUTION)), tmp_path / "out"))
    assert np.array_equal(sized.arguments[0].value, values)


def test_arguments_of_16_bits_are_a_case_of_16_bits(tmp_path: Path) -> None:
    tensor = {"shape": ["M", "N"], "dtype": "bfloat16"}
    half = {**DEFINITION, "inputs": {"a": tensor, "factor": {"shape": None, "dtype": "float32"}}}
    found = resolved(
        str(stored(tmp_path / "d.json", half)), str(stored(tmp_path / "s.json", SOLUTION)), tmp_path / "out"
    )
    sized = ReferenceProblem(found.pair).at({})
    assert (sized.dtype, sized.spec, sized.arguments[0].kind) == ("bfloat16", "a, factor", NORMAL)
