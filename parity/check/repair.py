"""The repair of a candidate: the small change of its file with which all that differs agrees."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np

from parity.cases.op import GRADIENT
from parity.check.candidate_process import FaultCase, agreeing, fault_case, loaded, stored
from parity.check.fault import Computation
from parity.check.match import Array
from parity.check.mutants import Mutant, mutants_of
from parity.check.pair import FilePair
from parity.check.triton_code import is_interpreted
from parity.check.written import code_of_file
from parity.config.plan import CasePlan
from parity.program.worker.mutant import of_kind
from parity.program.worker.user_module import ARGUMENTS

SECONDS = 8.0
"""The processor's time for all mutants."""
INTERPRETED = 3
"""Triton's interpreter is so many times slower, at least."""
MOST_MUTANTS = 6000
MOST_TIMES, FEW_TIMES, MOST_NUMBERS = 17, 2, 1 << 16
"""A batch is made so many times as large, or only so few times, as long as it has no more numbers."""
MOST_ROUNDS = 3
"""Searches, each from behind what agreed by chance."""
ELSEWHERE = 1
FEW_ROWS = 2
"""Mutants are first compared in a batch of so few rows, where a call takes long."""
FEW = 4
"""Inputs of so few different numbers, such as masks, have a meaning, and stay."""
Reference = Callable[[FaultCase], Computation]


def repair_of(asked: FaultCase, pair: FilePair, lines: tuple[int, int], reference: Reference) -> Mutant | None:
    """The first mutant of the candidate's file that computes what the reference does, for the case's inputs and for
    others; those near a line are tried first (`lines`: the candidate's, and the reference's). None where there is none,
    or not in time."""
    text, theirs = (code_of_file(item.own_path) for item in (pair.candidate, pair.reference))
    every = islice(mutants_of(text, lines[0], theirs, lines[1]), MOST_MUTANTS)
    known: dict[str, Mutant] = {}
    for mutant in every:
        known.setdefault(mutant.text, mutant)
    mutants = list(known.values())
    if not mutants:
        return None
    is_slow = is_interpreted(pair.candidate)
    seconds = SECONDS * (INTERPRETED if is_slow else 1)
    with tempfile.TemporaryDirectory(prefix="parity-other-") as name:
        folder = Path(name)
        first = in_few_rows(asked, pair, reference, folder) if is_slow else None
        case, results = first or (asked, exact(asked, reference))
        times = FEW_TIMES if is_slow else MOST_TIMES
        verified: list[tuple[FaultCase, dict[str, Array]]] = []
        for _ in range(MOST_ROUNDS):
            numbers = agreeing(case, pair, [text, *(m.text for m in mutants)], results, seconds, shown=True)
            tried = [mutants[n] for n in numbers]
            if tried and not verified:
                verified = list(others(asked, reference, folder, times))
            for other, exact_there in verified:
                texts = [text, *(mutant.text for mutant in tried)]
                tried = [tried[n] for n in agreeing(other, pair, texts, exact_there, SECONDS, shown=False)]
            if tried or not numbers:
                break
            mutants = mutants[max(numbers) + 1 :]
    return min(tried, key=lambda mutant: unlikeliness(mutant, lines[0]), default=None)


def unlikeliness(mutant: Mutant, line: int) -> tuple[int, int]:
    """By what mutants are compared that all agree: their cost, more where they are at another line; their length."""
    return mutant.cost + (ELSEWHERE if mutant.line != line else 0), len(mutant.after)


def exact(asked: FaultCase, reference: Reference) -> dict[str, Array]:
    """The reference's outputs, or its gradients where only these differ, by name."""
    code = reference(asked)
    gradients = {f"{GRADIENT}{name}": i for name, i in code.gradients.items()} if asked.arriving else {}
    return {name: of_kind(code.values[i], code.dtypes[i]) for name, i in {**code.outputs, **gradients}.items()}


def in_few_rows(
    asked: FaultCase, pair: FilePair, reference: Reference, folder: Path
) -> tuple[FaultCase, dict[str, Array]] | None:
    """The case in a batch of few rows, and what is exact for it; None where the fault does not show there."""
    (folder / "few").mkdir()
    text = code_of_file(pair.candidate.own_path)
    with suppress(Exception):  # Whatever a user's code raises for another batch.
        few = in_batch(asked, folder / "few", FEW_ROWS)
        results = exact(few, reference)
        if results and not agreeing(few, pair, [text, text], results, SECONDS, shown=False):
            return few, results
    return None


def others(
    asked: FaultCase, reference: Reference, folder: Path, times: int = MOST_TIMES
) -> Iterator[tuple[FaultCase, dict[str, Array]]]:
    """Cases with other inputs and what is exact for them: in a larger batch, where that works, a number that is the
    size of a batch by chance shows, at other sizes one that is a length."""
    folders = [folder / "same", folder / "larger"]
    for path in folders:
        path.mkdir(parents=True)
    other = with_other_inputs(asked, folders[0])
    yield other, exact(other, reference)
    with suppress(Exception):  # Whatever a user's code raises for another batch.
        larger = in_batch(other, folders[1], times=times)
        if results := exact(larger, reference):
            yield larger, results
    for case in asked.sizes:
        with suppress(Exception):
            sized = of_size(asked, case, folder)
            if results := exact(sized, reference):
                yield sized, results


def of_size(asked: FaultCase, case: CasePlan, folder: Path) -> FaultCase:
    """The same in a case of another size, with inputs as it draws them."""
    inputs = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
    files = {name: Path(file) for name, file in stored(folder / case.id, inputs).items()}
    return replace(fault_case(files, asdict(case.params), asked.dtype, asked.tensors), start=asked.start)


def in_batch(asked: FaultCase, folder: Path, n: int = 0, times: int = MOST_TIMES) -> FaultCase:
    """The same with a batch of `n` rows, or of several `times` the size: each argument whose first axis is as long as
    that of the first one."""
    names = [item.partition(":")[0].strip() for item in str(asked.params.get(ARGUMENTS, "")).split(",")]
    arrays = {name: array for name, array in loaded(asked.given).items() if name in names and array.ndim}
    size = next(iter(arrays.values())).shape[0]
    given = dict(asked.given)
    times = min(times, max(2, MOST_NUMBERS // sum(array.size for array in arrays.values())))
    for name, array in arrays.items():
        if array.shape[0] == size and not asked.arriving:
            given[name] = folder / f"{name}.npy"
            np.save(given[name], array[:n] if n else np.concatenate([array] * times))
    return replace(asked, given=given)


def with_other_inputs(asked: FaultCase, folder: Path) -> FaultCase:
    """The same with other numbers of the same signs for floating-point inputs."""
    rng, given = np.random.default_rng(1), dict(asked.given)
    for number, (name, array) in enumerate(loaded(asked.given).items()):
        distinct = np.unique(array[: FEW**5].ravel()) if array.ndim else array
        if array.dtype.kind == "f" and not 1 < distinct.size <= FEW:
            given[name] = folder / f"{number}.npy"
            np.save(given[name], (array * rng.uniform(0.6, 1.4, array.shape)).astype(array.dtype))
    return replace(asked, given=given)
