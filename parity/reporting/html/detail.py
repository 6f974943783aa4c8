"""How much the report shows of each finding, so that the file stays small: everything only of the worst ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from markupsafe import Markup

from parity.reporting.html.findings import FindingRenderer
from parity.reporting.html.table import table_row
from parity.reporting.html.templates import n_bytes, rendered
from parity.reporting.results.cells import CellResult


class Detail(IntEnum):
    """How much is shown of a finding."""

    LINE = 1
    TEXT = 2
    PICTURE = 3
    """Of the worst tensor."""
    PICTURES = 4
    """Of the worst three."""


N_PICTURES = {Detail.TEXT: 0, Detail.PICTURE: 1, Detail.PICTURES: 3}


class Space:
    """The findings as shown, and the bytes that are left; the first finding shown is unfolded."""

    def __init__(self, renderer: FindingRenderer, anchors: Mapping[str, str], left: int) -> None:
        self.left = left
        self.details: dict[str, Detail] = {}
        self._renderer = renderer
        self._anchors = anchors
        self._parts: dict[str, dict[str, Markup]] = {}
        self._heads: dict[str, dict[str, Any]] = {}

    def show(self, cell: CellResult, detail: Detail) -> bool:
        """Show so much of a cell, unless more of it is shown already; False where there is no space for that."""
        if self.details.get(cell.anchor, 0) >= detail:
            return True
        parts = self._parts.setdefault(cell.id, {})
        part = self.part(cell, detail)
        needed = n_bytes(part) - n_bytes(parts.get(cell.anchor, ""))
        needs_head = cell.id not in self._heads and (not parts or detail is not Detail.LINE)
        head = self._renderer.head(cell.case) if detail is not Detail.LINE else None
        needed += n_bytes(self.case(cell.id, head)) if needs_head else 0
        if detail is not Detail.LINE and needed > self.left:
            return False
        self.left -= needed
        self.details[cell.anchor], parts[cell.anchor] = detail, part
        if head is not None:
            self._heads[cell.id] = head
        return True

    def part(self, cell: CellResult, detail: Detail) -> Markup:
        """A finding as HTML."""
        if detail is Detail.LINE:
            return rendered("brief", row=table_row(cell))
        opened = next(iter(self.details)) == cell.anchor
        return rendered("finding", f=self._renderer.finding(cell, N_PICTURES[detail]), opened=opened)

    def case(self, name: str, head: dict[str, Any] | None, parts: Iterable[Markup] = ()) -> Markup:
        """A case with its findings, the most urgent first; `head` is None if all have one line."""
        explain = self._renderer.command("explain", name)
        case = {"id": name, "anchor": self._anchors[name], "head": head, "explain": explain, "parts": parts}
        return rendered("case", case=case)

    def cases(self) -> list[Markup]:
        """All cases, in the order in which they were first shown."""
        return [self.case(name, self._heads.get(name), parts.values()) for name, parts in self._parts.items()]
