"""The formats of `parity diff`: they agree in their counts, are bounded, and nothing in them is active."""

from __future__ import annotations

import io
import json
import re

import lxml.html
import pytest
from rich.console import Console

from parity.reporting.blocks.console import show
from parity.reporting.blocks.html import page as page_of
from parity.reporting.blocks.markdown import comment
from parity.reporting.diff.compare import ChangeKind, compare
from parity.reporting.diff.document import as_json
from parity.reporting.diff.report import diff_report
from parity.reporting.diff.text import GROUPED, groups, headline
from tests.reporting.stored_runs import CASE, case_row, diagnosis
from tests.reporting.test_diff import (
    NOT_COMPARED,
    VACUOUS,
    fails,
    hidden,
    outcome,
    passes,
    renamed_backends,
    rounding,
    run,
)

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\nb\r\n| c | d |\n# heading",
    "\x1b[31mred\x1b]8;;https://evil.example\x07link",
    "`` ` `` | @somebody #1 https://evil.example [x](javascript:alert(1)) ![y](https://evil.example/p.png)",
    "{{ 7 * 7 }}{% raw %}<!--",
    "\u202egnp.exe\u2066",
    "</code></details><details open>",
)


def console_text(diff, verbosity=0, width=200):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(diff_report(diff), console, verbosity=verbosity)
    return console.file.getvalue()


@pytest.fixture
def varied(tmp_path):
    """A diff with a change of every kind."""
    tensors = [kind.value for kind in ChangeKind]
    before = {
        "new": passes(),
        "worse": fails(10.0),
        "vanished": fails(),
        "fixed": fails(),
        "better": fails(verdict="semantic"),
    }
    after = {"new": fails(), "worse": fails(1e6), "fixed": passes(), "better": rounding(), "tolerated": VACUOUS}
    before |= {"cause": fails(), "accepted": fails(), "tolerated": passes(), "gained": NOT_COMPARED}
    after |= {"cause": fails(), "accepted": fails(known="as it is"), "vanished": NOT_COMPARED, "gained": passes()}
    cases = [case_row(name, dtypes=["float32"]) for name in tensors]
    gone = ("gained", "vanished")
    causes = [diagnosis(name, case="cause", tensors=["y"]) for name in ("variance-naive", "eps-value")]
    runs = [
        run(
            tmp_path / side,
            [],
            [
                outcome(
                    case=name,
                    outcome="crash" if name == gone[side == "b"] else "ok",
                    message="SIGSEGV" if name == gone[side == "b"] else "",
                )
                for name in tensors
            ],
            cases=cases,
            comparisons=[row | {"case": name} for name, row in rows.items()],
            diagnoses=[causes[side == "b"]],
            backends=renamed_backends("paddle"),
        )
        for side, rows in (("a", before), ("b", after))
    ]
    return compare(*runs)


def test_all_formats_agree_in_their_counts(varied):
    assert set(varied.counts.values()) == {1}
    document = json.loads(as_json(varied))
    page = lxml.html.fromstring(page_of(diff_report(varied)))
    texts = (console_text(varied), comment(diff_report(varied)))
    word, said = headline(varied)
    assert page.xpath("string(//h1)").split() == f"{word} {said}".split()
    for kind in ChangeKind:
        assert len(document[kind.value]) == document["counts"][kind.value] == 1
        assert len(page.xpath(f"//details[@class='{kind.value}']//tbody/tr")) == 1
    for text in texts:
        assert said in text
        assert all(f"| `{kind.value}`" in text or re.search(rf"\b{kind.value}\b", text) for kind in ChangeKind)


def test_the_document_has_all_numbers(varied):
    document = json.loads(as_json(varied))
    assert (document["format"], document["exit_code"], document["fail_on"], document["factor"]) == (
        1,
        1,
        "mismatch",
        2.0,
    )
    [change] = document["worse"]
    [tensor] = change["tensors"]
    assert (change["case"], change["backend"], change["dtype"], tensor["tensor"]) == ("worse", "paddle", "float32", "y")
    assert (tensor["before"]["error_ratio"], tensor["after"]["error_ratio"]) == (10.0, 1e6)
    assert tensor["after"]["verdict"] == "unstable"
    assert document["vanished"][0]["was_finding"] is True
    assert document["vanished"][0]["tensors"][0]["after"]["reason"] == "crash: SIGSEGV"
    assert document["b"]["backends"] == [{"name": "paddle", "as": "paddle", "version": "1.2.3"}]


def test_the_sections_come_in_the_order_of_urgency(varied):
    texts = [f"1 {noun}" for noun in ("new finding", "worse", "vanished", "fixed", "better", "with another root cause")]
    for text in (console_text(varied), comment(diff_report(varied)), page_of(diff_report(varied))):
        places = [text.rindex(wanted) for wanted in texts]
        assert places == sorted(places)


