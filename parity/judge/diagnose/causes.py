"""What may be wrong with a kernel, as something that can be computed: the op's variants, its numbers, its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.cases.op import Fit, Variant
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Predicted, Prediction

SEMANTIC, UNSTABLE, DEGRADED = "semantic", "unstable", "degraded"
NARROW = frozenset(("attribute-precision", "reduced-precision"))
BAND_WEIGHT = 1.5
"""A size says less than numbers that fit, which weigh 1."""
OPERAND_WEIGHT = 0.25
"""There are many sets of operands; a plain hypothesis comes before them."""
DIGITS = {"float16": 11, "float32": 24, "float64": 53}

Array = NDArray[Any]
Change = Callable[[Prediction], Prediction]


@dataclass(frozen=True)
class Cause:
    """A hypothesis: another `question` for the oracle, or a `change` of what is predicted.

    `weight` is what it costs to believe it beside a plain hypothesis (0): numbers that were fitted to the data, or a
    band of sizes instead of values. `shown_by` says which input would show it. `lossy`: right but for lost digits.
    `shared`: what it spoils, it spoils in every tensor. `portable`: it means the same in another dtype.
    """

    id: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    alteration: Alteration | None = None
    change: Change | None = None
    weight: float = 0.0
    shown_by: str = ""
    lossy: bool = False
    shared: bool = False
    portable: bool = True

    @property
    def kind(self) -> str:
        """The verdict on a kernel of which this is true, as far as it can be known from the cause alone."""
        if self.id in NARROW:
            return DEGRADED
        return UNSTABLE if self.lossy else SEMANTIC


def replaced(others: Mapping[str, Predicted]) -> Change:
    """The change that puts others in the places of some tensors' predictions."""
    return lambda prediction: {**prediction, **others}


def standing_causes(evaluator: Evaluator) -> list[Cause]:
    """The hypotheses that do not depend on what was observed."""
    variants = evaluator.op.variants(evaluator.case.params, evaluator.shapes)
    return [*map(from_variant, variants), *attributes(evaluator), *operands(evaluator)]


def from_variant(variant: Variant) -> Cause:
    """The hypothesis that the op states."""
    shown = {**variant.arguments, **variant.params, **({"without": list(variant.absent)} if variant.absent else {})}
    if variant.unstable:
        alteration = Alteration(unstable=variant.arguments, params=variant.params, absent=variant.absent)
    else:
        alteration = Alteration(arguments=variant.arguments, params=variant.params, absent=variant.absent)
    weight = BAND_WEIGHT if variant.unstable else 0.0
    return Cause(
        variant.id,
        shown,
        alteration,
        weight=weight,
        shown_by=variant.shown_by,
        lossy=variant.unstable,
        shared=variant.unstable,
    )


def attributes(evaluator: Evaluator) -> Iterator[Cause]:
    """Params that a float64 kernel keeps in float32, in every combination; a weight v also as 1 - float32(1 - v)."""
    if evaluator.dtype != "float64":
        return
    forms = {}
    for name, value in asdict(evaluator.case.params).items():
        if isinstance(value, float) and np.isfinite(value):
            narrow = [float(np.float32(value))]
            narrow += [1.0 - float(np.float32(1.0 - value))] if 0.0 < value < 1.0 else []
            forms[name] = [value, *(v for v in dict.fromkeys(narrow) if v != value)]
    for values in product(*forms.values()):
        params = {n: v for n, v in zip(forms, values, strict=True) if v != forms[n][0]}
        if params:
            shown_by = "a value that float32 cannot hold, in float64"
            yield Cause("attribute-precision", params, Alteration(params=params), shown_by=shown_by)


