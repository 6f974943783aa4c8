"""How a case of `kind: model` is told: the answer first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.config.plan import CasePlan
from parity.reporting.kinds import CaseReport
from parity.reporting.results.rows import ComparisonRow, InputRow


class ModelReport(CaseReport):
    """Models: judged by the envelope of the whole model."""

    no_script = "there are scripts for single ops, not for models"
    pictured = False
    resumes_by_dtype = True

    def recorded(self, case: CasePlan, _folder: Path | None) -> tuple[dict[str, Any], dict[str, InputRow]]:
        """The functions; the batch is drawn by the baseline."""
        return case.params.recorded(), {}

    def enveloped(self, row: ComparisonRow) -> bool:
        """Always, but for a layer that is judged as an op."""
        return not row.rtol and not row.atol
