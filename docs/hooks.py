"""MkDocs asks here for the pages that no file in docs/ holds: the reference, and the files of the root."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
FROM_ROOT = {
    "index.md": "README.md",
    "project/architecture.md": "ARCHITECTURE.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/benchmarks.md": "benchmarks/README.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/security.md": "SECURITY.md",
    "glossary.md": "parity/reporting/html/templates/glossary.md",
    "sample/report.html": "reports/sample/report.html",
    "sample/report.png": "reports/sample/report.png",
}
"""Pages and files of the site by their place in it, with the file of the repository."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for place, path in FROM_ROOT.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_bytes()))
    for place, page in reference.PAGES.items():
        files.append(File.generated(config, place, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Links between files of the repository as links between pages; what the site does not hold is named only."""
    place = page.file.src_uri
    if place in reference.PAGES:
        return markdown
    source = ROOT / FROM_ROOT.get(place, f"docs/{place}")
    pages = {path: place for place, path in FROM_ROOT.items()}

    def linked(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        path = os.path.relpath(source.parent / target, ROOT)
        inside = pages.get(path.rstrip("/"), pages.get(f"{path}/README.md", path.removeprefix("docs/")))
        if files.get_file_from_path(inside) is None and (ROOT / path).exists():
            return text
        return f"{picture}[{text}]({os.path.relpath(inside, Path(place).parent)}{anchor or ''})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(linked, part) for part in parts)
