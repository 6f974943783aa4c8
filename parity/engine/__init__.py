"""Runs a plan: draws inputs once, keeps each backend's workers warm, handles timeouts and crashes."""

from parity.engine.engine import (
    CasePrepared,
    CellFinished,
    Event,
    Judging,
    ModelFinished,
    Resumed,
    ShardFinished,
    TrainingAdvanced,
    WorkBegun,
    execute,
)
from parity.engine.inputs import Prepared
from parity.engine.starting import BackendInfo
from parity.engine.supervision import Announced, BackendLost, BackendStarted, EngineOptions, Running
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
    "Judging",
    "ModelFinished",
    "Outcome",
    "Output",
    "Prepared",
    "Resumed",
    "Running",
    "ShardFinished",
    "TrainingAdvanced",
    "WorkBegun",
    "execute",
]
