"""Runs the probes of an op on every backend and gathers their answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parity.config.plan import BackendSpec, Plan
from parity.engine import BackendInfo, BackendStarted, CellFinished, EngineOptions, Event, execute
from parity.fingerprint.claims import Answer, Answers, Probe
from parity.outcome import CellOutcome, Outcome


@dataclass
class Gathered:
    """What has been answered so far: backends as they were found, answers by backend, dtype and probe."""

    infos: dict[str, BackendInfo] = field(default_factory=dict)
    answers: dict[tuple[str, str], dict[str, Answer]] = field(default_factory=dict)
    outcomes: list[CellOutcome] = field(default_factory=list)
    interrupted: bool = False

    def of(self, backend: str, dtype: str) -> Answers:
        """All answers of one backend in one dtype."""
        return Answers(dtype, self.answers.get((backend, dtype), {}))


def gather(
    backends: Sequence[BackendSpec],
    probes: Mapping[str, Iterable[Probe]],
    options: EngineOptions,
    run_dir: Path,
    watch: Callable[[Event], None],
) -> Gathered:
    """Run the probes, by dtype, on all backends; an interrupt (Ctrl-C) keeps what was answered."""
    by_case = {probe.case(dtype).id: probe for dtype, listed in probes.items() for probe in listed}
    cases = tuple(probe.case(dtype) for dtype, listed in probes.items() for probe in listed)
    plan = Plan("fingerprint", (), tuple(backends), backends[0].name, 0, cases)
    gathered = Gathered()
    try:
        with contextlib.closing(events(plan, options, run_dir)) as happened:  # type: ignore[type-var]
            for event in happened:
                take_in(gathered, event, by_case)
                watch(event)
    except KeyboardInterrupt:
        gathered.interrupted = True
    return gathered


def events(plan: Plan, options: EngineOptions, run_dir: Path) -> Iterator[Event]:
    """The engine's events. Workers read the inputs by their paths, wherever an op has changed directory to."""
    return execute(plan, options, run_dir.absolute())


def take_in(gathered: Gathered, event: Event, probes: Mapping[str, Probe]) -> None:
    """What one event teaches."""
    if isinstance(event, BackendStarted):
        gathered.infos[event.info.spec.name] = event.info
    elif isinstance(event, CellFinished):
        probe = probes[event.prepared.case.id]
        for outcome in event.outcomes:
            answered = gathered.answers.setdefault((outcome.backend, event.dtype), {})
            answered[probe.id] = answer(probe, outcome)
        gathered.outcomes += event.outcomes


def answer(probe: Probe, outcome: CellOutcome) -> Answer:
    """The outcome of a probe, with its outputs in memory of their own."""
    if outcome.outcome is not Outcome.OK:
        return Answer(probe, {}, f"{outcome.outcome.value}: {outcome.message}")
    found = {name: output.values for name, output in outcome.outputs.items()}
    return Answer(probe, {name: np.array(values) for name, values in found.items() if values is not None})
