"""The files of tests that the documents name are there."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMED = re.compile(r"`(tests/[\w/]*(?:\.py|/|\b))`")


def missing(text: str) -> list[str]:
    return [path for path in NAMED.findall(text) if not (ROOT / path).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_is_there(path):
    assert missing(path.read_text()) == []


def test_a_file_that_is_gone_is_found():
    assert missing("see `tests/conftest.py`, `tests/judge/` and `tests/test_gone.py`") == ["tests/test_gone.py"]
