"""The Markdown of a run: what it says, that nothing of others becomes markup, and that it never exceeds its bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html
from markdown_it import MarkdownIt

from parity.config.nodes import printable
from parity.reporting.markdown import LEAST, LIMIT, MARKER, markdown
from parity.reporting.text.safe import bounded, code, fenced, html_code, prose
from tests.reporting import ci_runs

COLUMNS = ["op", "case", "dtype", "backend", "verdict", "× tol", "error ratio", "cause"]
ALLOWED = {"div", "h3", "p", "strong", "ul", "li", "code", "pre", "details", "summary"}
ALLOWED |= {"table", "thead", "tbody", "tr", "th", "td"}
REFERENCE = re.compile(r"@\w|#\d|GH-\d|\w/\w+#\d|https?:|www\.|[0-9a-f]{7,}|javascript", re.IGNORECASE)
"""What forges make links of, wherever it stands outside of code."""


def rendered(text):
    page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)
    return html.fragment_fromstring(page.replace(MARKER, "", 1), create_parent="div")


def outside_code(root):
    return " ".join(t for t in root.xpath("//text()[not(ancestor::code or ancestor::pre)]"))


def problems(text):
    """What a reader would be shown that parity did not write."""
    root = rendered(text)
    found = [str(e.tag) for e in root.iter() if e.tag not in ALLOWED]
    found += [name for e in root.iter() for name in e.attrib if name not in ("class", "style")]
    found += REFERENCE.findall(outside_code(root))
    return found + [len(row) for row in root.iter("tr") if len(row) != len(COLUMNS)]


def test_the_answer_comes_first():
    lines = markdown(ci_runs.every_status()).splitlines()
    assert lines[:2] == [MARKER, "### parity: FAIL"]
    assert lines[3].startswith("1 finding in 1 of 6 tensors: paddle;")
    assert lines[5:9] == [
        "- paddle: the variance is `E[x^2]` - `E[x]^2` (variance-naive)",
        "  - in y of `group_norm`, `float32`, in 1 of 6 cases (1 tensor)",
        "  - `computes var = mean(x * x), where the reference has mean(square(x - mean))`",
        "  - `differs float32 y [0, 1, 2, 3]: paddle 162.93, exact 0.53, torch 0.530001`",
    ]
    text = "\n".join(lines)
    assert (
        text.index("- warning: 1 tensor passes only because")
        < text.index("\n6 tensors: 1 fail, ")
        < text.index("| op |")
    )


def test_the_table_has_the_worst_findings_first():
    root = rendered(markdown(ci_runs.every_status()))
    rows = [[cell.text_content() for cell in row] for row in root.iter("tr")]
    assert rows[0] == COLUMNS
    assert rows[1] == ["group_norm", "differs", "float32", "paddle", "unstable", "1.5e+07", "81234", "variance-naive"]
    assert [row[4] for row in rows[2:]] == ["crash", "not run", "not run"]
    assert rows[2][-1] == "killed by SIGSEGV"


def test_the_folds_hold_details_what_is_known_and_the_environment():
    root = rendered(markdown(ci_runs.every_status()))
    folds = {fold[0].text_content(): fold.text_content() for fold in root.iter("details")}
    assert "why: the error of paddle is 8.12e+04 times" in folds["differs: paddle"]
    assert "parity explain 'out dir' differs" in folds["differs: paddle"]
    assert "known: naive variance (until 2027-06-30)" in folds["Known and accepted"]
    assert "paddle: no such op (cannot)" in folds["Unsupported"]
    assert "paddle: paddle 1.2.3 eager cpu Python 3.11.7" in folds["Environment"]
    assert "hides" in folds["Warnings and suspect passes"]


def test_entries_of_the_ledger_that_fail_are_named():
    text = markdown(ci_runs.only_ledger())
    assert "no findings, but 1 known deviation is out of date" in text
    assert "- `configs/a.yaml:90`: stale: gone; remove it" in text


def test_a_healthy_run_is_short():
    text = markdown(ci_runs.healthy())
    assert "### parity: PASS" in text
    assert len(text) < 800
    assert "| op |" not in text


@pytest.mark.parametrize("make", [ci_runs.hostile, ci_runs.every_status, ci_runs.healthy, lambda: ci_runs.many(60)])
@pytest.mark.parametrize("limit", [LEAST, 12_345, LIMIT, 900_000])
def test_nothing_of_others_is_markup_and_no_byte_is_too_many(make, limit):
    text = markdown(make(), limit=limit)
    assert len(text.encode()) <= limit
    assert problems(text) == []
    assert len(re.findall("^<details>", text, re.MULTILINE)) == len(re.findall("^</details>$", text, re.MULTILINE))


@pytest.mark.parametrize(
    "text",
    [
        "see https://evil.example",
        "ask @octocat",
        "fixes #1",
        "<script>alert(1)</script>",
        "![x](http://evil.example/p.png)",
        "<b>bold</b>",
        "| a | b |\n| - | - |\n| c | d |",
        "deadbeef1",
    ],
)
def test_the_check_finds_what_is_markup(text):
    assert problems(f"{MARKER}\n{text}")


@pytest.mark.parametrize("text", ci_runs.HOSTILE)
def test_a_code_span_shows_the_text_as_it_is(text):
    table = f"| a | b |\n| - | - |\n| {code(text)} | c |"
    for shown in (rendered(code(text).replace("\\|", "|")), rendered(table).xpath("//td")[0]):
        assert shown.text_content().strip() == printable(text).strip()
        assert not ({e.tag for e in shown.iter()} - {"div", "p", "code", "td"})


@pytest.mark.parametrize("text", ci_runs.HOSTILE)
def test_a_code_block_and_a_sentence_show_the_text(text):
    block = rendered(fenced([text, "end"]))
    assert block.text_content().strip() == f"{printable(text)}\nend"
    assert "".join(rendered(prose(text)).text_content().split()).replace("\\|", "|") == "".join(printable(text).split())
    assert problems(f"{MARKER}\nword {prose(text)}") == []


def test_plain_words_stay_words():
    assert prose("off: paddle in 7; 5 more (float64)") == "off: paddle in 7; 5 more (`float64`)"
    assert prose("the variance is E[x^2] - E[x]^2") == "the variance is `E[x^2]` - `E[x]^2`"
    assert code(" ") == ""


def test_the_same_reason_for_several_cases_is_one_line():
    root = rendered(markdown(ci_runs.cannot_in(3)))
    fold = next(fold for fold in root.iter("details") if fold[0].text_content() == "Unsupported")
    assert [item.text_content() for item in fold.iter("li")] == ["paddle: no such op (case-0, case-1, case-2)"]


def test_what_does_not_fit_is_counted():
    text = markdown(ci_runs.many(400), limit=LEAST)
    shown = rendered(text)
    hidden = sum(int(n) for n in re.findall(r"(\d+) more rows? left out", text))
    assert hidden > 0
    assert len(shown.xpath("//tr[td]")) + hidden == 400
    folds = [fold for fold in shown.iter("details") if fold[0].text_content().startswith("case-")]
    assert len(folds) + sum(int(n) for n in re.findall(r"(\d+) more cases? left out", text)) == 400


def test_a_limit_that_leaves_nothing_to_say_is_refused():
    with pytest.raises(ValueError, match="needs at least 8000 bytes, not 7999"):
        markdown(ci_runs.healthy(), limit=LEAST - 1)


def test_a_text_is_cut_after_a_whole_line_or_character():
    assert bounded(["one", "two", "three" * 10], 40) == "one\ntwo\n... cut after 40 bytes"
    assert bounded(["é" * 40], 50) == "é" * 14 + "... cut after 50 bytes"
    assert bounded(["short"], 50) == "short"


MARKS = st.text(st.sampled_from("`|\\<>[]()!*_~#@:/.-+=& \n\tawx1é\u2028\x00\ud800"), max_size=40) | st.text(
    max_size=40
)


@given(MARKS)
def test_any_text_in_a_span_or_a_sentence_is_only_text(text):
    table = f"| a | b |\n| - | - |\n| {code(text)} | {prose(text)} |"
    cells_ = rendered(table).xpath("//td")
    assert cells_[0].text_content().strip() == printable(text).strip()
    assert "".join(cells_[1].text_content().split()) == "".join(printable(text).split())
    assert {e.tag for cell in cells_ for e in cell.iter()} <= {"td", "code"}
    assert REFERENCE.findall(outside_code(rendered(table))) == []


@given(st.lists(MARKS, max_size=4))
def test_any_lines_in_a_block_are_only_text(lines):
    page = rendered(f"<details><summary>{html_code(''.join(lines))}</summary>\n\n{fenced(lines)}\n\n</details>\n\nend")
    assert [e.tag for e in page.iter()] == ["div", "details", "summary", "code", "pre", "code", "p"]
    assert page.xpath("//pre")[0].text_content() == "\n".join(map(printable, lines)) + "\n"
