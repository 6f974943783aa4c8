"""A run of one's own kernels judges them: what the baseline does wrong is a warning, and no measure of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parity.config import ConfigError, Overrides, load_plan
from parity.config.plan import Plan
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.subject import marked
from parity.reporting.results.cells import cells
from parity.reporting.results.results import read_results
from tests.conftest import FAKES, Finished, call, three_cases, without_searches
from tests.reporting.test_outputs_agree import agree

MINE = "{name: mine, adapter: torch, ops: ./mine.py}"
CASE = "{op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}"


# What a config judges


def plan_of(tmp_path: Path, *configs: str, **overrides: object) -> Plan:
    for name in ("mine.py", "other.py"):
        (tmp_path / name).write_text("def layer_norm(x, weight, bias, normalized_shape, eps): ...\n")
    paths = [tmp_path / f"config{i}.yaml" for i in range(len(configs))]
    for i, (path, text) in enumerate(zip(paths, configs, strict=True)):
        path.write_text(f"version: 1\n{text}\ncases:\n  - {CASE.replace('op:', f'id: case{i}, op:')}\n")
    return load_plan(paths, Overrides(**overrides))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "overrides", "subject"),
    [
        ("backends: [torch, paddle]", {}, ()),
        (f"backends: [torch, {MINE}]", {}, ("mine",)),
        (f"backends: [{MINE}]", {}, ()),
        (f"backends: [torch, paddle, {MINE}]\nsubject: paddle", {}, ("paddle",)),
        (f"backends: [torch, paddle, {MINE}]\nsubject: [mine, torch]", {}, ("torch", "mine")),
        (f"backends: [torch, {MINE}]\nsubject: [torch, mine]", {}, ()),
        (f"backends: [torch, {MINE}]", {"fail_on_others": True}, ()),
        (f"backends: [torch, paddle, {MINE}]", {"backends": ("torch", "mine")}, ("mine",)),
        (f"backends: [torch, paddle, {MINE}]", {"backends": ("torch", "paddle")}, ()),
    ],
)
def test_a_config_judges_what_it_names_or_the_users_kernels(tmp_path, config, overrides, subject):
    assert plan_of(tmp_path, config, **overrides).subject == subject


def test_a_kernel_of_the_command_line_is_judged_too(tmp_path):
    plan = plan_of(tmp_path, "backends: [torch, paddle]", backends=("torch", f"own=torch:{tmp_path / 'other.py'}"))
    assert plan.subject == ("own",)


def test_each_of_several_configs_has_its_own_subject(tmp_path):
    plan = plan_of(tmp_path, f"backends: [torch, {MINE}]", "backends: [torch, paddle]")
    assert [plan.of(case).subject for case in plan.cases] == [("mine",), ("torch", "paddle")]


def test_a_subject_is_one_of_the_backends(tmp_path):
    with pytest.raises(ConfigError, match=r'no backend "min".*mine'):
        plan_of(tmp_path, f"backends: [torch, {MINE}]\nsubject: min")


# Which comparisons count


def row(actual: str, expected: str, verdict: Verdict, *culprit: str) -> Comparison:
    return comparison_of("c", "float32", "y", actual, expected, verdict, 0.0, 0.0, culprit=culprit)


@pytest.mark.parametrize(
    ("comparison", "counted"),
    [
        (row("mine", "oracle", Verdict.CLOSE), ("mine",)),
        (row("mine", "oracle", Verdict.NOT_COMPARED), ("mine",)),
        (row("base", "oracle", Verdict.SEMANTIC, "base"), ()),
        (row("mine", "base", Verdict.SEMANTIC, "base"), ()),
        (row("mine", "base", Verdict.NOT_COMPARED), ()),
        (row("mine", "base", Verdict.ROUNDING), ()),
        (row("mine", "base", Verdict.SEMANTIC, "mine"), ("mine",)),
        (row("mine", "base", Verdict.EQUAL, "mine", "base"), ("mine",)),
        (row("base", "mine", Verdict.SEMANTIC, "mine"), ("mine",)),
    ],
)
def test_a_comparison_counts_against_the_subject_alone(comparison, counted):
    right = [row(name, "oracle", Verdict.CLOSE) for name in ("mine", "base")]
    assert next(marked([comparison, *right], ("mine",))).counted == counted
    assert next(marked([comparison, *right], ())).counted is None


def test_where_there_is_no_exact_answer_the_baseline_is_the_measure():
    [alone] = marked([row("mine", "base", Verdict.NOT_COMPARED)], ("mine",))
    assert alone.counted == ("mine",)


def test_a_baseline_that_is_the_subject_and_compared_with_nothing_counts():
    failed = row("base", "mine", Verdict.NOT_COMPARED)
    [alone] = marked([failed], ("mine",))
    assert alone.counted == ("mine",)
    beside_exact, _ = marked([failed, row("mine", "oracle", Verdict.CLOSE)], ("mine",))
    assert beside_exact.counted == ()


# From the config to the exit code


def beside(base: str, mine: str, rest: str = "") -> str:
    """A config of a baseline and `mine`, both fakes; the former is like a framework's own op."""
    named = ", ".join(
        f"{{name: {n}, adapter: numpy, ops: {FAKES / f}.py}}" for n, f in (("base", base), ("mine", mine))
    )
    listed = "\n".join(f"  - {line}" for line in three_cases())
    return f"version: 1\nbackends: [{named}]\nsubject: mine\n{rest}cases:\n{listed}\n"


