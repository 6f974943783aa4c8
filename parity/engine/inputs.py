"""Draws the inputs of a case once and stores them, for every backend and for later inspection."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Constant, Draw, File, TensorPlan, Values
from parity.cases.dtypes import coarsest
from parity.config.plan import CasePlan


@dataclass(frozen=True)
class Prepared:
    """A case with its inputs: arrays with values that all its dtypes can hold, and the `.npy` files with them.

    `problem` says why no backend can use them, if so; `lost` says why they are not in the run's folder, if so.
    """

    case: CasePlan
    folder: Path
    arrays: Mapping[str, NDArray[Any]]
    paths: Mapping[str, Path]
    problem: str = ""
    lost: OSError | None = None


def prepare(case: CasePlan, index: int, seed: int, tensors: Path, spare: Path) -> Prepared:
    """Draw all tensors of `case` and store them under `tensors`, the run's folder, or if that fails under `spare`."""
    name = folder_name(index, case)
    arrays = {plan.name: plan.sample(seed, case.id, *case.dtypes) for plan in case.tensors}
    overflown = [plan for plan in case.tensors if overflows(plan, arrays[plan.name])]
    problem = ""
    if overflown:
        narrowest = overflown[0].storage or coarsest(case.dtypes)
        problem = f"inputs.{overflown[0].name}: finite values overflow to infinity in {narrowest}"
    prepared = Prepared(case, tensors / name, arrays, {}, problem)
    try:
        return replace(prepared, paths=stored(arrays, prepared.folder))
    except OSError as error:
        shutil.rmtree(prepared.folder, ignore_errors=True)
        prepared = replace(prepared, folder=spare / name, lost=error)
    try:
        return replace(prepared, paths=stored(arrays, prepared.folder))
    except OSError as error:
        return replace(prepared, problem=f"its inputs cannot be stored: {error.strerror or error}")


def folder_name(index: int, case: CasePlan) -> str:
    """The folder name of a case's tensors; `index` is the case's position in the plan."""
    return f"{index:04d}-{slug(case.id)}"


def stored(arrays: Mapping[str, NDArray[Any]], folder: Path) -> dict[str, Path]:
    """Write the arrays to files in `folder`; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.npy" for name in arrays}
    for name, array in arrays.items():
        save_array(paths[name], array)
    return paths


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a `.npy` file completely or not at all; raises OSError with the reason, which `np.save` omits."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.reshape(-1).view(np.uint8).data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def overflows(plan: TensorPlan, values: NDArray[Any]) -> bool:
    """Whether a tensor has infinities that its plan does not specify."""
    if not np.isinf(values).any():
        return False
    asked = [*(plan.special.values if plan.special else ()), *literals(plan.draw)]
    return not np.isinf(np.asarray(asked, dtype=np.float64)).any()


def literals(draw: Draw) -> list[float]:
    """The values that a draw specifies literally."""
    if isinstance(draw, Constant):
        return [draw.value]
    if isinstance(draw, Values | File):
        return np.ravel(draw.sample(np.random.default_rng(), draw.shape)).tolist()
    return []


def slug(text: str) -> str:
    """`text` as part of a file name: no separator, no leading dot, at most 60 characters."""
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "_", text).lstrip(".")[:60] or "_"
