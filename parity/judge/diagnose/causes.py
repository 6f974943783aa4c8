"""Causes that do not depend on the observed tensors: the op's variants, params in float32, operands in lower
precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from parity.cases.dtypes import COMPUTED_IN
from parity.cases.exact.formats import FORMATS, Format, rounded
from parity.cases.formula import ATOM, definitions, named_formulas, output_formula
from parity.cases.op import Variant
from parity.cases.program import Program
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Predicted, Prediction

SEMANTIC, UNSTABLE, DEGRADED = "semantic", "unstable", "degraded"
NARROW = frozenset(("attribute-precision", "reduced-precision", "narrow-accumulation", "narrow-overflow"))
BAND_WEIGHT = 1.5
"""An error's size is weaker evidence than numbers that fit, which weigh 1."""
OPERAND_WEIGHT = 0.25
"""There are many sets of operands, so a simple hypothesis is preferred."""
NO_COINCIDENCE = 3
"""From this many numbers on, a match is no coincidence: any two numbers lie on a line, or are each other's reverse."""
DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}

Change = Callable[[Prediction], Prediction]


@dataclass(frozen=True)
class Result:
    """What is returned as a tensor: in `form`, `{}` stands for the reference's expression for it, or for that of
    `source`."""

    form: str
    source: str = ""

    def text(self, program: Program, name: str, note: str = "") -> str:
        """`y = 2 * (a + b), where the reference has a + b`, with a `note` after what is returned."""
        (own, _), (used, strength) = output_formula(program, name), output_formula(program, self.source or name)
        whole = self.form == "{}" or "({}" in self.form or strength >= ATOM
        returned = self.form.replace("{}", used if whole else f"({used})")
        text = f"{name} = {returned}{note}, where the reference has {own}"
        return text + definitions(text, dict(named_formulas(program)))


@dataclass(frozen=True)
class Cause:
    """A hypothesis: an `alteration` of the reference, or a `change` of the prediction.

    `weight` is its cost compared with a simple hypothesis (0): for fitted numbers, or for a range of error sizes
    instead of values. `shown_by` is the input that distinguishes it. `lossy`: exact except for lost precision.
    `shared`: it affects every tensor. `portable`: it means the same in another dtype. `counted` are the numbers of
    elements that a factor may come from; at other sizes it is another number. `only` are the tensors it concerns, if
    each has causes of its own (none: all). `results` are the tensors that a `change` gives, as expressions;
    `expression` is used where neither an alteration nor a result has one.
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
    counted: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    results: Mapping[str, Result] = field(default_factory=dict)
    expression: str = ""

    @property
    def kind(self) -> str:
        """The verdict that follows from this cause alone, if any."""
        if self.id in NARROW:
            return DEGRADED
        return UNSTABLE if self.lossy else SEMANTIC


def replaced(others: Mapping[str, Predicted]) -> Change:
    """The change that replaces the predictions of some tensors."""
    return lambda prediction: {**prediction, **others}


def changed(names: Iterable[str], transform: Callable[[Predicted], Predicted]) -> Change:
    """The change that transforms the predictions of some tensors."""
    names = tuple(names)
    return lambda prediction: {**prediction, **{name: transform(prediction[name]) for name in names}}


def multiplied(names: Iterable[str], factor: float) -> Change:
    """The change that multiplies some tensors."""
    return changed(names, lambda predicted: predicted.times(factor))


def narrowed(names: Iterable[str], target: Format, digits: int, most: float = ERROR_BOUND) -> tuple[Change, Change]:
    """Two changes: tensors stored in a lower precision, to within `most` of its unit roundoffs, and tensors computed in
    it."""
    names = tuple(names)
    stored = changed(names, lambda predicted: predicted.stored(target.unit_roundoff * most / ERROR_BOUND))
    return stored, changed(names, lambda predicted: predicted.widened(2.0 ** (digits - target.digits)))


def formats_below(dtype: str) -> frozenset[str]:
    """The formats in which a step loses digits that a careful implementation of `dtype` keeps. Of two with equally many
    digits, only the dtype itself."""
    most = DIGITS[COMPUTED_IN.get(dtype, dtype)]
    digits = {name: target.digits for name, target in FORMATS.items() if target.digits < most}
    return frozenset(name for name, n in digits.items() if n != DIGITS[dtype] or name == dtype)


def standing_causes(evaluator: Evaluator) -> list[Cause]:
    """The hypotheses that do not depend on the observed tensors."""
    variants = evaluator.op.variants(evaluator.case.params, evaluator.shapes)
    return [*map(from_variant, variants), *attributes(evaluator), *operands(evaluator)]


def from_variant(variant: Variant) -> Cause:
    """The hypothesis of an op's variant."""
    shown = {**variant.arguments, **variant.params, **({"without": list(variant.absent)} if variant.absent else {})}
    arguments, unstable = ({}, variant.arguments) if variant.unstable else (variant.arguments, {})
    return Cause(
        variant.id,
        shown,
        Alteration(arguments, unstable, variant.params, variant.absent),
        weight=BAND_WEIGHT if variant.unstable else 0.0,
        shown_by=variant.shown_by,
        lossy=variant.unstable,
        shared=variant.unstable,
    )


