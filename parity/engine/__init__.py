"""Plan to outcomes: inputs made once, warm workers per backend, timeouts, crash classes."""

from parity.engine.backend import Announced, BackendLost, BackendStarted, EngineOptions
from parity.engine.engine import CasePrepared, CellFinished, Event, TrainingAdvanced, TrainingFinished, execute
from parity.engine.inputs import Prepared
from parity.engine.starting import BackendInfo
from parity.outcome import CellOutcome, Outcome, Output

__all__ = [
    "Announced",
    "BackendInfo",
    "BackendLost",
    "BackendStarted",
    "CasePrepared",
    "CellFinished",
    "CellOutcome",
    "EngineOptions",
    "Event",
    "Outcome",
    "Output",
    "Prepared",
    "TrainingAdvanced",
    "TrainingFinished",
    "execute",
]
