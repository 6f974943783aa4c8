"""The line of a candidate's file that computes what its reference does not.

The candidate is called once more in a process of its own, which tells the values of its calls and their lines; the
values of the reference for the same inputs are computed here.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases.brought import ReferenceFile, namespace
from parity.cases.op import GRADIENT
from parity.cases.user_code import user_code
from parity.check.candidate_process import FaultCase, candidate, loaded, patched
from parity.check.fault import (
    MADE,
    Computation,
    FaultSearch,
    TrailRow,
    amplified,
    cut,
    not_finite,
    of_gradients,
    reached,
)
from parity.check.frameworks import TORCH
from parity.check.match import Array, Known, difference, factors_of
from parity.check.mutants import LARGER, Mutant, short
from parity.check.pair import FilePair
from parity.check.patch import Patch, Patching
from parity.check.related import related
from parity.check.relation import relation
from parity.check.repair import repair_of
from parity.check.written import line_that_keeps, opening, statement
from parity.program.torch_reference import TorchCode, recording_of
from parity.program.worker import trail
from parity.program.worker.user_module import UserModule
from parity.reporting.text.findings import MUTATED, STATEFUL

SECONDS = 15.0
KEPT = (STATEFUL, "nondeterministic")
"""The causes for which something is kept from one call to the next."""
MOST_INSIDE = 1 << 22
"""Numbers of all values inside a reference's calls that are looked at."""
VALUE, BACKWARD, BEYOND, CUT, DIGITS, OVERFLOW = "value", "backward", "gradient", "cut", "digits", "overflow"
KINDS = {
    BACKWARD: "the backward pass has another gradient at {}",
    BEYOND: "outputs are right, the gradient through {} is not",
    CUT: "no gradient flows through {}",
    DIGITS: "most digits are lost at {}",
    OVERFLOW: "numbers overflow at {}",
}
"""What is wrong at a line, by the kind of its row; the value itself is told beside the reference's."""


@dataclass(frozen=True)
class FaultLine:
    """A line of the candidate's file, and the reference's line of what is not computed there; 0 if there is none."""

    file: Path
    line: int
    reference: Path
    reference_line: int = 0
    kind: str = VALUE
    relation: str = ""
    is_shown: bool = False
    repair: Mutant | None = None
    gradients: bool = False

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"

    @property
    def sentence(self) -> str:
        """The difference; "" where the reference's line is not known, and nothing is shown."""
        is_known = self.is_shown or self.repair or self.reference_line or self.kind in (DIGITS, OVERFLOW)
        return self.difference if is_known else ""

    @property
    def difference(self) -> str:
        """`new.py:14 has "s = x / 8" where ref.py:12 has "s = x / 4": 1/2 times it`, in the words of its kind."""
        code = statement(self.file, self.line)
        own = f"{self} `{code}`"
        relation = f": {self.relation}" if self.relation else ""
        if self.repair is not None and not (self.relation and self.reference_line and self.kind == VALUE):
            return f"{self} has `{short(self.repair.before)}`; {self.agreement}"
        if self.kind != VALUE:
            return f"{KINDS[self.kind].format(own)}{relation}"
        if not self.reference_line:
            return f"{own} has a value that {self.reference.name} never computes{relation}"
        location = f"{self.reference.name}:{self.reference_line}"
        shown = "; with that value there, all outputs agree" if self.is_shown else ""
        shown = f"; {self.agreement}" if self.repair else shown
        theirs = statement(self.reference, self.reference_line)
        return f"{self} has `{code}` where {location} has `{theirs}`{relation}{shown}"

    @property
    def agreement(self) -> str:
        """``with `a < b`, all outputs agree``, the change of the file that is shown to repair it."""
        mutant = self.repair
        if mutant is None:
            return ""
        change = f"with `{short(mutant.after)}`" if mutant.after else "without it"
        return f"{change}, all {'outputs and gradients' if self.gradients else 'outputs'} agree"


