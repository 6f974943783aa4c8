"""A diff as a JSON document for machines: format 1, with the numbers spelled as in results.json."""

from __future__ import annotations

import json
from typing import Any

from parity.reporting.diff.compare import Change, ChangeKind, Diff
from parity.reporting.diff.compared_run import ComparedRun, TensorState
from parity.reporting.results.strict_json import spelled

FORMAT = 1


def document(diff: Diff) -> dict[str, Any]:
    """The JSON document of a diff."""
    return {
        "format": FORMAT,
        "a": run_row(diff.a),
        "b": run_row(diff.b),
        "fail_on": diff.level,
        "factor": diff.factor,
        "exit_code": diff.exit_code,
        "counts": {**diff.counts, "same": diff.same, "never_compared": diff.never, "only_b": diff.only_b},
        "partings": list(diff.divergences),
        "differences": list(diff.run_notes),
        "cases_not_alike": {case: list(notes) for case, notes in diff.not_alike.items()},
        "ledger": [vars(change) | {"fails": change.fails} for change in diff.known_changes],
        **{kind.value: [change_row(change) for change in diff.of(kind)] for kind in ChangeKind},
    }


def as_json(diff: Diff) -> str:
    """The document as text; numbers that are not finite are strings."""
    return json.dumps(spelled(document(diff)), indent=1, allow_nan=False)


def run_row(compared: ComparedRun) -> dict[str, Any]:
    """A run, and its compared backends with their common names."""
    run = compared.results.run
    return {
        "run_dir": str(compared.run_dir),
        **{key: getattr(run, key) for key in ("id", "started", "parity", "seed")},
        "interrupted": compared.interrupted,
        "backends": [{"name": row.name, "as": name, "version": row.version} for name, row in compared.backends.items()],
    }


def change_row(change: Change) -> dict[str, Any]:
    """A change of some tensors of a cell."""
    return {
        "case": change.case,
        "op": change.op,
        "dtype": change.dtype,
        "backend": change.backend,
        "was_finding": change.was_finding,
        "notes": list(change.notes),
        "tensors": [
            {"tensor": item.tensor, "before": state_row(item.before), "after": state_row(item.after)}
            for item in change.tensors
        ],
    }


def state_row(state: TensorState) -> dict[str, Any]:
    """A tensor in one run."""
    return {
        "status": state.status.value,
        "verdict": state.verdict,
        "excess": state.excess if state.compared else None,
        "error_ratio": state.ratio,
        "off": state.is_wrong,
        "causes": list(state.causes),
        "known": list(state.known),
        "tolerances": [{"rtol": rtol, "atol": atol} for rtol, atol in state.limits],
        "reason": state.reason,
    }