def hostile_diff(tmp_path, text):
    """Two runs in which everything that may be text is hostile."""
    names = renamed_backends("torch", text)
    extra = {"run": {"started": text, "id": text, "host": {"cpu": text}, "seed": 1}, "backends": names}
    given = {text: {"shape": [2], "draw": text, "file": text}}
    before = case_row(text, dtypes=["float32"], op=text, params={text: text}, inputs=given)
    after = case_row(text, dtypes=["float32"], op=text, params={text: 7}, inputs=given)
    cells = {"case": text, "actual": text, "culprit": [text], "tensor": text}
    entry = {"case": text, "reason": text, "state": text, "message": text}
    outcomes = [outcome("torch", case=text, outcome="crash", message=text), outcome(text, case=text)]
    a = run(
        tmp_path / "a",
        [],
        [outcome("torch", case=text), outcome(text, case=text)],
        comparisons=[passes(**cells), passes(**(cells | {"actual": "torch"}))],
        cases=[before],
        **(extra | {"run": {"started": text}}),
    )
    b = run(
        tmp_path / "b",
        [],
        outcomes,
        comparisons=[fails(**cells), NOT_COMPARED | cells | {"actual": "torch", "culprit": []}],
        cases=[after],
        diagnoses=[diagnosis(text, case=text, backend=text, tensors=[text])],
        known=[entry],
        **extra,
    )
    return compare(a, b)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_inert_on_the_console(tmp_path, text):
    diff = hostile_diff(tmp_path, text)
    assert diff.exit_code == 1
    shown = console_text(diff, 1)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "\x1b" not in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_inert_in_html(tmp_path, text):
    page = lxml.html.document_fromstring(page_of(diff_report(hostile_diff(tmp_path, text))))
    assert {element.tag for element in page.iter()} <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "span", "p", "ul", "li",
        "details", "summary", "b", "div", "table", "caption", "thead", "tbody", "tr", "th", "td",
        "a", "h2", "dl", "dt", "dd", "code",
    }  # fmt: skip
    attributes = {name for element in page.iter() for name in element.attrib}
    known = {"lang", "charset", "http-equiv", "content", "name", "class", "scope", "open", "tabindex", "href", "id"}
    known |= {"role", "aria-label", "data-title"}
    assert attributes <= known
    assert {link.get("href") for link in page.iter("a")} == {"#case-0"}
    assert [element.tag for element in page.iter() if element.get("id")] == ["dt"]
    assert len(page.xpath("//details")) == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_inert_in_markdown(tmp_path, text):
    shown = comment(diff_report(hostile_diff(tmp_path, text)))
    # Code spans are the only place where such text may stand.
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", shown)
    assert set(re.findall(r"<[^>]*>", outside)) <= {
        "<b>",
        "</b>",
        "<sub>",
        "</sub>",
        "<details>",
        "</details>",
        "<summary>",
        "</summary>",
    }
    assert not re.search(r"@\w|#\d|https?:|\]\(|alert|\x1b|\u202e", outside)
    assert outside.count("<details>") == outside.count("</details>") == 0
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_back_from_the_document(tmp_path, text):
    document = json.loads(as_json(hostile_diff(tmp_path, text)))
    assert [change["case"] for change in document["new"]] == [text]
    assert [change["tensors"][0]["tensor"] for change in document["vanished"]] == [text]


def test_in_markdown_only_what_is_urgent_is_unfolded(varied):
    text = comment(diff_report(varied))
    folded = re.findall(r"<details><summary>1 ([a-z ]+):", text)
    assert folded == ["fixed", "better", "with another root cause", "accepted", "tolerated", "newly compared"]
    assert text.count("</details>") == len(folded)


def test_the_page_asks_for_nothing_and_works_in_the_dark(varied):
    page = page_of(diff_report(varied))
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"src=|href=(?!\"#)|@import|url\(|<script", page)


def test_each_case_of_the_page_has_its_commands_once(varied):
    page = lxml.html.fromstring(page_of(diff_report(varied)))
    told = {item.text_content(): [] for item in page.iter("dt")}
    for line in page.iter("dd"):
        told[line.getprevious().xpath("(self::dt|preceding-sibling::dt)[last()]")[0].text_content()].append(
            line.text_content()
        )
    b = varied.b.run_dir
    listed = [change.case for change in varied.changes if change.kind not in GROUPED]
    assert list(told) == [*listed, "vanished", "gained"]
    assert told["new"] == [f"parity explain {b} new", f"parity repro {b} new"]
    assert told["fixed"] == [f"parity explain {b} fixed"]
    targets = {element.get("id") for element in page.iter("dt")}
    assert {link.get("href")[1:] for link in page.iter("a")} == targets


def test_a_case_that_only_a_has_is_explained_by_a(tmp_path):
    a = run(tmp_path / "a", [passes()])
    b = run(tmp_path / "b", [], [outcome(case="other")], cases=[case_row("other")], comparisons=[passes(case="other")])
    [command] = [item.text_content() for item in lxml.html.fromstring(page_of(diff_report(compare(a, b)))).iter("dd")]
    assert command == f"parity explain {a} {CASE}"


