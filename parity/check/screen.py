"""An answer on the terminal: the verdict and its cause, the values that differ most, what was asked, what to do."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from parity.check.answer import SAME_FORMULA, CheckAnswer, short
from parity.config.nodes import printable
from parity.reporting.text.words import number

STYLES = {"right": "bold green", "wrong": "bold red", "unstable": "bold red", "degraded": "bold magenta"}
"""By verdict; yellow, where nothing is concluded."""
ROUNDED = ("unstable", "degraded")
"""Verdicts on digits that are lost."""
LEAST_WIDTH = 40
DIGITS = 8


def screen(reply: CheckAnswer, width: int, *, quiet: bool = False) -> Iterator[Text]:
    """The lines of an answer, of at most `width` characters where words allow it; the first one alone if `quiet`."""
    verdict = reply.verdict.upper()
    indent = " " * (len(verdict) + 2)
    style = STYLES.get(reply.verdict, "bold yellow")
    if quiet:
        yield Text.assemble((verdict, style), "  ", printable(short(reply.sentence)))
        return
    first, *rest = wrapped(reply.sentence, width - len(indent))
    yield Text.assemble((verdict, style), "  ", first)
    for line in rest:
        yield Text(indent + line)
    for text in (*reply.details, values(reply)):
        for line in wrapped(text, width - len(indent)):
            yield Text(indent + line)
    for label, text in labelled(reply):
        for i, line in enumerate(wrapped(text, width - 8)):
            yield Text.assemble((f"{'' if i else label:8}", "bold"), line)


def wrapped(text: str, room: int) -> list[str]:
    """A text in lines; words, and so paths, are never broken."""
    room = max(room, LEAST_WIDTH)
    return textwrap.wrap(printable(short(text)), room, break_long_words=False, break_on_hyphens=False)


def values(reply: CheckAnswer) -> str:
    """`y [0, 3] in Model-offset=10: 1.5, exact 1.2, 410 times its error bound`; empty where nothing differs."""
    seen = reply.counterexample
    if not seen or seen.get("got") is None or seen.get("index") is None:
        return ""
    got, expected, bound = seen["got"], seen.get("exact"), seen.get("bound")
    exact = "" if expected is None else f", exact {number(expected, DIGITS)}"
    # Nothing is rounded in whole numbers.
    is_rounded = expected is not None and not (float(got).is_integer() and float(expected).is_integer())
    times = f", {number(abs(got - expected) / bound, 2)} times the error bound" if bound and is_rounded else ""
    return f"{seen['tensor']} {seen['index']} in {seen['case']}: {number(got, DIGITS)}{exact}{times}"


def formula(reply: CheckAnswer) -> str:
    """What exact arithmetic shows of the formula; empty where the verdict says as much."""
    reason = next((text for name, _, text in reply.checks if name == SAME_FORMULA), "")
    if reply.same_formula == "yes":
        differs = "; what differs is rounding" if reply.verdict in ROUNDED else ""
        return f"the same by exact arithmetic: {reason}{differs}"
    is_open = reply.same_formula == "not shown" and reply.verdict == "right"
    return f"not shown to be the same: {reason}" if is_open and reason else ""


def labelled(reply: CheckAnswer) -> Iterator[tuple[str, str]]:
    """What was asked, what was not judged, and the next commands, each with its label."""
    by_state: dict[str, list[str]] = {}
    for name, state, _ in reply.checks:
        if name != SAME_FORMULA:
            by_state.setdefault(state, []).append(name)
    if by_state:
        yield (
            "asked",
            "; ".join(
                f"{state}: {', '.join(by_state[state])}"
                for state in ("failed", "passed", "not run")
                if state in by_state
            ),
        )
    if text := formula(reply):
        yield "formula", text
    for text in reply.not_judged:
        yield "note", text
    if not reply.run:
        return
    run = os.path.relpath(reply.run) if Path(reply.run).is_relative_to(Path.cwd()) else reply.run
    case = (reply.counterexample or {}).get("case")
    if case:
        yield "more", f"parity explain {run} {case}"
        yield "", f"parity repro {run} {case}  # a script without parity"
    yield "" if case else "more", f"parity report {run} --html report.html"
