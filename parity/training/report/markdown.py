"""The trainings in Markdown: a table for each in which a backend diverges, and a line for each of the others."""

from __future__ import annotations

from parity.reporting.results.rows import Results
from parity.reporting.text.safe import code, line, table_row
from parity.training.report.view import HEAD, TrainingRun, brief, training_runs
from parity.training.report.view import table_row as texts


def training_pieces(results: Results) -> list[str]:
    """A piece for each training, diverging ones first."""
    runs = sorted(training_runs(results), key=lambda run: not run.diverged)
    return [f"\n{code(run.id)} {code(run.dtype)}: {line(brief(run))}\n{backends(run)}" for run in runs]


def backends(run: TrainingRun) -> str:
    """The table of a training's backends if any diverges, else nothing."""
    if not run.diverged:
        return ""
    rows = (table_row([code(text) for text in texts(run, row)]) for row in run.rows)
    return f"\n{table_row(HEAD)}{table_row(['---'] * len(HEAD))}{''.join(rows)}"
