"""The search: Hypothesis draws batches of inputs and makes one that shows a fault simpler, CMA-ES turns its numbers.

Time is shared between classes of descriptors by a bandit (UCB1), whose reward is how near a round came to a new fault.
What is found is reduced and diagnosed at once, so that the same fault is not followed again.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from parity import judge
from parity.config.plan import ORACLE
from parity.hunt.bench import REFUSED, Bench, Fault, TimeUp, TrialCase, TrialResult, judge_of
from parity.hunt.descriptors import CLASSES, USUAL, Base, Descriptor, Form, descriptors, trial_of
from parity.hunt.reduce import in_all_dtypes, reduce_case
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.contained import ContainedJudge
from parity.judge.diagnose.behaviour import UNREPEATABLE
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.evaluator import Evaluator
from parity.judge.diagnose.memory import Memory
from parity.judge.diagnose.search import recalled
from parity.judge.failures import FAILED, Failures
from parity.outcome import Outcome

BATCH = 12
EXAMPLES = 4
"""Batches per round: about 30 trials, half a second."""
MOST_SHRINKING = 120
"""Trials in which Hypothesis may make a descriptor simpler; the reduction of the case does the rest."""
PROMISING = ERROR_BOUND / 4
"""An error ratio from which CMA-ES looks whether other numbers exceed the bound."""
POPULATION, GENERATIONS = 8, 8
STEP = 3.0
"""The first step of CMA-ES, in octaves."""
MOST_FOLLOWED = 6
"""Faults of a backend in an op that are followed; further ones are counted."""
MOST_PER_TENSOR = 2
TWICE = 2.0
"""A diagnosis starts if twice the mean duration of the earlier ones is left, and may take half of the time left: the
other half is for the reduction."""
JUDGE, AGAIN_S = str(Path(judge.__file__).parent), 0.01
"""The code in which a diagnosis can be interrupted, and how often that is checked."""
CURIOSITY = 0.5
"""The weight of UCB1's bonus for rarely tried arms."""
UNNAMED = frozenset(("unexplained", FAILED, "localized", "not-identifiable", "nondeterministic"))
"""Diagnoses without a formula: another tensor may have another cause."""
PARITY = "parity"
"""In the list of those that gave no result."""
NO_CAUSES = frozenset(("rounding", "choice", "degenerate-gradient"))


@dataclass(frozen=True)
class HuntFinding:
    """A fault in its smallest case, and in the original one, which was diagnosed: a few numbers fit several causes.

    `diagnoses` is empty if there was no time for any.
    """

    trial: TrialCase
    original: TrialCase
    backend: str
    tensor: str
    ratio: float
    diagnoses: tuple[Diagnosis, ...] = ()

    @property
    def causes(self) -> dict[str, str]:
        """The titles of the diagnoses by id."""
        return {d.id: d.title for d in self.diagnoses}

    @property
    def op(self) -> str:
        """The op."""
        return self.trial.case.op

    @property
    def is_named(self) -> bool:
        """Whether every cause has a formula."""
        return bool(self.causes) and not UNNAMED & self.causes.keys()

    @property
    def n_numbers(self) -> int:
        """The numbers of its inputs."""
        return sum(values.size for values in self.trial.inputs.values())

    def repeats(self, other: HuntFinding) -> bool:
        """Whether another finding is the same: equal causes, or without a named one, the same tensor."""
        if (self.backend, self.op) != (other.backend, other.op):
            return False
        return self.causes.keys() == other.causes.keys() if self.is_named else self.tensor == other.tensor


@dataclass
class Arm:
    """A class of descriptors of an op, with its rewards so far."""

    op: str
    kind: str
    n: int = 0
    reward: float = 0.0

    def worth(self, total: int) -> float:
        """UCB1."""
        return math.inf if not self.n else self.reward / self.n + CURIOSITY * math.sqrt(2 * math.log(total) / self.n)


class ShowsFaultError(Exception):
    """A batch shows the fault that is followed; Hypothesis makes it simpler."""


class Shrunk(BaseException):
    """Enough trials were spent on a simpler descriptor."""


