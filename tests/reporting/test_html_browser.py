"""The HTML report in a browser: it filters, sorts, folds and is used from the keyboard, and asks for nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect, sync_playwright

from parity.reporting.blocks.html import page as page_of
from parity.reporting.diff.compare import compare
from parity.reporting.diff.report import diff_report
from parity.reporting.html.page import html_report
from parity.reporting.results.cells import Status, cells, counts
from parity.reporting.results.results import read_results, write_atomically
from parity.reporting.results.rows import Results
from parity.reporting.results.store import STORE, Store, fill
from parity.reporting.text.findings import findings
from tests.conftest import waited_for
from tests.reporting.stored_runs import CASE, backend_row, changed, parted, plain, trained, training
from tests.reporting.test_html import HOSTILE, found, healthy, hostile_run, keep, run_of, with_code, with_envelope

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
FUNCTIONAL_S = 120
"""Far beyond what a page with 5,000 cells takes, also on a busy machine: it is the difference to one that hangs."""
VISIBLE = "[...document.querySelectorAll('#table tbody tr')].filter(row => row.getClientRects().length)"
CASES = f"{VISIBLE}.map(row => row.cells[2].textContent.trim())"
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.body.querySelectorAll('*')].filter((e) => own(e) && e.getClientRects().length && e.tagName !== 'OPTION').map((e) => {
    const style = getComputedStyle(e);
    const text = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
    const [a, b] = [light(parse(text)), light(ground(e))];
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.tagName + '.' + (e.className.baseVal ?? e.className) + ': ' + e.textContent.slice(0, 40)];
  });
}"""


@dataclass
class Opened:
    """A page with all that went wrong in it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def cases(self) -> list[str]:
        return self.page.evaluate(CASES)

    @property
    def said(self) -> str:
        return self.page.inner_text("#shown")

    def focused(self) -> str:
        return self.page.evaluate(
            "document.activeElement.cells ? document.activeElement.cells[2].textContent.trim() : document.activeElement.id"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(
            f"the report is tested in a browser, and there is none of {', '.join(BROWSERS)} on PATH; install chromium"
        )
    with sync_playwright() as playwright:
        expect.set_options(timeout=FUNCTIONAL_S * 1000)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, path: Path, anchor: str = "", **options: Any) -> Iterator[Opened]:
    """The page as it was opened from disk; raises AssertionError where it complained or asked for anything else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(FUNCTIONAL_S * 1000)
    page = context.new_page()
    seen = Opened(page)
    page.on("console", lambda message: seen.problems.append(message.text))
    page.on("pageerror", lambda error: seen.problems.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url.partition("#")[0]))
    try:
        page.goto(path.as_uri() + anchor)
        yield seen
        assert seen.problems == []
        assert set(seen.requests) == {path.as_uri()}
    finally:
        context.close()


def written(results: Results, run_dir: Path) -> Path:
    path = run_dir / "report.html"
    write_atomically(path, html_report(results, run_dir))
    return path


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[Path, Results]:
    """Ten cases, of which three fail, with the tensors of none."""
    run_dir = tmp_path_factory.mktemp("mixed")
    results = read_results(run_of(run_dir, 10, lambda i: i in (2, 5, 7)))
    return written(results, run_dir), results


@pytest.fixture(scope="module")
def pictured(tmp_path_factory) -> Path:
    """A finding with pictures."""
    run_dir = tmp_path_factory.mktemp("pictured")
    results = found(run_dir)
    results = changed(results, comparisons=with_envelope(plain(results.comparisons), 2e-6))
    keep(run_dir)
    return written(results, run_dir)


def test_passed_cells_are_folded_and_counted(browser, mixed):
    path, results = mixed
    numbers = counts(cells(results))
    with opened(browser, path) as seen:
        assert len(seen.cases) == numbers["failed"] == 12
        assert seen.said == "12 of 40 rows shown, 28 that passed are folded away"
        seen.page.check("#passing")
        assert len(seen.cases) == 40
        assert seen.said == "40 of 40 rows shown"


