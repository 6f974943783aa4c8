"""`-k EXPR`: words that a case id holds, joined by and, or, not and parentheses."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

Matcher = Callable[[str], bool]

TOKEN = re.compile(r"[()]|[^\s()]+")
MAX_TOKENS = 200
OPERATORS = ("and", "or", "not", "(", ")")
PARTS = (ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Constant)
"""What such an expression is made of once its words are numbers; `a (b)` would be a call."""


def keyword_matcher(expression: str) -> Matcher:
    """Whether a case id matches; what is not an expression is looked for as it stands. Case does not matter."""
    tokens = TOKEN.findall(expression.casefold())
    words = [token for token in tokens if token not in OPERATORS]
    numbers = iter(range(len(words)))
    source = " ".join(token if token in OPERATORS else str(next(numbers)) for token in tokens)
    try:
        tree = ast.parse(source, mode="eval") if len(tokens) <= MAX_TOKENS else None
    except SyntaxError:
        tree = None
    if tree is None or not all(isinstance(node, PARTS) for node in ast.walk(tree)):
        whole = expression.strip().casefold()
        return lambda case_id: whole in case_id.casefold()
    return lambda case_id: _holds(tree.body, words, case_id.casefold())


def _holds(node: ast.expr, words: list[str], text: str) -> bool:
    if isinstance(node, ast.BoolOp):
        parts = (_holds(value, words, text) for value in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp):
        return not _holds(node.operand, words, text)
    assert isinstance(node, ast.Constant)  # noqa: S101 - PARTS has no others
    return words[node.value] in text  # type: ignore[index]
