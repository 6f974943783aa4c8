"""`--last-failed` and `--exitfirst`: what is run again, and where a run stops."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import FAKES, Finished, call, three_cases, user_config

TRAINING = (
    "{{id: {}, kind: train, model: [{{linear: {{out_features: 3}}}}], steps: 2, batch_size: 8, ensemble: {{members: 1}},"
    " data: {{name: classification, features: [5], classes: 3, rows: 16}}, optimizer: {{name: sgd, lr: 0.01}}}}"
)
OPS = """
def layer_norm(x, weight, bias, normalized_shape, eps):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = (x - mean) / (var + eps) ** 0.5 * weight + bias
    return y * 2 if x.shape[-1] == 13 else y


def learning_rate(step, lr, name):
    return lr * 2
"""


def config(folder: Path, *more: str, known: str = "") -> None:
    (folder / "ops.py").write_text(OPS)
    cases = [f"{case[:-1]}, gradients: false}}" for case in three_cases()]
    (folder / "config.yaml").write_text(user_config("ops.py", cases=[*cases, *more]) + known)


def run(folder: Path, *arguments: str, out: str = "run") -> Finished:
    done = call("run", "config.yaml", *(["--out", out] if out else []), *arguments, cwd=folder)
    assert "Traceback" not in done.stderr
    run_dir = folder / out if out else max((folder / "reports").iterdir(), key=lambda path: path.stat().st_mtime)
    return Finished(done.returncode, done.stdout, done.stderr, run_dir)


def ran(finished: Finished) -> list[str]:
    return [case["id"] for case in finished.results["cases"]]


def test_only_what_failed_is_run_again(tmp_path):
    config(tmp_path, TRAINING.format("curve"))
    assert ran(run(tmp_path, out="")) == ["before", "bad", "after", "curve"]
    again = run(tmp_path, "--last-failed", out="")
    assert (again.code, ran(again)) == (1, ["bad", "curve"])
    assert "--last-failed: running 2 of 4 cases, from reports/config-" in again.stderr


def test_the_run_in_out_is_looked_at_before_it_is_replaced(tmp_path):
    config(tmp_path)
    run(tmp_path)
    run(tmp_path, "-k", "before", out="")
    again = run(tmp_path, "--lf")
    assert ran(again) == ["bad"]
    assert "--last-failed: running 1 of 3 cases, from run" in again.stderr


def test_what_was_not_compared_is_run_again(tmp_path):
    (tmp_path / "config.yaml").write_text(user_config(FAKES / "raises.py", cases=three_cases()))
    run(tmp_path)
    assert ran(run(tmp_path, "--lf")) == ["bad"]


def test_everything_runs_where_nothing_failed(tmp_path):
    config(tmp_path)
    run(tmp_path, "-k", "not bad")
    again = run(tmp_path, "--lf", "-k", "not bad")
    assert (again.code, ran(again)) == (0, ["before", "after"])
    assert "--last-failed: none of these cases failed in run; running all 2 cases" in again.stderr


def test_everything_runs_where_there_is_no_earlier_run(tmp_path):
    config(tmp_path)
    assert ran(run(tmp_path, "--lf", "-q", out="")) == ["before", "bad", "after"]
    (tmp_path / "other.yaml").write_text((tmp_path / "config.yaml").read_text())
    done = call("run", "other.yaml", "--lf", "-q", cwd=tmp_path)
    assert "--last-failed: no earlier run of these configs in reports/; running all 3 cases" in done.stderr


def test_of_several_runs_the_newest_counts(tmp_path):
    config(tmp_path)
    for number, keyword in enumerate(("bad", "before")):
        path = run(tmp_path, "-k", keyword, out=f"reports/config-{number}").run_dir / "results.json"
        os.utime(path, (number, number))
    assert "none of these cases failed in reports/config-1" in run(tmp_path, "--lf").stderr


def test_an_accepted_deviation_is_not_run_again_and_left_out_entries_are_not_stale(tmp_path):
    config(tmp_path, known="known: [{case: bad, reason: r, tensor: y}]\n")
    assert run(tmp_path).code == 0
    config(tmp_path, TRAINING.format("curve"), known="known: [{case: bad, reason: r, tensor: y}]\n")
    run(tmp_path)
    again = run(tmp_path, "--lf")
    assert ran(again) == ["curve"]
    assert [row["state"] for row in again.results["known"]] == ["not-checked"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("stopped")
    config(folder, TRAINING.format("curve"), TRAINING.format("last"))
    return run(folder, "-x", "--jobs", "1")


def test_the_first_finding_ends_the_run(stopped):
    assert stopped.code == 1
    assert stopped.results["run"]["stopped"] is True
    assert stopped.results["summary"]["exit_code"] == 1
    assert {row["case"] for row in stopped.results["comparisons"]} == {"before", "bad"}
    assert stopped.results["diagnoses"]
    assert stopped.stdout.splitlines()[0].endswith("; stopped at the first finding: 3 of 5 cases were not run")
    assert "to run the rest, repeat the command with --out run --resume" in " ".join(stopped.stderr.split())


def test_a_stopped_run_goes_on(stopped, tmp_path):
    folder = stopped.run_dir.parent
    whole = json.loads((run(folder, out="whole").run_dir / "results.json").read_text())
    second = run(folder, "-x", "--resume")
    assert {row["case"] for row in second.results["comparisons"]} == {"before", "bad", "after", "curve"}
    third = run(folder, "--resume")
    assert third.results["comparisons"] == whole["comparisons"]
    assert third.results["run"]["stopped"] is False
    assert "stopped" not in third.stdout


@pytest.mark.parametrize(
    ("known", "arguments"),
    [("known: [{case: bad, reason: r, tensor: y}]\n", ()), ("", ("--rtol", "10", "--atol", "10"))],
)
def test_what_is_no_finding_does_not_end_the_run(tmp_path, known, arguments):
    config(tmp_path, known=known)
    finished = run(tmp_path, "-x", *arguments)
    assert {row["case"] for row in finished.results["comparisons"]} == {"before", "bad", "after"}
    assert finished.results["run"]["stopped"] is False


def test_what_was_left_out_of_a_stopped_run_is_run_again(tmp_path):
    config(tmp_path, TRAINING.format("curve"))
    run(tmp_path, "-x", "--jobs", "1")
    again = run(tmp_path, "--lf")
    assert ran(again) == ["bad", "after", "curve"]


def test_last_failed_goes_on_with_the_cases_that_it_had(tmp_path):
    config(tmp_path, TRAINING.format("curve"))
    run(tmp_path)
    first = run(tmp_path, "--lf", "-x")
    assert ran(first) == ["bad", "curve"]
    again = run(tmp_path, "--lf", "--resume")
    assert {row["case"] for row in again.results["comparisons"]} == {"bad", "curve"}
