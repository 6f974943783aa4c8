"""The published issues: every config says what it is about, and docs/issues.md has them all."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import CONFIGS, ROOT

FILES = sorted((CONFIGS / "issues").glob("*.yaml"))


@pytest.fixture(scope="module")
def issues():
    """docs/issues.py, which writes the page."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import issues
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return issues


def test_every_config_says_what_was_reported_where_and_what_was_concluded(issues):
    read = [issues.read_issue(config) for config in FILES]
    assert len(read) >= 40
    assert len({issue.link for issue in read}) == len(read)
    assert [issue.config.name for issue in read if max(len(issue.reported), len(issue.concluded)) > 120] == []


def test_the_page_has_a_row_for_each(issues):
    rows = [line for line in (ROOT / "docs" / "issues.md").read_text().splitlines() if line.startswith("| [")]
    said = [
        f"| [{issue.name}]({issue.link}) | {issue.reported} | {issue.concluded} | "
        for issue in map(issues.read_issue, FILES)
    ]
    assert [row[: len(begin)] for row, begin in zip(rows, said, strict=True)] == said
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_kernel_is_used():
    text = "".join(config.read_text() for config in FILES)
    kernels = (CONFIGS / "issues" / "kernels").glob("*.py")
    assert [kernel.name for kernel in kernels if f"kernels/{kernel.name}" not in text] == []
