"""Where a run's reports go: into its directory, into files, onto stdout; from a run and from a stored one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import call, parity_command, run_in, user_config

CONFIG = """
version: 1
backends: [numpy, {name: other, adapter: numpy}]
cases: [{id: first, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}]
"""
BEGINNING = {"html": "<!doctype html>", "junit-xml": "<?xml", "markdown": "<!-- parity -->", "json": '{"format": 1'}


def report(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return call("report", *arguments, **options)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("outputs"), CONFIG).run_dir


def test_every_run_directory_has_a_report_and_junit(run_dir):
    assert (run_dir / "report.html").read_text().lower().startswith(BEGINNING["html"])
    assert (run_dir / "junit.xml").read_text().startswith(BEGINNING["junit-xml"])


def test_a_run_writes_what_is_asked_for_and_says_where(parity_run, tmp_path):
    asked = {f"--{name}": str(tmp_path / "deep" / f"x.{name}") for name in ("html", "junit-xml", "markdown")}
    finished = parity_run(CONFIG, *(word for pair in asked.items() for word in pair))
    assert finished.stdout.startswith("PASS")
    for option, path in asked.items():
        assert Path(path).read_text().lower().startswith(BEGINNING[option.removeprefix("--")].lower())
        assert path in finished.stderr


@pytest.mark.parametrize("name", ["html", "junit-xml", "markdown"])
def test_a_document_on_stdout_takes_the_place_of_the_tables(run_dir, parity_run, name):
    for done in (report(run_dir, f"--{name}", "-"), parity_run(CONFIG, f"--{name}", "-")):
        assert done.stdout.lower().startswith(BEGINNING[name].lower())
        assert "PASS  " not in done.stdout


def test_json_on_stdout_is_results_json(run_dir):
    assert json.loads(report(run_dir, "--json").stdout) == json.loads((run_dir / "results.json").read_text())


def test_a_stored_run_gives_the_same_files_again(run_dir, tmp_path):
    done = report(run_dir, "--html", tmp_path / "again.html", "--junit-xml", tmp_path / "again.xml")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "again.html").read_text() == (run_dir / "report.html").read_text()
    assert (tmp_path / "again.xml").read_text() == (run_dir / "junit.xml").read_text()


def test_only_one_document_fits_on_stdout(run_dir):
    done = report(run_dir, "--json", "--markdown", "-")
    assert done.returncode == 2
    assert "only one document can go to stdout" in done.stderr


def test_the_results_are_not_overwritten_by_a_report(run_dir, tmp_path):
    done = report(run_dir, "--html", run_dir / "results.json")
    assert done.returncode == 2
    assert "the results themselves" in done.stderr
    for files in (("--html", "x", "--markdown", "./x"), ("--html", "")):
        assert report(run_dir, *files, cwd=tmp_path).returncode == 2
    assert report(run_dir).stdout.startswith("PASS")


def test_a_file_that_cannot_be_written_is_named(run_dir, parity_run):
    done = report(run_dir, "--html", "/proc/no/such.html")
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "/proc/no" in done.stderr
    finished = parity_run(CONFIG, "--html", "/proc/no/such.html")
    assert finished.code == 2
    assert finished.results["summary"]["exit_code"] == 0
    assert "Traceback" not in finished.stderr + done.stderr


def test_a_fingerprint_that_is_none_is_refused(run_dir, tmp_path):
    done = report(run_dir, "--html", "-", "--fingerprint", tmp_path)
    assert done.returncode == 2
    assert "fingerprint.json" in done.stderr


def test_annotations_stay_out_of_a_document(tmp_path, parity_run):
    config = user_config(lie(tmp_path))
    plain = parity_run(config, "--github")
    assert "::error " in plain.stdout
    document = parity_run(config, "--github", "--json")
    assert json.loads(document.stdout)["format"] == 1
    assert "::error " in document.stderr


def test_what_a_run_prints_is_no_command_for_github(tmp_path, parity_run):
    case = "{id: '##[add-mask]x', op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}"
    lines = parity_run(user_config(lie(tmp_path), cases=[case]), "--github").stdout.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    end = lines.index(f"::{token}::")
    assert len(token) > 20
    assert any("##[add-mask]x" in line for line in lines[:end])
    # The runner looks for `##[` only in a line that is no `::` command.
    assert all(line.startswith("::error ") for line in lines[end + 1 :])


def lie(folder: Path) -> Path:
    path = folder / "lie.py"
    path.write_text(
        "def layer_norm(x, weight, bias, normalized_shape, eps):\n    return x\n\n"
        "def layer_norm_backward(grad_y, x, weight, bias):\n"
        "    return {'x': x, 'weight': weight, 'bias': bias}\n"
    )
    return path


def test_the_step_summary_is_appended(run_dir, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    done = report(run_dir, "--github", env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 0
    assert summary.read_text().startswith("before\n")
    assert "PASS" in summary.read_text()


def test_who_reads_only_the_beginning_is_no_error(run_dir):
    command = " ".join(parity_command("report", run_dir, "--html", "-")) + " | head -c 10; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) == 10


def test_an_earlier_run_is_replaced_with_a_word(parity_run):
    first = parity_run(CONFIG)
    (first.run_dir / "repro").mkdir()
    second = parity_run(CONFIG)
    assert "replaces" not in first.stderr
    assert f"replacing the earlier run in {second.run_dir}" in second.stderr
    assert not (second.run_dir / "repro").exists()


def test_the_reports_of_a_run_are_written_without_importing_a_framework(run_dir):
    code = (
        "import sys; from pathlib import Path; from parity.reporting.results.outputs import RENDERERS, Outputs, rendered\n"
        "from parity.reporting.results.results import read_results\n"
        f"run = Path({str(run_dir)!r})\n"
        "for name in RENDERERS: rendered(name, read_results(run), run, Outputs({}))\n"
        "print([m for m in ('torch', 'paddle', 'oneflow', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
