"""`-k EXPR`: parts of case ids, combined with and, or, not and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NoReturn

Matcher = Callable[[str], bool]

TOKEN = re.compile(r"[()]|[^\s()]+")
OPERATORS = ("and", "or", "not", "(", ")")
MAX_TOKENS = 200
"""Limits the parser's recursion."""
ALIKE = 0.65
"""Two swapped letters give 0.67 in a word of three and 0.8 in one of five; half the letters in place give 0.5."""
EXAMPLE = "for example -k 'offset and not (large or pair)'"


class KeywordError(Exception):
    """An invalid expression; the message says what is missing and where. Columns count from 1."""


def keyword_matcher(expression: str, ids: Sequence[str] = ()) -> Matcher:
    """Whether a case id matches, ignoring case. An invalid expression that is part of one of `ids` is plain text.

    Raises KeywordError.
    """
    try:
        return Parser(expression).whole()
    except KeywordError:
        text = expression.strip().casefold()
        if not any(text in case_id.casefold() for case_id in ids):
            raise
        return lambda case_id: text in case_id.casefold()


class Parser:
    """Takes the tokens of an expression one by one; `or` binds least, `not` most."""

    def __init__(self, expression: str) -> None:
        self._tokens = [(match[0], match.start() + 1) for match in TOKEN.finditer(expression)]
        if len(self._tokens) > MAX_TOKENS:
            raise KeywordError(f"more than {MAX_TOKENS} words and operators")
        self._end = len(expression.rstrip()) + 1
        self._next = 0

    def whole(self) -> Matcher:
        """The whole expression; an empty one matches everything."""
        if not self._tokens:
            return lambda _: True
        matches = self._any()
        if self._token:
            self._refuse("`and`, `or`, or the end")
        return lambda case_id: matches(case_id.casefold())

    @property
    def _token(self) -> str:
        return self._tokens[self._next][0].casefold() if self._next < len(self._tokens) else ""

    def _takes(self, token: str) -> bool:
        is_next = self._token == token
        self._next += is_next
        return is_next

    def _any(self) -> Matcher:
        parts = [self._all()]
        while self._takes("or"):
            parts.append(self._all())
        return lambda text: any(part(text) for part in parts)

    def _all(self) -> Matcher:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return lambda text: all(part(text) for part in parts)

    def _one(self) -> Matcher:
        if self._takes("not"):
            negated = self._one()
            return lambda text: not negated(text)
        if self._takes("("):
            inner = self._any()
            if not self._takes(")"):
                self._refuse("`)`")
            return inner
        word = self._token
        if not word or word in OPERATORS:
            self._refuse("a word")
        self._next += 1
        return lambda text: word in text

    def _refuse(self, wanted: str) -> NoReturn:
        ended = self._next == len(self._tokens)
        token, column = ("the end", self._end) if ended else self._tokens[self._next]
        shown = token if ended else f"`{token}`"
        raise KeywordError(f"expected {wanted} at column {column}, found {shown}; {EXAMPLE}")


def nearest_first(expression: str, ids: Sequence[str]) -> tuple[list[str], bool]:
    """The ids, those similar to an unmatched word first, and whether any is similar."""
    folded = [case_id.casefold() for case_id in ids]
    tokens = {token.casefold() for token in TOKEN.findall(expression)[:MAX_TOKENS]} - set(OPERATORS)
    unknown = [word for word in tokens if not any(word in case_id for case_id in folded)]
    scores = {case_id: max((likeness(word, case_id) for word in unknown), default=0.0) for case_id in ids}
    return sorted(ids, key=lambda case_id: -scores[case_id]), max(scores.values(), default=0.0) >= ALIKE


def likeness(word: str, case_id: str) -> float:
    """The highest similarity (0 to 1) of the word and a part of the id that starts where a word starts."""
    return max(SequenceMatcher(None, part, word).ratio() for part in parts(case_id.casefold(), len(word)))


def parts(text: str, length: int) -> Iterator[str]:
    """The text's parts of this length that begin where a word begins."""
    for match in re.finditer(r"[^\W_]+", text):
        yield text[match.start() : match.start() + length]
    yield text[:length]