def located(asked: FaultCase, pair: FilePair, seconds: float) -> FaultLine | None:
    """The location of what is asked. Raises what reading files and running code raises."""
    until = time.monotonic() + seconds
    path, reference = pair.candidate.own_path.absolute(), pair.reference.own_path
    if asked.cause in KEPT and (line := line_that_keeps(path)):
        return FaultLine(path, line, reference)
    if {pair.candidate.adapter, pair.reference.adapter} != {TORCH}:
        return None
    hit = line_of(asked, pair, until)
    if hit is not None and hit.kind == BEYOND:
        # A bias of zeros or a scale of ones hides in outputs what its gradient shows.
        with tempfile.TemporaryDirectory(prefix="parity-varied-") as name, suppress(Exception):
            again = line_of(varied(asked, Path(name)), pair, until)
            return again if again is not None and again.kind == VALUE and again.reference_line else hit
    return hit


def with_repair(hit: FaultLine | None, asked: FaultCase, pair: FilePair) -> FaultLine | None:
    """The line with the small change of the file that is shown to repair it, or the line of that change."""
    candidate = pair.candidate
    is_whole = asked.cause in (MUTATED, *KEPT) or {candidate.adapter, pair.reference.adapter} != {TORCH}
    if is_whole or candidate.origin or (hit is not None and hit.kind in (DIGITS, OVERFLOW)):
        return hit
    with suppress(Exception):
        line = 0 if hit is None else hit.line
        lines = line, 0 if hit is None else hit.reference_line
        mutant = repair_of(asked, pair, lines, lambda case: reference_trail(case, pair, 0.0))
        is_known = hit is not None and hit.is_shown
        if mutant is not None and not (is_known and mutant.line > line and mutant.cost >= LARGER):
            own = FaultLine(candidate.own_path.absolute(), mutant.line, pair.reference.own_path)
            known = hit if hit is not None and hit.line == mutant.line else own
            return replace(known, repair=mutant, gradients=bool(asked.arriving))
    return hit


def line_of(asked: FaultCase, pair: FilePair, until: float) -> FaultLine | None:
    """The line at fault for these inputs."""
    path = pair.candidate.own_path.absolute()
    with candidate(asked, pair, until) as codes:
        theirs = None if asked.cause == MUTATED else reference_trail(asked, pair, until)
        all_codes = codes()
        own = [code for code in all_codes if code.outputs] or all_codes
    if not own:
        return None
    row, kind = faulty(own, theirs, asked, until)
    line = row.line if row is not None else next((code.error_line for code in own if code.error_line), 0)
    line = (opening(path, line) if kind in (CUT, BEYOND) else line) or line_that_keeps(path)
    if not line:
        return None
    lost, words = None, ""
    if theirs is not None:
        with suppress(TimeoutError):
            lost = missing(theirs, own[0], asked, until)
            if row is not None and kind == VALUE:
                shown = shown_by(row, lost, (own[0], theirs), asked, pair, until)
                if shown is not None:
                    return shown
            if row is not None and kind in (VALUE, BACKWARD):
                words = related(row, own[0], theirs, lost, until)
    return FaultLine(path, line, pair.reference.own_path, 0 if lost is None else lost.line, kind, words)


def shown_by(
    row: TrailRow,
    lost: TrailRow | None,
    codes: tuple[Computation, Computation],
    asked: FaultCase,
    pair: FilePair,
    until: float,
) -> FaultLine | None:
    """The first line of the candidate, up to a row, with which all outputs agree once it has values of the reference;
    None where there is none."""
    own, theirs = codes
    ends = [own.outputs[name] for name in wrong_outputs(own, theirs)]
    searches = [search_of(*pair_of, theirs.numbers, asked, until) for pair_of in ((own, theirs), (theirs, own))]
    patching = Patching(searches[0], searches[1], ends)
    tried = [patch for patch in patching.patches() if patch.row <= own.rows.index(row)]
    outputs = patched(asked, pair, [p for patch in tried for p in (patch, patch.shifted)], until)
    for patch, given, shifted in zip(tried, outputs[::2], outputs[1::2], strict=False):
        if agree(given, theirs) and not agree(shifted, theirs):
            hit = of_patch(patch, own, pair, 0 if lost is None else lost.line)
            return hit if hit.relation else replace(hit, relation=related(own.rows[patch.row], *codes, lost, until))
    return None


