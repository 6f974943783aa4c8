"""Trainings without processes: the oracle's own steps in a dtype are the backends, truthful ones and liars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from parity.cases.draw import TensorPlan, generator
from parity.cases.oracle import IN_PAIRS, IN_SEQUENCE
from parity.config import load_plan
from parity.config.plan import BackendSpec, CasePlan
from parity.outcome import CellOutcome, Outcome
from parity.training import data
from parity.training.judge.judge import JudgedTraining, TrainingJudge
from parity.training.records import Curves, Ensemble, Setting, StepRecord
from parity.training.spec import Training
from parity.training.steps import Update
from tests.training.whole_steps import StepChanges, stepped

MEMBERS = ("~1", "~2", "~3", "~4")
KINDS = ("param", "state", "buffer")
CHUNK = 4


def planned(text: str, folder: Path, dtypes: str = "[float32]") -> CasePlan:
    """The case of a config that has one training."""
    path = folder / "training.yaml"
    path.write_text(f"version: 1\nbackends: [torch, paddle]\ndtypes: {dtypes}\ncases:{text}")
    return load_plan([path]).cases[0]


@dataclass(frozen=True)
class Lie:
    """What a backend does otherwise in a step: `changes` by step, `rows` from the right ones, its gradient times a
    factor, noise of a part of its output; `other` sums in sequence, which is no lie, nor is a `jump` of its state before
    a step by a part of itself."""

    changes: Callable[[int], StepChanges] = lambda _: StepChanges()
    rows: Callable[[int, np.ndarray], np.ndarray] = lambda _, rows: rows
    factor: float = 1.0
    noise: float = 0.0
    jump: tuple[int, float] = (0, 0.0)
    other: bool = False
    hidden: tuple[str, ...] = ()
    ranks: int = 1


def lies(changes: StepChanges, **more: object) -> Lie:
    """The same lie in every step."""
    return Lie(changes=lambda _: changes, **more)  # type: ignore[arg-type] - passed on as they are


HONEST = Lie()


class Run:
    """One backend: A's steps in a dtype, with a lie."""

    def __init__(self, training: Training, dtype: str, setting: Setting, lie: Lie = HONEST, seed: int = 0) -> None:
        self.training, self.dtype, self.setting, self.lie = training, dtype, setting, lie
        names = {p.name for p in training.parameters}
        values = {n: np.asarray(v, dtype) for n, v in setting.tensors.items()}
        if seed:
            rng = generator(seed, "moved")
            values = {
                n: np.nextafter(v, rng.choice((-np.inf, np.inf), v.shape).astype(v.dtype)) for n, v in values.items()
            }
        self.state = {f"{'param' if n in names else 'buffer'}.{n}": v for n, v in values.items()}
        self.step, self.records = 0, {}

    def advance(self, count: int) -> Curves:
        found = [self.one() for _ in range(count)]
        tracked = tuple(sorted(n for n in found[0].tensors if n.startswith(KINDS)))
        rng = np.random.default_rng(7)
        vectors = {n: rng.choice((-1.0, 1.0), found[0].tensors[n].shape) for n in tracked}
        wide = [{n: v.astype(np.float64) for n, v in f.tensors.items()} for f in found]
        norm = [np.sqrt(sum(np.sum(v**2) for n, v in w.items() if n.startswith("grad."))) for w in wide]
        return Curves(
            first=found[0].step,
            loss=np.array([float(w["loss"]) for w in wide]),
            grad_norm=np.array(norm, np.float64),
            lr=np.array([w["lr"] for w in wide]),
            rows=np.array([f.rows for f in found]),
            norms=np.array([[np.linalg.norm(w[n]) for n in tracked] for w in wide]),
            sketches=np.array([[np.sum(w[n] * vectors[n]) for n in tracked] for w in wide]),
            tracked=tracked,
        )

    def one(self) -> StepRecord:
        self.step += 1
        if self.step == self.lie.jump[0]:
            self.state = {n: v * v.dtype.type(1 + self.lie.jump[1]) for n, v in self.state.items()}
        rows = self.lie.rows(self.step, np.asarray(self.setting.order[self.step - 1], np.int64))
        n = self.training.accumulation
        x, target = (np.split(v[rows], n) for v in (self.setting.x, self.setting.target))
        changes = self.lie.changes(self.step)
        tensors = self._stepped(list(zip(x, target, strict=True)), changes)
        rough = 1 + self.lie.noise * np.random.default_rng(self.step).normal(size=tensors["output"].shape)
        tensors["output"] = (tensors["output"] * rough).astype(self.dtype)
        before = {n: v for n, v in self.state.items() if n.startswith(KINDS)}
        shown = {n: v for n, v in tensors.items() if not n.startswith(self.lie.hidden or "none")}
        self.records[self.step] = StepRecord(self.step, rows, before, shown)
        self.state = {n: v for n, v in tensors.items() if n.startswith((*KINDS, "clipped"))}
        return replace(self.records[self.step], tensors=tensors)

    def _stepped(self, batches: list, changes: StepChanges) -> dict[str, np.ndarray]:
        return stepped(
            self.training,
            self.step,
            self.state,
            batches,
            dtype=self.dtype,
            changes=changes,
            functions=IN_SEQUENCE if self.lie.other else IN_PAIRS,
            factor=self.lie.factor,
        )


