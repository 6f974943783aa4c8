"""The files that the documents name or link to are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").glob("*.md")])
NAMED = re.compile(r"`(tests/[\w/]*(?:\.py|/|\b))`")


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
MADE = ("reference/",)
"""Pages of the site that are written from the code when it is built."""


def missing(text: str, folder: Path = ROOT) -> list[str]:
    linked = [path for path in LINK.findall(text) if not path.startswith(MADE)]
    return [path for path in NAMED.findall(text) if not (ROOT / path).exists()] + [
        path for path in linked if not (folder / path).exists()
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(path):
    assert missing(path.read_text(), path.parent) == []


def test_a_file_that_is_gone_is_found():
    text = "see `tests/conftest.py`, `tests/judge/`, `tests/test_gone.py`, [docs](docs/ci.md#x), [gone](docs/gone.md)"
    assert missing(text) == ["tests/test_gone.py", "docs/gone.md"]
