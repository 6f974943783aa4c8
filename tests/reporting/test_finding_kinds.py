"""What kind a difference is: the file of rows, what it must have, and the one that is shipped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from lxml import html

from parity.reporting.finding_kinds import FindingKind, KindsError, read_kinds
from parity.reporting.html.census import census, unclassified, unused
from parity.reporting.results.results import read_results
from tests.conftest import call
from tests.reporting.stored_runs import case_row, diagnosis, finding, stored

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


def bugs() -> list[str]:
    """The functions in the lists BUGS of the shipped scripts, and the only one of the script without a list."""
    names = []
    for path in sorted((CENSUS / "bugs").glob("*_bugs.py")):
        tree = ast.parse(path.read_text())
        lists = [
            node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BUGS"
        ]
        found = [n.id for value in lists for n in ast.walk(value) if isinstance(n, ast.Name)]
        names += found or [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return names


def test_the_shipped_page_shows_every_row_and_the_documents_count_the_bugs():
    rows = read_kinds(CENSUS / "kinds.yaml")
    page = html.fromstring((CENSUS / "index.html").read_text())
    links = set(page.xpath("//section//a/@href"))
    assert {row.link for row in rows} <= links
    assert all((CENSUS / row.script).is_file() for row in rows if row.kind == "bug")
    assert {row.script for row in rows if row.kind == "bug"} == {
        f"bugs/{path.name}" for path in (CENSUS / "bugs").glob("*_bugs.py")
    }
    for document in ("README.md", "docs/census.md"):
        assert f"{len(bugs())} bugs" in (ROOT / document).read_text()
