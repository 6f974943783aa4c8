"""Writes docs/issues.md from a run of configs/issues:

parity run configs/issues/*.yaml --fail-on-others --out RUN; python docs/issues.py RUN > docs/issues.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from parity.judge.compare.verdict import Verdict
from parity.reporting.results.cells import CellResult, cells
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import Results
from parity.reporting.text.findings import EDIT, Finding, by_cause
from parity.reporting.text.safe import prose
from parity.reporting.text.words import listed

CONFIGS = Path(__file__).parent.parent / "configs" / "issues"
HEAD = """# Published issues, and what parity says

{n} published reports of wrong or differing results, as configs in `configs/issues`. "Now" is what these releases return:
{versions}.

A backend with another name is a few lines that compute as the report says. Right is what differs by nothing but rounding,
and by options that a library keeps in float32.

| issue | reported | concluded there | parity says now |
|---|---|---|---|"""
NOISE = "attribute-precision"
"""What libraries do everywhere in float64, so that no issue is about it."""


@dataclass(frozen=True)
class Issue:
    """A config's first comment lines: what was reported, where, and what its maintainers concluded."""

    config: Path
    reported: str
    link: str
    concluded: str

    @property
    def name(self) -> str:
        """`pytorch/pytorch#51102`, from the link."""
        owner, repository, _, number = self.link.removeprefix("https://github.com/").split("/")
        return f"{owner}/{repository}#{number}"


def read_issue(config: Path) -> Issue:
    """The issue of a config; ValueError if its first lines do not say it."""
    comment = [line.removeprefix("#").strip() for line in config.read_text().split("\nversion:")[0].splitlines()]
    text = " ".join(comment)
    match = re.fullmatch(r"(.+?) (https://github\.com/\S+/\S+/(?:issues|pull)/\d+) Concluded: (.+)", text)
    if match is None:
        raise ValueError(f"{config.name} must begin with `# what was reported`, `# link`, `# Concluded: ...`")
    return Issue(config, *match.groups())


def says(results: Results, recorded: Sequence[CellResult], config: Path) -> Iterator[str]:
    """What the run says of a config: a line for each finding, the lines that compute as reported first, one for the
    backends that agree, and one for each that lacks the op."""
    ops = {row.id: row.op for row in results.cases if Path(row.source.file).name == config.name}
    brought = {row.name for row in results.backends if row.ops}
    rows = [row for row in results.comparisons if row.case in ops and (row.fails or row.hides)]
    found = [finding for finding in by_cause(results, rows) if not is_noise(finding, brought)]
    found.sort(key=lambda finding: not brought & set(finding.backends))
    several = len(set(ops.values())) > 1
    yield from dict.fromkeys(
        f"{said(finding)}{f', in {finding.op}' if several else ''}{in_dtypes(finding)}" for finding in found
    )
    mine = [cell for cell in recorded if cell.id in ops]
    having = {cell.backend for cell in mine if cell.outcome == "ok"}
    silent = [name for name in results.backend_names if name in having - {b for f in found for b in f.backends}]
    if silent:
        yield f"{listed(silent)}: right"
    for name in results.backend_names:
        lacking = sorted({cell.dtype for cell in mine if cell.backend == name and cell.outcome != "ok"})
        if lacking:
            yield f"{name}: not in {listed(lacking)}" if name in having else f"{name}: lacks it"


def said(finding: Finding) -> str:
    """The sentence of a finding, with what is computed instead where that is all that is known."""
    formula = finding.formula() if finding.id == EDIT else ""
    return f"{listed(finding.backends)}: {formula} ({EDIT})" if formula else finding.sentence().plain


def is_noise(finding: Finding, brought: AbstractSet[str]) -> bool:
    """Whether it says nothing about an issue: what rounding and options in float32 do to libraries."""
    unsaid = finding.id == NOISE or finding.worst.row.verdict == Verdict.ROUNDING.value
    return unsaid and not brought & set(finding.backends)


def in_dtypes(finding: Finding) -> str:
    """In which dtypes, where not in both."""
    return f", in {listed(finding.dtypes)}" if len(finding.dtypes) == 1 else ""


def table(results: Results, configs: Sequence[Path]) -> Iterator[str]:
    """The page, line by line."""
    versions = [f"{row.framework} {row.version}" for row in results.backends if row.name == row.framework]
    yield HEAD.format(n=len(configs), versions=listed(versions))
    recorded = cells(results)
    for issue in map(read_issue, configs):
        lines = "<br>".join(prose(line) for line in says(results, recorded, issue.config))
        yield f"| [{issue.name}]({issue.link}) | {issue.reported} | {issue.concluded} | {lines} |"


def main(arguments: Sequence[str]) -> None:
    """Print the page for the run directory in the arguments."""
    results = read_results(Path(arguments[1]))
    print("\n".join(table(results, sorted(CONFIGS.glob("*.yaml")))))


if __name__ == "__main__":
    main(sys.argv)
