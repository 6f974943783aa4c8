"""What explained a backend in earlier cases of a run is tried first in later ones, then in what is unexplained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.evaluator import Evaluator, Observed, spelled
from parity.judge.diagnose.explanation import unaltered
from parity.judge.diagnose.findings import CellKey, diagnoses_of
from parity.judge.diagnose.inquiry import structure, transferred
from parity.judge.diagnose.search import SearchResult, improved

MAX_TRIED = 8
MOST_ELEMENTS = 1 << 20
"""The most elements of the inputs of unexplained cells that are kept."""


@dataclass(frozen=True)
class Recipe:
    """Causes that explained `case`. Edits fit programs with the same `steps`; other causes take a case's numbers."""

    case: str
    causes: tuple[Cause, ...]
    steps: tuple[str, ...]

    @property
    def key(self) -> str:
        """Equal for the same causes with other numbers."""
        edits = (spelled(c.alteration.edits) if c.alteration else () for c in self.causes)
        return repr([(c.id, sorted(c.parameters), sorted(c.only), e) for c, e in zip(self.causes, edits, strict=True)])


@dataclass(frozen=True)
class Revision:
    """Other diagnoses for a cell of an earlier case, instead of those with the ids `replaced`."""

    cell: CellKey
    replaced: tuple[str, ...]
    diagnoses: tuple[Diagnosis, ...]


@dataclass
class Unexplained:
    """A cell of a backend without a complete explanation; `n_tried` recipes have been tried."""

    op: str
    backend: str
    result: SearchResult
    n_tried: int

    @property
    def cell(self) -> CellKey:
        """Its case, dtype and backend."""
        return self.result.best.evaluator.case.id, self.result.best.evaluator.dtype, self.backend


@dataclass
class Memory:
    """The recipes of a run by op and backend, and the cells that they do not explain."""

    _recipes: dict[tuple[str, str], list[Recipe]] = field(default_factory=dict)
    _unexplained: list[Unexplained] = field(default_factory=list)
    _states: dict[tuple[str, str], tuple[str, Mapping[str, Any]]] = field(default_factory=dict)

    def keep(self, evaluator: Evaluator, backend: str, causes: Sequence[Cause]) -> None:
        """Remember causes that explained everything, as far as they are alterations of the reference."""
        altering = tuple(cause for cause in causes if cause.alteration is not None)
        if altering and all(cause.alteration is not None or not cause.portable for cause in causes):
            recipe = Recipe(evaluator.case.id, altering, tuple(structure(evaluator)))
            known = self._recipes.setdefault((evaluator.op.name, backend), [])
            if all(recipe.key != other.key for other in known):
                known.append(recipe)

    def keep_state(self, case: str, op: str, backend: str, state: Mapping[str, Any]) -> None:
        """Remember the first state that an op keeps between calls, and drop the causes that the case had first."""
        self._states.setdefault((op, backend), (case, state))
        known = self._recipes.get((op, backend), [])
        known[:] = [recipe for recipe in known if recipe.case != case]

    def state(self, op: str, backend: str) -> tuple[str, Mapping[str, Any]] | None:
        """The case that first showed a state of an op, with the evidence."""
        return self._states.get((op, backend))

    def recall(
        self, evaluator: Evaluator, backend: str, observed: Observed, first: int = 0
    ) -> Iterator[tuple[str, tuple[Cause, ...]]]:
        """The same causes with this case's numbers, and the case that had them first."""
        recipes = self._recipes.get((evaluator.op.name, backend), [])[first:]
        start = unaltered(evaluator, observed)
        steps = tuple(structure(evaluator)) if recipes else ()
        for recipe in recipes:
            edited = any(cause.alteration and cause.alteration.edits for cause in recipe.causes)
            if not edited or recipe.steps == steps:
                for causes in islice(product(*(transferred(c, start) for c in recipe.causes)), MAX_TRIED):
                    yield recipe.case, causes

    def leave(self, result: SearchResult, backend: str) -> None:
        """Keep an unexplained cell for the causes of later cases, if there is room."""
        evaluator = result.best.evaluator
        held = sum(each.result.best.evaluator.n_elements for each in self._unexplained)
        if held + evaluator.n_elements <= MOST_ELEMENTS:
            n_tried = len(self._recipes.get((evaluator.op.name, backend), []))
            self._unexplained.append(Unexplained(evaluator.op.name, backend, result, n_tried))

    def revised(self) -> Iterator[Revision]:
        """The earlier cells that causes found since then explain better."""
        for each in list(self._unexplained):
            known = len(self._recipes.get((each.op, each.backend), []))
            if each.n_tried == known:
                continue
            best = each.result.best
            recipes = self.recall(best.evaluator, each.backend, best.observed, each.n_tried)
            better, each.n_tried = improved(each.result, recipes), known
            if better is each.result:
                continue
            replaced = tuple(dict.fromkeys(d.id for d in diagnoses_of(each.cell, each.result)))
            yield Revision(each.cell, replaced, tuple(diagnoses_of(each.cell, better)))
            each.result = better
            if better.settled:
                self._unexplained.remove(each)
