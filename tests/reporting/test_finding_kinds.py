"""What kind a difference is: the file of rows, what it must have, and the one that is shipped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from lxml import html

from parity.reporting.finding_kinds import FindingKind, KindsError, read_kinds
from parity.reporting.html.census import census, census_page, unclassified, unused
from parity.reporting.results.results import read_results
from tests.conftest import call
from tests.reporting.stored_runs import case_row, comparison, diagnosis, finding, stored

ROOT = Path(__file__).parents[2]
CENSUS = ROOT / "reports" / "census"
CONVENTION = {
    "kind": "convention",
    "frameworks": ["paddle"],
    "ops": ["group_norm"],
    "evidence": "its documentation says so",
    "link": "https://example.org/documentation",
    "answer": "as documented",
}


def written(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "kinds.yaml"
    path.write_text(yaml.safe_dump(list(rows)))
    return path


@pytest.fixture
def run_dir(tmp_path):
    case = case_row("group-norm-offset=10000")
    rows = [{**row, "case": case["id"]} for row in finding()]
    return stored(tmp_path / "run", rows, [diagnosis(case=case["id"])], [case])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "opinion"}, "opinion"),
        ({"link": None}, "link"),
        ({"link": "http://example.org"}, "link"),
        ({"evidence": ""}, "evidence"),
        ({"frameworks": []}, "frameworks"),
        ({"kind": "bug"}, "a bug has a script"),
        ({"script": "bugs/one.py"}, "nothing else has one"),
        ({"reason": "a name that no row has"}, "reason"),
    ],
)
def test_a_row_without_its_grounds_is_refused(tmp_path, change, said):
    row = {name: value for name, value in (CONVENTION | change).items() if value is not None}
    with pytest.raises(KindsError, match=re.escape(said)) as refused:
        read_kinds(written(tmp_path, CONVENTION, row))
    assert "kinds.yaml" in str(refused.value)


def test_the_first_row_that_covers_a_difference_decides(tmp_path, run_dir):
    results = read_results(run_dir)
    precision = CONVENTION | {"kind": "precision"}
    for rows, kind in (((CONVENTION, precision), FindingKind.CONVENTION), ((precision, CONVENTION), "precision")):
        [row] = census(results, read_kinds(written(tmp_path, *rows)))
        assert {item.kind for item in row["paddle"].classified} == {kind}


def test_what_a_loose_tolerance_hides_is_a_line_without_a_kind(tmp_path):
    case = case_row("group-norm-offset=10000")
    hidden = comparison(dtype="float64", expected="oracle", culprit=["paddle"], suspect=True)
    rows = [{**row, "case": case["id"]} for row in [*finding()[:4], hidden]]
    causes = [diagnosis(case=case["id"], dtype=dtype) for dtype in ("float32", "float64")]
    results = read_results(stored(tmp_path / "run", rows, causes, [case]))
    kinds = read_kinds(written(tmp_path, CONVENTION))
    [row] = census(results, kinds)
    assert {(item.kind, *item.finding.dtypes) for item in row["paddle"].classified} == {
        ("convention", "float32"),
        (None, "float64"),
    }
    page = html.fromstring(census_page([results], kinds=kinds))
    lines = [" ".join(line.text_content().split()) for line in page.xpath("//div[contains(@class, 'finding')]/p[1]")]
    assert [line.endswith(", within the tolerance") for line in lines if "paddle" in line] == [False, True]


@pytest.mark.parametrize("change", [{"ops": ["layer_*"]}, {"frameworks": ["torch"]}, {"causes": ["eps-value"]}])
def test_a_difference_without_a_row_and_a_row_without_a_difference_are_named(tmp_path, run_dir, change):
    results = read_results(run_dir)
    covering = read_kinds(written(tmp_path, CONVENTION))
    assert (unclassified([results], covering), unused([results], covering)) == ([], [])
    other = read_kinds(written(tmp_path, CONVENTION | change))
    assert [line for line in unclassified([results], other) if "paddle" in line]
    [stale] = unused([results], other)
    assert "covers nothing" in stale


def test_the_command_ends_with_3_for_what_no_row_covers(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def relu(x):\n    return x * 0.5\n\n\ndef relu_backward(g, x):\n    return [g * (x > 0)]\n")
    backends = f"[numpy, {{name: mine, adapter: numpy, ops: {kernel}}}]"
    case = "{id: one, op: relu, inputs: {x: {shape: [4, 6]}}}"
    (tmp_path / "config.yaml").write_text(f"version: 1\nbackends: {backends}\ncases: [{case}]\n")
    assert call("run", tmp_path / "config.yaml", "--out", tmp_path / "run").returncode == 1
    row = CONVENTION | {"frameworks": ["mine"], "ops": ["relu"]}
    for change, code in (({}, 0), ({"ops": ["gelu"]}, 3), ({"kind": "bug"}, 2)):
        done = call("census", tmp_path / "run", tmp_path / "page", "--kinds", written(tmp_path, row | change))
        assert done.returncode == code, done.stderr
    assert "a bug has a script" in done.stderr


FRAMEWORKS = {
    "keras": "Keras",
    "mindspore": "MindSpore",
    "mlx": "MLX",
    "oneflow": "OneFlow",
    "paddle": "PaddlePaddle",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
}


def bugs_of(script: Path) -> list[str]:
    """The functions in the list BUGS of a shipped script, or the only one of a script without a list."""
    tree = ast.parse(script.read_text())
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BUGS"
    ]
    found = [n.id for value in lists for n in ast.walk(value) if isinstance(n, ast.Name)]
    return found or [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def bugs() -> dict[str, int]:
    """How many bugs the script of each framework shows."""
    return {
        FRAMEWORKS[path.stem.removesuffix("_bugs")]: len(bugs_of(path))
        for path in sorted((CENSUS / "bugs").glob("*_bugs.py"))
    }


def shipped_page() -> html.HtmlElement:
    return html.fromstring((CENSUS / "index.html").read_text())


def number(text: str) -> int:
    return int(text.replace(",", ""))


def counts_of(page: html.HtmlElement) -> dict[str, int]:
    """The numbers of the page's summary by mark."""
    [summary] = page.xpath("//p[contains(., 'Numbers count')]")
    return {
        mark.get("class").removeprefix("mark "): number(re.search(r"[\d,]+", mark.tail).group())
        for mark in summary.xpath("./b")
    }


