"""Runs the probes of an op on every backend and collects the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parity.config.plan import BackendSpec, Plan
from parity.engine import BackendInfo, BackendStarted, CellFinished, EngineOptions, Event, execute
from parity.fingerprint.claims import KernelProbe, ProbeAnswer, ProbeAnswers
from parity.outcome import CellOutcome, Outcome


@dataclass
class Gathered:
    """The results so far: backends as they started, results by backend, dtype and probe."""

    infos: dict[str, BackendInfo] = field(default_factory=dict)
    answers: dict[tuple[str, str], dict[str, ProbeAnswer]] = field(default_factory=dict)
    outcomes: list[CellOutcome] = field(default_factory=list)
    interrupted: bool = False

    def of(self, backend: str, dtype: str) -> ProbeAnswers:
        """All results of one backend in one dtype."""
        return ProbeAnswers(dtype, self.answers.get((backend, dtype), {}))


def gather(
    backends: Sequence[BackendSpec],
    probes: Mapping[str, Iterable[KernelProbe]],
    options: EngineOptions,
    run_dir: Path,
    watch: Callable[[Event], None],
) -> Gathered:
    """Run the probes, by dtype, on all backends; an interrupt (Ctrl-C) keeps the results so far."""
    planned = [(probe.case(dtype), probe) for dtype, listed in probes.items() for probe in listed]
    by_case = {case.id: probe for case, probe in planned}
    plan = Plan("fingerprint", (), tuple(backends), backends[0].name, 0, tuple(case for case, _ in planned))
    gathered = Gathered()
    try:
        # Workers read the inputs by path, even if an op has changed the directory.
        with contextlib.closing(execute(plan, options, run_dir.absolute())) as events:  # type: ignore[type-var]
            for event in events:
                take_in(gathered, event, by_case)
                watch(event)
    except KeyboardInterrupt:
        gathered.interrupted = True
    return gathered


def take_in(gathered: Gathered, event: Event, probes: Mapping[str, KernelProbe]) -> None:
    """Take in one event."""
    if isinstance(event, BackendStarted):
        gathered.infos[event.info.spec.name] = event.info
    elif isinstance(event, CellFinished):
        probe = probes[event.prepared.case.id]
        for outcome in event.outcomes:
            answers = gathered.answers.setdefault((outcome.backend, event.dtype), {})
            answers[probe.id] = answer(probe, outcome)
        gathered.outcomes += event.outcomes


def answer(probe: KernelProbe, outcome: CellOutcome) -> ProbeAnswer:
    """The outcome of a probe, with its outputs in memory of their own."""
    if outcome.outcome is not Outcome.OK:
        return ProbeAnswer(probe, {}, f"{outcome.outcome.value}: {outcome.message}")
    outputs = {name: output.values for name, output in outcome.outputs.items()}
    return ProbeAnswer(probe, {name: np.array(values) for name, values in outputs.items() if values is not None})
