"""Draws the inputs of a case once and stores them, for every backend and for whoever wants to look later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Constant, Draw, File, TensorPlan, Values, coarsest
from parity.config.plan import CasePlan


@dataclass(frozen=True)
class Prepared:
    """A case with its inputs: arrays in the case's coarsest dtype, and the `.npy` files that hold them.

    `problem` says why no backend should see them, where that is so.
    """

    case: CasePlan
    folder: Path
    arrays: Mapping[str, NDArray[Any]]
    paths: Mapping[str, Path]
    problem: str = ""


def prepare(case: CasePlan, index: int, seed: int, tensors: Path) -> Prepared:
    """Draw and store all tensors of `case` under `tensors`, the run's folder for them."""
    folder = tensors / f"{index:04d}-{slug(case.id)}"
    folder.mkdir(parents=True, exist_ok=True)
    dtype = coarsest(case.dtypes)
    arrays = {plan.name: plan.sample(seed, case.id, dtype) for plan in case.tensors}
    paths = {name: folder / f"{name}.npy" for name in arrays}
    for name, array in arrays.items():
        np.save(paths[name], array, allow_pickle=False)
    overflown = [plan.name for plan in case.tensors if overflows(plan, arrays[plan.name])]
    problem = f"inputs.{overflown[0]}: finite values do not fit {dtype} and become infinite" if overflown else ""
    return Prepared(case, folder, arrays, paths, problem)


def overflows(plan: TensorPlan, values: NDArray[Any]) -> bool:
    """Whether a tensor has infinities that its plan does not ask for."""
    if not np.isinf(values).any():
        return False
    asked = [*(plan.special.values if plan.special else ()), *literals(plan.draw)]
    return not np.isinf(np.asarray(asked, dtype=np.float64)).any()


def literals(draw: Draw) -> list[float]:
    """The values that a draw states itself."""
    if isinstance(draw, Constant):
        return [draw.value]
    if isinstance(draw, Values | File):
        return np.ravel(draw.sample(np.random.default_rng(), draw.shape)).tolist()
    return []


def slug(text: str) -> str:
    """`text` as part of a file name: no separator, no dot at its start, at most 60 characters."""
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "_", text).lstrip(".")[:60] or "_"