@pytest.fixture
def large(tmp_path):
    """Thousands of new findings and of vanished cells, with long names."""
    names = [f"case-{i:04}-{'x' * 280}" for i in range(3000)]
    cases = [case_row(name, dtypes=["float32"]) for name in names]
    outcomes = [outcome(side, case=name) for name in names for side in ("torch", "paddle")]
    rows = [passes(case=name, actual=side) for name in names for side in ("torch", "paddle")]
    later = [fails(case=name) for name in names]
    gone = [outcome(case=name) for name in names]
    gone += [outcome("torch", case=name, outcome="crash", message=f"number {name}") for name in names]
    a = run(tmp_path / "a", [], outcomes, cases=cases, comparisons=rows)
    return compare(a, run(tmp_path / "b", [], gone, cases=cases, comparisons=later))


@pytest.mark.slow
def test_markdown_is_bounded_and_counts_what_it_leaves_out(large):
    text = comment(diff_report(large))
    assert 50_000 < len(text.encode()) < 60_000
    assert "3000 new findings, 3000 vanished" in text
    shown = len(re.findall(r"^\| `case-", text, re.MULTILINE))
    assert f"... and {3000 - shown} more" in text
    assert text.count("**") == 4


@pytest.mark.slow
def test_the_console_is_bounded_unless_asked(large):
    text = console_text(large)
    assert len(text.splitlines()) < 200
    assert "and 2984 more lines (-v shows all)" in text


@pytest.mark.slow
def test_a_page_of_thousands_says_what_it_leaves_out(large):
    assert "... and 1000 more: parity diff --json has them all" in page_of(diff_report(large))


def test_vanished_cells_are_told_by_their_reason(tmp_path):
    cases = [case_row(f"case-{i}", dtypes=["float32"]) for i in range(40)]
    rows = [fails(case=case["id"]) if i < 7 else passes(case=case["id"]) for i, case in enumerate(cases)]
    a = run(tmp_path / "a", [], [outcome(case=case["id"]) for case in cases], cases=cases, comparisons=rows)
    b = run(tmp_path / "b", [], [], cases=cases, comparisons=[], backends=renamed_backends("torch"))
    diff = compare(a, b)
    [group] = groups(diff.of(ChangeKind.VANISHED))
    assert (group.n_cells, group.n_findings) == (40, 7)
    assert group.text == (
        "the backend is not in B: 40 cells on paddle, 7 of them failed in A and do not count as fixed; "
        "for example case-0 float32 y"
    )
    assert headline(diff)[0] == "INCOMPLETE"
    assert group.text in console_text(diff)


def test_infinity_is_a_string_in_the_document(tmp_path):
    a = run(tmp_path / "a", [passes()])
    document = json.loads(as_json(compare(a, run(tmp_path / "b", [fails(float("inf"), "nonfinite")]))))
    assert document["new"][0]["tensors"][0]["after"]["error_ratio"] == "inf"


def test_what_forbids_to_compare_stands_beside_the_finding(tmp_path):
    a = run(tmp_path / "a", [passes()])
    given = case_row(dtypes=["float32"], params={"num_groups": 8, "eps": 1e-5})
    diff = compare(a, run(tmp_path / "b", [fails()], cases=[given]))
    assert "not comparable: param num_groups 4 -> 8" in console_text(diff)
    assert "1 case changed, so its numbers are not comparable: param num_groups 4 -> 8" in console_text(diff)


ANSWERS = {
    "WORSE": (passes(), fails()),
    "BETTER": (fails(), passes()),
    "CHANGED": (passes(), VACUOUS),
    "SAME": (passes(), passes()),
    "INCOMPLETE": (passes(), NOT_COMPARED),
}


@pytest.mark.parametrize("word", ANSWERS)
def test_the_first_word_is_the_answer(tmp_path, word):
    before, after = (run(tmp_path / name, [row]) for name, row in zip("ab", ANSWERS[word], strict=True))
    diff = compare(before, after)
    assert headline(diff)[0] == word
    assert diff.exit_code == {"WORSE": 1, "INCOMPLETE": 3}.get(word, 0)


def test_nothing_in_common_is_said(tmp_path):
    crashed = [outcome("torch", outcome="crash"), outcome(outcome="crash")]
    a = run(tmp_path / "a", [], crashed, comparisons=[])
    diff = compare(a, run(tmp_path / "b", [passes()]))
    assert (diff.exit_code, headline(diff)[1]) == (
        3,
        "nothing was compared in both runs: 2 newly compared; 0 cells unchanged",
    )


def test_the_answer_of_a_run_and_itself(tmp_path):
    a = run(tmp_path / "a", [fails(), hidden(30.0, tensor="grad.x")])
    assert headline(compare(a, a)) == ("SAME", "no differences: 2 cells unchanged")
    assert CASE not in console_text(compare(a, a))
