"""The command line as a user meets it: help, errors, selections, outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, FAKES, call, parity_command, run_in, started, user_config

NUMPY = """
version: 1
backends: [numpy, {name: other, adapter: numpy}]
cases:
  - {id: first, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}
  - {id: second, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 6]}}}
"""
COMMANDS = [
    "",
    "init",
    "check",
    "capture",
    "hunt",
    "reduce",
    "accept",
    "inspect",
    "run",
    "compare",
    "validate",
    "schema",
    "report",
    "census",
    "explain",
    "repro",
    "diff",
    "query",
    "mcp",
    "merge",
    "judge",
    "fingerprint",
    "ops",
    "backends",
    "env",
    "env list",
    "env create",
    "env remove",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_an_example(command):
    done = call(*command.split(), "--help")
    assert done.returncode == 0
    lines = done.stdout.rstrip().splitlines()
    assert "Example:" in done.stdout
    assert lines[-1].strip().startswith("parity ")


def test_version():
    assert call("--version").stdout.startswith("parity, version 0.")


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    """A run of NUMPY, for tests that only read it."""
    return run_in(tmp_path_factory.mktemp("passing"), NUMPY)


@pytest.fixture
def passing_copy(passing, tmp_path):
    """A run of NUMPY, for tests that change it."""
    return replace(passing, run_dir=Path(shutil.copytree(passing.run_dir, tmp_path / "run")))


def test_a_passing_run(passing):
    finished = passing
    assert finished.code == 0
    assert finished.stdout.startswith("PASS  no findings; 16 tensors agree")
    assert "\x1b" not in finished.stdout
    assert "16 tensors are within rtol/atol (-v shows them)" in finished.stdout
    assert "written to" in finished.stderr


def test_quiet_prints_one_line(parity_run):
    finished = parity_run(NUMPY, "-q")
    assert finished.stdout.count("\n") == 1
    assert finished.stderr == ""


def test_verbose_prints_the_values_at_the_worst_element(parity_run):
    finished = parity_run(
        user_config(
            FAKES / "nan.py",
            cases=["{id: bad, op: layer_norm, params: {normalized_shape: [13]}, inputs: {x: {shape: [4, 13]}}}"],
        ),
        "-v",
    )
    assert "bad float32 y: mine nan against" in finished.stdout


def test_json_is_the_document_and_nothing_else(parity_run):
    finished = parity_run(NUMPY, "--json")
    document = json.loads(finished.stdout)
    assert document == finished.results
    assert document["format"] == 1
    parts = ["run", "backends", "cases", "outcomes", "comparisons", "diagnoses", "known", "trainings", "summary"]
    assert list(document) == ["format", *parts]


def test_results_have_the_contracts_keys(passing):
    document = passing.results
    assert {
        "id",
        "started",
        "seconds",
        "judge_seconds",
        "fail_on",
        "parity",
        "command",
        "configs",
        "seed",
        "host",
    } <= document["run"].keys()
    assert {"cpu", "os", "threads"} <= document["run"]["host"].keys()
    assert {"name", "framework", "version", "python", "mode", "device", "numpy", "flags"} <= document["backends"][
        0
    ].keys()
    assert {"id", "op", "params", "dtypes", "inputs", "source"} <= document["cases"][0].keys()
    assert document["cases"][0]["source"]["line"] == 5
    outcome = {"case", "dtype", "backend", "outcome", "seconds", "message", "composed"}
    assert document["outcomes"][0].keys() == outcome
    assert {
        "case", "dtype", "tensor", "actual", "expected", "verdict", "culprit", "suspect", "known", "n_elements", "n_mismatched",
        "max_abs_diff", "max_rel_diff", "max_ulp_diff", "rmse", "rtol", "atol", "required_rtol", "worst_index", "actual_value",
        "expected_value", "oracle_value", "error_ratio",
    } <= document["comparisons"][0].keys()  # fmt: skip
    verdicts = document["summary"]["verdicts"]
    assert document["summary"] == {
        "outcomes": {"ok": 8},
        "verdicts": verdicts,
        "cells": {"passed": 8},
        "tensors": {"passed": 16},
        "exit_code": 0,
    }
    assert sum(document["summary"]["verdicts"].values()) == len(document["comparisons"]) == 16 * 3


def test_non_finite_numbers_are_strings(parity_run):
    finished = parity_run(
        user_config(
            FAKES / "nan.py",
            cases=["{id: bad, op: layer_norm, params: {normalized_shape: [13]}, inputs: {x: {shape: [4, 13]}}}"],
        )
    )
    json.loads((finished.run_dir / "results.json").read_text(), parse_constant=pytest.fail)
    assert {row["actual_value"] for row in finished.failing(tensor="y", dtype="float32")} == {"nan"}


def test_a_stored_run_is_shown_again(passing):
    again = call("report", passing.run_dir)
    assert again.returncode == 0
    assert again.stdout == passing.stdout
    assert json.loads(call("report", passing.run_dir, "--json").stdout) == passing.results


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 2}', '{"format": 1}'])
def test_what_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    done = call("report", tmp_path)
    assert done.returncode == 2
    assert "results.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "[" * 200_000, '{"format": 1, "x": ' + "[" * 200_000, '{"format": 1}'])
def test_a_result_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    done = call("report", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "results.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stored_run_as_a_frame(passing):
    frame = read_results(passing.run_dir).frame()
    assert len(frame) == 16 * 3
    assert set(frame["op"]) == {"layer_norm", "linear"}
    assert {"case", "tensor", "verdict", "max_abs_diff", "error_ratio"} <= set(frame.columns)


def test_a_result_that_is_no_regular_file_is_refused(tmp_path):
    for name, make in (
        ("pipe", os.mkfifo),
        ("zeros", lambda path: path.symlink_to("/dev/zero")),
        ("folder", os.mkdir),
    ):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "results.json")
        done = call("report", tmp_path / name)
        assert done.returncode == 2
        assert "not a regular file" in done.stderr


def test_a_number_too_long_for_a_float_is_infinite(passing_copy):
    path = passing_copy.run_dir / "results.json"
    path.write_text(path.read_text().replace('"max_abs_diff": 0.0', f'"max_abs_diff": 1{"0" * 400}'))
    assert call("report", passing_copy.run_dir, "-v").returncode == 0


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(summary={}),
        lambda d: d.update(summary=None),
        lambda d: d.update(comparisons=None),
        lambda d: d.update(comparisons=[1]),
        lambda d: d.update(cases=[]),
        lambda d: d.update(backends=[{}]),
        lambda d: d.update(outcomes=[{}]),
        lambda d: d.update(run={}),
        lambda d: d["comparisons"][0].pop("verdict"),
        lambda d: d["comparisons"][0].update(verdict="fine"),
        lambda d: d["comparisons"][0].update(rtol="x"),
        lambda d: d["comparisons"][0].update(culprit=None),
        lambda d: d["comparisons"][0].update(culprit=[["numpy"]]),
        lambda d: d["comparisons"][0].update(error_ratio={"actual": 1}),
        lambda d: d["comparisons"][0].update(error_ratio={"actual": "x", "expected": None}),
        lambda d: (d.update(comparisons=[]), d["summary"].update(exit_code=1)),
    ],
)
def test_an_edited_result_is_refused(passing_copy, edit):
    document = passing_copy.results
    edit(document)
    (passing_copy.run_dir / "results.json").write_text(json.dumps(document))
    done = call("report", passing_copy.run_dir)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "PASS" not in done.stdout


def test_a_reader_that_leaves_early_changes_no_exit_code(tmp_path):
    (tmp_path / "config.yaml").write_text(NUMPY)
    line = f"{sys.executable} -m parity run config.yaml 2>err | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["0"]
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_a_folder_with_a_result_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "config.yaml").write_text(NUMPY)
    (tmp_path / "own" / "tensors").mkdir(parents=True)
    (tmp_path / "own" / "results.json").write_text('{"bench": 1}')
    (tmp_path / "own" / "tensors" / "mine.bin").write_text("")
    done = call("run", "config.yaml", "--out", "own", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "own" / "tensors" / "mine.bin").exists()


def test_a_run_directory_can_be_used_again(parity_run):
    parity_run(NUMPY)
    assert parity_run(NUMPY).code == 0


def test_runs_in_the_same_second_have_directories_of_their_own(tmp_path):
    (tmp_path / "config.yaml").write_text(NUMPY)
    with ExitStack() as stack:
        runs = [stack.enter_context(started("run", "config.yaml", "-q", cwd=tmp_path)) for _ in range(3)]
        assert [run.wait() for run in runs] == [0, 0, 0]
    assert len(list((tmp_path / "reports").iterdir())) == 3


def test_a_missing_backend_does_not_hide_what_was_compared(parity_run, tmp_path):
    config = NUMPY.replace("backends: [", "backends: [oneflow, ")
    finished = parity_run(config, "--no-provision", "--baseline", "numpy", env={"PARITY_HOME": str(tmp_path / "none")})
    assert finished.code == 3
    assert finished.stdout.startswith("INCOMPLETE  no findings, but 16 tensors lack the result of some backend")
    assert "16 tensors: 16 lack a result" in finished.stdout


def test_many_small_cells_need_few_descriptors(tmp_path):
    ops = "import time\ndef linear(x, weight, bias):\n    time.sleep(0.002)\n    return x @ weight.T + bias\n"
    (tmp_path / "ops.py").write_text(ops)
    sweep = f"sweep: {{inputs.x.offset: [{', '.join(map(str, range(700)))}]}}"
    case = f"{{op: linear, params: {{out_features: 2}}, {sweep}, inputs: {{x: {{shape: [1, 2]}}}}, gradients: false}}"
    backends = "[numpy, {name: slow, adapter: numpy, ops: ops.py}]"
    (tmp_path / "config.yaml").write_text(f"version: 1\nbackends: {backends}\ncases: [{case}]\n")
    line = f"ulimit -n 400; exec {sys.executable} -m parity run config.yaml -q --out run"
    done = subprocess.run(["/bin/bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads((tmp_path / "run" / "results.json").read_text())["summary"]["outcomes"] == {"ok": 2800}


def test_selection_by_backend_case_and_dtype(parity_run):
    finished = parity_run(NUMPY, "-b", "other", "-k", "second", "--dtype", "float64")
    assert finished.code == 0
    assert {o["backend"] for o in finished.results["outcomes"]} == {"other"}
    assert {(o["case"], o["dtype"]) for o in finished.results["outcomes"]} == {("second", "float64")}


def test_a_selection_changes_no_number(parity_run, passing):
    whole = {
        (r["case"], r["tensor"]): r["oracle_value"]
        for r in passing.select(actual="numpy", dtype="float32", case="second")
    }
    part = {
        (r["case"], r["tensor"]): r["oracle_value"]
        for r in parity_run(NUMPY, "-k", "second").select(actual="numpy", dtype="float32")
    }
    assert whole == part


def test_a_tolerance_from_the_command_line(parity_run):
    finished = parity_run(
        NUMPY, "--rtol", "grad.x:0", "--atol", "grad.x:0", "--dtype", "float32", "--fail-on", "mismatch"
    )
    assert finished.code == 1
    assert {row["tensor"] for row in finished.failing()} == {"grad.x"}
    assert all(row["expected"] == "oracle" for row in finished.failing())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "no config is named"),
        (["run", "no-such.yaml"], "no-such.yaml"),
        (["run", "config.yaml", "-b", "torhc"], "torhc"),
        (["run", "config.yaml", "-k", "nothing"], "nothing"),
        (["run", "config.yaml", "--dtype", "float8"], "float8"),
        (["run", "config.yaml", "--rtol", "abc"], "abc"),
        (["run", "config.yaml", "--timeout", "0"], "--timeout"),
        (["run", "config.yaml", "--out", "config.yaml"], "config.yaml"),
        (["run", "config.yaml", "--out", "full"], "not empty"),
        (["validate", "config.yaml", "broken.yaml"], "broken.yaml:2"),
        (["env", "create", "torhc"], "torhc"),
        (["env", "remove", "nothing"], "nothing"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_users_mistake_is_exit_code_2_and_no_traceback(tmp_path, arguments, said):
    (tmp_path / "config.yaml").write_text(NUMPY)
    (tmp_path / "broken.yaml").write_text("cases: {\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "full" / "file").exists()


def test_nothing_runs_when_a_config_is_wrong(tmp_path):
    (tmp_path / "broken.yaml").write_text("version: 1\nbackends: [numpy]\ncases: [{op: layer_nrom}]\n")
    done = call("run", "broken.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "layer_norm" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_sizes_are_checked_before_anything_is_allocated(tmp_path):
    case = "{op: layer_norm, params: {normalized_shape: [2147483648]}, inputs: {x: {shape: [2147483648, 2147483648]}}}"
    (tmp_path / "huge.yaml").write_text(f"version: 1\nbackends: [numpy]\ncases:\n  - {case}\n")
    done = call("run", "huge.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "huge.yaml:4" in done.stderr
    assert "GiB" in done.stderr or "elements" in done.stderr


def test_an_unavailable_backend_leaves_the_others(parity_run, tmp_path):
    config = NUMPY.replace("{name: other, adapter: numpy}", "oneflow")
    finished = parity_run(config, "--no-provision", env={"PARITY_HOME": str(tmp_path / "empty")})
    assert finished.code == 3
    assert set(finished.outcomes("oneflow").values()) == {"unavailable"}
    assert "parity env create oneflow" in finished.stdout
    assert all(row["verdict"] in ("equal", "close") for row in finished.select(actual="numpy"))


def test_a_wrong_interpreter_is_unavailable_with_the_remedy(parity_run):
    config = NUMPY.replace("{name: other, adapter: numpy}", "{name: other, adapter: torch, python: /bin/true}")
    finished = parity_run(config)
    assert finished.code == 3
    assert "/bin/true" in finished.message("other")


def test_schema_describes_the_shipped_configs():
    import yaml

    schema = json.loads(call("schema").stdout)
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    for path in CONFIGS.glob("*.yaml"):
        assert kind(schema).is_valid(json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))), path


def test_validate_says_how_much_there_is():
    done = call("validate", *CONFIGS.glob("*.yaml"))
    assert done.returncode == 0
    assert re.match(
        r"ok: \d+ cases \(of which \d+ models\), \d+ cells on each of torch, paddle, oneflow; baseline torch\n"
        r"  and \d+ cells on each of torch, .*; baseline torch\n",
        done.stdout,
    )


def test_ops_and_backends_are_listed():
    ops = call("ops").stdout
    assert all(name in ops for name in ("layer_norm", "clip_grad_value", "normalized_shape", "eps=1e-05"))
    backends = call("backends").stdout
    assert all(name in backends for name in ("torch", "paddle", "oneflow", "numpy"))


def test_an_op_tells_its_formula_and_how_a_kernel_of_it_is_called():
    clip = call("ops", "clip_grad_norm").stdout
    assert "def clip_grad_norm(grads, max_norm, norm_type=2.0, scope='global'): ... return {\"grads\": [...], " in clip
    assert "gates i, f, g, o, H rows each" in call("ops", "lstm").stdout


def test_colours_and_unicode(parity_run):
    wide = parity_run(NUMPY, "-v", env={"COLUMNS": "200"}).stdout
    narrow = parity_run(NUMPY, "-v", env={"COLUMNS": "60"}).stdout
    head = next(i for i, line in enumerate(wide.splitlines()) if "root cause" in line)
    assert " other" in wide.splitlines()[head]
    assert max(map(len, narrow.splitlines()[head : head + 10])) <= 60
    forced = parity_run(NUMPY, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in forced


@pytest.mark.parametrize("encoding", ["ascii", "ascii:backslashreplace"])
def test_a_terminal_without_unicode_gets_escapes(passing, encoding):
    command = parity_command("report", passing.run_dir, "-v")
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xd7 tol" in done.stdout
    assert done.stdout.isascii()


def test_hostile_ids_come_out_harmless(parity_run):
    hostile = "../../etc [red]x[/] </script> 数"
    config = NUMPY.replace("id: first", f'id: "{hostile}"')
    finished = parity_run(config, "-v", env={"COLUMNS": "200"})
    assert finished.code == 0
    assert hostile in finished.stdout
    names = [p.name for p in (finished.run_dir / "tensors").iterdir()]
    assert len(names) == 2
    assert all("/" not in name and not name.startswith(".") for name in names)


def test_the_module_is_the_command(tmp_path):
    assert subprocess.run([sys.executable, "-m", "parity", "--version"], capture_output=True, check=True).stdout