def test_search_and_filters(browser, mixed):
    with opened(browser, mixed[0]) as seen:
        page = seen.page
        page.keyboard.press("/")
        assert seen.focused() == "q"
        page.keyboard.type("offset=5 FLOAT64")
        assert seen.cases == ["layer-norm-shape=32x128-offset=5"] * 2
        assert seen.said == "2 of 40 rows shown"
        page.keyboard.press("Escape")
        assert len(seen.cases) == 12
        page.select_option("[data-key=backend]", "paddle")
        page.select_option("[data-key=dtype]", "float32")
        assert len(seen.cases) == 3
        page.click("[data-status=passed]")
        assert len(seen.cases) == 7
        page.click("[data-status=failed]")
        assert len(seen.cases) == 10
        page.click("#clear")
        assert len(seen.cases) == 12
        page.select_option("[data-key=cause]", "variance-naive")
        page.check("#passing")
        assert len(seen.cases) == 12
        page.fill("#q", "nothing like that")
        assert page.inner_text("#empty").startswith("No such row.")


def test_a_filter_is_in_the_address(browser, mixed):
    path, _ = mixed
    with opened(browser, path) as seen:
        seen.page.fill("#q", "offset=7")
        seen.page.select_option("[data-key=backend]", "torch")
        seen.page.click("th button >> text=ratio")
        seen.page.wait_for_url(lambda url: "sort" in url)
        address = seen.page.url.partition("#")[2]
        expected = seen.cases
    with opened(browser, path, f"#{address}") as again:
        assert again.cases == expected
        assert again.page.input_value("#q") == "offset=7"
        assert again.page.get_attribute("th:nth-child(9)", "aria-sort") == "descending"


def test_what_the_address_asks_for_may_be_nonsense(browser, mixed):
    with opened(browser, mixed[0], "#?status=,,&backend=%FF&sort=-nothing&q=%zz&cause=x") as seen:
        assert seen.cases == []
    with opened(browser, mixed[0], "#%E0%A4%A") as seen:
        assert len(seen.cases) == 12


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_sorting_by_a_header(browser, tmp_path, key):
    path = written(found(tmp_path), tmp_path)
    with opened(browser, path) as seen:
        page = seen.page
        header = page.locator("#table th", has_text="× tol")
        values = f"{VISIBLE}.map(row => row.cells[7]?.textContent.trim() ?? '').map(t => t === '∞' ? Infinity : t === '' ? -Infinity : Number(t))"
        before = page.evaluate(CASES)
        header.locator("button").focus()
        page.keyboard.press(key)
        assert header.get_attribute("aria-sort") == "descending"
        assert page.evaluate(values) == sorted(page.evaluate(values), reverse=True)
        page.keyboard.press(key)
        assert header.get_attribute("aria-sort") == "ascending"
        assert page.evaluate(values) == sorted(page.evaluate(values))
        page.keyboard.press(key)
        assert header.get_attribute("aria-sort") == "none"
        assert page.evaluate(CASES) == before


def test_the_keyboard_moves_and_opens(browser, mixed):
    with opened(browser, mixed[0]) as seen:
        page = seen.page
        order = seen.cases
        page.keyboard.press("j")
        assert seen.focused() == order[0]
        for _ in range(5):
            page.keyboard.press("j")
        page.keyboard.press("ArrowUp")
        assert seen.focused() == order[4]
        page.keyboard.press("k")
        link = page.evaluate("document.activeElement.querySelector('a').getAttribute('href')")
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == link
        expect(page.locator(f'[id="{link[1:]}"] details')).to_have_attribute("open", "")


def test_an_entry_of_the_matrix_filters(browser, mixed):
    with opened(browser, mixed[0]) as seen:
        seen.page.click(".matrix td:nth-of-type(2) a")
        expect(seen.page.locator("[data-key=dtype]")).to_have_value("float64")
        expect(seen.page.locator("[data-key=backend]")).to_have_value("torch")
        assert len(seen.cases) == 3
        assert "3 of 40 rows shown, 7 that passed are folded away" in seen.said


def test_a_cause_filters(browser, mixed):
    path, results = mixed
    finding = findings(results)[0]
    with opened(browser, path) as seen:
        seen.page.click(".finding a:text('rows') >> nth=0")
        expect(seen.page.locator("[data-key=backend]")).to_have_value("")
        expect(seen.page.locator("[data-key=cause]")).to_have_value(finding.id)
        assert len(seen.cases) > 0


