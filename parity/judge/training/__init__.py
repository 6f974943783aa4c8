"""Judges a training in lockstep: the first step and the first stage that leave what rounding explains, and why."""

from parity.judge.training.judge import JudgedTraining, TrainingFinding, TrainingJudge

__all__ = ["JudgedTraining", "TrainingFinding", "TrainingJudge"]