@dataclass
class Search:
    """A hunt's search over the bases, and its results so far."""

    bench: Bench
    bases: Sequence[Base]
    dtypes: Sequence[str]
    seed: int = 0
    observe: Callable[[Search], None] = lambda _: None
    concluded: Callable[[], None] = lambda: None
    n_rounds: int = 0
    arms: list[Arm] = field(default_factory=list)
    findings: list[HuntFinding] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    failed: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    crashed: list[HuntFinding] = field(default_factory=list)
    n_repeated: int = 0
    until: float = math.inf

    def __post_init__(self) -> None:
        ops = dict.fromkeys(base.case.op for base in self.bases)
        self.arms = self.arms or [Arm(op, kind) for kind in CLASSES for op in ops]
        self._memory = Memory()
        self._diagnosing: list[float] = []
        self._followed: Counter[tuple[str, ...]] = Counter()
        self._polished: set[Any] = set()
        self._memo: dict[Descriptor, TrialResult] = {}
        self.pending: tuple[TrialResult, Fault] | None = None

    def run(self) -> None:
        """Search until time or trials are used up."""
        try:
            while True:
                self.round()
        except TimeUp:
            return

    def round(self) -> None:
        """One class of one op: Hypothesis, then CMA-ES on what is promising; what is found is followed."""
        total = sum(arm.n for arm in self.arms) + 1
        arm = max(self.arms, key=lambda a: a.worth(total))
        self.n_rounds += 1
        seen = self._explore(arm)
        if self.pending is None:
            with self._noted("searching among near inputs"):
                seen += self._polish(seen)
        arm.n += 1
        arm.reward += 1.0 if self.pending else max(map(self._nearness, seen), default=0.0)
        self.follow_pending()
        self.concluded()

    def keep_pending(self) -> None:
        """Keep the fault that was being followed as it is."""
        if self.pending is not None:
            seen, (backend, tensor) = self.pending
            self.findings.append(HuntFinding(seen.trial, seen.trial, backend, tensor, seen.faults[backend, tensor]))

    def follow_pending(self) -> None:
        """Reduce and diagnose the fault that was found last."""
        if self.pending is not None:
            self.follow(*self.pending)
            self.pending = None

    def _nearness(self, seen: tuple[Descriptor, TrialResult]) -> float:
        """0 to 1: how near a trial came to a fault that is not known."""
        faulty = {backend for backend, _ in seen[1].faults}
        near = max((ratio for name, ratio in seen[1].nearest.items() if name not in faulty), default=0.0)
        return min(1.0, math.log1p(near) / math.log1p(ERROR_BOUND)) if math.isfinite(near) else 0.0

    def _explore(self, arm: Arm) -> list[tuple[Descriptor, TrialResult]]:
        """The trials of a round; `pending` is the fault that one of them shows, in the simplest descriptor."""
        among = [number for number, base in enumerate(self.bases) if base.case.op == arm.op]
        every: list[tuple[Descriptor, TrialResult]] = []
        left, self._memo = MOST_SHRINKING, {}

        @seed(self.seed * 1_000_003 + self.n_rounds)
        @settings(
            max_examples=EXAMPLES,
            phases=(Phase.generate, Phase.shrink),
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(descriptors(self.bases, among, self.dtypes, arm.kind), min_size=1, max_size=BATCH))
        def attempt(batch: list[Descriptor]) -> None:
            nonlocal left
            if self.pending is None:
                every.extend(self.look(batch, arm.kind))
                new_faults = ((s, fault) for _, s in every[-len(batch) :] if (fault := self.new_fault(s)) is not None)
                self.pending = next(new_faults, None)
            elif left <= 0:
                raise Shrunk
            else:
                left -= len(batch)
                first, fault = self.pending
                op, is_nonfinite = first.trial.case.op, fault in first.nonfinite
                again = [
                    s
                    for _, s in self.look(batch, arm.kind)
                    if fault in s.faults and s.trial.case.op == op and (fault in s.nonfinite) == is_nonfinite
                ]
                if not again:
                    return
                self.pending = again[0], fault
            if self.pending is not None:
                raise ShowsFaultError

        try:
            attempt()
        except (ShowsFaultError, Flaky, Shrunk):
            return every
        except AssertionError as error:
            # Hypothesis 6.170 has this one for an interrupt before its first example.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        return every

    def look(self, batch: Sequence[Descriptor], kind: str) -> list[tuple[Descriptor, TrialResult]]:
        """The trials of descriptors that an op can take, each run once in a round."""
        new: dict[Descriptor, TrialCase] = {}
        for wanted in batch:
            trial = None if wanted in self._memo or wanted in new else self._trial(wanted)
            if trial is not None:
                new[wanted] = trial
        for wanted, seen in zip(new, self.bench.seen(list(new.values())), strict=True):
            self._memo[wanted] = seen
            self._note(seen)
        self.tried[kind] += len(new)
        self.observe(self)
        return [(wanted, self._memo[wanted]) for wanted in batch if wanted in self._memo]

    def _trial(self, wanted: Descriptor) -> TrialCase | None:
        """The inputs of a descriptor; None if the op refuses it, or they cannot be drawn."""
        try:
            with self._noted("drawing inputs", passing=REFUSED):
                return trial_of(self.bases, wanted)
        except REFUSED:
            return None
        return None

    def _note(self, seen: TrialResult) -> None:
        """Note the best error ratios, and the backends that gave no result."""
        for backend, ratio in seen.nearest.items():
            worst = max([ratio, *(r for (name, _), r in seen.faults.items() if name == backend)])
            self.best[backend] = max(self.best.get(backend, 0.0), worst)
        self._note_failures(seen.failures)
        for outcome in seen.failed:
            key = outcome.backend, outcome.outcome.value
            n, message = self.failed.get(key, (0, outcome.message))
            self.failed[key] = n + 1, message
            if outcome.outcome in (Outcome.CRASH, Outcome.TIMEOUT) and not n:
                self.crashed.append(
                    HuntFinding(seen.trial, seen.trial, outcome.backend, outcome.outcome.value, math.inf)
                )

    @contextlib.contextmanager
    def _noted(self, doing: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Within it, an error of parity itself is noted instead of raised, except those that are `passing`."""
        failures = Failures()
        with failures.contained(doing, passing=passing):
            yield
        self._note_failures(failures)

    def _note_failures(self, failures: Failures) -> None:
        """Note where parity itself has failed; the log has the traceback of the first time."""
        for failure in failures:
            n, message = self.failed.get((PARITY, FAILED), (0, failure.message))
            self.failed[PARITY, FAILED] = n + 1, message
            if not n:
                self.bench.log.line(f"parity failed, {failure.doing}\n{failure.traceback}")

    def new_fault(self, seen: TrialResult) -> Fault | None:
        """A fault that is worth following: outputs before gradients, the largest first."""
        op = seen.trial.case.op
        for fault in sorted(seen.faults, key=lambda f: (f[1].startswith("grad."), -seen.faults[f], f)):
            backend, tensor = fault
            few = self._followed[op, backend] < MOST_FOLLOWED
            if few and self._followed[op, backend, tensor] < MOST_PER_TENSOR and not self._explained(seen, backend):
                return fault
        self.n_repeated += bool(seen.faults)
        return None

    def _explained(self, seen: TrialResult, backend: str) -> bool:
        """Whether causes of earlier findings explain everything in which a backend is wrong."""
        trial, outcomes = seen.trial, [o for o in seen.outcomes if o.backend == backend]
        with np.errstate(all="ignore"), self._noted("trying known causes"):
            cell = judge_of(trial, outcomes).cells[trial.dtype]
            evaluator = Evaluator(trial.case, trial.dtype, trial.inputs, cell.oracle, cell.envelopes)
            observed = cell.observed(backend)
            recipes = self._memory.recall(evaluator, backend, observed)
            return recalled(evaluator, observed, recipes, plain=cell.fails(backend)) is not None
        return False

    def _polish(self, seen: Sequence[tuple[Descriptor, TrialResult]]) -> list[tuple[Descriptor, TrialResult]]:
        """CMA-ES on the numbers of the descriptor that came nearest, if it is promising."""
        near = [(max(s.nearest.values(), default=0.0), d, s) for d, s in seen if not s.faults]
        near = [
            item for item in near if PROMISING <= item[0] < math.inf and self._setting(item[1]) not in self._polished
        ]
        if not near:
            return []
        _, start, _ = max(near, key=lambda item: item[0])
        self._polished.add(self._setting(start))
        return list(self._evolved(start))

    def _setting(self, wanted: Descriptor) -> Any:
        return wanted.base, wanted.dtype, wanted.sizes, wanted.params

    def _evolved(self, start: Descriptor) -> Iterator[tuple[Descriptor, TrialResult]]:
        """CMA-ES over scale, offset and spread of the first tensor with a form."""
        with warnings.catch_warnings():
            # It warns that it cannot plot.
            warnings.simplefilter("ignore")
            import cma

        name, form = next(iter(start.forms), (next(iter(self.bases[start.base].domains), ""), USUAL))
        options = {"seed": self.n_rounds + 1, "popsize": POPULATION, "verbose": -9, "verb_log": 0}
        evolution = cma.CMAEvolutionStrategy(vector_of(form), STEP, options)
        for _ in range(GENERATIONS if name else 0):
            asked = evolution.ask()
            batch = [with_form(start, name, form_of(form, point)) for point in asked]
            tried = dict(self.look(batch, "numbers"))
            yield from tried.items()
            faults = [(s, fault) for s in tried.values() if (fault := self.new_fault(s)) is not None]
            if faults:
                self.pending = faults[0]
                return
            ratios = [max(tried[d].nearest.values(), default=0.0) if d in tried else 0.0 for d in batch]
            evolution.tell(asked, [-math.log1p(min(ratio, ERROR_BOUND)) for ratio in ratios])

    def follow(self, seen: TrialResult, fault: Fault) -> None:
        """Reduce a fault, diagnose it once, and keep it if it is a new one."""
        backend, tensor = fault
        op = seen.trial.case.op
        self._followed[op, backend] += 1
        self._followed.update((op, name, wrong) for name, wrong in seen.faults if name == backend)
        original = seen.trial
        with self._noted("trying a finding in all dtypes"):
            original = in_all_dtypes(seen, fault, self.look_at, tuple(self.dtypes))
        finding = self.diagnosed(HuntFinding(original, original, backend, tensor, seen.faults[fault]))
        if any(map(finding.repeats, self.findings)):
            self.n_repeated += 1
            return
        small, failures = original, Failures()
        with self._noted("reducing a finding"):
            small = reduce_case(replace(seen, trial=original), fault, finding.ratio, self.look_at, failures)
        self._note_failures(failures)
        with contextlib.suppress(TimeUp):
            again = ((trial, self.look_at(trial).faults.get(fault)) for trial in (small, original))
            shown = next(((trial, ratio) for trial, ratio in again if ratio is not None), None)
            if shown is None and set(UNREPEATABLE).isdisjoint(d.id for d in finding.diagnoses):
                return  # rounding that another call, with its tensors elsewhere in memory, does not repeat
            small, ratio = shown or (small, finding.ratio)
            finding = replace(finding, ratio=ratio)
        self.findings = [other for other in self.findings if not other.repeats(finding)]
        self.findings.append(replace(finding, trial=small))

    def look_at(self, trial: TrialCase) -> TrialResult:
        """One trial."""
        self.observe(self)
        return self.bench.seen([trial])[0]

    def diagnosed(self, finding: HuntFinding) -> HuntFinding:
        """The finding with its diagnoses and its error ratio; as it is if there is no time left."""
        trial, began = finding.original, time.monotonic()
        if began + TWICE * sum(self._diagnosing) / max(1, len(self._diagnosing)) > self.until:
            return finding
        try:
            seen = self.bench.seen([replace(trial, dtype=dtype) for dtype in trial.case.dtypes])
            with cut_after((self.until - time.monotonic()) / TWICE), np.errstate(all="ignore"):
                diagnoses = self._judged(trial, seen)
        except TimeUp:
            return finding
        finally:
            self._diagnosing.append(time.monotonic() - began)
        own = next(each for each in seen if each.trial.dtype == trial.dtype)
        ratio = own.faults.get((finding.backend, finding.tensor), finding.ratio)
        mine = tuple(d for d in diagnoses if d.backend == finding.backend and d.id not in NO_CAUSES)
        return replace(finding, ratio=ratio, diagnoses=mine)

    def _judged(self, trial: TrialCase, seen: Sequence[TrialResult]) -> Sequence[Diagnosis]:
        """The diagnoses of a trial that was computed in all dtypes."""
        case = ContainedJudge(trial.case, trial.inputs, ORACLE, self._memory, self.bench.ask())
        for each in seen:
            case.take(each.trial.dtype, each.outcomes)
        return case.judged().diagnoses

    @property
    def judge_failed(self) -> bool:
        """Whether parity itself failed at a trial."""
        return (PARITY, FAILED) in self.failed


@contextlib.contextmanager
def cut_after(seconds: float) -> Iterator[None]:
    """Raise TimeUp within the context after so many seconds (`inf`: never), between two lines of the judge's own code.

    Elsewhere a library might swallow it or be left in a broken state. Main thread only, since it uses signals.
    """
    if math.isinf(seconds):
        yield
        return
    is_over = False

    def end(_: int, frame: FrameType | None) -> None:
        if is_over:
            return
        if frame is not None and frame.f_code.co_filename.startswith(JUDGE):
            raise TimeUp
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, AGAIN_S))
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def vector_of(form: Form) -> list[float]:
    """Scale, offset and spread in octaves."""
    return [form.scale, math.copysign(math.log2(1 + abs(form.offset)), form.offset), form.spread]


def form_of(form: Form, point: Sequence[float]) -> Form:
    """The form at a point of CMA-ES."""
    scale, offset, spread = (max(-120.0, min(120.0, float(value))) for value in point)
    return replace(form, scale=scale, offset=math.copysign(2 ** min(abs(offset), 40) - 1, offset), spread=abs(spread))


def with_form(wanted: Descriptor, name: str, form: Form) -> Descriptor:
    """The descriptor with another form of a tensor."""
    return replace(wanted, forms=tuple({**dict(wanted.forms), name: form}.items()))
