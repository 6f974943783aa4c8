"""Draws the inputs of a case once and stores them, for every backend and for later inspection."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Constant, Draw, File, Probabilities, TensorPlan, Values
from parity.cases.dtypes import coarsest
from parity.config.plan import CasePlan


@dataclass(frozen=True)
class Prepared:
    """A case with its inputs: arrays with values that all its dtypes can hold, and the `.npy` files with them.

    `problem` says why no backend can use them, if so; `lost` says why they are not in the run's folder, if so. `others`
    are other inputs of the case, for further calls.
    """

    case: CasePlan
    folder: Path
    arrays: Mapping[str, NDArray[Any]]
    paths: Mapping[str, Path]
    problem: str = ""
    lost: OSError | None = None
    others: tuple[Prepared, ...] = ()

    @property
    def small(self) -> bool:
        """Whether a call costs less than the work around it."""
        return sum(array.size for array in self.arrays.values()) <= REPEATED


REPEATED = 1 << 16
"""A case of up to so many elements is called several times; larger ones run the same loops of a kernel as smaller
ones."""


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


def prepare_safely(case: CasePlan, index: int, seed: int, tensors: Path, spare: Path) -> Prepared:
    """`prepare`, with other inputs; an error of parity, or too little memory, costs this case only."""
    try:
        return with_others(prepare(case, index, seed, tensors, spare), seed, spare)
    except Exception as error:
        problem = f"its inputs cannot be drawn: {type(error).__name__}: {error}"
        return Prepared(case, tensors / folder_name(index, case), {}, {}, problem)


def with_others(prepared: Prepared, seed: int, spare: Path) -> Prepared:
    """A small case with other inputs, stored under `spare`; without them if they cannot be stored."""
    if prepared.problem or not prepared.small:
        return prepared
    drawn = other_inputs(prepared.case, prepared.arrays, seed)
    folders = [spare / f"{prepared.folder.name}-other-{number}" for number, _ in enumerate(drawn)]
    try:
        paths = [stored(arrays, folder) for arrays, folder in zip(drawn, folders, strict=True)]
    except OSError:
        return prepared
    others = map(partial(Prepared, prepared.case), folders, drawn, paths)
    return replace(prepared, others=tuple(others))


def other_inputs(case: CasePlan, arrays: Mapping[str, NDArray[Any]], seed: int) -> list[dict[str, NDArray[Any]]]:
    """Inputs for two more calls: a part of the first tensor changes, then everything else.

    What a kernel keeps from call to call is found again by an address, a shape, some elements, or some of the tensors.
    So the first change leaves the beginning and the end of the tensor and all other tensors as they are, and the
    second leaves the first tensor if there are others. None if no tensor can change.
    """
    drawn = {plan.name: other_values(plan, arrays[plan.name], seed, case) for plan in case.tensors}
    changing = [name for name, values in drawn.items() if not np.array_equal(values, arrays[name], equal_nan=True)]
    if not changing:
        return []
    first = next((plan for plan in case.tensors if plan.name in changing and not plan.alias), case.tensors[0])
    twins = {plan.name for plan in case.tensors if first.name in (plan.name, plan.alias)}
    part = {name: middle_changed(arrays[name], drawn[name]) for name in twins} if first.name in changing else {}
    if isinstance(first.draw, Probabilities):
        part = {name: drawn[name] for name in twins}
    alone = all(name in twins or case.definition.is_grad_output(name) for name in changing)
    return [{**arrays, **part}, drawn if alone else {**drawn, **part}]


def other_values(plan: TensorPlan, values: NDArray[Any], seed: int, case: CasePlan) -> NDArray[Any]:
    """Other values of a tensor, drawn as its own; literal numbers in reverse order, since the op accepts these."""
    if isinstance(plan.draw, Values | File):
        return values.ravel()[::-1].reshape(values.shape) if values.dtype.kind == "f" else values
    return values if plan.fixed else plan.sample(seed, f"{case.id}, another call", *case.dtypes)


def middle_changed(values: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """The values with those of `others` in the middle quarter, at least one of them another number."""
    changed, start, stop = values.ravel().copy(), 3 * values.size // 8, 5 * values.size // 8
    changed[start:stop] = others.ravel()[start:stop]
    return others if np.array_equal(changed, values.ravel(), equal_nan=True) else changed.reshape(values.shape)


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
