"""`--last-failed`: the cases of a plan that failed or were not compared in the last run of the same configs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from parity.config.plan import Plan
from parity.engine.inputs import slug
from parity.reporting.results.cells import failing_level
from parity.reporting.results.results import REPORTS, read_results
from parity.reporting.results.rows import FILE_NAME, Results, ResultsError
from parity.reporting.results.store import STORE
from parity.reporting.text.words import plural


def last_failed(plan: Plan, out: Path | None, *, resume: bool = False) -> tuple[Plan, str]:
    """The plan with only the cases to run again, and a message about the selection.

    The last run is the one in `out`, else the newest of these configs in reports/. Without one, or if none of the
    plan's cases failed, the plan is unchanged. `resume`: the cases are those of the run in `out`, which continues.
    """
    run_dir, results = next(runs_of(plan, out), (None, None))
    n = plural(len(plan.cases), "case")
    if run_dir is None or results is None:
        return plan, f"--last-failed: no earlier run of these configs in {REPORTS}/; running all {n}"
    again = {case.id for case in results.cases} if resume else failed_cases(results)
    left = plan.only(again)
    if not left.cases:
        return plan, f"--last-failed: none of these cases failed in {run_dir}; running all {n}"
    return left, f"--last-failed: running {len(left.cases)} of {n}, from {run_dir}"


def runs_of(plan: Plan, out: Path | None) -> Iterator[tuple[Path, Results]]:
    """The earlier runs of a plan's configs: the one in `out`, then those in reports/, newest first."""
    kept = [path for name in (FILE_NAME, STORE) for path in REPORTS.glob(f"{slug(plan.name)}-*/{name}")]
    newest_first = sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)
    folders = list(dict.fromkeys(path.parent for path in newest_first))
    wanted = {os.path.abspath(config.path) for config in plan.configs}  # noqa: PTH100 - resolve() would follow links
    for folder in [*([out] if out is not None else []), *folders]:
        with contextlib.suppress(ResultsError):
            results = read_results(folder)
            if {os.path.abspath(config.path) for config in results.run.configs} == wanted:  # noqa: PTH100
                yield folder, results


def failed_cases(results: Results) -> set[str]:
    """The cases with a finding at the run's level, or with something not compared, except accepted ones."""
    level = failing_level(results)
    judged = [row for row in results.comparisons if row.known is None and row.counts]
    failed = {row.case for row in judged if row.verdict in level or not row.compared}
    compared = {(row.case, row.dtype) for row in results.comparisons}
    return failed | {case.id for case in results.cases if any((case.id, d) not in compared for d in case.dtypes)}
