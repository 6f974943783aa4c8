"""What `parity judge` prints: the answer under other tolerances, and the tensors whose verdict changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.text import Text

from parity.config.errors import ConfigError
from parity.config.nodes import Problems, printable
from parity.config.tolerance_grammar import parse_options
from parity.config.tolerances import ToleranceRule
from parity.reporting.console.run import STYLES, stdout_console
from parity.reporting.judge import NOT_KEPT, Rejudged, VerdictChange
from parity.reporting.rules import RuleAnswer
from parity.reporting.text.answer import answer
from parity.reporting.text.words import factor, plural

MAX_CHANGES = 12


def rules_of(rtol: Iterable[str], atol: Iterable[str]) -> list[ToleranceRule]:
    """The rules of `--rtol` and `--atol`; raises ConfigError."""
    problems = Problems()
    rules = [
        rule for name, texts in (("rtol", rtol), ("atol", atol)) for rule in parse_options(name, texts, (), problems)
    ]
    if problems:
        raise ConfigError(problems.problems)
    return rules


def show_judged(rejudged: Rejudged, *, verbose: bool) -> None:
    """Print the answer and the changes on stdout."""
    console = stdout_console()
    console.print(answer(rejudged.results), soft_wrap=True)
    for line in lines(rejudged, verbose=verbose):
        console.print(line, soft_wrap=True)


def lines(rejudged: Rejudged, *, verbose: bool) -> Iterator[Text]:
    """What changed, a line for each tensor and backend, or that nothing did."""
    for title, fails in (("now failing", True), ("now passing", False)):
        changes = [change for change in rejudged.changes if change.fails is fails]
        if changes:
            yield Text.assemble((f"{title}: ", "bold"), plural(len(changes), "comparison"))
        shown = changes if verbose else changes[:MAX_CHANGES]
        yield from map(change_text, shown)
        if len(shown) < len(changes):
            yield Text(f"  and {len(changes) - len(shown)} more (-v lists them)", style="dim")
    if not rejudged.changes:
        yield Text("no verdict changes", style="dim")
    if rejudged.n_lost:
        yield Text(f"{plural(rejudged.n_lost, 'comparison')}: {NOT_KEPT}")


def show_rule(name: str, rule_answer: RuleAnswer) -> None:
    """Print what a rule says, and where it disagrees with the error bound."""
    console = stdout_console()
    n = rule_answer.counts
    rejected, n_all = n[True, True] + n[True, False], sum(n.values())
    head = ("FAIL", "bold red") if rejected else ("PASS", "bold green")
    of = plural(n_all, "tensor")
    console.print(Text.assemble(head, f"  {name} rejects {rejected} of {of}; the error bound {sum(wrong(n))}"))
    for (both, bound), text in TOLD.items():
        if n[both, bound]:
            console.print(Text(f"  {n[both, bound]} {text}"))
    for item in rule_answer.disagreements[:MAX_CHANGES]:
        ratio = "" if item.error_ratio is None else f", error ratio {factor(item.error_ratio)}"
        what = "rejected, though within the bound" if item.rejected else "passed, though beyond the bound"
        console.print(Text(printable(f"  {' '.join(item.key)} {item.backend}: {what}{ratio}")), soft_wrap=True)
    if len(rule_answer.disagreements) > MAX_CHANGES:
        console.print(Text(f"  and {len(rule_answer.disagreements) - MAX_CHANGES} more", style="dim"))
    if rule_answer.n_unjudged:
        console.print(Text(f"{plural(rule_answer.n_unjudged, 'tensor')} could not be judged: nothing to compare with"))


def wrong(counts: Mapping[tuple[bool, bool], int]) -> Iterator[int]:
    """The numbers of tensors that exceed the error bound."""
    yield from (number for (_, is_wrong), number in counts.items() if is_wrong)


TOLD = {
    (True, True): "rejected by both",
    (False, False): "passed by both",
    (True, False): "rejected by the rule alone: as accurate as a careful implementation",
    (False, True): "passed by the rule alone: beyond the error bound",
}


def change_text(change: VerdictChange) -> Text:
    """`  rand-100-offset=100 float32 y, torch against oracle: close -> rounding`."""
    *key, actual, expected = map(printable, change.key)
    return Text.assemble(
        f"  {' '.join(key)}, {actual} against {expected}: {change.before} -> ", (change.now, STYLES[change.now])
    )
