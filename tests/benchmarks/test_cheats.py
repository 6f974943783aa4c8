"""The rules of others say what their sources say: each passes a right candidate, lets a cheat pass, and catches one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.cheats import check
from benchmarks.cheats.__main__ import main
from benchmarks.cheats.apart import judged
from benchmarks.cheats.check import answer
from benchmarks.cheats.listing import KINDS, PAIRS, pairs
from benchmarks.cheats.report import CAUGHT, OPEN, PASSED, Cell, Row, tables
from benchmarks.cheats.rules import RULES, objection

RULED = {
    # rule: a cheat that it catches with what it says, and a cheat or mistake that it lets pass
    "assert_close": ("cheats/nan-wildcard", "not close", "cheats/cached-by-shape"),
    "KernelBench": ("cheats/cached-by-shape", "output mismatch", "cheats/half-precision-inside"),
    "robust-kbench": ("mistakes/gelu-by-tanh", "mismatch in the first call", "mistakes/extra-axis"),
    "robust-kbench (all)": ("mistakes/one-gradient-missing", "on one side only", "cheats/contiguous-only"),
    "BackendBench": ("cheats/another-dtype", "do not match", "cheats/zeros-within-tolerance"),
    "FlashInfer-Bench": ("cheats/nan-wildcard", "not finite", "cheats/abs-patched"),
    "GPU MODE": ("cheats/first-calls-only", "run 5 of the benchmark", "cheats/another-dtype"),
    "GPU MODE (loose)": ("cheats/input-zeroed", "elements differ", "cheats/half-the-work"),
}


def files(name: str) -> tuple[Path, Path]:
    return PAIRS / name / "reference.py", PAIRS / name / "new.py"


@pytest.mark.frameworks
@pytest.mark.process
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_passes_what_is_right_and_catches_and_misses_what_is_wrong(rule):
    caught, says, passes = RULED[rule]
    right = PAIRS / "right" / "matmul"
    assert judged(rule, right / "reference.py", right / "einsum.py") == ""
    assert says in judged(rule, *files(caught))
    assert judged(rule, *files(passes)) == ""


@pytest.mark.frameworks
def test_filters_of_problems_catch_one_whose_answer_is_constant(tmp_path):
    reference, _ = files("cheats/constant")
    new = tmp_path / "new.py"
    new.write_text(reference.read_text().replace("class Model(", "class ModelNew("))
    assert objection(RULES["robust-kbench"], (reference, new)) == ""
    assert objection(RULES["robust-kbench (all)"], (reference, new)).startswith("filter")


@pytest.mark.frameworks
@pytest.mark.process
def test_a_candidate_that_exits_prints_or_hangs_has_no_answer(capfd, tmp_path):
    assert "ended without an answer, exit code 0" in judged("KernelBench", *files("cheats/exits"))
    assert "ended without an answer" in judged("KernelBench", *files("cheats/prints-its-answer"))
    assert capfd.readouterr() == ("", "")
    hangs = tmp_path / "new.py"
    hangs.write_text("import time\ntime.sleep(600)\n")
    assert judged("assert_close", files("cheats/exits")[0], hangs, seconds=0.2) == "no answer within 0.2 s"


def torch_inputs():
    """Inputs for which a mistake shows: of mistakes that show for the given inputs, in gradients or state, none."""

    ones, square = torch.ones, torch.arange(9.0).reshape(3, 3)
    return {
        "softmax-without-max": [1000 * ones(2, 3)],
        "variance-of-squares": [1e9 + torch.arange(8.0).double()[None]],
        "tail-dropped": [ones(2, 33), ones(2, 33)],
        "square-only": [square, square],
        "causal-offset": [torch.rand(1, 2, 4), torch.rand(1, 5, 4), torch.rand(1, 5, 4)],
        "gelu-by-tanh": [2 * ones(1, 1)],
        "ignored-targets": [ones(2, 3), torch.tensor([1, -100])],
        "padding-with-zeros": [-ones(1, 1, 4, 4)],
        "eps-outside": [1e-4 * torch.arange(4.0)[None]],
        "unbiased": [torch.arange(3.0)[None]],
        "nan-swallowed": [torch.tensor([[float("nan"), 1.0]])],
        "ties": [ones(1, 3)],
        "counter-overflow": [ones(1, 300)],
        "zero-rows": [torch.zeros(2, 3)],
        "log-of-softmax": [torch.tensor([[0.0, 1000.0]])],
        "huber-branch": [3 * ones(1, 2), ones(1, 2)],
        "softplus-overflow": [1000 * ones(1, 1)],
        "view": [ones(2, 3, 4, 5).transpose(1, 3)],
    }


def after(constructor, given, inputs):
    """Outputs, gradients and state of a module in float64, in training and then in evaluation."""

    made, found = given.built(constructor).double(), []
    for training in (True, False):
        leaves = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
        output = made.train(training)(*leaves)
        if output.requires_grad:
            output.backward(torch.linspace(1, 2, output.numel(), dtype=torch.float64).reshape(output.shape))
        found += [output.detach(), *(x.grad for x in (*leaves, *made.parameters())), *made.buffers()]
    return found


@pytest.mark.frameworks
@pytest.mark.parametrize("name", sorted(folder.name for folder in (PAIRS / "mistakes").iterdir()))
def test_every_mistake_is_one(name):

    from benchmarks.cheats.loading import candidate, problem

    reference, new = files(f"mistakes/{name}")
    given = problem(reference)
    inputs = torch_inputs().get(name, given.inputs(0))
    expected = after(given.model, given, inputs)
    torch.testing.assert_close(after(given.model, given, inputs), expected, equal_nan=True)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.testing.assert_close(after(candidate(new), given, inputs), expected, equal_nan=True)


def test_an_answer_of_parity_is_its_last_line():
    said = answer('noise\n{"verdict": "wrong", "sentence": "the  variance\\n is naive", "cause": "x"}\n', "")
    assert (said.verdict, said.says) == ("wrong", "the variance is naive")
    for nothing in ("", "no JSON", "[1]", '{"cause": "x"}', "null"):
        assert answer(nothing, "Error: no such file").verdict == "no answer"


@pytest.mark.process
def test_a_command_is_asked_for_its_verdict(monkeypatch, tmp_path):
    says = "import sys, json; print('noise'); print(json.dumps({'verdict': sys.argv[-1], 'sentence': sys.argv[1][-12:]})); sys.exit(1)"
    monkeypatch.setattr(check, "COMMAND", (sys.executable, "-c", says))
    assert check.checked(*files("cheats/exits"), 60) == check.Answer("--json", "reference.py")
    monkeypatch.setattr(check, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    assert check.checked(*files("cheats/exits"), 0.2).verdict == "no answer"


def test_the_table_counts_what_was_measured():
    rows = [
        Row("cheats", "a", "A | b.", {"one": Cell(PASSED), "parity": Cell(CAUGHT, "s", "wrong")}),
        Row("right", "b", "B.", {"one": Cell(CAUGHT), "parity": Cell(OPEN, "", "not-judged")}),
    ]
    text = tables(rows, ["one", "parity"], {"torch": "2"})
    assert "| one | 1 of 1 | 0 of 1 |" in text
    assert "| parity | 0 of 1 | 0 of 1, 1 not judged |" in text
    assert "| `a`: A \\| b. | **passed** | caught: wrong |" in text
    assert "torch 2" in text


def test_every_pair_says_what_it_is(tmp_path):
    found = {kind: pairs(kind, tmp_path) for kind in KINDS}
    assert len(found["cheats"]) >= 24
    assert len(found["mistakes"]) >= 20
    assert len(found["right"]) >= 200
    for pair in (pair for of_kind in found.values() for pair in of_kind):
        defined = {node.name for node in ast.parse(pair.new.read_text()).body if isinstance(node, ast.ClassDef)}
        assert pair.says.endswith("."), pair.name
        assert "ModelNew" in defined, pair.name


@pytest.mark.frameworks
@pytest.mark.process
def test_the_command_writes_a_table(capsys, tmp_path, monkeypatch):
    out, rows = tmp_path / "table.md", tmp_path / "rows.jsonl"
    chosen = ["--kinds", "cheats", "--pairs", "nan-wildcard,lazy", "--rules", "GPU MODE,assert_close"]
    monkeypatch.setattr("sys.argv", ["cheats", *chosen, "--out", str(out), "--json", str(rows)])
    assert main() == 0
    assert "| GPU MODE | 1 of 2 |" in out.read_text()
    assert capsys.readouterr().out.strip() == out.read_text().strip()
    assert len(rows.read_text().splitlines()) == 2