def table_of(document: str) -> dict[str, list[int]]:
    """The numbers in the rows of the census's table by the first words of a row."""
    lines = re.findall(r"^\| ([^|]*[a-z][^|]*) \| ([^|]*) \|$", document, re.MULTILINE)
    return {
        re.sub(r"[-*]", "", name).split(":")[0].strip(): [number(n) for n in re.findall(r"\b\d[\d,]*(?= |$|:)", value)]
        for name, value in lines
    }


KIND_ROWS = {
    FindingKind.BUG: "a bug",
    FindingKind.CONVENTION: "a documented convention",
    FindingKind.PRECISION: "reduced precision",
    FindingKind.COMPOSITION: "parity's own composition of several calls",
    FindingKind.UNCLASSIFIED: "unclassified",
}


HIDDEN = {"keras_bugs.py"}
"""Scripts of which no bug is shown by the census's inputs."""


def test_the_shipped_page_shows_every_row_and_each_bug_has_a_script():
    rows = read_kinds(CENSUS / "kinds.yaml")
    shown = {
        (finding.xpath("string(.//b[starts-with(@class, 'kind')]/@class)").removeprefix("kind "), link)
        for finding in shipped_page().xpath("//section/div[contains(@class, 'finding')]")
        for link in finding.xpath(".//a[.='source']/@href")
    }
    assert shown == {(row.kind, row.link) for row in rows}
    scripts = {path.name for path in (CENSUS / "bugs").glob("*_bugs.py")}
    assert {row.script for row in rows if row.kind == "bug"} == {f"bugs/{name}" for name in scripts - HIDDEN}


def test_the_shipped_page_links_to_all_scripts_and_to_no_other():
    linked = set(shipped_page().xpath("//a[starts-with(@href, 'repro/')]/@href"))
    assert linked == {f"repro/{path.name}" for path in (CENSUS / "repro").glob("*.py")}


def test_the_table_of_the_census_has_the_numbers_of_the_page():
    counts = counts_of(shipped_page())
    table = table_of((ROOT / "docs" / "census.md").read_text())
    asked, without = sum(counts.values()), counts["unsupported"] + counts["error"]
    assert table["asked"] == [asked]
    assert table["unsupported by the framework"] == [counts["unsupported"]]
    assert table["error"][0] == counts["error"]
    assert table["computed"] == [asked - without]
    kinds = {kind: counts.get(kind, 0) for kind in FindingKind}
    assert {kind: table[row] for kind, row in KIND_ROWS.items()} == {kind: [n] for kind, n in kinds.items()}
    differing, *by_dtype = table["with a difference beyond rounding"]
    assert differing == sum(kinds.values())
    dtypes = re.findall(r"(\d+) in b?float\d+", (ROOT / "docs" / "census.md").read_text().split("- a **bug**")[0])
    assert sum(map(int, dtypes)) == differing, by_dtype


def test_the_documents_tell_the_page_s_ops_cases_and_cells():
    page = shipped_page()
    [ops, cases, cells] = map(int, re.match(r"(\d+) ops, (\d+) cases, (\d+) cells", page.xpath("//p")[0].text).groups())
    assert cells == sum(counts_of(page).values())
    assert f"{cases} cases of {ops} ops" in (ROOT / "docs" / "census.md").read_text()
    counts = counts_of(page)
    computed = cells - counts["unsupported"] - counts["error"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{computed:,} cells, and {sum(bugs().values())} bugs in {len(bugs())} frameworks" in readme


def test_the_documents_count_the_bugs_of_each_framework():
    text = " ".join((ROOT / "docs" / "census.md").read_text().split())
    assert f"The {counts_of(shipped_page())['bug']} cells are {sum(bugs().values())} bugs" in text
    assert f"in {len(bugs())} frameworks" in text
    told = re.search(r"in \d+ frameworks: (.*?)\. ", text).group(1)
    assert {name: int(n) for n, name in re.findall(r"(\d+) of (\w+)", told)} == bugs()
