"""The branches of a user's reference that no case takes: what they compute is compared with nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any

from parity.cases.brought import Brought, FunctionRun, ReferenceFile


def lines_run(brought: Brought, params: Any, inputs: Mapping[str, Any]) -> set[int]:
    """The lines of the reference's file that a call runs."""
    lines: set[int] = set()
    path = str(brought.source.path)

    def on_event(frame: FrameType, _event: str, _: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        lines.add(frame.f_lineno)
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        FunctionRun(brought, params)(inputs)
    finally:
        sys.settrace(before)
    return lines


def untaken(source: ReferenceFile, lines: Collection[int]) -> Iterator[tuple[int, str]]:
    """The line and the text of each `if` that was reached, of which one way was never taken.

    A way that only raises, and one on the line of its `if`, is left out.
    """
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.If) and node.lineno in lines:
            for way, text in ((node.body, "true"), (node.orelse, "false")):
                if way and way[0].lineno not in {*lines, node.lineno} and not isinstance(way[0], ast.Raise):
                    yield node.lineno, f"`{ast.unparse(node.test)}` is never {text}"