def statuses(done: Finished) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for cell in cells(read_results(done.run_dir)):
        found.setdefault(cell.backend, set()).add(cell.status.value)
    return found


@pytest.mark.parametrize("fake", ["nan", "wrong_shape", "wrong_dtype", "extra", "nothing", "raises"])
def test_a_wrong_baseline_is_a_warning(parity_run: Callable[..., Finished], fake):
    done = parity_run(beside(fake, "honest"))
    assert done.code == 0, done.stdout
    assert done.stdout.startswith("PASS  no findings")
    assert "not counted" in done.stdout
    assert done.results["run"]["subject"] == ["mine"]
    assert done.results["summary"]["tensors"] == {"passed": 24} or fake == "extra"
    assert statuses(done) == {"base": {"below", "passed"}, "mine": {"passed"}}
    assert agree(read_results(done.run_dir)) == {}
    judged = call("judge", done.run_dir, "--fail-on-others")
    everyone = parity_run(beside(fake, "honest"), "--fail-on-others")
    assert judged.returncode == everyone.code == (3 if fake == "raises" else 1)
    assert everyone.results["run"]["subject"] == []
    assert agree(read_results(everyone.run_dir)) == {}


@pytest.mark.parametrize(("fake", "code"), [("nan", 1), ("wrong_shape", 1), ("raises", 3)])
def test_a_subject_that_shares_its_baselines_error_is_wrong(parity_run: Callable[..., Finished], fake, code):
    done = parity_run(beside(fake, fake))
    assert done.code == code
    assert statuses(done)["mine"] - {"passed"} == {"failed" if code == 1 else "error"}
    assert statuses(done)["base"] - {"passed"} == {"below"}
    assert agree(read_results(done.run_dir)) == {}
    if code == 1:
        assert done.stdout.splitlines()[0].endswith("tensors: mine")


def test_entries_about_others_are_never_out_of_date(parity_run: Callable[..., Finished]):
    known = "known:\n  - {case: '*', backend: base, until: 2020-01-01, reason: gone}\n"
    known += "  - {case: bad, backend: base, error_ratio: 2, reason: small}\n"
    done = parity_run(beside("nan", "honest", known))
    assert (done.code, [row["state"] for row in done.results["known"]]) == (0, ["not-checked", "not-checked"])
    everyone = parity_run(beside("nan", "honest", known), "--fail-on-others")
    assert [row["state"] for row in everyone.results["known"]] == ["expired", "worse"]
    assert call("validate", done.run_dir.parent / "config.yaml").returncode == 0


def test_no_entry_is_written_for_what_is_not_judged(parity_run: Callable[..., Finished]):
    done = parity_run(beside("nan", "nan"))
    accepted = call("accept", done.run_dir, "--reason", "both", cwd=done.run_dir.parent)
    assert accepted.returncode == 0, accepted.stderr
    text = (done.run_dir.parent / "config.yaml").read_text()
    assert "backend: mine" in text
    assert "backend: base" not in text


def test_the_first_finding_that_stops_a_run_is_the_subjects(parity_run: Callable[..., Finished]):
    assert len({row["case"] for row in parity_run(beside("nan", "honest"), "-x").results["outcomes"]}) == 3
    assert parity_run(beside("nan", "nan"), "-x").results["run"]["stopped"]


def test_a_run_resumes_with_its_own_subject(parity_run: Callable[..., Finished]):
    done = parity_run(beside("nan", "honest"))
    again = call("run", done.run_dir.parent / "config.yaml", "--out", done.run_dir, "--resume", "--fail-on-others")
    assert again.returncode == 2
    assert "its subject was mine, now it is every backend" in again.stderr


def test_a_diff_counts_what_its_runs_judge(parity_run: Callable[..., Finished], tmp_path):
    right = parity_run(beside("honest", "honest"))
    right.run_dir.rename(tmp_path / "right")
    wrong = parity_run(beside("nan", "honest"))
    assert call("diff", tmp_path / "right", wrong.run_dir).returncode == 0
    assert call("diff", tmp_path / "right", wrong.run_dir, "--fail-on-others").returncode == 1


KERNEL = """\
import torch


def layer_norm(x, weight, bias, normalized_shape, eps):
    wide = x.float()
    deviation = wide - wide.mean(-1, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return (y * weight.float() + bias.float()).to(x.dtype)
"""


@pytest.mark.frameworks
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_kernel_in_16_bits_passes_beside_a_framework_that_is_wrong(parity_run, tmp_path, dtype):
    (tmp_path / "mine.py").write_text(KERNEL)
    case = "{op: layer_norm, params: {normalized_shape: [33]}, inputs: {x: {shape: [64, 33], offset: 10}}}"
    with without_searches():
        done = parity_run(f"version: 1\nbackends: [torch, {MINE}]\ndtypes: [{dtype}]\ncases:\n  - {case}\n")
    assert done.code == 0, done.stdout
    assert "warning: torch itself is wrong in" in done.stdout
    assert statuses(done) == {"torch": {"below"}, "mine": {"passed"}}
    everyone = call("judge", done.run_dir, "--fail-on-others")
    assert (everyone.returncode, everyone.stdout.splitlines()[0].endswith(": torch")) == (1, True)
