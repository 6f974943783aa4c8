"""`-k EXPR`: words that a case id holds, joined by and, or, not and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable

Matcher = Callable[[str], bool]

TOKEN = re.compile(r"[()]|[^\s()]+")
MAX_TOKENS = 200
OPERATORS = ("and", "or", "not", "(", ")")


class _NotAnExpressionError(Exception):
    pass


def keyword_matcher(expression: str) -> Matcher:
    """Whether a case id matches; what is not an expression is looked for as it stands. Case does not matter."""
    tokens = TOKEN.findall(expression.casefold())
    try:
        return _Parser(tokens).parse()
    except _NotAnExpressionError:
        return _holds(expression.strip().casefold())


def _holds(word: str) -> Matcher:
    return lambda case_id: word in case_id.casefold()


class _Parser:
    """or < and < not < word."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        if not tokens or len(tokens) > MAX_TOKENS:
            raise _NotAnExpressionError

    def parse(self) -> Matcher:
        matcher = self._either()
        if self.tokens:
            raise _NotAnExpressionError
        return matcher

    def _accept(self, token: str) -> bool:
        found = bool(self.tokens) and self.tokens[-1] == token
        if found:
            self.tokens.pop()
        return found

    def _either(self) -> Matcher:
        parts = [self._both()]
        while self._accept("or"):
            parts.append(self._both())
        return lambda case_id: any(part(case_id) for part in parts)

    def _both(self) -> Matcher:
        parts = [self._negated()]
        while self._accept("and"):
            parts.append(self._negated())
        return lambda case_id: all(part(case_id) for part in parts)

    def _negated(self) -> Matcher:
        if self._accept("not"):
            inner = self._negated()
            return lambda case_id: not inner(case_id)
        return self._word()

    def _word(self) -> Matcher:
        if self._accept("("):
            inner = self._either()
            if not self._accept(")"):
                raise _NotAnExpressionError
            return inner
        if not self.tokens or self.tokens[-1] in OPERATORS:
            raise _NotAnExpressionError
        return _holds(self.tokens.pop())
