"""The text of an upstream issue: what is said of whom, what is left out, and that it fits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from parity.diagnoses import catalogue
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.text.safe import prose
from parity.repro import write
from parity.repro.issue import evidence, ours
from parity.repro.write import write_scripts
from tests.repro.scripts import PLAIN, WRONG, repro, rewrite, run_alone

EPS_OUTSIDE = """
import numpy as np

def layer_norm(x, weight, bias, normalized_shape, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / (np.sqrt((centred**2).mean(-1, keepdims=True)) + x.dtype.type(eps)) * weight + bias
"""
NORM = (
    "{id: one, op: layer_norm, params: {normalized_shape: [SIZE], eps: 0.1}, gradients: false, "
    "inputs: {x: {shape: [8, SIZE]}}}"
)


def written(run_dir: Path, **options):
    """The scripts of the user's backend in float64, which is one."""
    found = list(write_scripts(run_dir, "one", backend="mine", dtype="float64", issues=True, **options))
    assert len(found) == 1
    return found[0]


@pytest.fixture
def convention(finding):
    """Gives a run directory in which the user's op places eps elsewhere."""
    return lambda size: finding(EPS_OUTSIDE, NORM.replace("SIZE", str(size)))


def test_a_convention_is_named_and_not_called_wrong(convention):
    item = written(convention(4))
    entry = catalogue()["eps-placement"]
    assert f"follows a different convention: {entry.title} (float64: y)" in item.title
    assert item.title.replace("\n", " ") in re.sub(r"\s+", " ", item.script.read_text())
    text = item.issue.read_text()
    assert f"follows a different convention: {entry.title} (`float64`: y)" in text.splitlines()[0]
    assert "as near to the exact ones" not in text
    assert "the exact answer, which is PyTorch's documented formula" in text
    assert f"`eps-placement`: {entry.title}. {ours(entry.what)}" in text
    assert text.count(ours(entry.what)) == 1


def test_another_difference_is_none_of_convention(finding):
    text = written(finding(WRONG, PLAIN)).issue.read_text()
    assert "computes a different formula" in text.splitlines()[0]
    assert "Expected: values as close to the exact ones as this dtype allows." in text
    assert "convention" not in text.partition("## Diagnosis")[0]


def test_rounding_is_nothing_to_report(finding):
    run_dir = finding(WRONG.replace("2 * ", ""), PLAIN, arguments=("--rtol", "0", "--atol", "0"))
    done = repro(run_dir, "one", "-b", "mine", "--dtype", "float32", "--issue")
    assert done.returncode == 0
    assert "differs by rounding" in done.stdout
    assert "only rounding, so there is nothing to report upstream" in done.stderr
    assert not list(run_dir.rglob("*.md"))
    [script] = run_dir.rglob("*.float32.mine.py")
    assert run_alone(sys.executable, script).returncode == 1
    assert repro(run_dir, "one", "-b", "mine", "--dtype", "float32").stderr == ""


def test_a_small_case_needs_no_archive(convention):
    item = written(convention(22))
    assert not item.script.with_suffix(".npz").exists()
    assert ".zip" not in item.issue.read_text()
    assert run_alone(sys.executable, item.script).returncode == 1


def test_a_large_case_is_attached_in_a_zip(convention):
    item = written(convention(24))
    archive = item.script.with_suffix(".npz")
    assert archive.exists()
    assert f"`{archive.name}`, which must be beside the script; attach it in a .zip" in item.issue.read_text()
    assert run_alone(sys.executable, item.script).returncode == 1


def test_numbers_that_would_make_an_issue_too_long_go_into_an_archive(convention, monkeypatch, tmp_path):
    run_dir = convention(22)
    size = len(written(run_dir).issue.read_text())
    monkeypatch.setattr(write, "MAX_ISSUE", size)
    item = written(run_dir, out=tmp_path / "out")
    assert len(item.issue.read_text()) < size
    assert item.script.with_suffix(".npz").exists()
    assert run_alone(sys.executable, item.script).returncode == 1
    monkeypatch.setattr(write, "MAX_ISSUE", 1000)
    item = written(run_dir, out=tmp_path / "none")
    assert item.issue is None
    assert "exceed GitHub's limit" in item.note
    assert item.script.exists()


def test_a_long_file_of_the_user_is_attached(finding):
    item = written(finding(WRONG + "# padding\n" * 7000, PLAIN))
    text = item.issue.read_text()
    assert len(text) < write.MAX_ISSUE
    assert "beside it as `mine.ops.py` (attach it in a .zip)." in text
    assert "# padding" not in text


@pytest.mark.parametrize("name", catalogue())
def test_sentences_of_the_catalogue_are_plain_text_in_markdown(name):
    for sentence in (catalogue()[name].title, catalogue()[name].what):
        html = MarkdownIt("commonmark").enable(["strikethrough", "table"]).renderInline(ours(sentence))
        assert "`" not in html
        assert not re.search(r"<(?!/?p>)", html)
        unescaped = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
        assert unescaped == sentence


def test_markup_in_a_sentence_of_ours_would_be_seen():
    assert MarkdownIt("commonmark").renderInline("a_b *c* `d`") != MarkdownIt("commonmark").renderInline(
        ours("a_b *c* `d`")
    )


def test_a_title_that_is_not_the_catalogue_s_stays_in_code(finding):
    run_dir = finding(EPS_OUTSIDE, NORM.replace("SIZE", "4"))
    rewrite(run_dir, lambda d: [row.update(title="see <img> @someone #1") for row in d["diagnoses"]])
    text = written(run_dir).issue.read_text()
    assert prose("see <img> @someone #1") in text
    assert "@someone" not in re.sub(r"`[^`]*`", "", text)
    assert "<img>" not in re.sub(r"`[^`]*`", "", text)


def test_evidence_about_the_search_is_left_out():
    found = {
        "parameters": {"variance": "naive"},
        "first_found_in": "float64",
        "second": {"id": "variance-naive", "residual_after": 3.0},
        "sizes": {"y": {"error": 1e-8, "this_algorithm": 1e-10, "careful_code": 1e-14}},
    }
    cause = Diagnosis("case", "float32", "paddle", "variance-naive", "", ("y",), True, evidence=found)
    assert list(evidence(cause)) == ["with variance=naive"]
    found["second"]["id"] = "variance-ddof"
    assert list(evidence(cause)) == ["with variance=naive", "second best: variance-ddof leaves 3"]