def operands(evaluator: Evaluator) -> Iterator[Cause]:
    """Inputs rounded to a format of fewer digits before anything is computed, with or without upstream gradients."""
    read = {item.name for item in evaluator.op.inputs if not item.state and not item.integers}
    given = [name for name in evaluator.inputs if (item := evaluator.op.input(name)) is not None and item.name in read]
    upstream = [name for name in evaluator.inputs if evaluator.is_upstream(name)]
    sets = {"inputs": given}
    sets |= {" and ".join(names): list(names) for names in evaluator.op.rounded_together if set(names) < set(given)}
    if upstream:
        sets |= {f"{label} and upstream gradients": [*names, *upstream] for label, names in sets.items()}
    for target in FORMATS.values():
        if target.digits >= min(DIGITS[evaluator.dtype], DIGITS["float32"]):
            continue
        for label, names in sets.items():
            alteration = Alteration(operands=target.name, rounded=tuple(names))
            shown = {"format": target.name, "rounded": label}
            shown_by = "inputs of more digits than the format has"
            yield Cause("reduced-precision", shown, alteration, weight=OPERAND_WEIGHT, shown_by=shown_by)


COARSE = tuple(10.0 ** (k / 2) for k in range(-18, 13))
FEW = 3
SAME = 1e-9
MOST = 10.0
STEPS = 8
STEP = 2.0**-18


def fitted(evaluator: Evaluator, observed: Observed, tensors: list[str], base: Alteration) -> Iterator[Cause]:
    """For each number that a kernel may have another value for, those that fit `tensors` best, together and each."""
    usable = [name for name in tensors if evaluator.base[name].envelope.rms > 0]
    forward = [name for name in usable if not name.startswith("grad.")] or usable
    for fit in evaluator.op.fits:
        start = fit.start(evaluator.case.params)
        seen: list[float] = []
        for names in [forward, *([name] for name in forward if len(forward) > 1)]:
            value = fit_value(evaluator, fit, observed, names, base)
            if value is None or value > max(fit.most, MOST * start) or is_float32(value, start):
                continue
            if all(abs(value - other) > SAME * other for other in seen):
                seen.append(value)
                alteration = as_question(evaluator, fit, value)
                yield Cause(fit.id, {fit.target: value}, alteration, weight=1.0, shown_by=fit.shown_by)


def is_float32(value: float, start: float) -> bool:
    """Whether a fitted value is but the float32 form of the right one, or of its complement to 1."""
    forms = (float(np.float32(start)), 1.0 - float(np.float32(1.0 - start)))
    return any(abs(value - narrow) < abs(start - narrow) / 2 for narrow in forms)


def as_question(evaluator: Evaluator, fit: Fit, value: float) -> Alteration:
    """The question with another value for what is fitted."""
    change = {fit.target: value}
    return Alteration(params=change) if hasattr(evaluator.case.params, fit.target) else Alteration(arguments=change)


def fit_value(evaluator: Evaluator, fit: Fit, observed: Observed, tensors: list[str], base: Alteration) -> float | None:
    """The value that leaves the least, by a coarse search over decades and Gauss-Newton steps from there."""
    given = {n: values for n in tensors if (values := observed.get(n)) is not None}
    start = fit.start(evaluator.case.params)
    if start <= 0 or sum(values.size for values in given.values()) < FEW:
        return None

    def residuals(value: float) -> Array | None:
        alteration = base.with_(as_question(evaluator, fit, value))
        gradients = any(n.startswith("grad.") for n in given)
        found = None if alteration is None else evaluator.values_of(alteration, gradients=gradients)
        if found is None or any(given[n].shape != found[n].shape for n in given):
            return None
        joined = np.concatenate([np.ravel((given[n] - found[n]) / evaluator.base[n].envelope.rms) for n in given])
        return joined.astype(np.float64) if np.isfinite(joined).all() else None

    tried = [(residuals(value), value) for value in (start * factor for factor in COARSE)]
    known = [(float(np.linalg.norm(left)), value) for left, value in tried if left is not None]
    return newton(residuals, min(known)[1]) if known else None


def newton(residuals: Callable[[float], Array | None], value: float) -> float:
    """The positive number near `value` that makes the residuals least (Gauss-Newton, the slope by a difference)."""
    for _ in range(STEPS):
        here, there = residuals(value), residuals(value * (1 + STEP))
        if here is None or there is None or not (slope := (there - here) / (value * STEP)).any():
            break
        moved = value - float(slope @ here / (slope @ slope))
        value = moved if moved > 0 else value / 2
    return value