def attributes(evaluator: Evaluator) -> Iterator[Cause]:
    """Params that a float64 kernel stores as float32, or one of float16 or bfloat16 in this dtype, in every
    combination; a weight v also as 1 - float32(1 - v)."""
    stored = {"float64": "float32"}.get(evaluator.dtype, evaluator.dtype)
    if stored == evaluator.dtype and stored not in COMPUTED_IN:
        return
    forms = {}
    for name, value in numbers_of(evaluator.case.params, pairs=stored in COMPUTED_IN).items():
        if np.isfinite(value):
            narrow = [in_format(value, stored)]
            narrow += [1.0 - in_format(1.0 - value, stored)] if 0.0 < value < 1.0 and stored == "float32" else []
            forms[name] = [value, *(v for v in dict.fromkeys(narrow) if v != value)]
    for values in product(*forms.values()):
        params = {n: v for n, v in zip(forms, values, strict=True) if v != forms[n][0]}
        if params:
            complements = [name for name, value in params.items() if value != in_format(forms[name][0], stored)]
            of = f" of 1 - {', 1 - '.join(complements)}" if complements else ""
            shown_by = f"{evaluator.dtype}, with a value{of} that {stored} cannot represent"
            alteration = Alteration(params=whole(evaluator.case.params, params))
            yield Cause("attribute-precision", params, alteration, shown_by=shown_by)


def in_format(number: float, name: str) -> float:
    """A number rounded to a format."""
    return float(np.float32(number)) if name == "float32" else float(rounded(np.asarray(number), FORMATS[name]))


def numbers_of(params: Any, *, pairs: bool) -> dict[str, float]:
    """The float options by name; `pairs`: with those of several numbers, as `betas[0]`."""
    numbers: dict[str, float] = {}
    for name, value in asdict(params).items():
        items = {f"{name}[{i}]": item for i, item in enumerate(value)} if pairs and isinstance(value, tuple) else {}
        numbers |= {n: v for n, v in {name: value, **items}.items() if isinstance(v, float)}
    return numbers


def whole(params: Any, changed: Mapping[str, float]) -> dict[str, Any]:
    """The options of which some numbers are changed (`betas[0]`)."""
    given = asdict(params)
    names = dict.fromkeys(name.partition("[")[0] for name in changed)
    return {
        name: changed[name]
        if name in changed
        else tuple(changed.get(f"{name}[{i}]", item) for i, item in enumerate(given[name]))
        for name in names
    }


def operands(evaluator: Evaluator) -> Iterator[Cause]:
    """Inputs rounded to a lower precision before anything is computed, with or without grad_outputs."""
    items = {name: evaluator.op.input(name) for name in evaluator.inputs}
    given = [name for name, item in items.items() if item is not None and not item.state and not item.integers]
    grad_outputs = [name for name in evaluator.inputs if evaluator.op.is_grad_output(name)]
    sets = {"inputs": given}
    sets |= {" and ".join(names): list(names) for names in evaluator.op.rounded_together if set(names) < set(given)}
    if grad_outputs:
        sets |= {f"{label} and grad_outputs": [*names, *grad_outputs] for label, names in sets.items()}
    for target in FORMATS.values():
        if target.digits >= min(DIGITS[evaluator.dtype], DIGITS["float32"]):
            continue
        for label, names in sets.items():
            alteration = Alteration(operands=target.name, rounded=tuple(names))
            shown = {"format": target.name, "rounded": label}
            shown_by = "inputs that the lower precision cannot represent"
            yield Cause("reduced-precision", shown, alteration, weight=OPERAND_WEIGHT, shown_by=shown_by)