def agree(outputs: Mapping[str, Array], theirs: Computation) -> bool:
    """Whether outputs are those of the reference."""
    exact = {name: theirs.values[i] for name, i in theirs.outputs.items()}
    return outputs.keys() == exact.keys() and all(difference(outputs[n], a) <= MADE for n, a in exact.items())


def of_patch(patch: Patch, own: Computation, pair: FilePair, line: int) -> FaultLine:
    """The line of a patch, with what its value is to that of the reference, which has it inside `line` if no line has
    it."""
    row = own.rows[patch.row]
    values = zip(row.results, patch.results[patch.row], strict=True)
    words = next(filter(None, (relation(own.values[i], right, weak=True) for i, right in values)), "")
    path, reference = pair.candidate.own_path.absolute(), pair.reference.own_path
    return FaultLine(path, row.line, reference, patch.reference_line or line, VALUE, words, is_shown=True)


def varied(asked: FaultCase, folder: Path) -> FaultCase:
    """The same with other numbers for inputs whose elements are all the same, such as initial weights."""
    rng, given = np.random.default_rng(0), dict(asked.given)
    for name, array in loaded(asked.given).items():
        if array.dtype.kind == "f" and array.size > 1 and not np.ptp(array):
            given[name] = folder / f"{len(given)}-{rng.integers(1 << 30)}.npy"
            np.save(given[name], (array + rng.normal(size=array.shape) / 2).astype(array.dtype))
    return replace(asked, given=given)


def faulty(
    codes: Sequence[Computation], theirs: Computation | None, asked: FaultCase, until: float
) -> tuple[TrailRow | None, str]:
    """The row of the candidate that is at fault, and what is wrong there: `codes` are its computations in float64 and
    in the case's dtype."""
    if theirs is None:
        return next((row for code in codes for row in code.rows if row.writes and row.line), None), VALUE
    wide, *others = codes
    search = search_of(wide, theirs, theirs.numbers, asked, until)
    if wrong := wrong_outputs(wide, theirs):
        ends = [wide.outputs[name] for name in wrong]
        first = not_finite(search, sorted(reached(wide, ends)), finite_in_one(wide, theirs, wrong))
        return first or search.location(ends), VALUE
    row, kind = (None, VALUE) if asked.outputs else of_wrong_gradients(search, theirs)
    if row is not None or kind != VALUE:
        return row, kind
    for code in others:
        if (row := amplified(code, wide, wide.outputs)) is not None:
            is_finite = all(np.isfinite(code.values[i]).all() for i in row.results)
            return row, DIGITS if is_finite else OVERFLOW
    return None, DIGITS


def search_of(
    code: Computation, other: Computation, numbers: Iterable[float], asked: FaultCase, until: float
) -> FaultSearch:
    """The values of a computation, by what another one knows of them; `numbers` are the reference's."""
    factors = factors_of(numbers, [a.shape for a in other.arrays()])
    arrays = other.arrays(gradients=bool(asked.arriving))
    return FaultSearch(code, Known(arrays, factors, until), asked.dtype)


def wrong_outputs(code: Computation, theirs: Computation) -> list[str]:
    """The outputs that are others than the reference's."""
    return [name for name in theirs.outputs if name in code.outputs and differs(code, theirs, name)]


def finite_in_one(code: Computation, theirs: Computation, names: Sequence[str]) -> set[bool]:
    """Whether elements are finite only in the candidate (True), or only in the reference (False)."""
    hit = set[bool]()
    for name in names:
        own, exact = (
            np.isfinite(code.values[code.outputs[name]]),
            np.isfinite(theirs.values[theirs.outputs[name]]),
        )
        if own.shape == exact.shape:
            hit |= {bool(one) for one in own[own != exact]}
    return hit


