"""The two files of a pair as modules, and what rules share: constructors from one seed, inputs, copies."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SEED = 42
COUNT = itertools.count()


@dataclass(frozen=True)
class Problem:
    """A reference in KernelBench's format."""

    model: Callable[..., Any]
    get_inputs: Callable[[], Sequence[Any]]
    get_init_inputs: Callable[[], Sequence[Any]]

    def built(self, constructor: Callable[..., Any], seed: int = SEED) -> Any:
        """A module of this problem; with the same seed, the same weights."""
        torch.manual_seed(seed)
        arguments = self.get_init_inputs()
        torch.manual_seed(seed)
        return constructor(*arguments)

    def inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return list(self.get_inputs())


def module(path: Path) -> Any:
    """The file as a fresh module."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{next(COUNT)}", path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def problem(path: Path) -> Problem:
    found = module(path)
    return Problem(found.Model, found.get_inputs, found.get_init_inputs)


def candidate(path: Path) -> Callable[..., Any]:
    """The class of a candidate."""
    constructor: Callable[..., Any] = module(path).ModelNew
    return constructor


def seeds(count: int) -> list[int]:
    """Seeds of trials, drawn as KernelBench and robust-kbench draw them."""
    torch.manual_seed(SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(count)]


def cloned(inputs: Sequence[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def redrawn(inputs: Sequence[Any], draw: Callable[[Any], Any]) -> list[Any]:
    """The inputs with floats drawn anew in the same shapes; integers, such as indices, stay as they are."""
    return [draw(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]


def outputs(result: Any) -> list[Any]:
    """What a module returns as a list of tensors."""
    return list(result) if isinstance(result, tuple | list) else [result]
