"""Writes docs/issues.md from a run of configs/issues:

parity run configs/issues/*.yaml --out RUN; python docs/issues.py RUN > docs/issues.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.reporting.results.cells import CellResult, cells
from parity.reporting.results.results import read_results
from parity.reporting.results.rows import Results
from parity.reporting.text.findings import Finding, by_cause
from parity.reporting.text.safe import prose
from parity.reporting.text.words import listed

CONFIGS = Path(__file__).parent.parent / "configs" / "issues"
HEAD = """# Published issues, and what parity says

{n} published reports of wrong or differing results, as configs in `configs/issues`. "Now" is what these releases return:
{versions}. A backend with another name is a few lines that compute as the report says.

| issue | reported | concluded there | parity says now |
|---|---|---|---|"""


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
    """What the run says of a config: a line for each finding, and one for the backends that agree."""
    mine = {row.id for row in results.cases if Path(row.source.file).name == config.name}
    rows = [row for row in results.comparisons if row.case in mine and (row.fails or row.hides)]
    found = [finding for finding in by_cause(results, rows) if finding.id != "rounding"]
    yield from dict.fromkeys(f"{finding.sentence().plain}{in_dtypes(finding)}" for finding in found)
    having = {cell.backend for cell in recorded if cell.id in mine and cell.outcome == "ok"}
    silent = [name for name in results.backend_names if name in having - {b for f in found for b in f.backends}]
    if silent:
        yield f"{listed(silent)}: right"
    lacking = {cell.backend: cell.message for cell in recorded if cell.id in mine and cell.outcome != "ok"}
    yield from (f"{name}: {message}" for name, message in lacking.items())


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
        yield f"| [{issue.name}]({issue.link}) | {prose(issue.reported)} | {prose(issue.concluded)} | {lines} |"


def main(arguments: Sequence[str]) -> None:
    """Print the page for the run directory in the arguments."""
    results = read_results(Path(arguments[1]))
    print("\n".join(table(results, sorted(CONFIGS.glob("*.yaml")))))


if __name__ == "__main__":
    main(sys.argv)