def test_an_entry_of_which_all_passed_shows_them(browser, tmp_path):
    path = written(healthy(tmp_path), tmp_path)
    with opened(browser, path) as seen:
        assert seen.cases == []
        assert seen.page.inner_text("#empty") == "Everything passed. Show what passed"
        seen.page.click(".matrix td a >> nth=0")
        expect(seen.page.locator("#passing")).to_be_checked()
        assert len(seen.cases) == 3


def test_links_lead_to_folded_findings_cases_and_passed_cells(browser, mixed):
    path, results = mixed
    failing = [cell for cell in cells(results) if cell.finding][-1]
    passing = next(cell for cell in cells(results) if cell.status is Status.PASSED)
    with opened(browser, path) as seen:
        assert not seen.page.evaluate("id => document.getElementById(id).querySelector('details').open", failing.anchor)
    for anchor in (failing.anchor, f"case-{failing.id}", passing.anchor):
        with opened(browser, path, f"#{anchor}") as seen:
            place = seen.page.locator(f'[id="{anchor}"]')
            # A busy browser scrolls a moment after the page has loaded.
            waited_for(lambda place=place: (box := place.bounding_box()) and 0 <= box["y"] < 900)
    with opened(browser, path, f"#{failing.anchor}") as seen:
        assert seen.page.is_visible(f'[id="{failing.anchor}"] .why')


def test_a_link_can_be_copied(browser, mixed):
    path, _ = mixed
    with opened(browser, path, permissions=["clipboard-read", "clipboard-write"]) as seen:
        link = seen.page.locator(".cell > .link").nth(3)
        anchor = link.get_attribute("href")
        link.click()
        assert seen.page.evaluate("location.hash") == anchor
        expect(seen.page.locator("#said")).to_have_text("Link copied")
        assert seen.page.evaluate("navigator.clipboard.readText()").endswith(anchor)


@pytest.fixture(scope="module")
def with_curves(tmp_path_factory) -> Path:
    """Trainings with partings, in a browser's eyes."""
    run_dir = tmp_path_factory.mktemp("trained")
    names = ("torch", "paddle", "oneflow==0.9.0:graph", "mine-" + "x" * 90)
    rows = [training("torch", 1_000), *(parted(name, 1_000) for name in names[1:])]
    trained(run_dir, rows, backends=[backend_row(name) for name in names])
    return written(read_results(run_dir), run_dir)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_trainings_have_enough_contrast(browser, with_curves, scheme):
    with opened(browser, with_curves, color_scheme=scheme) as seen:
        found_here = seen.page.evaluate(CONTRASTS)
        assert any("svg" not in row[1] and "step 1, update" in row[1] for row in found_here)
        assert [row for row in found_here if row[0] < 4.5] == []


@pytest.mark.parametrize("width", [390, 700, 1440])
def test_trainings_fit_into_the_window(browser, with_curves, width):
    with opened(browser, with_curves, "#training-perceptron.float32") as seen:
        page = seen.page
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        plots = [plot.bounding_box() for plot in page.locator(".plots svg").all()]
        assert len(plots) == 4
        assert all(300 < box["width"] <= 577 and box["x"] >= 0 for box in plots)
        assert all(box["x"] + box["width"] <= width for box in plots)
        beyond = "svg => [...svg.querySelectorAll('text')].filter(t => t.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1).map(t => t.textContent)"
        assert [page.locator(".plots svg").nth(i).evaluate(beyond) for i in range(4)] == [[]] * 4


def test_paper_has_the_curves_and_the_probed_steps(browser, with_curves):
    with opened(browser, with_curves) as seen:
        seen.page.emulate_media(media="print")
        for what in (".plots svg", ".probe", ".training .facts"):
            assert all(element.is_visible() for element in seen.page.locator(what).all())
        assert seen.page.locator(".probe").count() == 4


def test_both_themes_have_enough_contrast(browser, pictured):
    grounds = {}
    for scheme in ("light", "dark"):
        with opened(browser, pictured, color_scheme=scheme) as seen:
            found_here = seen.page.evaluate(CONTRASTS)
            assert len(found_here) > 100
            assert [row for row in found_here if row[0] < 4.5] == []
            grounds[scheme] = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
            for expected in ("light", "dark"):
                seen.page.click("#theme")
                assert seen.page.inner_text("#theme") == f"Theme: {expected}"
            assert seen.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert grounds["light"] != grounds["dark"]