def setting_of(case: CasePlan, seed: int = 0) -> Setting:
    x, target = data.generate(case.params.data, seed, case.id, "float32")
    order = data.order(case.params, seed, case.id)
    tensors = {
        p.name: TensorPlan(p.name, p.shape, p.draw).sample(seed, case.id, "float32") for p in case.params.tensors
    }
    return Setting(x, target, order, tensors)


REFERENCE_RUNS: dict[tuple[str, str, str, int], dict[str, Curves]] = {}


def reference_runs(case: CasePlan, dtype: str, seed: int) -> dict[str, Curves]:
    """All steps of the unperturbed run, the members and the oracle's own run; made once."""
    key = (case.source.file, case.id, dtype, seed)
    if key not in REFERENCE_RUNS:
        REFERENCE_RUNS[key] = ensemble(case.params, dtype, setting_of(case, seed))
    return REFERENCE_RUNS[key]


def ensemble(training: Training, dtype: str, setting: Setting) -> dict[str, Curves]:
    narrow = lies(StepChanges(update=Update(narrow=dtype)))
    runs = {"~0": Run(training, dtype, setting), "oracle": Run(training, WIDE[dtype], setting)}
    runs |= {name: Run(training, dtype, setting, narrow, seed=i + 1) for i, name in enumerate(MEMBERS)}
    return {name: run.advance(training.steps) for name, run in runs.items()}


WIDE = {"float32": "float64", "float64": "longdouble"}


def judge_of(
    case: CasePlan, backends: Mapping[str, Lie], dtype: str = "float32", seed: int = 0, without: str = ""
) -> TrainingJudge:
    """A judge of backends, the first of which is the baseline, that has seen all of their steps but `without`'s."""
    training, setting = case.params, setting_of(case, seed)
    specs = [BackendSpec(name, "numpy", ranks=lie.ranks) for name, lie in backends.items()]
    judge = TrainingJudge(case, dtype, setting, specs, specs[0].name, Ensemble("oracle", "~0", MEMBERS))
    runs = {name: Run(training, dtype, setting, lie) for name, lie in backends.items() if name != without}
    done = 0
    while done < training.steps:
        count = min(CHUNK, training.steps - done)
        others = {
            name: curves.between(done, done + count) for name, curves in reference_runs(case, dtype, seed).items()
        }
        wanted = judge.observe({**others, **{name: run.advance(count) for name, run in runs.items()}})
        for name, steps in wanted.items():
            for step in steps:
                judge.take(name, runs[name].records[step])
        done += count
    return judge


def judged(case: CasePlan, backends: Mapping[str, Lie], dtype: str = "float32", seed: int = 0) -> JudgedTraining:
    """The judgement of backends that came to the end, the first of which is the baseline."""
    outcomes = {name: CellOutcome(case.id, dtype, name, Outcome.OK) for name in backends}
    return judge_of(case, backends, dtype, seed).judged(outcomes)
