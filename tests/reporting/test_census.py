"""The table of ops by backends: its cells, its evidence, its scripts."""

from __future__ import annotations

import numpy as np
import pytest
from lxml import html

from parity.reporting.html.census import census, census_page
from parity.reporting.results.results import read_results
from tests.conftest import call, user_config
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


def test_a_cell_has_the_worst_verdict_with_its_cause_and_a_mark_for_each_dtype(results):
    [[torch, paddle]] = census(results)
    assert (torch.verdict, [s.value for _, s in torch.marks]) == ("rounding", ["failed", "passed"])
    assert paddle.verdict == "unstable: variance-naive"
    assert [(d, s.value) for d, s in paddle.marks] == [("float32", "failed"), ("float64", "unsupported")]
    assert paddle.gaps == ["float64: no kernel for float64"]


def test_a_cell_links_to_its_evidence(results):
    page = html.fromstring(census_page(results, {"group-norm-offset_10000.float32.paddle"}))
    [link] = page.xpath("//td//a[contains(., 'variance-naive')]")
    [section] = page.xpath(f"//section[@id='{link.get('href')[1:]}']")
    told = " ".join(section.text_content().split())
    assert "the variance is E[x^2] - E[x]^2" in told
    assert "paddle 162.93, exact 0.53" in told


def test_what_others_wrote_is_text(results):
    page = html.fromstring(census_page(ci_runs.hostile()))
    assert not page.xpath("//script | //img | //*[@onclick]")


def test_the_command_writes_the_page_and_a_script_for_each_finding(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def relu(x):\n    return x * 0.5\n\n\ndef relu_backward(g, x):\n    return [g * (x > 0)]\n")
    config = tmp_path / "config.yaml"
    config.write_text(user_config(kernel, cases=["{id: one, op: relu, inputs: {x: {shape: [4, 6]}}}"]))
    assert call("run", config, "--out", tmp_path / "run").returncode == 1
    done = call("census", tmp_path / "run", tmp_path / "census")
    assert done.returncode == 0, done.stderr
    page = html.fromstring((tmp_path / "census" / "index.html").read_text())
    links = page.xpath("//section//a/@href")
    assert links
    assert all((tmp_path / "census" / link).is_file() for link in links)
    assert np.all([cell != "" for cell in page.xpath("//td/@class")])


def test_a_run_that_cannot_be_read_is_refused(tmp_path):
    done = call("census", tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert "results.json" in done.stderr
    assert not (tmp_path / "out").exists()