def test_the_check_of_contrast_can_fail(browser, pictured):
    with opened(browser, pictured) as seen:
        seen.page.add_style_tag(content="h1 { color: #aaa !important }")
        assert [row for row in seen.page.evaluate(CONTRASTS) if row[0] < 4.5]


def test_paper_has_every_finding_and_no_controls(browser, mixed):
    with opened(browser, mixed[0], color_scheme="dark") as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.locator(".cell .why:visible").count() == seen.page.locator(".cell .why").count() > 10
        assert not seen.page.is_visible("#controls")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert len(seen.page.pdf()) > 20_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Path:
    """Cells of every status, with long words: failed by rounding and by more, unsupported, a suspect pass."""
    run_dir = tmp_path_factory.mktemp("crowded")
    results = read_results(run_of(run_dir, 6, lambda i: i < 4))
    names = [case.id for case in results.cases]
    rows = plain(results.comparisons)
    rows = [row | {"verdict": "rounding", "culprit": []} if row["case"] == names[0] else row for row in rows]
    rows = [row | {"suspect": row["case"] == names[4]} if row["verdict"] == "close" else row for row in rows]
    rows = [row for row in rows if row["case"] != names[5]]
    outcomes = [
        row | {"outcome": "unsupported", "message": "there is no kernel"} if row["case"] == names[5] else row
        for row in plain(results.outcomes)
    ]
    run = plain(results.run) | {"fail_on": "mismatch"}
    return written(changed(results, run=run, comparisons=rows, outcomes=outcomes), run_dir)


@pytest.mark.parametrize("name", ["mixed", "crowded"])
def test_findings_and_matrix_are_on_the_first_screen(browser, mixed, crowded, name):
    with opened(browser, {"mixed": mixed[0], "crowded": crowded}[name]) as seen:
        page = seen.page
        page.set_viewport_size({"width": 1280, "height": 800})
        tops = [page.locator(what).first.bounding_box()["y"] for what in ("h1", ".finding", ".matrix", ".matrix td")]
        assert tops == sorted(tops)
        assert tops[-1] < 800
        for finding in page.locator(".finding").all():
            assert finding.locator(".go").first.is_visible()


def test_many_findings_are_folded_so_that_the_matrix_stays_on_the_first_screen(browser, tmp_path):
    results = read_results(run_of(tmp_path, 14, lambda _: True))
    told = [row | {"id": f"cause-{row['case'][-2:]}", "title": "a cause " * 12} for row in plain(results.diagnoses)]
    with opened(browser, written(changed(results, diagnoses=told), tmp_path)) as seen:
        page = seen.page
        page.set_viewport_size({"width": 1280, "height": 800})
        assert len(findings(changed(results, diagnoses=told))) == 15
        assert page.locator(".finding:visible").count() == 9
        assert page.locator(".matrix").bounding_box()["y"] < 800
        page.click("text=6 more causes")
        assert page.locator(".finding:visible").count() == 15


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def test_twelve_cells_are_two_pages_of_paper(browser, tmp_path):
    results = read_results(run_of(tmp_path, 3, lambda _: True))
    assert len(cells(results)) == 12
    path = written(results, tmp_path)
    for javascript in (True, False):
        with opened(browser, path, java_script_enabled=javascript) as seen:
            pdf = seen.page.pdf(format="A4")
            assert pages_of(pdf) <= 2
            seen.page.emulate_media(media="print")
            assert seen.page.locator(".finding > div:visible").count() == len(findings(results))
            assert seen.page.locator(".pictures:visible, .values:visible").count() == 0


WIDTHS = (390, 400, 700, 880, 960, 1040, 1280)
PAPER = 688
"""The width of A4 without its margins, in CSS pixels."""
BROKEN = """selector => [...document.querySelectorAll(selector)].flatMap((element) => {
  const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const broken = [];
  for (let node; (node = nodes.nextNode()); )
    for (const word of node.data.matchAll(/[\\p{L}\\d]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  return broken;
})"""
WORDS = ".cell summary span, .cells td:nth-child(-n + 2), .cells td:nth-child(n + 5):nth-child(-n + 9), .matrix td"


