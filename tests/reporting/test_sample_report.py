"""The sample report is what parity makes today: its style and script are the templates', and it was a real run."""

from __future__ import annotations

import re

import lxml.html

from parity.reporting.html.page import html_report
from parity.reporting.results.results import read_results
from tests.conftest import ROOT
from tests.reporting.stored_runs import finding, stored

SAMPLE = ROOT / "reports" / "sample" / "report.html"
RENEW = "renew the sample with the commands in reports/README.md"


def parts(page: str) -> list[str]:
    return re.findall(r"<(?:style|script)[^>]*>.*?</(?:style|script)>", page, re.DOTALL)


def test_the_sample_has_the_style_and_the_script_of_today(tmp_path):
    run_dir = stored(tmp_path / "run", finding())
    assert parts(SAMPLE.read_text()) == parts(html_report(read_results(run_dir), run_dir)), RENEW


def test_the_sample_shows_a_real_finding_and_no_path_of_a_machine():
    text = SAMPLE.read_text()
    page = lxml.html.fromstring(text)
    assert "variance-naive" in page.get_element_by_id("cells").getparent().text_content()
    assert page.xpath("//*[@id='algorithms']")
    assert not re.search(r"/(tmp|root|home|work)/", text)


def test_the_readme_shows_the_sample():
    assert "reports/sample/report.png" in (ROOT / "README.md").read_text()
    assert (ROOT / "reports" / "sample" / "report.png").stat().st_size < 400_000
