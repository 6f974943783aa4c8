"""Trainings in every format: curves with their partings, probed steps, and what is made of hostile and odd ones."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import lxml.html
import numpy as np
import pytest
from click.testing import CliRunner
from junitparser import JUnitXml
from msgspec import convert
from rich.console import Console

from parity.cli import main
from parity.config.loader import load_plan
from parity.config.plan import Overrides
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.console.explain import explain_case
from parity.reporting.console.run import render
from parity.reporting.diff.compare import compare
from parity.reporting.github import annotations
from parity.reporting.html.page import html_report
from parity.reporting.junit import junit_xml
from parity.reporting.kinds import report_of
from parity.reporting.markdown import markdown
from parity.reporting.plots.curves import Band, DrawnCurve, Look, Mark, Panel, plot
from parity.reporting.results.cells import cells, counts
from parity.reporting.results.record import case_row
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import FILE_NAME, MAX_STEPS, Results, ResultsError, Stage
from parity.training.judge.findings import attributed
from parity.training.report.view import clauses, sparkline, table_row, training_runs
from parity.training.spec import STAGES
from tests.conftest import ROOT
from tests.reporting import ci_runs
from tests.reporting.stored_runs import (
    PARTING,
    TRAINING,
    Row,
    backend_row,
    changed,
    comparison,
    diagnosis,
    parted,
    plain,
    trained,
    training,
    training_case,
    training_finding,
)
from tests.reporting.test_github import unescaped
from tests.reporting.test_html import ALL_HOSTILE, complaints, parsed, text_of
from tests.reporting.test_outputs_agree import agree

SAID = "paddle diverges at step 1 in the update: the first step is dampened too (dampening-first-step)"
NAN, INF = math.nan, math.inf


def with_curves(row: Row, **curves: Any) -> Row:
    return {**row, "curves": {**row["curves"], **curves}}


def page_of(run_dir: Path, results: Results | None = None) -> str:
    return html_report(results or read_results(run_dir), run_dir)


def printed(results: Results, verbosity: int = 0, width: int = 200) -> str:
    out = io.StringIO()
    render(results, Console(file=out, width=width), verbosity=verbosity)
    return out.getvalue()


def explained(run_dir: Path, *, verbose: bool = False) -> str:
    out = io.StringIO()
    explain_case(run_dir, TRAINING, Console(file=out, width=200), verbose=verbose)
    return out.getvalue()


def every_format(run_dir: Path) -> dict[str, str]:
    results = read_results(run_dir)
    return {
        "console": printed(results),
        "verbose": printed(results, 1),
        "html": text_of(page_of(run_dir, results)),
        "markdown": re.sub("[`\\\\]", "", markdown(results)),
        "junit": junit_xml(results),
        "github": "\n".join(annotations(results)),
        "explain": explained(run_dir),
    }


# Reading


def test_what_is_written_is_read_back(tmp_path):
    curves = {"loss": [1.0, NAN, INF, -INF], "ratio": {"loss": [0.5, INF]}, "envelope": {}}
    rows = [with_curves(parted(), **curves), {**training("oracle"), "ensemble": {"of": None, "members": 0}}]
    found = read_results(trained(tmp_path, rows)).trainings
    assert json.dumps(plain(found)) == json.dumps(rows)


def test_a_run_without_trainings_is_one_of_before(tmp_path):
    document = json.loads((trained(tmp_path) / FILE_NAME).read_text())
    del document["trainings"]
    (tmp_path / FILE_NAME).write_text(json.dumps(document))
    results = read_results(tmp_path)
    assert list(results.trainings) == []
    assert "training perceptron float32: no result\n  torch and paddle gave no result (ok)" in printed(results)


WRONG: dict[str, Callable[[Row], Any]] = {
    "no object": lambda _: 7,
    "an unknown case": lambda row: {**row, "case": "nobody"},
    "no backend": lambda row: {**row, "backend": None},
    "a name without end": lambda row: {**row, "dtype": "x" * 3_000},
    "steps below zero": lambda row: {**row, "steps": -1},
    "steps without end": lambda row: {**row, "planned": 10**7},
    "steps that are true": lambda row: {**row, "steps": True},
    "no ensemble": lambda row: {**row, "ensemble": []},
    "members in words": lambda row: {**row, "ensemble": {"of": "oracle", "members": "four"}},
    "an unknown stage": lambda row: {**row, "parting": {**PARTING, "stage": "lunch"}},
    "a parting seen in a dream": lambda row: {**row, "parting": {**PARTING, "seen": "dream"}},
    "a parting without a step": lambda row: {**row, "parting": {**PARTING, "step": None}},
    "a ratio in words": lambda row: {**row, "parting": {**PARTING, "ratio": "large"}},
    "probes without end": lambda row: {**row, "probes": [{"step": 1, "ratios": {}}] * 10_001},
    "a probe that is a list": lambda row: {**row, "probes": [[1]]},
    "a ratio that is a list": lambda row: {**row, "probes": [{"step": 1, "ratios": {"loss": [1]}}]},
    "no curves": lambda row: {**row, "curves": None},
    "no loss": lambda row: with_curves(row, loss=None),
    "a loss in words": lambda row: with_curves(row, loss=["low"]),
    "a loss that is true": lambda row: with_curves(row, loss=[True]),
    "a ratio of nothing": lambda row: with_curves(row, ratio={"loss": [None]}),
    "an envelope that is a number": lambda row: with_curves(row, envelope=3),
    "norms that are no path": lambda row: {**row, "norms": 3},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_hostile_row_is_refused(tmp_path, wrong):
    trained(tmp_path, [training("torch"), wrong(parted())])
    with pytest.raises(ResultsError, match=r"trainings\b"):
        read_results(tmp_path)


def test_a_curve_without_end_is_refused(tmp_path):
    row = training("torch", 2)
    trained(tmp_path, [{**row, "steps": MAX_STEPS + 1}])
    with pytest.raises(ResultsError, match=r"trainings\[0\]\.steps: expected int <= 1000000"):
        read_results(tmp_path)
    trained(tmp_path, [with_curves(row, loss=[0] * (MAX_STEPS + 1))])
    with pytest.raises(ResultsError, match=r"trainings\[0\]\.curves\.loss: expected array of length <= 1000000"):
        read_results(tmp_path)


def test_the_stages_of_a_row_are_those_of_a_step():
    assert get_args(Stage) == STAGES


def test_what_is_unknown_is_left_out(tmp_path):
    row = training()
    row["probes"][0]["ratios"]["lunch"] = 3.0
    row["curves"]["ratio"]["appetite"] = [1.0]
    row["more"] = "of it"
    found = read_results(trained(tmp_path, [row])).trainings[0]
    assert not hasattr(found, "more")
    assert "appetite" not in found.curves.ratio
    assert "lunch" not in found.probes[0].ratios


# Words


def test_every_format_says_where_and_why(tmp_path):
    told = every_format(trained(tmp_path))
    for name in ("console", "verbose", "html", "markdown", "explain"):
        assert SAID in told[name], name
    cause = "the first step is dampened too (dampening-first-step)"
    assert f"paddle float32: diverges at step 1 in the update; {cause}: semantic in stage.update" in told["junit"]
    assert f"paddle: {cause} – in stage.update, loss, param of train, float32, first at step 1" in unescaped(
        told["github"]
    )
    for name in ("verbose", "html", "junit", "markdown", "explain"):
        assert "81234" in told[name] or "8.1e+04" in told[name], name


def test_every_format_names_the_parameters_that_are_off(tmp_path):
    off = {
        "step": 1,
        "stage": "update",
        "off": ["linear0.weight", "linear0.bias"],
        "worst_tensor": "param.linear0.bias",
    }
    cause = {"case": TRAINING, "tensors": ["stage.update", "loss", "param"], "evidence": off}
    told = every_format(trained(tmp_path, diagnoses=[diagnosis("dampening-first-step", **cause)]))
    for name in ("console", "verbose", "html", "markdown", "junit", "explain", "github"):
        assert "the update of linear0.weight, linear0.bias" in unescaped(told[name]), name
    assert "float32 stage.update param.linear0.bias [0]: paddle 2, exact 1.83" in told["console"]


def test_formats_agree_about_the_cells_of_a_training(tmp_path):
    results = read_results(trained(tmp_path))
    results = changed(results, run={**plain(results.run), "fail_on": "mismatch"})
    numbers = counts(cells(results))
    assert agree(changed(results, summary={**plain(results.summary), "cells": numbers})) == {}
    assert numbers == {"failed": 1, "passed": 1}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([training("torch"), training()], "torch and paddle stay within rounding over 12 steps"),
        ([training("torch", 1), training(n_steps=1)], "torch and paddle stay within rounding over 1 step"),
        ([training("torch")], "torch stays within rounding over 12 steps; paddle gave no result (ok)"),
        ([], "torch and paddle gave no result (ok)"),
        (
            [{**training(name), "steps": 7} for name in ("torch", "paddle")],
            "torch and paddle stopped after 7 of 12 steps",
        ),
        (
            [with_curves(training(), ratio={})],
            "no probed step of paddle exceeds the error bound; no curve to compare with; torch gave no result (ok)",
        ),
        (
            [training("torch"), parted(parting=None)],
            "torch stays within rounding over 12 steps; paddle drifts out of the envelope at step 1, where every stage is right "
            "given the backend's own state; the update of paddle exceeds the error bound in a probe, but little enough to pass",
        ),
        (
            [training("torch"), {**training(), "steps": 7}],
            "paddle stopped after 7 of 12 steps; torch stays within rounding over 12 steps",
        ),
        (
            [training("torch"), parted(steps=7, parting={**PARTING, "diagnosis": None})],
            "paddle diverges at step 1 in the update, and there was no time to look for the cause (and stopped after 7 of "
            "12 steps); "
            "torch stays within rounding over 12 steps",
        ),
        (
            [training("torch"), parted(parting={**PARTING, "stage": None, "tensor": "loss", "step": 9, "seen": "curve"})],
            "paddle leaves the envelope at step 9 (loss), although every probed step is within the error bound: "
            "the first step is dampened too (dampening-first-step), and exceeds the error bound in the update "
            "(dampening-first-step) too; torch stays within rounding over 12 steps",
        ),
    ],
)  # fmt: skip
def test_the_answer_in_a_sentence(tmp_path, rows, said):
    (run,) = training_runs(read_results(trained(tmp_path, rows)))
    assert "; ".join(clauses(run)) == said


def test_everybody_together_is_said_of_all(tmp_path):
    names = ("torch", "paddle", "oneflow")
    trained(tmp_path, [training(name, 1_000) for name in names], backends=[backend_row(name) for name in names])
    (run,) = training_runs(read_results(tmp_path))
    assert "; ".join(clauses(run)) == "all 3 backends stay within rounding over 1,000 steps"


def test_a_cause_that_nobody_knows_is_said_as_it_is(tmp_path):
    rows = [training("torch"), parted(parting={**PARTING, "diagnosis": "gremlins"})]
    (run,) = training_runs(read_results(trained(tmp_path, rows, diagnoses=[])))
    assert "; ".join(clauses(run)).startswith("paddle diverges at step 1 in the update: gremlins; ")


def test_the_table_has_what_is_known(tmp_path):
    nothing = with_curves(training("third"), loss=[], ratio={}) | {"probes": []}
    names = ("torch", "paddle", "third")
    trained(tmp_path, [training("torch"), parted(steps=7), nothing], backends=[backend_row(name) for name in names])
    (run,) = training_runs(read_results(tmp_path))
    torch, paddle, third = (table_row(run, row) for row in run.rows)
    assert torch == ("torch = baseline", "12", "0.1715938", "0.4", "–", "")
    assert paddle == ("paddle", "7 of 12", "0.1853213", "2e+06", "step 1, update", "dampening-first-step")
    assert third == ("third", "12", "–", "–", "–", "")


def test_all_causes_of_a_side_are_named(tmp_path):
    here = {"case": TRAINING, "tensors": ["stage.update"]}
    told = [
        diagnosis("scaled", title="off by one factor", **here, evidence={"step": 1, "stage": "loss"}),
        diagnosis("unexplained", title="?", **here, evidence={"step": 1, "stage": "gradient"}),
        diagnosis("dampening-first-step", title="!", **here, evidence={"step": 1, "stage": "update"}),
        diagnosis("eps-value", backend="torch", **here, evidence={"step": 1, "stage": "update"}),
        diagnosis("eps-value", **here, evidence={"stage": ["no", "stage"]}),
    ]
    paddle = parted(parting={**PARTING, "stage": "loss", "diagnosis": "scaled"})
    (run,) = training_runs(read_results(trained(tmp_path, [training("torch"), paddle], diagnoses=told)))
    assert "; ".join(clauses(run)).startswith(
        "paddle diverges at step 1 in the loss: off by one factor (scaled), and exceeds the error bound in the gradient (unexplained) and "
        "update (dampening-first-step) too; "
    )
    assert table_row(run, run.rows[1])[-1] == "scaled, unexplained, dampening-first-step"


def test_a_baseline_that_parts_itself_is_a_warning(tmp_path):
    warning = "the baseline torch diverges itself, so other curves may be far from it"
    for name, row in (("guilty", parted("torch")), ("innocent", training("torch"))):
        told = every_format(trained(tmp_path / name, [row, training()]))
        assert [key for key, text in told.items() if warning in text] == (
            ["verbose", "html", "explain"] if name == "guilty" else []
        )


def test_envelopes_are_the_tolerance_of_a_training():
    def excess(op: str = "train", **changed: Any) -> float:
        ratio = {"actual": 80.0, "expected": NAN}
        row = comparison(**{"verdict": "semantic", "rtol": 0.0, "atol": 0.0, "error_ratio": ratio, **changed})
        return report_of(op).excess(convert(row, Comparison))

    assert excess() == 10.0
    assert excess(atol=1.0) == pytest.approx(1e-6)
    assert excess(verdict="nonfinite") == INF
    assert excess(error_ratio={"actual": None, "expected": None}) == 0.0
    assert excess("sgd") == INF


def test_a_loss_as_a_line_of_blocks():
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([1.0, NAN, INF, 2.0]) == "▁✕✕█"
    assert sparkline([-1e308, 1e308]) == "▁█"
    assert len(sparkline(np.arange(1_000.0))) == 24


def test_the_console_has_no_colours_in_a_pipe(tmp_path):
    done = CliRunner().invoke(main, ["report", str(trained(tmp_path)), "-v"])
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "step 1, update" in done.output


def test_a_narrow_console_has_no_room_for_the_loss(tmp_path):
    results = read_results(trained(tmp_path))
    assert "█" in printed(results, width=200)
    assert "█" not in printed(results, width=80)


def test_the_probed_steps_are_shown_when_asked(tmp_path):
    results = read_results(trained(tmp_path))
    assert "probed steps" not in printed(results)
    assert re.search(r"paddle: probed steps\s+step +data .* update *\n +1 .* 81234", printed(results, 1))


def test_what_to_do_fits_a_training(tmp_path):
    text = explained(trained(tmp_path), verbose=True)
    assert "update: run the optimizer as an op case" in text
    assert "a wider tolerance would hide it" not in text
    assert "the curve of paddle is 8.12e+04 envelopes away from that of torch" in text
    assert "the error of the update of paddle is 8.12e+04 times that of a careful" in text
    drift = [row for row in plain(read_results(tmp_path).comparisons) if not row["tensor"].startswith("stage.")]
    trained(tmp_path, comparisons=drift)
    assert "many small errors add up" in explained(tmp_path, verbose=True)


def test_a_stage_that_is_tolerated_passes_with_its_reason(tmp_path):
    changed = {"verdict": "close", "suspect": True, "message": "a library's exponential"}
    rows = [{**row, **changed} for row in training_finding() if row["tensor"] == "stage.update"]
    text = explained(trained(tmp_path, [training("torch"), parted(parting=None)], comparisons=rows), verbose=True)
    assert (
        "it passes, although the error ratio of the update of paddle is 8.12e+04: a library's exponential"
        in " ".join(text.split())
    )


def test_there_is_no_script_of_a_training(tmp_path):
    trained(tmp_path)
    done = CliRunner().invoke(main, ["repro", str(tmp_path), TRAINING])
    assert done.exit_code == 2
    assert "there are scripts for single ops, not for trainings; `parity explain` shows" in done.output
    for name, text in every_format(tmp_path).items():
        assert "parity repro" not in text, name


def test_junit_has_one_case_for_each_cell(tmp_path):
    document = JUnitXml.fromstring(junit_xml(read_results(trained(tmp_path))).encode())
    found = {(case.classname, case.name): case for suite in document for case in suite}
    assert set(found) == {
        ("parity.train.torch", "perceptron [float32]"),
        ("parity.train.paddle", "perceptron [float32]"),
    }
    failure = found["parity.train.paddle", "perceptron [float32]"].result[0]
    assert "it diverges at step 1 in the update in param.linear0.weight, ratio 81234, seen by a probe" in failure.text
    assert "probe of step 1: data 0, forward 0.4" in failure.text


# Diff


def test_a_diff_of_a_run_with_itself_is_the_same(tmp_path):
    found = compare(trained(tmp_path / "a"), trained(tmp_path / "b"))
    assert found.divergences == ()
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (parted(), training(), "diverges at step 1, update (dampening-first-step) -> no divergence"),
        (training(), parted(), "no divergence -> diverges at step 1, update (dampening-first-step)"),
        (
            parted(),
            parted(parting={**PARTING, "step": 500, "stage": None, "tensor": "loss", "diagnosis": None}),
            "diverges at step 1, update (dampening-first-step) -> diverges at step 500, curve of loss",
        ),
    ],
)
def test_a_diff_tells_what_became_of_a_parting(tmp_path, before, after, said):
    a, b = (trained(tmp_path / name, [training("torch"), row]) for name, row in (("a", before), ("b", after)))
    line = f"training perceptron float32 paddle: {said}"
    assert compare(a, b).divergences == (line,)
    files = [tmp_path / "diff.md", tmp_path / "diff.html"]
    done = CliRunner().invoke(
        main, ["diff", str(a), str(b), "--markdown", str(files[0]), "--html", str(files[1]), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["partings"] == [line]
    assert all("diverges at" in file.read_text() for file in files)


def test_a_diff_with_a_run_that_has_no_such_training(tmp_path):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b", [])
    assert compare(a, b).divergences == ()
    assert compare(b, a).divergences == ()


# The page


def test_the_page_is_whole(tmp_path):
    page = page_of(trained(tmp_path))
    assert complaints(page) == []
    found = parsed(page)
    section = found.get_element_by_id("training-perceptron.float32")
    titles = [text.text for text in section.xpath(".//*[local-name()='text'][@class='head']")]
    assert titles == ["loss", "error ratio: distance in envelopes", "norm of the gradient", "learning rate"]
    labels = [svg.get("aria-label") for svg in section.xpath(".//*[local-name()='svg'][@class='curves']")]
    assert labels[0].startswith("loss over 12 steps; torch from 1.85 to ")
    assert "paddle: step 1, update, dampening-first-step" in labels[0]
    assert [cell.text for cell in section.xpath(".//td[contains(@class, 'first')]")] == ["81234"]
    assert [cell.text for cell in section.xpath(".//td[contains(@class, ' off')]")] == []


def test_a_cell_leads_to_its_training(tmp_path):
    found = parsed(page_of(trained(tmp_path)))
    links = {
        row.xpath("td")[5].text: row.xpath(".//a/@href")[0] for row in found.xpath("//table[@id='table']/tbody/tr")
    }
    assert links["torch"] == "#training-perceptron.float32"
    finding = found.get_element_by_id(links["paddle"][1:])
    assert finding.xpath(".//a[@href='#training-perceptron.float32']")
    assert not finding.xpath(".//figure")
    assert "train(optimizer=sgd, steps=12, batch_size=16, weights=212)" in text_of(page_of(tmp_path))


def test_a_run_of_ops_has_no_section_of_trainings(tmp_path):
    page = html_report(ci_runs.every_status(), tmp_path)
    assert 'id="trainings"' not in page
    assert "#trainings" not in page


ODD: dict[str, list[Row]] = {
    "nothing was kept": [],
    "one step": [training("torch", 1), training(n_steps=1)],
    "two steps": [training("torch", 2), parted(n_steps=2)],
    "a loss of zero": [with_curves(training(name), loss=[0.0] * 12) for name in ("torch", "paddle")],
    "a loss that is lost": [training("torch"), with_curves(parted(), loss=[2.0, 1.0, NAN, INF, -INF, NAN, 1.0])],
    "nothing but NaN": [with_curves(training(name), loss=[NAN] * 12, lr=[NAN] * 12) for name in ("torch", "paddle")],
    "beyond all sizes": [with_curves(training(name), loss=[1e308, -1e308, 5e-324]) for name in ("torch", "paddle")],
    "ratios without end": [training("torch"), with_curves(parted(), ratio={"loss": [INF, 0.0, NAN, 1e300, 5e-324]})],
    "curves of other lengths": [training("torch", 3), with_curves(training(), grad_norm=[], lr=[0.1], envelope={})],
    "an envelope without end": [with_curves(training(n), envelope={"loss": [INF, NAN, 0.0]}) for n in ("torch", "paddle")],
    "a parting behind the end": [training("torch"), parted(parting={**PARTING, "step": 900_000})],
    "a parting before the first step": [training("torch"), parted(parting={**PARTING, "step": 0, "ratio": NAN})],
    "the oracle beside them": [training("torch"), parted(), training("oracle")],
}  # fmt: skip


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
def test_odd_curves_are_drawn(tmp_path, rows):
    trained(tmp_path, rows)
    page = page_of(tmp_path)
    assert complaints(page) == []
    assert not re.search(r' (d|x|y|cx|cy|height)="[^"]*(nan|inf)', page)
    every_format(tmp_path)


def test_names_of_others_are_no_markup(tmp_path):
    rows = [
        training("torch"),
        parted(backend=ALL_HOSTILE, parting={**PARTING, "tensor": ALL_HOSTILE, "diagnosis": ALL_HOSTILE}),
    ]
    case = training_case(
        params={"model": ALL_HOSTILE, ALL_HOSTILE: {ALL_HOSTILE: [ALL_HOSTILE, {"name": ALL_HOSTILE}]}}
    )
    trained(
        tmp_path,
        rows,
        backends=[backend_row("torch"), backend_row(ALL_HOSTILE)],
        cases=[case],
        diagnoses=[],
    )
    page = page_of(tmp_path)
    assert complaints(page) == []
    assert not lxml.html.fromstring(page).xpath("//img | //script[position() > 1]")
    strange = {c for text in every_format(tmp_path).values() for c in text if not c.isprintable()} - {"\n"}
    assert strange == set()


def test_eight_backends_can_be_told_apart(tmp_path):
    names = [f"backend-{i}" for i in range(8)]
    rows = [training("torch"), *(parted(name) for name in names)]
    trained(tmp_path, rows, backends=[backend_row(name) for name in ("torch", *names)])
    page = parsed(page_of(tmp_path))
    keys = page.xpath("//table[contains(@class, 'sides')]//*[local-name()='svg']")
    assert len(keys) == 9
    assert len({lxml.html.tostring(key) for key in keys}) == 9
    assert "and 4 more" in text_of(page_of(tmp_path))


# The plot


def drawn(panel: Panel) -> str:
    return str(plot(panel))


def curve(values: Any, n: int = 0, *, baseline: bool = False) -> DrawnCurve:
    return DrawnCurve(f"backend-{n}", np.asarray(values, dtype=np.float64), Look(n, baseline))


def test_a_plot_does_not_grow_with_the_steps():
    rng = np.random.default_rng(0)
    sizes = [len(drawn(Panel("loss", [curve(rng.random(n))]))) for n in (1_000, 100_000)]
    assert sizes[1] < 6_000
    assert abs(sizes[1] - sizes[0]) < 500


def test_no_spike_is_lost():
    values = np.ones(100_000)
    values[54_321] = 9.0
    heights = re.search(r'class="curve"[^>]*><path[^>]* d="([^"]*)"', drawn(Panel("loss", [curve(values)])))[1]
    flat = re.search(r'class="curve"[^>]*><path[^>]* d="([^"]*)"', drawn(Panel("loss", [curve(np.ones(100_000))])))[1]
    assert re.fullmatch(r"M\d+ \d+l\d+ 0", flat)
    assert "-" in heights


def test_a_gap_in_a_curve_is_a_gap():
    path = re.search(
        r'class="curve"[^>]*><path[^>]* d="([^"]*)"', drawn(Panel("loss", [curve([1, 2, NAN, 2, NAN, 1, 1])]))
    )[1]
    assert path.count("M") == 3
    assert "h0" in path


def test_the_threshold_is_marked_where_there_is_one():
    assert "error bound 8" in drawn(Panel("ratio", [curve([0.1, 20.0])], ratio=True))
    assert "error bound 8" not in drawn(Panel("loss", [curve([0.1, 20.0])]))


def test_the_axis_of_a_loss_is_logarithmic_where_it_has_to_be():
    assert "10<tspan" in drawn(Panel("loss", [curve([100.0, 0.01])]))
    assert "10<tspan" not in drawn(Panel("loss", [curve([2.0, 1.0])]))
    assert "10<tspan" not in drawn(Panel("loss", [curve([100.0, 0.0])]))
    assert "10<tspan" not in drawn(Panel("rate", [curve([100.0, 0.01])], may_log=False))


def test_the_baseline_lies_below_the_others():
    text = drawn(
        Panel("loss", [curve([1, 2], 1), curve([1, 2], 0, baseline=True)], band=Band(np.ones(2), np.ones(2) * 2))
    )
    order = [text.index(part) for part in ('class="band"', 'class="curve broad"', 'class="curve"')]
    assert order == sorted(order)


def test_marks_are_where_the_parting_is():
    text = drawn(Panel("loss", [curve(np.linspace(2, 1, 101))], [Mark(51, 1.5, "backend-0: step 51, update", Look(0))]))
    ring = re.search(r'<circle class="parted"[^>]* cx="([\d.]+)" cy="([\d.]+)"', text)
    assert float(ring[1]) == pytest.approx((52 + 464) / 2)
    assert "backend-0: step 51, update" in text


# What is recorded


def test_a_training_case_is_described_in_few_words():
    plan = load_plan([ROOT / "configs" / "training.yaml"], Overrides())
    for case in plan.cases:
        row = plain(case_row(case, Path("tensors/0000-x")))
        assert len(json.dumps(row)) < 4_000
        assert row["op"] == "train"
        assert row["params"]["steps"] == case.params.steps
        if not case.id.startswith("bert"):
            continue
        assert row["inputs"]["x"] == {
            "shape": [2048, 64], "draw": "masked_lm(vocab=1024, sequence=64, masked=0.15)", "file": "tensors/0000-x/x.npy",
            "layout": "", "alias": "", "storage": "",
        }  # fmt: skip
        assert row["inputs"]["weights"]["shape"] == [row["params"]["weights"]]


def test_an_accepted_parting_is_known(tmp_path):
    rows = [{**row, "known": "as ours" if row["culprit"] else None} for row in training_finding()]
    page = parsed(
        page_of(trained(tmp_path, comparisons=rows, summary={"outcomes": {}, "verdicts": {}, "exit_code": 0}))
    )
    (badge,) = page.xpath("//section[@class='training']/p/b")
    assert badge.get("class") == "s known"
    assert badge.text == "1 of 2 backends diverges"


def test_a_cause_accounts_for_its_stage_for_what_follows_and_for_the_curves():
    def off(tensor: str, *culprit: str) -> Comparison:
        return comparison_of("case", "float32", tensor, "paddle", "oracle", Verdict.SEMANTIC, 0.0, 0.0, culprit=culprit)

    def cause(name: str, stage: str | None, backend: str = "paddle") -> Diagnosis:
        evidence = {"step": 1, "stage": stage}
        return Diagnosis("case", "float32", backend, name, "", ("param.a",), True, evidence=evidence)

    names = ("stage.data", "stage.loss", "stage.gradient", "stage.update", "loss", "param")
    failing = [off(name, "paddle") for name in names] + [off("stage.clip", "torch"), off("state")]
    given = [
        cause("scaled", "loss"),
        cause("eps-value", "update"),
        cause("unexplained", None),
        cause("stale", "clip", "torch"),
    ]
    told = {d.id: d.tensors for d in attributed(given, failing)}
    assert told == {
        "scaled": ("stage.loss", "stage.gradient", "loss", "param"),
        "eps-value": ("stage.update", "loss", "param"),
        "unexplained": ("loss", "param"),
        "stale": ("stage.clip",),
    }
    assert all(d.evidence["tensors"] == ["param.a"] for d in attributed(given, failing))