@pytest.mark.parametrize("width", [*WIDTHS, PAPER])
def test_no_word_is_broken(browser, crowded, width):
    with opened(browser, crowded) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.emulate_media(media="print" if width == PAPER else "screen")
        assert seen.page.locator(".cell summary .what:visible").count() == 16
        assert seen.page.evaluate(BROKEN, WORDS) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        narrow = seen.page.evaluate(
            "Math.min(...[...document.querySelectorAll('.what')].map(e => e.clientWidth || e.offsetWidth))"
        )
        assert narrow > 150


def test_the_check_of_broken_words_can_fail(browser, crowded):
    with opened(browser, crowded) as seen:
        seen.page.add_style_tag(content=".cells th:nth-child(1) { width: 5em !important }")
        assert "unsupported" in seen.page.evaluate(BROKEN, WORDS)


def test_on_paper_the_columns_have_their_names(browser, crowded):
    with opened(browser, crowded) as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.locator("#table th button:visible").count() == 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_rounding_is_calmer_than_other_verdicts(browser, crowded, scheme):
    def hue(element: Any) -> str:
        return element.evaluate("e => getComputedStyle(e).color")

    with opened(browser, crowded, color_scheme=scheme) as seen:
        page = seen.page
        assert [row for row in page.evaluate(CONTRASTS) if row[0] < 4.5] == []
        row = page.locator("#table tr.failed", has=page.locator("td.rounding")).first
        red = hue(row.locator("td").nth(0))
        calm = hue(row.locator("td").nth(1))
        assert calm != red
        assert hue(page.locator(".cell .s.rounding").first) == calm
        assert hue(page.locator(".cell .s.unstable").first) == red
        mark = "e => getComputedStyle(e, '::before').content"
        assert page.locator(".s.rounding").first.evaluate(mark) == page.locator(".s.unstable").first.evaluate(mark)


@pytest.mark.parametrize("width", [400, 1280])
def test_a_diff_can_be_read_in_a_narrow_window(browser, tmp_path, width):
    runs = [run_of(tmp_path / name, 4, lambda i, name=name: name == "b" and i == 2) for name in "ab"]
    path = tmp_path / "diff.html"
    path.write_text(page_of(diff_report(compare(*runs))))
    with opened(browser, path) as seen:
        page = seen.page
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for cell in page.locator("td[data-title=verdict]").all():
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width
        assert page.locator("td[data-title=verdict]").count() == 4
        assert page.locator("dd").count() == 2
        page.locator("tbody th a").first.click()
        assert page.locator("dt:target").count() == 1


def test_all_of_it_can_be_read_without_javascript(browser, pictured, mixed):
    for path in (pictured, mixed[0]):
        with opened(browser, path, java_script_enabled=False) as seen:
            page = seen.page
            assert page.locator(".cell .why:visible").count() == page.locator(".cell .why").count() > 0
            assert not page.is_visible("#controls")
            assert not page.is_visible("#theme")
    with opened(browser, mixed[0], java_script_enabled=False) as seen:
        rows = seen.page.locator("#table tbody tr")
        assert rows.count() == 40
        assert seen.page.locator("#table tbody tr:visible").count() == 12
        seen.page.check("#passing")
        assert seen.page.locator("#table tbody tr:visible").count() == 40


@pytest.mark.parametrize("javascript", [True, False])
def test_hostile_names_do_nothing(browser, tmp_path, javascript):
    path = written(hostile_run(tmp_path), tmp_path)
    with opened(browser, path, java_script_enabled=javascript) as seen:
        if not javascript:
            return
        page = seen.page
        for link in page.locator(".matrix td a").all():
            link.click()
        for select in page.locator("select").all():
            select.select_option(index=1)
        for button in page.locator("#table th button").all():
            button.click()
        page.fill("#q", HOSTILE[0])
        page.reload()
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.images.length + document.scripts.length") == 1
        text = page.evaluate("document.body.textContent")
        assert HOSTILE[0] in text
        assert HOSTILE[1] in text
        assert r"\u202e" in text
        assert "\u202e" not in text


