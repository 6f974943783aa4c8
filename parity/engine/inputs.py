"""Draws the inputs of a case once and stores them, for every backend and for whoever wants to look later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import coarsest
from parity.config.plan import CasePlan


@dataclass(frozen=True)
class Prepared:
    """A case with its inputs: arrays in the case's coarsest dtype, and the `.npy` files that hold them."""

    case: CasePlan
    folder: Path
    arrays: Mapping[str, NDArray[Any]]
    paths: Mapping[str, Path]


def prepare(case: CasePlan, index: int, seed: int, tensors: Path) -> Prepared:
    """Draw and store all tensors of `case` under `tensors`, the run's folder for them."""
    folder = tensors / f"{index:04d}-{slug(case.id)}"
    folder.mkdir(parents=True, exist_ok=True)
    dtype = coarsest(case.dtypes)
    arrays = {plan.name: plan.sample(seed, case.id, dtype) for plan in case.tensors}
    paths = {name: folder / f"{name}.npy" for name in arrays}
    for name, array in arrays.items():
        np.save(paths[name], array, allow_pickle=False)
    return Prepared(case, folder, arrays, paths)


def slug(text: str) -> str:
    """`text` as part of a file name: no separator, no dot at its start, at most 60 characters."""
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "_", text).lstrip(".")[:60] or "_"
