"""What `parity judge` prints: the answer under other tolerances, and the tensors whose verdict changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from parity.config.errors import ConfigError
from parity.config.nodes import Problems
from parity.config.tolerance_grammar import parse_options
from parity.config.tolerances import ToleranceRule
from parity.reporting.blocks import Block, BlockReport, Bullets, Sentence
from parity.reporting.blocks.console import MAX_ROWS, block_parts, print_parts, show
from parity.reporting.console.run import stdout_console
from parity.reporting.judge import NOT_KEPT, Rejudged, VerdictChange
from parity.reporting.rules import Disagreement, RuleAnswer
from parity.reporting.text.answer import answer
from parity.reporting.text.words import factor, plural


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
    changed = block_parts(changes(rejudged), console.width, verbose=verbose, most=MAX_ROWS)
    print_parts([answer(rejudged.results), *changed], console)


def changes(rejudged: Rejudged) -> Iterator[Block]:
    """What changed, a line for each tensor and backend, or that nothing did."""
    for title, fails in (("now failing", True), ("now passing", False)):
        lines = [change_text(change) for change in rejudged.changes if change.fails is fails]
        if lines:
            yield Sentence(plural(len(lines), "comparison"), "strong", title)
            yield Bullets(lines)
    if not rejudged.changes:
        yield Sentence("no verdict changes", "quiet")
    if rejudged.n_lost:
        yield Sentence(NOT_KEPT, "", plural(rejudged.n_lost, "comparison"))


def show_rule(name: str, rule_answer: RuleAnswer) -> None:
    """Print what a rule says, and where it disagrees with the error bound."""
    n = rule_answer.counts
    rejected = n[True, True] + n[True, False]
    word, style = ("FAIL", "bad") if rejected else ("PASS", "well")
    of = plural(sum(n.values()), "tensor")
    sentence = f"{name} rejects {rejected} of {of}; the error bound {sum(wrong(n))}"
    show(BlockReport("parity judge", word, style, sentence, list(disagreements(rule_answer))), stdout_console())


def disagreements(rule_answer: RuleAnswer) -> Iterator[Block]:
    """How often a rule agrees with the error bound, and where it does not."""
    counts = rule_answer.counts
    yield Bullets([f"  {counts[key]} {text}" for key, text in TOLD.items() if counts[key]])
    yield Bullets([disagreement_text(item) for item in rule_answer.disagreements])
    if n := rule_answer.n_unjudged:
        yield Sentence(f"{plural(n, 'tensor')} could not be judged: nothing to compare with")


def disagreement_text(item: Disagreement) -> str:
    """`  case float32 y paddle: passed, though beyond the bound, error ratio 30`."""
    ratio = "" if item.error_ratio is None else f", error ratio {factor(item.error_ratio)}"
    what = "rejected, though within the bound" if item.rejected else "passed, though beyond the bound"
    return f"  {' '.join(item.key)} {item.backend}: {what}{ratio}"


def wrong(counts: Mapping[tuple[bool, bool], int]) -> Iterator[int]:
    """The numbers of tensors that exceed the error bound."""
    yield from (number for (_, is_wrong), number in counts.items() if is_wrong)


TOLD = {
    (True, True): "rejected by both",
    (False, False): "passed by both",
    (True, False): "rejected by the rule alone: as accurate as a careful implementation",
    (False, True): "passed by the rule alone: beyond the error bound",
}


def change_text(change: VerdictChange) -> str:
    """`  rand-100-offset=100 float32 y, torch against oracle: close -> rounding`."""
    *key, actual, expected = change.key
    return f"  {' '.join(key)}, {actual} against {expected}: {change.before} -> {change.now}"
