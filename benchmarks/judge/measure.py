"""What was really planted: the effect of every kernel in every cell, measured without the judge.

The yardstick of a tensor is the largest error of right kernels on the same inputs in the same dtype, by root mean
square and by maximum: all healthy variants, computed here with NumPy, and the healthy kernels of the same run; at least
a unit roundoff of the oracle. The effect of a kernel is its own error over the yardstick, the larger of both; a fault
is detectable in a cell where the effect of some tensor is 8 or more. Beside it, on the same tensors: plain allclose at
the default tolerances, and PyTorch dynamo's rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.judge.faults import BASE, Healthy, healthy_of
from benchmarks.judge.local import compute
from benchmarks.judge.runs import Run
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine.inputs import slug
from parity.reporting.results.rows import CaseRow, Results

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
DETECTABLE = 8.0

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Effect:
    """What a kernel did in a cell. `effects` are by tensor, inf where it is absent or not finite where it should be.

    `same` says that it equals the baseline kernel bit for bit; the alarms are those of the simple rules. `visible` says
    of each of two faults planted together whether it changes anything beside the other.
    """

    effects: Mapping[str, float]
    same: bool
    visible: tuple[bool, ...] = ()
    alarms: Mapping[str, bool] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest effect of any tensor."""
        return max(self.effects.values(), default=0.0)

    @property
    def detectable(self) -> bool:
        """Whether it is further from the oracle than right kernels are."""
        return self.largest >= DETECTABLE


def measure(run: Run, out: Path, results: Results) -> dict[tuple[str, str, str], Effect]:
    """The effect of every backend by case, dtype and backend."""
    measured = {}
    for row in results.cases:
        for dtype in row.dtypes:
            for backend, effect in measure_cell(run, out, row, dtype).items():
                measured[row.id, dtype, backend] = effect
    return measured


def measure_cell(run: Run, out: Path, row: CaseRow, dtype: str) -> dict[str, Effect]:
    files = {name: item.file for name, item in row.inputs.items()}
    inputs = {name: np.load(out / file) for name, file in files.items()}
    folder = (out / next(iter(files.values()))).parent / dtype
    sides = {name: read_side(folder / slug(name)) for name in run.kernels}
    return effects(run, row, inputs, read_side(folder / "oracle"), sides, dtype)


def effects(
    run: Run, row: CaseRow, inputs: Arrays, oracle: Arrays, sides: Mapping[str, Arrays], dtype: str
) -> dict[str, Effect]:
    """The effect of every side; tensors that are not in `oracle` were equal to it, bit for bit, on all sides."""
    right = [sides[name] for name, kernel in run.kernels.items() if isinstance(kernel, Healthy)]
    params = {name: value for name, value in row.params.items() if name not in ("in_features", "out_features")}
    right += [compute(row.op, params, inputs, dtype, h.switches) for h in healthy_of(run.family)]
    yardsticks = {slug(name): yardstick(name, oracle, right, dtype) for name in oracle}
    base = sides[BASE.name]
    found = {name: effect(side, oracle, base, yardsticks, dtype) for name, side in sides.items()}
    for name, fault in run.faults.items():
        without = [compute(row.op, params, inputs, dtype, other.switches) for other in reversed(fault.alone)]
        seen = tuple(differs(sides[name], side, yardsticks) for side in without)
        found[name] = replace(found[name], visible=seen)
    return found


def differs(side: Arrays, other: Arrays, yardsticks: Mapping[str, Errors]) -> bool:
    """Whether two sides are further apart than right kernels are from the oracle."""
    pairs = [(side.get(name), other[name], unit) for name, unit in yardsticks.items() if name in other]
    return any(over(error_of(values, reference), unit) >= DETECTABLE for values, reference, unit in pairs)


def effect(side: Arrays, oracle: Arrays, base: Arrays, yardsticks: Mapping[str, Errors], dtype: str) -> Effect:
    found = {name: over(error_of(side.get(name), exact), yardsticks[name]) for name, exact in oracle.items()}
    same = side.keys() == base.keys() and all(np.array_equal(side[n], base[n], equal_nan=True) for n in side)
    alarms = {
        "allclose, oracle": any(not close(side.get(n), oracle[n], dtype, n) for n in oracle),
        "allclose, baseline": any(not close(side.get(n), base.get(n), dtype, n) for n in oracle),
        "dynamo": any(not dynamo_same(base.get(n), side.get(n), oracle[n]) for n in oracle),
    }
    return Effect(found, same, alarms=alarms)