def test_a_script_that_was_injected_would_not_run(browser, mixed, tmp_path):
    page = (
        mixed[0]
        .read_text()
        .replace("</main>", "</main><script>window.pwned = 1</script><img src=x onerror='window.pwned=1'>")
    )
    path = tmp_path / "injected.html"
    path.write_text(page)
    context = browser.new_context()
    tab = context.new_page()
    refused: list[str] = []
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(path.as_uri())
    assert tab.evaluate("window.pwned") is None
    assert len([text for text in refused if "Content Security Policy" in text]) >= 2
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["pictured", "mixed", "hostile"])
def test_nothing_is_wider_than_the_window(browser, pictured, mixed, tmp_path, width, kind):
    path = {"pictured": pictured, "mixed": mixed[0]}.get(kind) or written(hostile_run(tmp_path), tmp_path)
    with opened(browser, path) as seen:
        seen.page.set_viewport_size({"width": width, "height": 800})
        for button in seen.page.locator("#all").all():
            button.click()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name(browser, pictured):
    with opened(browser, pictured) as seen:
        for role in ("button", "link", "combobox", "searchbox", "checkbox", "region", "table"):
            for element in seen.page.get_by_role(role).all():
                snapshot = element.aria_snapshot()
                assert re.match(rf"""- '?{role} ["/]""", snapshot), snapshot


def test_five_thousand_cells_open_and_filter(browser, tmp_path):
    results = read_results(run_of(tmp_path, 1250, lambda i: i % 10 == 0))
    path = written(results, tmp_path)
    assert len(cells(results)) == 5000
    with opened(browser, path) as seen:
        assert seen.said.startswith("500 of 5000 rows shown")
        seen.page.fill("#q", "offset=1000 ")
        assert len(seen.cases) == 4
        seen.page.fill("#q", "")
        seen.page.check("#passing")
        assert len(seen.cases) == 1000
        assert seen.said == "1000 of 5000 rows shown, 4000 more fit"
        seen.page.click("th button >> text=ratio")
        assert len(seen.cases) == 1000
        seen.page.click("#more")
        assert len(seen.cases) == 5000
        assert not seen.page.is_visible("#more")


def test_all_cells_of_a_large_run_are_paged(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.reporting.results.store.LARGE", 8)
    monkeypatch.setattr("parity.reporting.results.store.MAX_CASES", 6)
    whole = read_results(run_of(tmp_path, 150, lambda i: i % 10 == 0))
    name = whole.cases[1].id
    cases = [replace(case, id=HOSTILE[0]) if case.id == name else case for case in whole.cases]
    outcomes = [replace(row, case=HOSTILE[0]) if row.case == name else row for row in whole.outcomes]
    rows = [row for row in whole.comparisons if row.case != name]
    run_dir = tmp_path / "large"
    run_dir.mkdir()
    with closing(Store(run_dir / STORE)) as store:
        fill(store, replace(whole, cases=cases, outcomes=outcomes, comparisons=rows))
    shown = read_results(run_dir, whole=False)
    assert (len(shown.cases), shown.left_out) == (6, 576)
    with opened(browser, written(shown, run_dir)) as seen:
        page = seen.page
        page.locator("#every").scroll_into_view_if_needed()
        expect(page.locator("#every-shown")).to_have_text("1 to 100 of 600 cells")
        n = page.locator("#every-table tbody tr")
        assert n.first.inner_text().split()[:3] == ["failed", "unstable", whole.cases[0].id]
        page.click("#every-last")
        expect(page.locator("#every-shown")).to_have_text("501 to 600 of 600 cells")
        page.fill("#every-q", "</script>")
        expect(page.locator("#every-shown")).to_have_text("1 to 4 of 4 cells")
        page.fill("#every-q", "")
        page.select_option("#every-status", label="failed")
        expect(page.locator("#every-shown")).to_have_text(f"1 to {n.count()} of {n.count()} cells")
        assert {row.split()[0] for row in n.all_inner_texts()} == {"failed"}
        page.fill("#every-q", "no such case")
        expect(page.locator("#every-shown")).to_have_text("No such cell.")


def test_a_run_in_which_all_passed_and_one_that_was_interrupted(browser, tmp_path):
    results = read_results(run_of(tmp_path, 3))
    for code, word in ((0, "PASS"), (130, "INTERRUPTED")):
        with opened(browser, written(with_code(results, code), tmp_path)) as seen:
            assert seen.page.inner_text("h1").startswith(word)
            assert seen.page.locator("#details").count() == 0


def test_the_case_of_a_finding_is_a_heading(browser, pictured):
    with opened(browser, pictured) as seen:
        assert seen.page.get_by_role("heading", level=3, name=CASE).count() == 1
        assert seen.page.get_by_role("heading", level=1).count() == 1
        assert seen.page.get_by_role("main").count() == 1
