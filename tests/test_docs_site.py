"""The documentation: it builds without a network and without a dead link, and its reference is that of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape

import pytest

from parity.cases import OPS
from parity.config import json_schema
from parity.diagnoses import catalogue
from parity.judge.compare.verdict import Comparison
from parity.listing import op_card
from parity.reporting.html.templates import source
from parity.reporting.results.rows import Results
from tests.cli.test_cli import COMMANDS
from tests.conftest import ROOT

DOCS = ROOT / "docs"
WORDS = ("envelope", "oracle", "suspect", "known", "probe", "edit")


@pytest.fixture(scope="module")
def pages():
    """The pages that are written from the code, by name."""
    sys.path.insert(0, str(DOCS))
    try:
        import reference
    finally:
        sys.path.remove(str(DOCS))
    return {place.partition("/")[2]: page() for place, page in reference.PAGES.items()}


def test_commands_and_options_are_those_of_the_code(pages):
    headings = re.findall(r"^## parity (.+)$", pages["commands.md"], re.MULTILINE)
    assert sorted(headings) == sorted(set(COMMANDS) - {"", "env"})
    assert "`--junit-xml PATH`" in pages["commands.md"]
    assert "parity init my_kernel.py" in pages["commands.md"]


def test_every_key_of_a_config_is_described(pages):
    schema = json_schema()
    keys = [*schema["properties"], *schema["$defs"]["op_case"]["properties"], *schema["$defs"]["tensor"]["properties"]]
    assert [key for key in keys if f"`{key}`" not in pages["config.md"]] == []


@pytest.mark.parametrize(("page", "names"), [("diagnoses.md", catalogue()), ("ops.md", OPS)])
def test_every_diagnosis_and_every_op_has_a_section(pages, page, names):
    assert re.findall(r"^## (.+)$", pages[page], re.MULTILINE) == list(names)


def test_every_field_of_the_results_is_there(pages):
    for cls in (Results, Comparison):
        assert [name for name in cls.__struct_fields__ if f"| `{name}` |" not in pages["results.md"]] == []


def test_every_param_of_an_op_is_explained_and_every_output_is_named():
    cards = {name: op_card(name) for name in OPS}
    assert [(name, row[0]) for name, card in cards.items() for row in card.params if not row[2]] == []
    assert [row[0] for row in cards["lstm"].outputs] == ["y", "h", "c"]
    assert cards["topk"].outputs[1] == ("indices", "[16, 3]", "int64, an index into x")
    assert not any("partial(" in card.shapes or not card.outputs for card in cards.values())


def test_links_of_a_clone_are_files():
    places = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    links = [(p, link) for p in places for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", p.read_text())]
    assert [(p.name, link) for p, link in links if not (p.parent / link).exists()] == []


def test_exit_codes(pages):
    assert re.findall(r"^\| (\d+) \|", pages["exit-codes.md"], re.MULTILINE) == ["0", "1", "2", "3", "130"]


def test_the_glossary_has_the_words_in_two_sentences_each():
    entries = re.findall(r"## (\w+)\n\n(.*?)(?=\n\n|\Z)", source("glossary.md"), re.DOTALL)
    assert {word for word, _ in entries} == set(WORDS)
    assert all(2 <= len(re.findall(r"\.(\s|$)", text)) <= 3 for _, text in entries)


def build(target, *, docs=None):
    """`mkdocs build --strict`, in which every link is checked; no request leaves, since there is no proxy to take it."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-d",
        str(target),
        "-f",
        str(docs or ROOT / "mkdocs.yml"),
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_site_builds_strictly_and_asks_for_nothing(tmp_path):
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    places = [
        "index.html",
        "quickstart/index.html",
        "own-kernel/index.html",
        "reference/commands/index.html",
        "project/architecture/index.html",
    ]
    assert [place for place in places if not (site / place).is_file()] == []
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)\b[^>]*?(?:src|href)="(https?://[^"]+)"', unescape(page.read_text()))
        assert fetched == [], page


def test_a_dead_link_is_found(tmp_path):
    config = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {tmp_path / 'docs'}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[there](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text(
        re.sub(r"nav:\n.*", "", config, flags=re.DOTALL).replace("hooks: [docs/hooks.py]\n", "")
    )
    done = build(tmp_path / "site", docs=tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
