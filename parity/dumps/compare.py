"""Two tensors in files, compared part by part: the judge's metrics, and a verdict by the size of the difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from msgspec import structs

from parity.cases.exact.formats import FORMATS
from parity.config.plan import ORACLE
from parity.config.tolerances import Tolerance, ToleranceRule
from parity.dumps.matching import Transform
from parity.dumps.tensors import NARROW, WHOLE, Array, DumpError, Shape, Stored, numpy_dtype
from parity.judge.bound.envelope import ERROR_BOUND, LOSSY, UNIT_ROUNDOFF
from parity.judge.compare.cell import vacuous
from parity.judge.compare.chunked import RunningMaxima, compare_parts
from parity.judge.compare.metrics import Metrics, bfloat16_ulps, compare, quotient
from parity.judge.compare.screen import screened
from parity.judge.compare.verdict import Comparison, EnvelopeRow, ErrorRatios, Verdict, comparison_of
from parity.library.arrays import Tensor
from parity.library.limits import COARSENESS, TOLERANCES, row_of

PART = 1 << 21
"""Elements per part: 16 MiB of two float32 tensors."""
SCREENED = 1 << 14
"""From this many elements on, tensors that agree are only screened: that takes a tenth of the time."""
ALONE = 2.0
"""An element's rounding is its own, or that of a number this many times the root mean square."""


AS_IT_IS = Transform()


@dataclass(frozen=True)
class Partners:
    """A matched pair of tensors; `transform` brings `right` into the layout of `left`."""

    left: Stored
    right: Stored
    transform: Transform = AS_IT_IS

    @property
    def dtypes(self) -> tuple[str, str]:
        """Both dtypes; plain numbers take that of their partner."""
        left, right = self.left, self.right
        return (right.dtype if left.weak else left.dtype), (left.dtype if right.weak else right.dtype)

    @property
    def shape(self) -> Shape:
        """The shape of the left tensor."""
        return self.left.shape

    def parts(self) -> Iterator[tuple[Array, Array]]:
        """Both tensors' values, side by side in the order of the left one; raises DumpError for a damaged file."""
        mine = (numbers_of(part, dtype) for part, dtype in flat(self.left, AS_IT_IS, self.dtypes[0]))
        theirs = (numbers_of(part, dtype) for part, dtype in flat(self.right, self.transform, self.dtypes[1]))
        try:
            yield from zip(mine, theirs, strict=True)
        except ValueError as error:
            raise DumpError(f"{self.left.name}: a file ends early: {error}") from error

    def right_at(self, index: Sequence[int] | None) -> float | None:
        """The right tensor's value at an index of the left one; None where it cannot be looked up."""
        if index is None or self.transform.blocks or self.transform.reshape or self.right.stream is not None:
            return None
        values = self.right.view()
        value = (values.transpose(self.transform.axes) if self.transform.axes else values)[tuple(index)]
        return None if values.dtype.kind == "c" else float(value)

    def corners(self, most: int) -> tuple[Array, Array]:
        """Both tensors in memory, the right one in the left one's layout if it has one; of large ones a corner of at
        most about `most` elements."""
        mine, theirs = self.left.whole(), self.right.whole()
        if self.transform != AS_IT_IS:
            theirs = self.transform.apply(theirs, self.left.shape)
        both = (corner(mine, most), self.dtypes[0]), (corner(theirs, most), self.dtypes[1])
        return numbers_of(*both[0]), numbers_of(*both[1])


def corner(values: Array, most: int) -> Array:
    """The first elements along every axis, so that there are at most about `most`."""
    length = max(values.shape, default=1)
    while math.prod(min(n, length) for n in values.shape) > most:
        length = length * 9 // 10
    return values[tuple(slice(length) for _ in values.shape)]


def flat(tensor: Stored, transform: Transform, dtype: str) -> Iterator[tuple[Array, str]]:
    """The values in parts of PART elements, C order, after a transform (whose new shape does not matter here)."""
    if tensor.stream is not None and transform in (AS_IT_IS, Transform(reshape=True)):
        yield from ((part, dtype) for part in tensor.stream(PART))
        return
    bare = replace(transform, reshape=False)
    values = tensor.view() if bare == AS_IT_IS else bare.apply(tensor.whole(), ())
    if not values.flags.c_contiguous and values.nbytes <= WHOLE:
        values = np.ascontiguousarray(values)
    line = values.reshape(-1) if values.flags.c_contiguous else values.flat
    for start in range(0, values.size, PART):
        yield line[start : start + PART], dtype


