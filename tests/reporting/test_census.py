"""The table of ops by backends: its cells, its evidence, its scripts."""

from __future__ import annotations

import numpy as np
import pytest
from lxml import html

from parity.reporting.html.census import census, census_page
from parity.reporting.results.results import read_results
from tests.conftest import ROOT, call, user_config
from tests.reporting import ci_runs
from tests.reporting.stored_runs import case_row, comparison, diagnosis, finding, stored


def outcome(backend, dtype, result="ok", message="", case="group-norm-offset=10000"):
    return {"case": case, "dtype": dtype, "backend": backend, "outcome": result, "message": message, "seconds": 0.1}


@pytest.fixture
def results(tmp_path):
    outcomes = [outcome(b, d) for b, d in (("torch", "float32"), ("paddle", "float32"), ("torch", "float64"))]
    outcomes += [outcome("paddle", "float64", "unsupported", "no kernel for float64")]
    case = case_row("group-norm-offset=10000")
    rows = [
        {**row, "case": case["id"]}
        for row in [*finding(), comparison(dtype="float64", actual="torch", expected="oracle")]
    ]
    causes = [diagnosis(case=case["id"])]
    return read_results(stored(tmp_path, rows, causes, [case], outcomes))


def test_a_cell_has_its_worst_cause_and_a_mark_for_each_dtype(results):
    [row] = census(results)
    torch, paddle = row["torch"], row["paddle"]
    assert (torch.cause, torch.differs, [s.value for _, s in torch.marks]) == ("", False, ["failed", "passed"])
    assert (paddle.cause, paddle.differs) == ("variance-naive", True)
    assert [(d, s.value) for d, s in paddle.marks] == [("float32", "failed"), ("float64", "unsupported")]
    assert paddle.gaps == ["float64: no kernel for float64"]


def test_a_cell_links_to_its_evidence(results):
    page = html.fromstring(census_page([results], {"group-norm-offset_10000.float32.paddle"}))
    [link] = page.xpath("//td//a[contains(., 'variance-naive')]")
    [section] = page.xpath(f"//section[@id='{link.get('href')[1:]}']")
    told = " ".join(section.text_content().split())
    assert "the variance is E[x^2] - E[x]^2" in told
    assert "paddle 162.93, exact 0.53" in told


def test_what_others_wrote_is_text(results):
    page = html.fromstring(census_page([ci_runs.hostile()]))
    assert not page.xpath("//script | //img | //*[@onclick]")


def test_the_command_writes_the_page_and_a_script_for_each_finding(tmp_path):
    kernel = tmp_path / "kernel.py"
    body = "def {0}(x):\n    return x * 0.5\n\n\ndef {0}_backward(g, x):\n    return [g * (x > 0)]\n\n\n"
    kernel.write_text(body.format("relu") + body.format("sigmoid"))
    config = tmp_path / "config.yaml"
    cases = [f"{{id: {op}, op: {op}, inputs: {{x: {{shape: [4, 6]}}}}}}" for op in ("relu", "sigmoid")]
    config.write_text(user_config(kernel, cases=cases))
    assert call("run", config, "--out", tmp_path / "run").returncode == 1
    for out, options in ((tmp_path / "census", ()), (tmp_path / "sample", ("--sample",))):
        done = call("census", tmp_path / "run", out, *options)
        assert done.returncode == 0, done.stderr
        page = html.fromstring((out / "index.html").read_text())
        scripts = [name for name in page.xpath("//section//a/@href") if name.startswith("repro/")]
        assert {out / name for name in scripts} == set((out / "repro").glob("*.mine.py"))
        assert len(set(scripts)) == (1 if options else 2)
        assert np.all([cell != "" for cell in page.xpath("//td/@class")])


def test_the_page_of_reports_links_its_sample_of_scripts():
    folder = ROOT / "reports" / "census"
    links = html.fromstring((folder / "index.html").read_bytes()).xpath("//a/@href")
    names = {name for name in links if name.startswith(("repro/", "bugs/"))}
    assert [name for name in names if not (folder / name).is_file()] == []
    assert {folder / name for name in names} >= set((folder / "repro").glob("*.py"))


def test_several_runs_are_one_table_and_a_run_may_lack_a_framework(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def relu(x):\n    return x * (x > 0)\n")
    for name, second in (("one", ""), ("two", ", {name: mine, adapter: numpy, ops: kernel.py}")):
        case = f"{{id: {name}, op: relu, gradients: false, inputs: {{x: {{shape: [4, 6]}}}}}}"
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nbackends: [numpy{second}]\ncases: [{case}]\n")
        assert call("run", tmp_path / f"{name}.yaml", "--out", tmp_path / name).returncode == 0
    assert call("census", tmp_path / "one", tmp_path / "two", tmp_path / "census").returncode == 0
    page = html.fromstring((tmp_path / "census" / "index.html").read_text())
    assert [th.text for th in page.xpath("//thead//th")] == ["op", "numpy", "mine"]
    assert [len(row.xpath("./td")) for row in page.xpath("//tr[contains(@class, 'op')]")] == [2, 2]
    assert [a.text for a in page.xpath("//nav/a")] == ["one", "two"]
    twice = call("census", tmp_path / "one", tmp_path / "one", tmp_path / "again")
    assert (twice.returncode, "two of the runs have the case one" in twice.stderr) == (2, True)


def test_a_run_that_cannot_be_read_is_refused(tmp_path):
    done = call("census", tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert "results.json" in done.stderr
    assert not (tmp_path / "out").exists()
