"""The repair of a candidate: the small change of its file with which all that differs agrees."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from parity.check.candidate_process import FaultCase, agreeing, loaded
from parity.check.fault import Computation
from parity.check.match import Array
from parity.check.mutants import Mutant, mutants_of
from parity.check.pair import FilePair

SECONDS = 8.0
MOST_MUTANTS = 900
FEW = 4
"""Inputs of so few different numbers, such as masks, have a meaning, and stay."""
Reference = Callable[[FaultCase], Computation]


def repair_of(asked: FaultCase, pair: FilePair, line: int, reference: Reference, until: float) -> Mutant | None:
    """The first mutant of the candidate's file that computes what the reference does, for the case's inputs and for
    others; those near a line are tried first. None where there is none, or not in time."""
    text = pair.candidate.own_path.read_text(encoding="utf-8")
    mutants = list({m.text: m for m in islice(mutants_of(text, line), MOST_MUTANTS)}.values())
    until = min(until, time.monotonic() + SECONDS)
    tried = [
        mutants[n] for n in agreeing(asked, pair, [text, *(m.text for m in mutants)], exact(asked, reference), until)
    ]
    if not tried:
        return None
    with tempfile.TemporaryDirectory(prefix="parity-other-") as name:
        other = with_other_inputs(asked, Path(name))
        texts = [text, *(mutant.text for mutant in tried)]
        right = agreeing(other, pair, texts, exact(other, reference), until + SECONDS)
    return tried[right[0]] if right else None


def exact(asked: FaultCase, reference: Reference) -> dict[str, Array]:
    """The reference's outputs, or its gradients where only these differ, which begin with `grad.`."""
    code = reference(asked)
    gradients = {f"grad.{name}": i for name, i in code.gradients.items()} if asked.arriving else {}
    return {name: code.values[i] for name, i in {**code.outputs, **gradients}.items()}


def with_other_inputs(asked: FaultCase, folder: Path) -> FaultCase:
    """The same with other numbers of the same signs for floating-point inputs."""
    rng, given = np.random.default_rng(1), dict(asked.given)
    for number, (name, array) in enumerate(loaded(asked.given).items()):
        distinct = np.unique(array[: FEW**5].ravel()) if array.ndim else array
        if array.dtype.kind == "f" and not 1 < distinct.size <= FEW:
            given[name] = folder / f"{number}.npy"
            np.save(given[name], (array * rng.uniform(0.6, 1.4, array.shape)).astype(array.dtype))
    return replace(asked, given=given)