def numbers_of(values: Array, dtype: str) -> Array:
    """Values as the metrics take them: aligned, in `dtype`, narrow floats in float32, complex numbers as pairs."""
    wanted = numpy_dtype(dtype)
    if not values.flags.aligned:
        values = values.copy()
    if values.dtype.newbyteorder("=") != wanted:
        with np.errstate(all="ignore"):
            values = values.astype(wanted)
    if values.dtype.name in NARROW:
        values = values.astype(np.float32)
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1).reshape(*values.shape[:-1], -1)
    return values


@dataclass(frozen=True)
class Rules:
    """How values are compared: tolerances that override the default table, and whether dtypes must be equal."""

    limits: tuple[ToleranceRule, ...] = ()
    check_dtype: bool = True

    def tolerance(self, name: str, dtypes: Sequence[str]) -> Tolerance:
        """The tolerance of a tensor, by the coarsest of its dtypes."""
        empty = [Tensor(np.empty(0, np.float32 if d in NARROW else numpy_dtype(d)), d) for d in dtypes]
        row = min(map(row_of, empty), key=COARSENESS.index)
        return TOLERANCES.extended(self.limits).lookup(row, name)


@dataclass(frozen=True)
class ComparedTensor:
    """The case and tensor of a comparison in the report, and the names of both dumps."""

    case: str
    tensor: str
    left: str
    right: str


def structural(names: ComparedTensor, dtype: str, message: str) -> Comparison:
    """A tensor whose values cannot be compared."""
    return comparison_of(
        names.case, dtype, names.tensor, names.left, names.right, Verdict.STRUCTURE, 0.0, 0.0, message=message
    )


def compared(names: ComparedTensor, pair: Partners, rules: Rules) -> tuple[Comparison, float]:
    """The comparison of two tensors, and the root mean square of the right one, NaN where only the structure was
    compared; raises DumpError for a damaged file."""
    left, right = pair.dtypes
    moved = pair.transform.apply(np.broadcast_to(np.int8(0), pair.right.shape), pair.shape).shape if fits(pair) else ()
    if moved != pair.shape:
        shapes = f"{names.left} has shape {list(pair.shape)}, {names.right} {list(pair.right.shape)}"
        return structural(names, left, shapes), math.nan
    if left != right and (rules.check_dtype or "c" in (numpy_dtype(left).kind, numpy_dtype(right).kind)):
        remedy = "; --ignore-dtype compares the values" if rules.check_dtype else ""
        return structural(names, left, f"{names.left} has dtype {left}, {names.right} {right}{remedy}"), math.nan
    limits = rules.tolerance(names.tensor, (left, right))
    metrics = measured(pair, limits)
    comparison = comparison_of(
        names.case,
        left,
        names.tensor,
        names.left,
        names.right,
        Verdict.EQUAL if metrics.equal else Verdict.CLOSE,
        limits.rtol,
        limits.atol,
        metrics=metrics,
    )
    size = metrics.expected_rms
    if not metrics.n_mismatched:
        apart = metrics.max_abs_diff > 0
        return structs.replace(comparison, suspect=apart and zeros_would_pass(pair, metrics, limits)), size
    unit = max(map(unit_roundoff, (left, right)))
    ratio = quotient(metrics.rmse, unit * size)
    scale = EnvelopeRow(unit * size, unit * size) if unit else None
    verdict = Verdict.NONFINITE if metrics.n_nonfinite_mismatched else kind(metrics, ratio, left, unit)
    return structs.replace(comparison, verdict=verdict, error_ratio=ErrorRatios(ratio, None), envelope=scale), size


def fits(pair: Partners) -> bool:
    """Whether a transform can be applied: as many axes, blocks that divide the first, as many elements."""
    transform, right = pair.transform, pair.right
    if transform.axes and len(transform.axes) != len(right.shape):
        return False
    first = [right.shape[i] for i in transform.axes or range(len(right.shape))][:1]
    if transform.blocks and (not first or first[0] % len(transform.blocks)):
        return False
    return not transform.reshape or pair.left.size == right.size


def measured(pair: Partners, limits: Tolerance) -> Metrics:
    """The metrics of two tensors of one shape; those of narrow floats have their own ulps, complex numbers none."""
    left, right = pair.dtypes
    given = limits.rtol, limits.atol
    complex_ = numpy_dtype(left).kind == "c"
    shape = (*pair.shape, 2) if complex_ else pair.shape
    if not pair.left.size:
        metrics = compare(np.empty(shape), np.empty(shape), *given)
    else:
        few = screened(pair.parts(), shape, *given) if pair.left.size >= SCREENED else RunningMaxima()
        metrics = compare_parts(pair.parts(), shape, *given, known=few) if isinstance(few, RunningMaxima) else few
    if complex_:
        index = None if metrics.worst_index is None else metrics.worst_index[:-1]
        return replace(metrics, max_ulp_diff=None, n_elements=pair.left.size, worst_index=index)
    if left in NARROW or right in NARROW:
        ulps = bfloat16_ulps(metrics.max_ulp_diff) if left == right == "bfloat16" else None
        return replace(metrics, max_ulp_diff=ulps)
    if numpy_dtype(left).kind in "iub":
        return replace(metrics, frontier=None)
    return metrics


