"""Causes that explained a backend in earlier cases of a run; they are tried first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from parity.judge.diagnose.causes import Cause, standing_causes
from parity.judge.diagnose.evaluator import Evaluator

MAX_TRIED = 8


@dataclass(frozen=True)
class Recipe:
    """Causes without their numbers: ids, and names of the parameters. `case` had them first."""

    case: str
    causes: tuple[tuple[str, frozenset[str]], ...]


@dataclass
class Memory:
    """The recipes of a run by op, backend and dtype."""

    _recipes: dict[tuple[str, str, str], list[Recipe]] = field(default_factory=dict)

    def keep(self, evaluator: Evaluator, backend: str, causes: Sequence[Cause]) -> None:
        """Remember causes that explained everything, if all of them are alterations of the reference."""
        if causes and all(cause.alteration is not None for cause in causes):
            key = tuple((cause.id, frozenset(cause.parameters)) for cause in causes)
            known = self._recipes.setdefault((evaluator.op.name, backend, evaluator.dtype), [])
            if all(recipe.causes != key for recipe in known):
                known.append(Recipe(evaluator.case.id, key))

    def recall(self, evaluator: Evaluator, backend: str) -> Iterator[tuple[str, tuple[Cause, ...]]]:
        """The same causes with this case's numbers, and the case that had them first."""
        recipes = self._recipes.get((evaluator.op.name, backend, evaluator.dtype), [])
        standing = standing_causes(evaluator) if recipes else []
        for recipe in recipes:
            like = [[c for c in standing if (c.id, frozenset(c.parameters)) == wanted] for wanted in recipe.causes]
            for causes in islice(product(*like), MAX_TRIED):
                yield recipe.case, causes
