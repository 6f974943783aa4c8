"""What an input of an op is: its sizes, its params, and where the numbers of its tensors lie.

A descriptor is drawn by Hypothesis, simplest values first, so that Hypothesis also makes one simpler. Nothing here
knows an op by its name: sizes and params are those that the op's shape inference accepts, and numbers stay in the
domain that the op's own draws have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.cases.draw import Draw, Float64, Integers, LogUniform, Normal, Shape, TensorPlan, Uniform
from parity.cases.op import Op, TensorShapes
from parity.config.plan import CasePlan
from parity.config.stress import resized, with_shapes
from parity.hunt.bench import REFUSED, TrialCase
from parity.starter.design import alternatives, others

SIZES = (2, 3, 4, 5, 1, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023, 1024, 1025)
"""Small sizes, and those next to warps, tiles and blocks of kernels; the simplest first, which is not 1: a mean or a
variance of one element is degenerate."""
MOST_HUNTED = 1 << 13
"""Most elements of a tensor; a search is faster with fewer."""
SCALES = (0, -3, 3, 5, -7, 7, 10, -10, 13, -13, 17, -20, 20, -27, 30, -40, 40, -63, 63, -75, 100, -120)
"""Powers of two: variances near a usual eps, exponents beyond 88, squares beyond the range of float32."""
OFFSETS = (0.0, *(sign * size for size in (1.0, 3.0, 7.0, 10.0, 30.0, 100.0, 1e3, 1e4) for sign in (1, -1)), 1e5, 1e6)
SPREADS = (0, 4, 10, 20, 40)
"""Octaves between the smallest and the largest numbers of a tensor."""
SHARE = 4
"""One of so many elements is zero, or special."""
SPECIAL: Mapping[str, Callable[[Any], float]] = {
    "negative-zero": lambda _: -0.0,
    "subnormal": lambda limits: float(limits.smallest_subnormal) * 3,
    "smallest": lambda limits: float(limits.tiny),
    "largest": lambda limits: float(limits.max),
    "inf": lambda _: np.inf,
    "-inf": lambda _: -np.inf,
    "nan": lambda _: np.nan,
}
UNBOUNDED = frozenset(("largest", "inf", "-inf", "nan"))
"""Whether a gradient is then finite, infinite or NaN depends on how it is written."""
KINDS = ("usual", "equal", "zeros", "ties", "one-hot", "pairs", "alike", "near-zero")
"""All drawn; all equal; some zero; few different integers; one 1; pairs x, -x; few ulps apart; at an end of a unit."""
CLASSES: Mapping[str, tuple[str, ...]] = {
    "offset": ("offset", "scale"),
    "scale": ("scale",),
    "kind": ("kind", "offset", "scale"),
    "sizes": ("sizes",),
    "params": ("params", "scale"),
    "small": ("small", "offset", "scale", "kind"),
    "spread": ("spread", "scale"),
    "special": ("special",),
    "all": ("sizes", "params", "offset", "scale", "spread", "kind", "special"),
}
"""What the descriptors of each class vary."""


@dataclass(frozen=True)
class Form:
    """The numbers of a tensor: `draw * 2**scale + offset`, over `spread` octaves, of a kind, with a special value."""

    kind: str = "usual"
    scale: float = 0.0
    offset: float = 0.0
    spread: float = 0.0
    special: str = ""


USUAL = Form()


@dataclass(frozen=True)
class Descriptor:
    """An input: a base case, sizes of its first tensor's axes, params, and forms of tensors by name."""

    base: int
    dtype: str
    sizes: tuple[tuple[int, int], ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    forms: tuple[tuple[str, Form], ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Base:
    """A case from which inputs are derived."""

    case: CasePlan

    @property
    def op(self) -> Op:
        """The op."""
        return self.case.definition

    @property
    def shape(self) -> Shape:
        """The shape of the first tensor, whose axes are varied."""
        return self.case.tensors[0].shape

    @cached_property
    def domains(self) -> Mapping[str, str]:
        """The domain of every tensor whose numbers can be varied."""
        every = {plan.name: domain_of(plan) for plan in self.case.tensors}
        return {name: domain for name, domain in every.items() if domain}

    @cached_property
    def params(self) -> Mapping[str, tuple[Any, ...]]:
        """Other values of params, by name."""
        written = {"params": asdict(self.case.params)}
        by_name: dict[str, tuple[Any, ...]] = {}
        for param in fields(self.case.params):
            values = [*alternatives(self.op, param, written)[1:], *others(self.op, param, written)]
            values = [tuple(value) if isinstance(value, list) else value for value in values]
            known = [value for i, value in enumerate(values) if value not in values[:i]]
            if known and not param.metadata.get("implied"):
                by_name[param.name] = tuple(known)
        return by_name


def domain_of(plan: TensorPlan) -> str:
    """The numbers that a tensor may have, by how it is drawn: `any`, `signed` (as drawn), `unit`, `integers`; empty if
    only those that are drawn."""
    draw: Draw = plan.draw
    if plan.integers:
        return "integers" if isinstance(draw, Integers) else ""
    if isinstance(draw, Normal) or (isinstance(draw, Uniform) and draw.low == -draw.high):
        return "any"
    if isinstance(draw, LogUniform) and draw.high < 1 and not draw.signed:
        return "unit"
    if isinstance(draw, LogUniform) or (isinstance(draw, Uniform) and draw.low * draw.high >= 0):
        return "signed"
    return ""


@dataclass(frozen=True)
class FormedDraw:
    """A draw with the numbers of a form."""

    draw: Draw
    form: Form
    domain: str
    dtype: str

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        form, values = self.form, np.asarray(self.draw.sample(rng, shape))
        if self.domain == "integers":
            return np.full(shape, values.flat[0]) if form.kind == "equal" else values
        if self.domain == "unit":
            power = 2.0**form.scale
            return np.asarray(1 - (1 - values) ** power if form.kind == "near-zero" else values**power)
        values = of_kind(values, form.kind, rng, signed=self.domain == "any")
        if form.spread:
            values = values * np.exp2(np.rint(rng.uniform(-form.spread / 2, form.spread / 2, shape)))
        values = values * 2.0**form.scale + (form.offset if self.domain == "any" else 0.0)
        if form.kind == "alike":
            centre = values.flat[0]
            values = centre * (1 + rng.integers(-4, 5, shape) * float(limits_of(self.dtype).eps))
        if form.kind == "pairs" and self.domain == "any":
            flat = values.reshape(-1)
            flat[1::2] = -flat[: flat.size - 1 : 2]
        if form.special and self.domain == "any":
            indices = rng.permutation(values.size)[: max(1, values.size // SHARE**2)]
            values.flat[indices] = SPECIAL[form.special](limits_of(self.dtype))
        return np.asarray(values)


def of_kind(values: Any, kind: str, rng: np.random.Generator, *, signed: bool) -> Any:
    """The drawn values as their kind has them."""
    if kind == "equal":
        return np.full(values.shape, values.flat[0])
    if kind == "zeros":
        return np.where(rng.integers(0, SHARE, values.shape) == 0, 0.0, values)
    if kind == "ties":
        return np.rint(2 * values) if signed else np.maximum(1, np.rint(2 * np.abs(values)))
    if kind == "one-hot":
        hot = np.zeros(values.shape)
        hot.flat[rng.integers(values.size)] = 1.0
        return hot
    return values.copy()


def limits_of(dtype: str) -> Any:
    """The limits of a dtype; those of float32 for bfloat16, whose range is about the same."""
    return np.finfo("float32" if dtype == "bfloat16" else dtype)


def trial_of(bases: Sequence[Base], wanted: Descriptor) -> TrialCase | None:
    """The trial of a descriptor; sizes and params that the op refuses stay as they are.

    None if it is too large, or has an infinity beside other unusual tensors, which may overflow, or in an op with a
    state, which no step recovers from.
    """
    base = bases[wanted.base]
    case = replace(base.case, id=base.case.op, dtypes=(wanted.dtype,))
    for axis, size in wanted.sizes:
        case = resized(case, base.op, axis, size) or case
    for name, value in wanted.params:
        case = with_param(case, base.op, name, value)
    if any(prod(plan.shape) > MOST_HUNTED or not prod(plan.shape) for plan in case.tensors):
        return None
    forms = dict(wanted.forms)
    if any(form.special in UNBOUNDED for form in forms.values()):
        if any(item.state for item in base.op.inputs) or len(forms) > 1:
            return None
        inputs_only = tuple(plan for plan in case.tensors if base.op.input(plan.name))
        case = replace(case, gradients=False, tensors=inputs_only)
    tensors = tuple(
        replace(plan, draw=FormedDraw(plan.draw, forms[plan.name], domain_of(plan), wanted.dtype))
        if plan.name in forms
        else plan
        for plan in case.tensors
    )
    with np.errstate(all="ignore"):
        inputs = {plan.name: plan.sample(wanted.seed, base.case.op, wanted.dtype) for plan in tensors}
    return TrialCase(replace(case, tensors=tensors), wanted.dtype, inputs)


def with_param(case: CasePlan, op: Op, name: str, value: Any) -> CasePlan:
    """The case with another value of a param, and the shapes that follow; the same case if the op refuses it."""
    data = case.tensors[0]
    listed = {plan.name: plan.shape for plan in case.tensors if op.input(plan.name)}
    for given in (listed, {data.name: data.shape}):
        try:
            params = replace(case.params, **{name: value})
            shapes = op.infer_shapes(params, given)
            changed = with_shapes(with_inputs(case, op, shapes), op, params, shapes)
        except REFUSED:
            continue
        if changed is not None:
            return changed
    return case


def with_inputs(case: CasePlan, op: Op, shapes: TensorShapes) -> CasePlan:
    """The case with the inputs that other params need as well, such as a momentum's buffer."""
    own = {plan.name for plan in case.tensors}
    items = ((name, op.input(name)) for name in shapes.inputs if name not in own)
    new = [
        TensorPlan(name, tuple(shapes.inputs[name]), item.default or Normal())
        for name, item in items
        if item is not None and not item.optional and not item.integers
    ]
    given = [plan for plan in case.tensors if op.input(plan.name) is not None]
    return replace(case, tensors=(*given, *new, *(plan for plan in case.tensors if plan not in given)))


def descriptors(
    bases: Sequence[Base], among: Sequence[int], dtypes: Sequence[str], kind: str
) -> st.SearchStrategy[Any]:
    """Descriptors of a class over some of the bases."""
    return _drawn(tuple(bases), tuple(among), tuple(dtypes), CLASSES[kind])


@st.composite
def _drawn(
    draw: Any, bases: Sequence[Base], among: Sequence[int], dtypes: Sequence[str], varied: Sequence[str]
) -> Descriptor:
    number = draw(st.sampled_from(among))
    base, dtype = bases[number], draw(st.sampled_from(dtypes))
    sizes: tuple[tuple[int, int], ...] = ()
    if "sizes" in varied or "small" in varied:
        offered = st.sampled_from(SIZES[:5] if "small" in varied else SIZES)
        axes = st.sampled_from(range(len(base.shape)))
        sizes = tuple(sorted(dict(draw(st.lists(st.tuples(axes, offered), min_size=1, max_size=3))).items()))
    params: tuple[tuple[str, Any], ...] = ()
    if "params" in varied and base.params:
        names = draw(st.lists(st.sampled_from(list(base.params)), unique=True, max_size=3))
        params = tuple((name, draw(st.sampled_from(base.params[name]))) for name in names)
    forms: tuple[tuple[str, Form], ...] = ()
    if set(varied) - {"sizes", "params"} and base.domains:
        single = [(name,) for name in base.domains]
        chosen = draw(st.sampled_from([*single, tuple(base.domains)]))
        forms = tuple((name, draw(_forms(varied))) for name in chosen)
    return Descriptor(number, dtype, sizes, params, forms, draw(st.integers(0, 1 << 12)))


def _forms(varied: Sequence[str]) -> st.SearchStrategy[Form]:
    offered: Mapping[str, Sequence[Any]] = {
        "kind": KINDS,
        "scale": SCALES,
        "offset": OFFSETS,
        "spread": SPREADS,
        "special": ("", *SPECIAL),
    }
    return st.builds(Form, **{name: st.sampled_from(values) for name, values in offered.items() if name in varied})