def zeros_would_pass(pair: Partners, metrics: Metrics, limits: Tolerance) -> bool:
    """Whether zeros would have passed too, which proves little."""
    if metrics.expected_rms * (1 - limits.rtol) > limits.atol:
        return False
    return all(vacuous(part, metrics, limits.rtol, limits.atol) for _, part in pair.parts())


def unit_roundoff(dtype: str) -> float:
    """Of a dtype; 0 for integers."""
    if dtype in NARROW:
        return FORMATS[dtype].unit_roundoff if dtype in FORMATS else float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]
    np_dtype = numpy_dtype(dtype)
    return float(np.finfo(np_dtype).eps) / 2 if np_dtype.kind in "fc" else 0.0


def kind(metrics: Metrics, ratio: float, dtype: str, unit: float) -> Verdict:
    """The verdict on a difference beyond the tolerance, by its root mean square in unit roundoffs of the tensor's.

    The bounds are the judge's for an op with one dtype. Rounding that grew through layers looks like an algorithm that
    loses digits; only a third dump distinguishes them.
    """
    peak = max(ALONE * metrics.expected_rms, abs(metrics.expected_value))
    if ratio <= ERROR_BOUND and metrics.max_abs_diff <= ERROR_BOUND * unit * peak:
        return Verdict.ROUNDING
    if dtype == "float64" and metrics.rmse <= ERROR_BOUND * UNIT_ROUNDOFF["float32"] * metrics.expected_rms:
        return Verdict.DEGRADED
    return Verdict.UNSTABLE if ratio <= LOSSY else Verdict.SEMANTIC


def judged(
    both: Comparison, left: Comparison, right: Comparison, size: float
) -> tuple[Comparison, Comparison, Comparison]:
    """The comparison of two dumps and those of each with the truth, of this root mean square, with their culprits.

    Both errors are divided by the smaller one, or by a rounding of the truth if that is larger: the nearer dump shows
    which accuracy is possible. If even that error is as large as an unstable algorithm's, both dumps are wrong.
    """
    if left.rmse is None or right.rmse is None:
        return both, left, right
    unit = max(unit_roundoff(dtype) for dtype in (left.dtype, right.dtype))
    floor = unit * size
    scale = min(max(min(left.rmse, right.rmse), floor), LOSSY / ERROR_BOUND * floor)
    ratios = quotient(left.rmse, scale), quotient(right.rmse, scale)
    culprits = [
        c.actual for c, ratio in ((left, ratios[0]), (right, ratios[1])) if not ratio < ERROR_BOUND or nonfinite(c)
    ]
    made = []
    for comparison, ratio in ((left, ratios[0]), (right, ratios[1])):
        mine = tuple(name for name in culprits if name == comparison.actual)
        made.append(blamed(comparison, mine, ErrorRatios(ratio, None), scale))
    return blamed(both, tuple(culprits), ErrorRatios(*ratios), scale), made[0], made[1]


def nonfinite(comparison: Comparison) -> bool:
    """Whether some element is finite in only one of the two."""
    return comparison.verdict is Verdict.NONFINITE


def blamed(comparison: Comparison, culprits: tuple[str, ...], ratios: ErrorRatios, scale: float) -> Comparison:
    """A comparison that fails or hides an error, with its culprits; without any, it differs by rounding."""
    if comparison.verdict is Verdict.STRUCTURE or (comparison.verdict.passes and not culprits):
        return comparison
    envelope = EnvelopeRow(scale, scale)
    updated = structs.replace(comparison, culprit=culprits, error_ratio=ratios, envelope=envelope)
    if comparison.verdict.passes:
        return structs.replace(updated, suspect=True, hidden=Verdict.UNSTABLE)
    if not culprits and comparison.verdict is not Verdict.NONFINITE:
        return structs.replace(updated, verdict=Verdict.ROUNDING)
    return structs.replace(updated, verdict=Verdict.UNSTABLE) if comparison.verdict is Verdict.ROUNDING else updated


def against(names: ComparedTensor, pair: Partners, rules: Rules, backend: str) -> tuple[Comparison, float]:
    """One dump against the truth, as `compared`; raises DumpError if the truth has a lower precision."""
    if unit_roundoff(pair.right.dtype) > unit_roundoff(pair.left.dtype) and not pair.right.weak:
        raise DumpError(
            f"the truth's {pair.right.name} is {pair.right.dtype} and cannot judge {pair.left.dtype}; "
            "give it in a wider dtype, such as float64"
        )
    named = replace(names, left=backend, right=ORACLE)
    return compared(named, pair, replace(rules, check_dtype=False))
