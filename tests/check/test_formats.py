"""Formats of other benchmarks: what is found out, what is written for them, and what is said of files that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parity.check import CheckError
from parity.check.backend_bench import operator_of
from parity.check.flashinfer_bench import definition_in, workload_of
from parity.check.formats import READERS, format_of, resolved
from parity.check.generated import unpacked
from parity.check.gpu_mode import arguments_of_tests, with_destination
from parity.check.pair import candidate_of, definitions
from parity.check.robust_kbench import function_of, sizes
from parity.cli.check import FORMATS

MODEL = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x{more}):\n        return {value}\n"
TASK = "tests:\n  - {size: 5, seed: 1}\n  - {size: 9, seed: 2}\n"
DEFINITION: Mapping[str, Any] = {
    "name": "scale_n4",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 4}},
    "inputs": {"a": {"shape": ["M", "N"], "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}},
    "outputs": {"b": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(a, factor):\n    return a * factor\n",
}
SOLUTION: Mapping[str, Any] = {
    "definition": "scale_n4",
    "spec": {"language": "python", "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(a, factor, b):\n    b.copy_(factor * a)\n"}],
}


def file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def model(path: Path, more: str = "", value: str = "x + 1") -> Path:
    return file(path, MODEL.format(more=more, value=value))


def stored(path: Path, row: Any) -> Path:
    return file(path, json.dumps(row))


def test_the_options_are_the_formats() -> None:
    assert set(FORMATS) == set(READERS)


def test_the_format_is_found_out(tmp_path: Path) -> None:
    plain, taking = model(tmp_path / "a.py"), model(tmp_path / "b.py", ", fn=abs", "fn(x)")
    function = file(tmp_path / "fn.py", "def forward_fn(x):\n    return x\n")
    task = file(tmp_path / "t/task.yml", TASK).parent
    file(task / "reference.py", "")
    assert format_of(str(plain), str(plain)) == "kernelbench"
    assert format_of(str(taking), str(function)) == "robust-kbench"
    assert format_of(str(taking), str(taking)) == "kernelbench"
    assert format_of(str(task), str(function)) == "gpu-mode"
    assert format_of("aten", "relu/relu_implementation_v1.py") == "backendbench"
    assert format_of("torch.ops.aten.relu", str(function)) == "backendbench"
    assert format_of("definition.json", "solution.json") == "flashinfer-bench"


def test_a_folder_without_a_task_is_no_reference(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"is a folder without task\.yml and reference\.py; name a Python file"):
        format_of(str(tmp_path), "new.py")


@pytest.mark.parametrize("name", ["Fast", "other.Model", "Copied"])
def test_a_candidate_may_have_another_name(tmp_path: Path, name: str) -> None:
    known = definitions(model(tmp_path / "ref.py"))["Model"]
    text = MODEL.format(more="", value="x").replace("Model", "Fast") + "import other\nCopied = Fast\nother = other\n"
    found = candidate_of(known, file(tmp_path / "new.py", text), name)
    assert (found.name, found.is_class) == (name, True)


def test_a_name_that_only_another_is_assigned_to_is_a_candidate(tmp_path: Path) -> None:
    known = definitions(model(tmp_path / "ref.py"))["Model"]
    new = file(tmp_path / "new.py", "from ref import Model\nModelNew = Model\n")
    assert candidate_of(known, new, "").name == "ModelNew"
    with pytest.raises(CheckError, match=r"new\.py defines no class Fast: it has no class or function"):
        candidate_of(known, new, "Fast")


def test_a_generated_candidate_runs_the_users_file_and_names_it(tmp_path: Path) -> None:
    reference = file(tmp_path / "ref.py", "def f(x):\n    return x\n\ndef get_inputs():\n    return []\n")
    new = file(tmp_path / "new.py", "\ndef fast(x):\n    return x\n")
    pair = resolved(f"{reference}:f", f"{new}:fast", tmp_path / "out").pair
    assert pair.candidate.location == "new.py:2"
    assert pair.candidate.path.is_relative_to(tmp_path / "out")
    assert pair.candidate.path.read_text().endswith("\nf = fast\n")


def test_a_candidate_of_the_usual_name_needs_no_other_file(tmp_path: Path) -> None:
    reference = file(tmp_path / "ref.py", "def f(x):\n    return x\n\ndef get_inputs():\n    return []\n")
    pair = resolved(str(reference), str(file(tmp_path / "new.py", "def f(x):\n    return x\n")), tmp_path / "out").pair
    assert pair.candidate.origin is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: x\n", r"task\.yml has no tests: add `tests:`, a list of the arguments of generate_input"),
        ("tests: []\n", r"task\.yml has no tests"),
        ("tests: [\n", r"task\.yml cannot be read: "),
        ("tests: !!python/object/apply:os.getcwd []\n", r"task\.yml cannot be read: could not determine a constructor"),
    ],
)
def test_a_task_without_tests(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(CheckError, match=sentence):
        arguments_of_tests(file(tmp_path / "task.yml", text))
    assert len(arguments_of_tests(file(tmp_path / "task.yml", TASK))) == 2


def test_arguments_are_named_as_the_reference_unpacks_them(tmp_path: Path) -> None:
    path = file(tmp_path / "r.py", "def k(data):\n    A, B = data\n    return A + B\n\ndef j(data):\n    return data\n")
    assert (unpacked(path, "k"), unpacked(path, "j"), unpacked(path, "none")) == (["A", "B"], [], [])


def test_what_receives_a_result_is_another_tensor_in_each_call() -> None:
    assert with_destination("(a, {'k': b}, )", "b", "{0}.clone()") == "(a, {'k': b.clone()})"


@pytest.mark.parametrize(
    ("folder", "operator"),
    [("relu", "relu"), ("relu__default", "relu.default"), ("add___Tensor", "add_.Tensor"), ("_softmax", "_softmax")],
)
def test_a_folder_is_named_like_its_operator(folder: str, operator: str) -> None:
    assert operator_of(folder) == operator


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", r"is no Definition of FlashInfer-Bench: it has no name"),
        ('{"name": "x", "axes": {}}', r"is no Definition of FlashInfer-Bench: it has no inputs"),
        ("{", r"d\.json cannot be read as JSON: "),
        (json.dumps({**DEFINITION, "axes": {"N": {"type": "var"}}}), r"d\.json: a has the axis M, which `axes`"),
    ],
)
def test_a_file_that_is_no_definition(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(CheckError, match=sentence):
        definition_in(file(tmp_path / "d.json", text))


def test_the_smallest_workload_of_a_collection_is_used(tmp_path: Path) -> None:
    definition = definition_in(stored(tmp_path / "definitions/a/d.json", DEFINITION))
    assert workload_of(definition, None) == ({}, {}, "")
    rows = [{"axes": {"M": m}, "inputs": {"factor": {"type": "scalar", "value": 2.0}}, "uuid": f"u{m}"} for m in (9, 3)]
    path = file(tmp_path / "workloads/a/d.jsonl", "\n".join(json.dumps({"workload": row}) for row in rows))
    axes, given, which = workload_of(definition, None)
    assert (axes, given["factor"]["value"], which) == ({"M": 3}, 2.0, "u3 of d.jsonl")
    file(path, "{}\n")
    with pytest.raises(CheckError, match=r"d\.jsonl holds no workloads of FlashInfer-Bench"):
        workload_of(definition, None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"definition": "other"}, "solves other, not scale_n4"),
        ({"spec": {"language": "cuda", "entry_point": "k.cu::run"}}, "is written in cuda, which is not built here"),
        ({"sources": [{"path": "../main.py", "content": "x"}]}, r"the source \.\./main\.py is outside its folder"),
        ({"sources": [{"path": "/tmp/main.py", "content": "x"}]}, "is outside its folder"),
        ({"sources": [{"path": "a.py", "content": "x = 1"}]}, r"its entry main\.py is none of its sources"),
        ({"sources": 3}, "is no Solution of FlashInfer-Bench"),
    ],
)
def test_a_file_that_is_no_solution(tmp_path: Path, change: Mapping[str, Any], sentence: str) -> None:
    definition, solution = (
        stored(tmp_path / "d.json", DEFINITION),
        stored(tmp_path / "s.json", {**SOLUTION, **change}),
    )
    with pytest.raises(CheckError, match=sentence):
        resolved(str(definition), str(solution), tmp_path / "out")


def test_sizes_of_robust_kbench_are_those_of_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "func_forward.py"
    assert sizes(path) == {}
    config = {"single_input_configs": [{"batch_size": 2}], "single_shared_configs": [{"dim": 3}]}
    stored(tmp_path / "config_forward.json", config)
    assert sizes(path) == {"dim": 3, "batch_size": 2}
    stored(tmp_path / "config_forward.json", [1])
    with pytest.raises(CheckError, match="is no configuration of robust-kbench"):
        sizes(path)


def test_the_function_of_robust_kbench(tmp_path: Path) -> None:
    path = file(tmp_path / "fn.py", "def fast(x):\n    return x\n")
    assert function_of(str(path))[1].name == "fast"
    file(path, "def fast(x):\n    return x\n\ndef slow(x):\n    return x\n")
    assert function_of(f"{path}:slow")[1].name == "slow"
    with pytest.raises(CheckError, match=r"defines no function forward_fn, only fast, slow; name one: .*fn\.py:NAME"):
        function_of(str(path))
