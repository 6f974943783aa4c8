"""From two files to a config that `parity run` can run, too."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parity.cases.brought import RecordedFunction
from parity.check import CheckError
from parity.check.adapted import adapted, check_installed, notes_of
from parity.check.cases import SIZE, CheckCase, Designer, config
from parity.check.formats import resolved
from parity.check.numpy_problem import problem_of
from parity.check.pair import FilePair
from parity.check.problem import ReferenceProblem
from parity.check.sizes import Sizes, small
from parity.check.triton_code import cuts_gradients, is_interpreted
from parity.config import ConfigError, load_plan
from parity.config.plan import CasePlan, Plan
from parity.program.torch_reference import TorchFunction
from parity.reporting.text.words import plural

CONFIG = "check.yaml"
OUTPUTS_ONLY = "only outputs are judged"
INTERPRETED = "runs in Triton's interpreter (no GPU here): its speed, races and TF32 products are not judged"
MOST_SIZES = 3
"""Cases at other sizes in which a repair is asked."""
MOST_NAMED = 4
"""Calls of the reference that are named because they are not recorded."""
CASE = re.compile(r"^cases\[(\d+)\]")
"""The number of a case, in the key of a problem of its config."""


@dataclass(frozen=True)
class PreparedCheck:
    """A pair and its config."""

    problem: ReferenceProblem
    plan: Plan
    kinds: Mapping[str, str]
    """What each case varies, by its id."""
    notes: list[str]
    degenerate: bool
    """Whether a constant would pass: the reference returns one, whatever its inputs are."""
    options: Mapping[str, Any]
    """Further params of all cases."""
    smaller: str
    """The globals that are smaller than in the file, in words."""

    @property
    def sizes(self) -> list[CasePlan]:
        """The first cases at other sizes."""
        return [case for case in self.plan.cases if self.kinds[case.id] == SIZE][:MOST_SIZES]

    @property
    def pair(self) -> FilePair:
        """The reference and the candidate."""
        return self.problem.pair


@dataclass(frozen=True)
class StartedCheck:
    """A pair, and the sizes at which it is asked."""

    problem: ReferenceProblem
    settings: Sizes
    notes: Sequence[str]
    forward_only: bool

    @property
    def smaller(self) -> str:
        """The globals that are smaller than in the file, in words."""
        return ", ".join(f"{name} {self.problem.numbers[name]} -> {value}" for name, value in self.settings.items())


def begun(
    reference: str,
    candidate: str,
    folder: Path,
    *,
    inputs: str | None = None,
    given: Mapping[str, Any] | None = None,
    format_name: str | None = None,
    adapter: str | None = None,
) -> StartedCheck:
    """Read both files, and find sizes that are small enough. Raises CheckError."""
    format_pair = resolved(reference, candidate, folder, inputs=inputs, format_name=format_name, adapter=adapter)
    check_installed(format_pair.pair)
    problem = problem_of(format_pair.pair, given or {})
    settings = small(problem)
    return StartedCheck(problem, settings, format_pair.notes, format_pair.forward_only)


def prepared(reference: str, candidate: str, folder: Path, **options: Any) -> PreparedCheck:
    """Write the config of a pair to a folder; `options` are those of `begun` and `of_start`. Raises CheckError."""
    own = {name: options.pop(name) for name in ("dtypes", "forward_only", "seconds") if name in options}
    return of_start(begun(reference, candidate, folder, **options), folder, **own)


def of_start(
    start: StartedCheck,
    folder: Path,
    *,
    dtypes: Sequence[str] = (),
    forward_only: bool = False,
    seconds: float = math.inf,
) -> PreparedCheck:
    """Write the config of a pair to a folder; no further cases are made after so many seconds of making them. Raises
    CheckError."""
    problem, pair = start.problem, start.problem.pair
    sized = problem.at(start.settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckError(f"{error.filename}: {error.strerror}; name another folder with --out") from error
    outputs_only = forward_only or start.forward_only or cuts_gradients(pair.candidate.own_path)
    until = time.monotonic() + seconds
    designer = Designer(problem, folder / "inputs", outputs_only, until)
    designer.notes += [*start.notes, *notes_of(pair)]
    if forward_only != outputs_only and not start.forward_only:
        designer.notes.append(f"{pair.candidate.own_path.name} has Triton kernels without gradients: {OUTPUTS_ONLY}")
    if is_interpreted(pair.candidate):
        designer.notes.append(f"{pair.candidate.own_path.name} {INTERPRETED}")
    asked = []
    for item in adapted(designer.all(sized), pair):
        asked.append(item)
        if time.monotonic() > until:
            designer.notes.append(f"the reference is slow: only {plural(len(asked), 'case')} could be made in time")
            break
    plan = planned(folder / CONFIG, problem, asked, dtypes or (sized.dtype,), designer.notes)
    designer.notes += unrecorded(plan)
    kinds = {item.id: item.kind for item in asked}
    return PreparedCheck(problem, plan, kinds, designer.notes, designer.degenerate, designer.options, start.smaller)


def unrecorded(plan: Plan) -> list[str]:
    """What is weaker since the reference's program is not all of its code: calls that are no steps, other gradients."""
    sources = dict.fromkeys(case.brought.source for case in plan.cases if case.brought is not None)
    functions = [
        s.function for s in sources if isinstance(s, RecordedFunction) and isinstance(s.function, TorchFunction)
    ]
    calls = dict.fromkeys(text for function in functions for text in function.opaque)
    differing = dict.fromkeys(function.gradients_differ for function in functions if function.gradients_differ)
    asked = [f"no step can be named here, PyTorch itself is asked: {text}" for text in list(calls)[:MOST_NAMED]]
    return [*asked, *(f"the recorded reference has another gradient: {text}" for text in differing)]


def planned(
    path: Path, problem: ReferenceProblem, asked: list[CheckCase], dtypes: Sequence[str], notes: list[str]
) -> Plan:
    """The plan of the config, which is written; without cases that the reference cannot compute outside its file, since
    it reads globals when it is called. Raises ConfigError if the first is such a case."""
    while True:
        path.write_text(yaml.safe_dump(config(problem, asked, dtypes), sort_keys=False, allow_unicode=True))
        try:
            return load_plan([path])
        except ConfigError as error:
            wrong = {int(n) for problem in error.problems for n in CASE.findall(problem.key or "")}
            if not wrong or 0 in wrong:
                raise
            notes.append(f"{len(wrong)} of {len(asked)} cases could not be made: {error.problems[0].message}")
            asked = [item for number, item in enumerate(asked) if number not in wrong]
