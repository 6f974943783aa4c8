"""The HTML report as text: what it holds, how large it is, what it makes of hostile names and files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lxml.html
import numpy as np
import pytest
from lxml import etree

from parity.judge.compare.frontier import NEVER, accepts, chain
from parity.reporting.blocks import Sentence
from parity.reporting.html.findings import case_anchors
from parity.reporting.html.page import html_report
from parity.reporting.html.tolerances import curve, tolerances
from parity.reporting.plots.drift import FLOOR
from parity.reporting.results.cells import Status, cells, tally_text
from parity.reporting.results.results import read_results, write_atomically
from parity.reporting.results.rows import Results
from parity.reporting.results.store import store_of
from parity.reporting.text.answer import answer, warnings
from parity.reporting.text.findings import findings
from tests.reporting import ci_runs
from tests.reporting.stored_runs import CASE, case_row, changed, comparison, diagnosis, finding, plain, stored, unstable

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror=window.pwned=1>',
    "line\nbreak\r\ttab",
    "\x1b[31mred\x1b[0m\x00\x07",
    "{{7*7}}{% raw %}",
    "lone \ud800 surrogate",
    "turned \u202egnorw\u202c",
    "&lt;b&gt; &amp; 'single' \"double\"",
)
ALL_HOSTILE = " ".join(HOSTILE)
UNKNOWN_TAG = 801
"""libxml2 knows the elements of HTML 4 only."""


def outcome(case: str, dtype: str, backend: str, **changed: Any) -> dict[str, Any]:
    row = {"case": case, "dtype": dtype, "backend": backend, "outcome": "ok", "seconds": 0.1, "message": ""}
    return {**row, **changed}


def outcomes(*cases: str) -> list[dict[str, Any]]:
    return [outcome(case, d, b) for case in cases for d in ("float32", "float64") for b in ("torch", "paddle")]


def passing_rows(case: str) -> list[dict[str, Any]]:
    pairs = [
        (d, a, e)
        for d in ("float32", "float64")
        for a, e in (("paddle", "torch"), ("paddle", "oracle"), ("torch", "oracle"))
    ]
    return [comparison(case=case, dtype=d, actual=a, expected=e) for d, a, e in pairs]


def failing_rows(case: str) -> list[dict[str, Any]]:
    """Everybody is off in everything."""
    pairs = [(d, a) for d in ("float32", "float64") for a in ("paddle", "torch")]
    ratio = {"actual": 81234.0, "expected": None}
    return [
        unstable(case=case, dtype=d, actual=a, expected="oracle", culprit=[a], tensor=t, error_ratio=ratio)
        for d, a in pairs
        for t in ("y", "grad.x", "grad.weight", "grad.bias")
    ]


def run_of(run_dir: Path, n_cases: int, fails: Callable[[int], bool] = lambda _: False) -> Path:
    """A run with four cells a case; each case for which `fails` is true fails in all of them."""
    names = [f"layer-norm-shape=32x128-offset={i}" for i in range(n_cases)]
    rows = [row for i, name in enumerate(names) for row in (failing_rows if fails(i) else passing_rows)(name)]
    told = [
        diagnosis(case=name, dtype=d, backend=b) for i, name in enumerate(names) if fails(i)
        for d in ("float32", "float64") for b in ("torch", "paddle")
    ]  # fmt: skip
    return stored(run_dir, rows, told, [case_row(name) for name in names], outcomes(*names))


def with_code(results: Results, code: int) -> Results:
    return changed(results, summary={**plain(results.summary), "exit_code": code})


def healthy(run_dir: Path, n_cases: int = 3) -> Results:
    return with_code(read_results(run_of(run_dir, n_cases)), 0)


def found(run_dir: Path, **parts: Any) -> Results:
    """One finding, with its outcomes and its cause."""
    return changed(read_results(stored(run_dir, finding(), [diagnosis()], outcomes=outcomes(CASE))), **parts)


def with_envelope(rows: list[dict[str, Any]], rms: Any) -> list[dict[str, Any]]:
    return [{**row, "envelope": {"rms": rms, "max": rms}} for row in rows]


def keep(run_dir: Path, shape: tuple[int, ...] = (2, 8, 6, 6), **sides: Any) -> None:
    """Tensors of y in float32, as a run keeps them."""
    exact = np.random.default_rng(0).normal(size=shape)
    arrays = {"oracle": exact, "torch": exact * (1 + 1e-7), "paddle": exact + 1e-2} | sides
    for side, array in arrays.items():
        folder = run_dir / "tensors/0000-x/float32" / side
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "y.npy", array)


def parsed(page: str) -> Any:
    return lxml.html.document_fromstring(page.encode(), parser=lxml.html.HTMLParser(encoding="utf-8"))


def text_of(page: str) -> str:
    return " ".join(parsed(page).text_content().split())


def complaints(page: str) -> list[str]:
    """What is wrong with the HTML: parse errors, ids given twice, links that lead nowhere, gaps between headings."""
    parser = etree.HTMLParser(encoding="utf-8")
    root = etree.fromstring(page.encode(), parser)
    # libxml2 also says where an id is given twice.
    said = [f"{e.line}: {e.message}" for e in parser.error_log if e.type != UNKNOWN_TAG]
    ids = {element.get("id") for element in root.iter() if element.get("id") is not None}
    links = [a.get("href")[1:] for a in root.iter("a")]
    said += [f"link to nowhere: {name}" for name in links if not name.startswith("?") and name not in ids]
    named = [element.get(key) for element in root.iter() for key in ("aria-labelledby", "for") if element.get(key)]
    said += [f"name from nowhere: {name}" for name in named if name not in ids]
    levels = [int(element.tag[1]) for element in root.iter("h1", "h2", "h3", "h4", "h5", "h6")]
    said += [f"heading {b} after {a}" for a, b in zip([0, *levels], levels, strict=False) if b > a + 1]
    said += ["not one h1"] if levels.count(1) != 1 else []
    said += [f"th without scope: {th.text}" for th in root.iter("th") if not th.get("scope")]
    said += [
        f"table without caption: {table.get('class')}" for table in root.iter("table") if table.find("caption") is None
    ]
    said += [f"picture without words: {svg.get('class')}" for svg in root.iter("svg") if not svg.get("aria-label")]
    return said


def test_the_answer_comes_first_in_the_words_of_the_console(tmp_path):
    results = found(tmp_path)
    text = text_of(html_report(results, tmp_path))
    line = answer(results).plain.replace("  ", " ")
    assert line.replace("; ", " ", 1) in text
    for one in findings(results):
        for said in (one.line().plain, one.formula(), one.values(), one.advice()):
            assert said in text
    for said in warnings(results):
        assert said.plain.removeprefix("warning: ").strip() in text
    assert tally_text(results).replace(", ", " ") in text


def test_the_cells_and_anchors_are_those_of_all_formats(tmp_path):
    results = found(tmp_path)
    root = parsed(html_report(results, tmp_path))
    rows = root.xpath("//table[@id='table']/tbody/tr")
    expected = cells(results)
    assert [row.get("class") for row in rows] == [cell.status.value for cell in expected]
    assert [row.xpath("string(td[3])").strip() for row in rows] == [cell.id for cell in expected]
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert {cell.anchor for cell in expected} <= ids
    assert {f"case-{CASE}"} <= ids
    assert len(root.xpath("//section[@class='cell']")) == sum(cell.finding for cell in expected)


@pytest.mark.parametrize("n_cases", [1, 40])
def test_the_page_is_valid(tmp_path, n_cases):
    results = read_results(run_of(tmp_path, n_cases, lambda i: i % 2 == 0))
    assert complaints(html_report(results, tmp_path)) == []
    assert complaints(html_report(found(tmp_path), tmp_path)) == []


def test_the_check_of_validity_can_fail():
    head = "<!doctype html><html lang=en><body><h1>a</h1>"
    wrong = (
        '<p id="a"></p><p id="a"></p>', '<a href="#b">b</a>', "<h3>c</h3>", "<table><caption>d</caption><tr><th>e</table>",
        "<table><tr><td>f</table>", "<h1>g</h1>", "<svg></svg>", "<p>h</div>", '<label for="i">i</label>',
    )  # fmt: skip
    assert complaints(head) == []
    for part in wrong:
        assert len(complaints(head + part)) == 1, part


def test_a_finding_shows_values_reasons_pictures_and_what_to_do(tmp_path):
    results = found(tmp_path)
    results = changed(results, comparisons=with_envelope(plain(results.comparisons), 2e-6))
    keep(tmp_path)
    page = html_report(results, tmp_path)
    text = text_of(page)
    for said in ("162.93", "0.530001", "570 of 576", "ratio 81234", "needs rtol", "306"):
        assert said in text, said
    assert "times that of a careful implementation in float32" in text
    assert "explains it: error ratio 8.12e+04 before, 0.91 with it taken into account" in text
    assert f"parity repro {tmp_path} {CASE}" in text
    assert "WHY IS IT ACCEPTED?" in text
    assert "look for a subtraction that cancels" in text
    assert "group_norm(num_groups=4, eps=1e-05)" in text
    assert "configs/groupnorm.yaml:14" in text
    assert "uniform(low=0.0, high=1.0) + 10000" in text
    pictures = parsed(page).xpath("//section[@class='cell']//svg/@aria-label")
    assert any(p.startswith("Sizes of the errors. torch: ") and "paddle: errors from" in p for p in pictures)
    assert any(p.startswith("Where the errors sit, 16 by 36 blocks") for p in pictures)
    assert "down: axes 0 to 1 (2 × 8), across: axes 2 to 3 (6 × 6)" in text


@pytest.mark.parametrize(
    ("actual", "exact", "shown"),
    [
        (0.53000917, 0.53000123, " 0.53000<b>917</b>"),
        (-1.25, -1.5, "-1.<b>25</b>"),
        (-152.5, -1.5, "<b>-152.5</b>"),
        (1.5e-20, 1.5e-10, "<b> 1.5e-20</b>"),
        (1.5e-20, 1.25e-20, " 1.<b>5e-20</b>"),
        (2.0, 2.0, " 2<b></b>"),
        (math.nan, 1.0, "<b> nan</b>"),
    ],
)
def test_the_digits_that_differ_from_the_oracle_stand_out(tmp_path, actual, exact, shown):
    row = unstable(expected="oracle", actual_value=actual, expected_value=exact, oracle_value=exact)
    page = html_report(changed(found(tmp_path), comparisons=[row]), tmp_path)
    assert f"<td>{shown}<td>" in page


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "No such file or directory"),
        (lambda folder: keep(folder, paddle=np.zeros((2, 8, 6, 5))), "its shape [2, 8, 6, 5] differs from that of the exact answer"),
        (lambda folder: keep(folder, paddle=np.zeros((2, 8, 6, 6), "U4")), "is not a real dtype"),
        (lambda folder: keep(folder, shape=(0, 3)), "it has no elements"),
        (lambda folder: (keep(folder), (folder / "tensors/0000-x/float32/paddle/y.npy").write_bytes(b"\x93NUMPY garbage")), "No picture"),
        (lambda folder: keep(folder, paddle=np.array([{"pickled": 1}] * 576, object).reshape(2, 8, 6, 6)), "No picture"),
    ],
    ids=["missing", "shape", "dtype", "empty", "garbage", "pickle"],
)  # fmt: skip
def test_without_usable_tensors_a_sentence_says_why(tmp_path, make, said):
    results = found(tmp_path)
    make(tmp_path)
    page = html_report(results, tmp_path)
    assert said in text_of(page)
    assert "No picture" in page
    assert complaints(page) == []


def test_a_tensor_outside_the_run_is_not_read(tmp_path):
    run_dir = tmp_path / "run"
    results = found(run_dir)
    keep(tmp_path)
    (run_dir / "tensors").symlink_to(tmp_path / "tensors")
    assert "is not inside the run directory" in text_of(html_report(results, run_dir))


@pytest.mark.parametrize("rms", ["nan", 0.0, -1.0, "inf"])
def test_without_the_envelope_the_errors_are_shown_as_they_are(tmp_path, rms):
    results = found(tmp_path)
    results = changed(results, comparisons=with_envelope(plain(results.comparisons), rms))
    keep(tmp_path)
    text = text_of(html_report(results, tmp_path))
    assert "The envelope was not kept, so the errors are shown as they are." in text


def test_a_large_tensor_is_sampled_and_that_is_said(tmp_path):
    results = found(tmp_path)
    keep(tmp_path, shape=(3, 1000, 700))
    text = text_of(html_report(results, tmp_path))
    assert re.search(r"[\d,]+ of its 2,100,000 elements, evenly spaced, were read", text)


def test_values_that_are_not_finite_are_told(tmp_path):
    odd = {"actual_value": math.nan, "max_abs_diff": math.inf, "required_rtol": math.inf, "oracle_value": -math.inf}
    ratio = {"actual": math.inf, "expected": math.nan}
    row = comparison("nonfinite", ["paddle"], **odd, error_ratio=ratio)
    told = diagnosis(residual_before="inf", residual_after="nan")
    results = read_results(stored(tmp_path, [row], [told], outcomes=outcomes(CASE)))
    keep(tmp_path, paddle=np.full((2, 8, 6, 6), np.nan))
    page = html_report(results, tmp_path)
    assert "NaN or infinity in one backend only" in text_of(page)
    assert "576 NaN/Inf" in text_of(page)
    assert complaints(page) == []
    assert not re.search(r'(?:width|height|x|y|d|transform)="[^"]*(?:nan|inf)', page)


def hostile_run(run_dir: Path) -> Results:
    """Every name and text of a run is hostile."""
    case = f"case {ALL_HOSTILE}"
    names = {"torch": f"torch {ALL_HOSTILE}", "paddle": f"paddle {ALL_HOSTILE}"}
    tensor, dtype = f"y {ALL_HOSTILE}", "float32"
    base = case_row(case)
    inputs = {f"x {ALL_HOSTILE}": {"shape": [2], "draw": ALL_HOSTILE, "file": f"../{ALL_HOSTILE}/x.npy"}}
    hostile = {"op": ALL_HOSTILE, "params": {ALL_HOSTILE: ALL_HOSTILE}, "inputs": inputs}
    row = {**base, **hostile, "source": {"file": ALL_HOSTILE, "line": 3}}
    sides = {"actual": names["paddle"], "expected": names["torch"], "culprit": [names["paddle"]]}
    rows = [unstable(case=case, dtype=dtype, tensor=tensor, **sides, message=ALL_HOSTILE)]
    rows += [
        unstable(
            case=case,
            dtype=dtype,
            tensor=f"z {tensor}",
            **sides,
            known=ALL_HOSTILE,
            worst_index=None,
            message=ALL_HOSTILE,
        )
    ]
    told = [
        diagnosis(
            ALL_HOSTILE,
            case=case,
            backend=names["paddle"],
            title=ALL_HOSTILE,
            tensors=[tensor],
            evidence={ALL_HOSTILE: ALL_HOSTILE},
        )
    ]
    made = [
        outcome(case, dtype, names["paddle"]),
        outcome(case, "float64", names["torch"], outcome="error", message=ALL_HOSTILE),
    ]
    results = read_results(stored(run_dir, rows, told, [row], made))
    known = {
        "case": ALL_HOSTILE,
        "reason": ALL_HOSTILE,
        "state": ALL_HOSTILE,
        "message": ALL_HOSTILE,
        "until": ALL_HOSTILE,
    }
    backends = [
        {**b, "name": names[b["name"]], "version": ALL_HOSTILE, "flags": {ALL_HOSTILE: ALL_HOSTILE}}
        for b in plain(results.backends)
    ]
    run = {
        **plain(results.run), "baseline": names["torch"], "id": ALL_HOSTILE, "command": [ALL_HOSTILE], "seconds": 1.5, "fail_on": "mismatch",
        "host": {ALL_HOSTILE: ALL_HOSTILE}, "configs": [{"path": ALL_HOSTILE, "sha256": ALL_HOSTILE}], "parity": ALL_HOSTILE,
    }  # fmt: skip
    folder = run_dir / "fingerprint-x"
    folder.mkdir()
    claims = [{"aspect": ALL_HOSTILE, "answer": ALL_HOSTILE, "decided": True, "reason": ALL_HOSTILE}]
    line = {
        "backend": ALL_HOSTILE,
        "dtype": ALL_HOSTILE,
        "claims": claims,
        "drift": [[1, 2], ["nan", 1], [1e300, 1e-300], [10, 1e-3]],
    }
    plot = {
        "axes": [ALL_HOSTILE, ALL_HOSTILE],
        "theory": [{"name": ALL_HOSTILE, "dtype": ALL_HOSTILE, "points": [[1, 1e-5], [5, 1]]}],
    }
    document = {"format": 1, "op": ALL_HOSTILE, "fingerprints": [line], "plot": plot}
    (folder / "fingerprint.json").write_text(json.dumps(document))
    return changed(results, known=[known], backends=backends, run=run)


def test_hostile_names_stay_text(tmp_path):
    page = html_report(hostile_run(tmp_path), tmp_path)
    assert complaints(page) == []
    root = parsed(page)
    assert len(root.xpath("//script")) == 1
    assert not root.xpath("//img")
    assert not [e for e in root.iter() if any(name.startswith("on") for name in e.attrib)]
    assert "{{7*7}}" in text_of(page)
    assert r"\ud800" in page
    assert r"\u202e" in page
    assert r"\x1b[31m" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    write_atomically(tmp_path / "report.html", page)


def test_one_file_that_asks_for_nothing(tmp_path):
    page = html_report(found(tmp_path), tmp_path)
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'; ' in page
    root = parsed(page)
    assert set(root.xpath("//@src | //link/@href")) == {"data:,"}
    assert all(href.startswith("#") for href in root.xpath("//a/@href"))
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", page)
    assert not [value for value in root.xpath("//@*") if "//" in value]


@pytest.mark.slow
def test_a_thousand_cells_take_less_than_a_megabyte(tmp_path):
    for i, fails in enumerate((lambda i: False, lambda i: i % 10 == 0, lambda i: True)):
        results = read_results(run_of(tmp_path / str(i), 250, fails))
        results = results if fails(0) else with_code(results, 0)
        page = html_report(results, tmp_path / str(i))
        assert len(cells(results)) == 1000
        assert len(page.encode()) < 1_000_000


def test_what_is_told_in_a_line_is_said(tmp_path):
    results = read_results(run_of(tmp_path, 250, lambda _: True))
    page = html_report(results, tmp_path)
    root = parsed(page)
    full, brief = len(root.xpath("//section[@class='cell']")), len(root.xpath("//p[starts-with(@class, 'brief')]"))
    assert full + brief == 1000
    assert full >= 12
    assert f"{brief} are told in a line" in text_of(page)
    assert f"parity explain {tmp_path} layer-norm-shape=32x128-offset=249" in text_of(page)
    assert complaints(page) == []
    anchors = [
        element.get("id") for element in root.xpath("//section[@class='cell'] | //p[starts-with(@class, 'brief')]")
    ]
    assert sorted(anchors) == sorted(cell.anchor for cell in cells(results))


def entries(results: Results, run_dir: Path) -> list[str]:
    found = parsed(html_report(results, run_dir)).xpath("//table[@class='matrix']//td")
    return [" ".join(entry.text_content().split()) for entry in found]


def test_the_matrix_counts_the_cells(tmp_path):
    results = read_results(run_of(tmp_path, 4, lambda i: i == 0))
    assert entries(results, tmp_path) == ["unstable 4 fail of 7"] * 4
    assert entries(healthy(tmp_path), tmp_path) == ["close 3 agree"] * 4


def test_what_gave_no_result_for_the_same_reason_is_one_row(tmp_path):
    results = ci_runs.cannot_in(3)
    root = parsed(html_report(results, tmp_path))
    (row,) = root.xpath("//table[@id='table']/tbody/tr[@class='unsupported']")
    assert row.xpath("string(td[3]/details/summary)") == "3 cases: case-0 and 2 more"
    assert [name.text for name in row.xpath("td[3]//span")] == [f"case-{i} float32" for i in range(3)]
    unsupported = [cell.anchor for cell in cells(results) if cell.status is Status.UNSUPPORTED]
    assert row.xpath("td[3]//span/@id") == unsupported
    (message,) = root.xpath("//section[@class='message']")
    assert " ".join(message.xpath("string(h3)").split()) == "unsupported paddle in 3 cases, float32"


def test_one_cause_in_several_ops_is_one_finding_of_the_page(tmp_path):
    cases = [case_row(f"case-{op}", op=op, dtypes=["float32"]) for op in ("group_norm", "layer_norm", "batch_norm")]
    rows = [unstable(case=case["id"]) for case in cases]
    told = [diagnosis(case=case["id"]) for case in cases]
    results = read_results(stored(tmp_path, rows, told, cases))
    root = parsed(html_report(results, tmp_path))
    (group,) = root.xpath("//details[@class='finding']")
    assert " ".join(group.xpath("string(summary)").split()) == (
        "paddle: the variance is E[x^2] - E[x]^2 (variance-naive) – in 3 tensors of group_norm, layer_norm, batch_norm"
    )
    assert len(group.xpath("div")) == 2
    assert len(group.xpath("details/div")) == 1
    for one in findings(results):
        assert one.scope() in group.text_content()
        assert one.values() in group.text_content()


def test_the_words_are_those_of_the_documentation(tmp_path):
    root = parsed(html_report(found(tmp_path), tmp_path))
    words = [word.text for word in root.xpath("//section[@aria-labelledby='words']//dt")]
    assert words == ["oracle", "envelope", "suspect", "known", "probe", "edit"]
    assert root.xpath("//a[@href='#words']")
    assert "Every backend is compared with it, so two backends" in text_of(html_report(found(tmp_path), tmp_path))


def statuses_of_one_entry(run_dir: Path, **given: str) -> Results:
    """A run on one backend in one dtype; a case for each name, which differs or has no result as it says."""
    rows = [comparison(case=name, actual="paddle", expected="oracle") for name in given]
    kinds = {
        "failed": unstable(actual="paddle", expected="oracle", culprit=["paddle"]),
        "known": {"verdict": "unstable", "known": "as it is", "culprit": ["paddle"]},
        "suspect": {"suspect": True},
    }
    rows = [{**row, **kinds.get(given[row["case"]], {}), "case": row["case"]} for row in rows]
    told = [
        outcome(name, "float32", "paddle", outcome=kind if kind in ("crash", "unsupported") else "ok")
        for name, kind in given.items()
    ]
    compared = [row for row, told_of in zip(rows, told, strict=True) if told_of["outcome"] == "ok"]
    cases = [case_row(name, dtypes=["float32"]) for name in given]
    results = read_results(stored(run_dir, compared, (), cases, told))
    results = changed(results, backends=[row for row in results.backends if row.name == "paddle"])
    return with_code(results, 1 if "failed" in given.values() else 0)


MIXED_ENTRIES = {
    ("suspect", "suspect", "unsupported", "passed"): "close 2 suspect, 1 unsupported of 4",
    ("unsupported", "known", "passed"): "unstable 1 known, 1 unsupported of 3",
    ("crash", "failed", "unsupported", "suspect"): "unstable 1 fail, 1 suspect, 1 lack a result, 1 unsupported of 4",
    ("crash", "unsupported", "passed"): "crash 1 lack a result, 1 unsupported of 3",
    ("unsupported", "unsupported"): "unsupported 2 unsupported",
}


@pytest.mark.parametrize("kinds", MIXED_ENTRIES)
def test_an_entry_of_the_matrix_names_what_was_found_first(tmp_path, kinds):
    results = statuses_of_one_entry(tmp_path, **{f"c{i}": kind for i, kind in enumerate(kinds)})
    assert entries(results, tmp_path) == [MIXED_ENTRIES[kinds]]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "would also match zeros"), (math.nan, "nothing finite exceeds the tolerance")],
)
def test_a_suspect_pass_that_hides_no_error_says_why(tmp_path, value, said):
    results = statuses_of_one_entry(tmp_path, a="suspect", b="passed")
    results = changed(results, comparisons=[{**row, "expected_value": value} for row in plain(results.comparisons)])
    rows = {
        row[0].text_content(): row[-1].text_content().strip()
        for row in parsed(html_report(results, tmp_path)).get_element_by_id("table").xpath(".//tr[td]")
    }
    assert rows == {"suspect": said, "passed": ""}


def test_an_anchor_is_never_given_twice(tmp_path):
    names = ["x.float32.torch", "case-x", "x", "x!", "x?"]
    results = read_results(stored(tmp_path, [], (), [case_row(name) for name in names], outcomes(*names)))
    anchors = case_anchors(cells(results))
    assert list(anchors) == list(dict.fromkeys(cell.id for cell in cells(results)))
    assert len({*anchors.values(), *(cell.anchor for cell in cells(results))}) == len(names) + 4 * len(names)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("not json", "not JSON"), ('{"format": 2}', "not a fingerprint of format 1"), ("[" * 100_000, "not JSON"),
        ('{"format": 1}', "Drift of ?"), ('{"format": 1, "op": "x", "fingerprints": {"a": 1}, "plot": 7}', "fingerprints: expected array, got object"),
        ('{"format": 1, "fingerprints": [{"backend": "b", "claims": 3, "drift": [[0, 1], [1e999, 1], [true, 2]]}]}', "fingerprints[0].claims: expected array, got int"),
    ],
)  # fmt: skip
def test_a_strange_fingerprint_is_told_and_harms_nothing(tmp_path, document, said):
    (tmp_path / "fp").mkdir()
    (tmp_path / "fp" / "fingerprint.json").write_text(document)
    results = healthy(tmp_path / "run")
    page = html_report(results, tmp_path / "run", fingerprints=[tmp_path / "fp"])
    assert said in page
    assert complaints(page) == []


def test_a_missing_fingerprint_is_told(tmp_path):
    page = html_report(healthy(tmp_path / "run"), tmp_path / "run", fingerprints=[tmp_path / "nowhere"])
    assert "Nothing to show" in page


def test_what_differs_between_backends_stands_first(tmp_path):
    results = healthy(tmp_path)
    backends = [
        {**row, "flags": {"tf32": row["name"] == "torch"} | ({"mkldnn": True} if row["name"] == "torch" else {})}
        for row in plain(results.backends)
    ]
    root = parsed(html_report(changed(results, backends=backends), tmp_path))
    rows = [
        [" ".join(cell.text_content().split()) for cell in row]
        for row in root.xpath("//table[contains(@class, 'env')]/tbody/tr")
    ]
    assert [row[0] for row in rows] == ["framework", "tf32", "version", "python", "mode", "device", "numpy", "mkldnn"]
    assert rows[1] == ["tf32", "yes", "no", "differs"]
    assert rows[-1] == ["mkldnn", "yes", "—", "only torch"]


def test_the_ledger_is_shown(tmp_path):
    rows = [{**row, "known": "their variance is naive"} for row in finding()[:2]]
    entry = {
        "case": "group*",
        "backend": "paddle",
        "reason": "their variance is naive",
        "until": "2027-06-30",
        "state": "matched",
        "message": "2 comparisons",
    }
    stale = {"case": "old*", "reason": "gone", "state": "stale", "message": "matches nothing"}
    results = changed(found(tmp_path), comparisons=rows, known=[entry, stale])
    page = html_report(results, tmp_path)
    text = text_of(page)
    assert text.index("matches nothing") < text.index("2 comparisons")
    assert "accepted their variance is naive (until 2027-06-30)" in text
    assert Status.KNOWN in {cell.status for cell in cells(results)}


@pytest.mark.parametrize("code", [0, 3, 130])
def test_runs_without_a_finding_read_well(tmp_path, code):
    results = with_code(read_results(run_of(tmp_path, 2)), code)
    if code == 3:
        lost = [
            {**row, "outcome": "unavailable", "message": "no route\nto host"}
            for row in plain(results.outcomes)
            if row["backend"] == "paddle"
        ]
        rest = [row for row in plain(results.outcomes) if row["backend"] != "paddle"]
        verdicts = {**plain(results.summary), "verdicts": {"not-compared": 8}}
        results = changed(results, outcomes=[*rest, *lost], summary=verdicts, comparisons=[])
    if code == 130:
        results = changed(results, outcomes=results.outcomes[:3], comparisons=results.comparisons[:2])
    page = html_report(results, tmp_path)
    assert complaints(page) == []
    assert ("PASS", "INCOMPLETE", "INTERRUPTED")[(0, 3, 130).index(code)] in text_of(page)
    assert ("no route to host" in text_of(page)) == (code == 3)
    assert "No findings." in text_of(page)
    assert "Case by case" not in text_of(page)


def test_the_curve_of_tolerances_is_where_every_tensor_passes(tmp_path):
    frontiers = [[(0.5, 1e-6), (2.0, 3e-6)], [(4.0, 1e-5)], [list(NEVER)], []]
    rows = [comparison(tensor=f"t{i}", frontier=frontier) for i, frontier in enumerate(frontiers)]
    results = read_results(stored(tmp_path, rows))
    kept = [row.frontier for row in results.comparisons if row.frontier and NEVER not in row.frontier]
    points = curve(chain([point for frontier in kept for point in frontier]))
    assert len(points) > 20
    assert points[-1][1] == FLOOR
    for rtol, atol in points[:-1]:
        assert all(accepts(frontier, rtol, atol * (1 + 1e-12)) for frontier in kept)
        assert not all(accepts(frontier, rtol, atol * 0.999) for frontier in kept)
    shown = tolerances(results, None)
    with closing(store_of(results)) as store:
        assert tolerances(results, store) == shown
    assert [block.text for block in shown if isinstance(block, Sentence)] == [
        "No tolerance accepts 1 tensor of paddle in float32: values that are not finite, or integers that differ."
    ]
    assert "Which tolerances pass" in html_report(with_code(results, 0), tmp_path)
