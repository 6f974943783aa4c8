"""All problems of a configuration, raised together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from parity.errors import UserError

COMMAND_LINE = "command line"
"""The `file` of a problem on the command line."""

MAX_SHOWN = 100
MAX_ALLOWED_SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """One problem: its location, the value there, the allowed values, and the nearest match.

    `line` counts from 1 and is 0 if there is none; `key` is a path such as `cases[2].params.eps`.
    """

    file: str
    line: int
    key: str
    value: str
    message: str
    allowed: tuple[str, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        location = ": ".join(part for part in (self._where(), self._what()) if part)
        hint = f'; did you mean "{self.hint}"?' if self.hint else ""
        lines = [f"{location}", f"  {self.message}{hint}"]
        if self.allowed:
            lines.append(f"  allowed: {_listed(self.allowed)}")
        return "\n".join(lines)

    def _where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def _what(self) -> str:
        return " = ".join(part for part in (self.key, self.value) if part)


class ConfigError(UserError):
    """The configuration, or an option that overrides it, is wrong; nothing runs."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        hidden = len(self.problems) - len(shown)
        if hidden:
            shown.append(f"... and {hidden} more problems")
        return "\n".join(shown)


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word most similar to `word`, if any is similar."""
    by_folded = {candidate.casefold(): candidate for candidate in allowed}
    matches = get_close_matches(word[:200].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def _listed(words: tuple[str, ...]) -> str:
    if len(words) <= MAX_ALLOWED_SHOWN:
        return ", ".join(words)
    return f"{', '.join(words[:MAX_ALLOWED_SHOWN])}, ... ({len(words)} in total)"