def read_side(folder: Path) -> Arrays:
    """The tensors that a run kept of one side."""
    return {path.stem: np.load(path, allow_pickle=False) for path in sorted(folder.glob("*.npy"))}


@dataclass(frozen=True)
class Errors:
    """An error tensor's root mean square and maximum; inf where NaN or infinity stand on one side only."""

    rms: float
    max: float


def error_of(values: NDArray[Any] | None, exact: NDArray[Any]) -> Errors:
    """The error of a tensor from the oracle's."""
    if values is None or values.shape != exact.shape or np.any(np.isfinite(values) != np.isfinite(exact)):
        return Errors(math.inf, math.inf)
    finite = np.isfinite(exact)
    errors = np.abs(values[finite].astype(np.longdouble) - exact[finite])
    if not errors.size or not errors.max():
        return Errors(0.0, 0.0)
    peak = errors.max()
    return Errors(float(peak * np.sqrt(np.mean((errors / peak) ** 2))), float(peak))


def yardstick(name: str, oracle: Arrays, right: Iterable[Arrays], dtype: str) -> Errors:
    """The largest finite error of right kernels, at least a unit roundoff."""
    exact = oracle[name]
    found = [error_of(side[name], exact) for side in right if name in side]
    found = [e for e in found if math.isfinite(e.max)]
    floor = error_of(np.zeros_like(exact), np.where(np.isfinite(exact), exact, 0))
    u = UNIT_ROUNDOFF[dtype]
    return Errors(max([u * floor.rms, *[e.rms for e in found]]), max([u * floor.max, *[e.max for e in found]]))


def over(error: Errors, unit: Errors) -> float:
    """How many yardsticks an error is."""
    if not error.max:
        return 0.0
    return max(error.rms / unit.rms, error.max / unit.max) if unit.rms else math.inf


def close(values: NDArray[Any] | None, expected: NDArray[Any] | None, dtype: str, tensor: str) -> bool:
    """numpy.allclose at parity's default tolerance for the dtype and tensor; NaN equals NaN."""
    if values is None or expected is None:
        return values is expected
    limit = DEFAULT_TOLERANCES.lookup(dtype, tensor)
    with np.errstate(invalid="ignore"):
        return values.shape == expected.shape and np.allclose(values.astype(np.float64), expected.astype(np.float64), limit.rtol, limit.atol, equal_nan=True)  # fmt: skip


DYNAMO_TOL = 1e-4
LOOSE_TOL = 4e-2


def dynamo_same(ref: NDArray[Any] | None, res: NDArray[Any] | None, fp64_ref: NDArray[Any]) -> bool:
    """torch 2.13.0, torch/_dynamo/utils.py, `same()`, lines 3446 to 3720, on its path for tensors without cosine.

    It passes where ref and res are allclose at tol (1e-4 by default), else where
    rmse(fp64_ref, res) <= multiplier * rmse(fp64_ref, ref) + tol / 10, with a multiplier of 3 for fewer than 1000
    elements or 1 x 1 kernels, else 2; and where only ref has a NaN and res is within 4e-2 of fp64_ref.
    """
    if ref is None or res is None or ref.shape != res.shape:
        return ref is res
    with np.errstate(invalid="ignore", over="ignore"):
        if np.allclose(res, ref, DYNAMO_TOL, DYNAMO_TOL):
            return True
        only_ref = np.isnan(ref).any() and not np.isnan(fp64_ref).any() and not np.isnan(res).any()
        if only_ref and np.allclose(res, fp64_ref.astype(res.dtype), LOOSE_TOL, LOOSE_TOL):
            return True
        return bool(rmse(fp64_ref, res) <= multiplier(fp64_ref) * rmse(fp64_ref, ref) + DYNAMO_TOL / 10.0)


def rmse(ref: NDArray[Any], res: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(ref.astype(np.float64) - res.astype(np.float64)))))


def multiplier(tensor: NDArray[Any]) -> float:
    small = tensor.size < 1000 or (tensor.ndim == 4 and tensor.shape[-1] == tensor.shape[-2] == 1)
    return 3.0 if small else 2.0