def differs(code: Computation, theirs: Computation, name: str) -> bool:
    """Whether an output is another one than the reference's."""
    own, exact = code.values[code.outputs[name]], theirs.values[theirs.outputs[name]]
    return difference(own, exact) > MADE


def of_wrong_gradients(search: FaultSearch, theirs: Computation) -> tuple[TrailRow | None, str]:
    """The row at fault where outputs are right, and what is wrong there."""
    code = search.code
    names = [name for name in theirs.gradients if name not in code.gradients]
    exact = {name: theirs.values[value] for name, value in theirs.gradients.items()}
    ends = [i for n, i in code.gradients.items() if n in exact and difference(code.values[i], exact[n]) > MADE]
    if any(row.backward and row.line for row in code.rows):
        # What an own backward pass returns goes through calls that nobody sees before it arrives at an input.
        for some in (ends, [*ends, *unread(code)] if ends else []):
            hit = search.location(some)
            if hit is not None and hit.backward:
                return hit, BACKWARD
    if names or ends:
        row = cut(code, theirs)
        return (row, CUT) if row is not None else (of_gradients(search, ends), BEYOND)
    return None, VALUE


def unread(code: Computation) -> list[int]:
    """The results of an own backward pass that it does not read itself."""
    rows = [row for row in code.rows if row.backward and row.line]
    read = {value for row in rows for value in row.reads}
    return [value for row in rows for value in row.results if value not in read]


def missing(theirs: Computation, own: Computation, asked: FaultCase, until: float) -> TrailRow | None:
    """The reference's row of the first value that the candidate never computes."""
    names = wrong_outputs(own, theirs)
    hit = search_of(theirs, own, theirs.numbers, asked, until).location(theirs.outputs[name] for name in names)
    return hit or (whole_row(theirs) if names else None)


def whole_row(code: Computation) -> TrailRow | None:
    """The last row with a line, where an output is written inside of a call."""
    return next((row for row in reversed(code.rows) if row.line), None)


# The two computations


def reference_trail(asked: FaultCase, pair: FilePair, until: float) -> Computation:
    """The reference's computation in float64, with the values inside its calls."""
    import torch

    path = pair.reference.path.absolute()
    source = ReferenceFile(path, path.read_bytes())
    given, arriving = loaded(asked.given), loaded(asked.arriving)
    values = trail.TrailValues()
    with user_code(path):
        entry = namespace(source, plain=True)[pair.reference.name]
        module = UserModule(entry)
        with torch.enable_grad():
            file = str(pair.reference.own_path.absolute()) if pair.reference.origin else code_file(entry)
            rest = given, asked.params, arriving
            own = trail.trail_of(module, file, values, "float64", *rest)
            if not own.outputs:
                own = trail.trail_of(module, file, values, asked.dtype, *rest)
    code = Computation.of(own.reply, values.arrays, values.dtypes)
    with suppress(Exception), user_code(path):
        if time.monotonic() < until:
            return replace(code, more=inside(module, given, arriving, asked.params))
    return code


def code_file(entry: Any) -> str:
    """The file that a class or function was compiled from."""
    function = inspect.unwrap(getattr(entry, "forward", entry))
    return str(function.__code__.co_filename)


def inside(
    module: UserModule, given: Mapping[str, Array], arriving: Mapping[str, Array], params: Mapping[str, Any]
) -> list[Array]:
    """The values inside the reference's calls, from its recording: a variance in `layer_norm`."""
    wide = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in given.items()}
    code = TorchCode(*recording_of(module, wide, dict(params)))
    how: dict[str, Any] = {}
    if arriving:
        how = {"differentiable": [n for n, a in wide.items() if a.dtype.kind == "f"], "gradients": arriving}
    program = code.program(wide, **how)
    every = replace(program, outputs={str(step.index): step.index for step in program.steps})
    arrived = {f"{GRADIENT}{name}": values for name, values in arriving.items()}
    hit: list[Array] = []
    for array in every.run({**wide, **arrived}, "float64").values():
        if array.dtype.kind in "fiub" and sum(map(np.size, hit)) < MOST_INSIDE:
            hit.append(np.asarray(array, np.float64))
    return hit
