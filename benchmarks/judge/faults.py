"""The planted faults and the healthy variants: literal tables of switches of `hosts/fault_base.py`.

`parts` says what a fault may rightly be called: for each planted part the ids that name it, the usual one first. A
combination has two parts. `verdicts` are the right ones where the fault is visible at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NORMS = ("layer_norm", "group_norm", "instance_norm", "batch_norm")
BATCH = ("batch_norm",)
LINEAR = ("linear",)
CLIP = ("clip_grad_norm",)
CLAMP = ("clip_grad_value",)
FAMILIES = (NORMS, BATCH, LINEAR, CLIP, CLAMP)
"""Ops that share faults: a backend of a family has a kernel for each of its ops."""

SEMANTIC = ("semantic",)
MISSING = ("semantic", "structure")
UNSTABLE = ("unstable", "nonfinite")
DEGRADED = ("degraded",)
LOWER = ("semantic", "degraded", "unstable")
"""Operands of fewer bits: the same error in float64 where they are rounded there too, else one that goes away."""

Parts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fault:
    """A planted fault: `switches` make it, `parts` name it. Of a combination, `alone` are the two by themselves."""

    name: str
    ops: tuple[str, ...]
    parts: Parts
    verdicts: tuple[str, ...]
    switches: Mapping[str, Any]
    alone: tuple[Fault, ...] = ()

    @property
    def kind(self) -> str:
        """The usual name; of a combination both."""
        return " + ".join(part[0] for part in self.parts)

    def hosted(self, framework: str) -> bool:
        """Whether a framework can have it: OneFlow 0.9.0's custom functions must return every gradient."""
        absent = any(action == "absent" for _, action, _ in self.switches.get("post", ()))
        return not (absent and framework == "oneflow")

    @property
    def combined(self) -> bool:
        """Whether two faults were planted at once."""
        return len(self.parts) > 1


@dataclass(frozen=True)
class Healthy:
    """A right kernel, written in its own way."""

    name: str
    families: tuple[tuple[str, ...], ...]
    switches: Mapping[str, Any]
    loops: bool = False


def post(*actions: tuple[str, str, Any]) -> dict[str, Any]:
    """Switches that change finished tensors."""
    return {"post": actions}


def table(ops: tuple[str, ...], rows: Iterable[tuple[str, Parts, tuple[str, ...], Mapping[str, Any]]]) -> list[Fault]:
    """One fault a row; the ops' family is part of its name where the name alone would not be unique."""
    return [Fault(name, ops, parts, verdicts, switches) for name, parts, verdicts, switches in rows]


SWAPPED = ("swapped-gradients",)
TRANSPOSED = ("transposed",)
AXES = ("permuted-axes", "transposed")
ELEMENTS = ("permuted-elements",)
SHIFTED = ("shifted",)
REVERSED = ("shifted", "permuted-axes")  # two rows rolled are two rows reversed
SCALED = ("scaled",)
MEAN = ("mean-vs-sum",)
SIGN = ("sign-flipped",)
NO_GRADIENT = ("missing-gradient",)
STALE = ("stale",)
FROZEN = ("stale", "momentum-value")  # statistics that stay are those of a momentum of 0
DETACHED = ("detached-statistics",)
NAIVE = ("variance-naive",)
DDOF = ("variance-ddof",)
RUNNING_DDOF = ("running-var-ddof",)
COMPLEMENT = ("momentum-complement",)
PLACEMENT = ("eps-placement",)
EPS = ("eps-value",)
ORDER = ("affine-order",)
NO_AFFINE = ("affine-missing",)
UNWEIGHTED = ("affine-missing", "missing-gradient")
AXIS = ("wrong-axis",)
UNCENTRED = ("mean-not-subtracted",)
SOURCE = ("statistics-source",)
REDUCED = ("reduced-precision",)
ATTRIBUTE = ("attribute-precision",)
LOCAL = ("localized",)
PER_TENSOR = ("clip-per-tensor",)
DENOMINATOR = ("clip-denominator-eps",)
BY_VALUE = ("clip-by-value",)
UNCLAMPED = ("clip-unclamped",)
NORM_TYPE = ("norm-type",)
IN_FLOAT32 = ("reduced-precision", "attribute-precision")

NORM_FAULTS = table(
    NORMS,
    [
        ("swapped", (SWAPPED,), SEMANTIC, post(("grad.weight", "swap", "grad.bias"))),
        ("y-axes", (AXES,), SEMANTIC, post(("y", "index", "axes"))),
        ("dx-axes", (AXES,), SEMANTIC, post(("grad.x", "index", "axes"))),
        ("dweight-permuted", (ELEMENTS,), SEMANTIC, post(("grad.weight", "index", "permuted"))),
        ("dbias-permuted", (ELEMENTS,), SEMANTIC, post(("grad.bias", "index", "permuted"))),
        ("y-rolled", (SHIFTED,), SEMANTIC, post(("y", "index", "rolled"))),
        ("dx-rolled", (SHIFTED,), SEMANTIC, post(("grad.x", "index", "rolled"))),
        ("dweight-rolled", (SHIFTED,), SEMANTIC, post(("grad.weight", "index", "rolled"))),
        ("y-rows-rolled", (REVERSED,), SEMANTIC, post(("y", "index", "rolled-rows"))),
        ("dweight-doubled", (SCALED,), SEMANTIC, post(("grad.weight", "scale", "2"))),
        ("dx-halved", (SCALED,), SEMANTIC, post(("grad.x", "scale", "0.5"))),
        ("all-gradients-doubled", (SCALED,), SEMANTIC, post(*[(f"grad.{t}", "scale", "2") for t in ("x", "weight", "bias")])),
        ("dx-n-over-n-1", (SCALED,), SEMANTIC, post(("grad.x", "scale", "n/(n-1)"))),
        ("dweight-mean", (MEAN,), SEMANTIC, post(("grad.weight", "scale", "1/rows"))),
        ("dbias-mean", (MEAN,), SEMANTIC, post(("grad.bias", "scale", "1/rows"))),
        ("affine-gradients-mean", (MEAN,), SEMANTIC, post(("grad.weight", "scale", "1/rows"), ("grad.bias", "scale", "1/rows"))),
        ("variance-sum", (MEAN,), SEMANTIC, {"divisor": "1"}),
        ("dx-negated", (SIGN,), SEMANTIC, post(("grad.x", "scale", "-1"))),
        ("dbias-negated", (SIGN,), SEMANTIC, post(("grad.bias", "scale", "-1"))),
        ("y-negated", (SIGN,), SEMANTIC, post(("y", "scale", "-1"))),
        ("dweight-zero", (NO_GRADIENT,), MISSING, post(("grad.weight", "scale", "0"))),
        ("dx-zero", (NO_GRADIENT,), MISSING, post(("grad.x", "scale", "0"))),
        ("dbias-absent", (NO_GRADIENT,), MISSING, post(("grad.bias", "absent", None))),
        ("dx-is-dy", (STALE,), SEMANTIC, post(("grad.x", "copy", "grad.y"))),
        ("dweight-is-weight", (STALE,), SEMANTIC, post(("grad.weight", "copy", "weight"))),
        ("y-is-x", (STALE,), SEMANTIC, post(("y", "copy", "x"))),
        ("detached", (DETACHED,), SEMANTIC, {"detached": ("mean", "variance")}),
        ("detached-mean", (DETACHED,), SEMANTIC, {"detached": ("mean",)}),
        ("detached-variance", (DETACHED,), SEMANTIC, {"detached": ("variance",)}),
        ("naive", (NAIVE,), UNSTABLE, {"variance": "naive"}),
        ("naive-clamped", (NAIVE,), UNSTABLE, {"variance": "naive", "clamp": True}),
        ("naive-in-sequence", (NAIVE,), UNSTABLE, {"variance": "naive", "clamp": True, "summation": "sequential"}),
        ("naive-in-pairs", (NAIVE,), UNSTABLE, {"variance": "naive", "clamp": True, "summation": "pairwise"}),
        ("naive-folded", (NAIVE,), UNSTABLE, {"variance": "naive", "clamp": True, "folded": True}),
        ("ddof", (DDOF,), SEMANTIC, {"divisor": "n-1"}),
        ("eps-outside", (PLACEMENT,), SEMANTIC, {"eps_placement": "outside"}),
        ("eps-1e-3", (EPS,), SEMANTIC, {"eps": 1e-3}),
        ("eps-1e-6", (EPS,), SEMANTIC, {"eps": 1e-6}),
        ("eps-1e-12", (EPS,), SEMANTIC, {"eps": 1e-12}),
        ("eps-0", (EPS,), SEMANTIC, {"eps": 0.0}),
        ("eps-doubled", (EPS,), SEMANTIC, {"eps": ("times", 2.0)}),
        ("eps-3.7e-4", (EPS,), SEMANTIC, {"eps": 3.7e-4}),
        ("bias-first", (ORDER,), SEMANTIC, {"affine_order": "bias-first"}),
        ("no-weight", (NO_AFFINE,), SEMANTIC, {"skip_forward": ("weight",)}),
        ("no-bias", (NO_AFFINE,), SEMANTIC, {"skip_forward": ("bias",)}),
        ("no-weight-anywhere", (UNWEIGHTED,), SEMANTIC, {"skip": ("weight",)}),
        ("wrong-axis", (AXIS,), SEMANTIC, {"wrong_axis": True}),
        ("rms", (UNCENTRED,), SEMANTIC, {"variance": "rms", "centred": False}),
        ("uncentred", (UNCENTRED,), SEMANTIC, {"centred": False}),
        ("bf16-operands", (REDUCED,), LOWER, {"operands": "bf16"}),
        ("fp16-operands", (REDUCED,), LOWER, {"operands": "float16", "operand_dtypes": ("float32",)}),
        ("float32-inside", (IN_FLOAT32,), DEGRADED, {"float32_inside": True}),
        ("float32-eps", (ATTRIBUTE,), DEGRADED, {"float32_attributes": True}),
        ("y-last-row", (LOCAL,), SEMANTIC, post(("y", "unwritten", "row"))),
        ("y-last-column", (LOCAL,), SEMANTIC, post(("y", "doubled", "column"))),
        ("y-channel", (LOCAL,), SEMANTIC, post(("y", "unwritten", "channel"))),
        ("dx-tail", (LOCAL,), SEMANTIC, post(("grad.x", "unwritten", "tail"))),
        ("dx-corner", (LOCAL,), SEMANTIC, post(("grad.x", "doubled", "corner"))),
    ],
)  # fmt: skip

BATCH_FAULTS = table(
    BATCH,
    [
        ("running-biased", (RUNNING_DDOF,), SEMANTIC, {"running_biased": True}),
        ("momentum-complement", (COMPLEMENT,), SEMANTIC, {"momentum_complement": True}),
        ("running-mean-1-m", (SCALED,), SEMANTIC, post(("running_mean", "scale", "1-m"))),
        ("running-var-stale", (FROZEN,), SEMANTIC, post(("running_var", "copy", "running_var"))),
        ("running-stale", (FROZEN,), SEMANTIC, post(("running_mean", "copy", "running_mean"), ("running_var", "copy", "running_var"))),
        ("statistics-source", (SOURCE,), SEMANTIC, {"swapped_source": True}),
        ("running-var-naive", (NAIVE,), UNSTABLE, {"variance": "naive", "folded": True}),
    ],
)  # fmt: skip

LINEAR_FAULTS = table(
    LINEAR,
    [
        ("untransposed", (TRANSPOSED,), SEMANTIC, {"transposed": True}),
        ("dweight-transposed", (TRANSPOSED,), SEMANTIC, post(("grad.weight", "index", "axes"))),
        ("dx-dweight-swapped", (SWAPPED,), SEMANTIC, post(("grad.x", "swap", "grad.weight"))),
        ("linear-y-axes", (AXES,), SEMANTIC, post(("y", "index", "axes"))),
        ("linear-dbias-permuted", (ELEMENTS,), SEMANTIC, post(("grad.bias", "index", "permuted"))),
        ("linear-dbias-rolled", (SHIFTED,), SEMANTIC, post(("grad.bias", "index", "rolled"))),
        ("linear-dweight-rows-rolled", (SHIFTED,), SEMANTIC, post(("grad.weight", "index", "rolled-rows"))),
        ("linear-dweight-doubled", (SCALED,), SEMANTIC, post(("grad.weight", "scale", "2"))),
        ("linear-y-halved", (SCALED,), SEMANTIC, post(("y", "scale", "0.5"))),
        ("linear-dweight-mean", (MEAN,), SEMANTIC, post(("grad.weight", "scale", "1/rows"))),
        ("linear-dbias-mean", (MEAN,), SEMANTIC, post(("grad.bias", "scale", "1/rows"))),
        ("linear-dweight-negated", (SIGN,), SEMANTIC, post(("grad.weight", "scale", "-1"))),
        ("linear-dbias-zero", (NO_GRADIENT,), MISSING, post(("grad.bias", "scale", "0"))),
        ("linear-dweight-absent", (NO_GRADIENT,), MISSING, post(("grad.weight", "absent", None))),
        ("linear-dbias-is-bias", (STALE,), SEMANTIC, post(("grad.bias", "copy", "bias"))),
        ("linear-dx-is-x", (STALE,), SEMANTIC, post(("grad.x", "copy", "x"))),
        ("linear-no-bias", (NO_AFFINE,), SEMANTIC, {"skip_forward": ("bias",)}),
        ("linear-bf16", (REDUCED,), LOWER, {"operands": "bf16"}),
        ("linear-tf32", (REDUCED,), LOWER, {"operands": "tf32", "operand_dtypes": ("float32",)}),
        ("linear-fp16", (REDUCED,), LOWER, {"operands": "float16"}),
        ("linear-float32-inside", (REDUCED,), DEGRADED, {"float32_inside": True}),
        ("linear-y-last-row", (LOCAL,), SEMANTIC, post(("y", "unwritten", "row"))),
        ("linear-y-tail", (LOCAL,), SEMANTIC, post(("y", "unwritten", "tail"))),
        ("linear-dweight-corner", (LOCAL,), SEMANTIC, post(("grad.weight", "doubled", "corner"))),
    ],
)  # fmt: skip

CLIP_FAULTS = table(
    CLIP,
    [
        ("per-tensor", (PER_TENSOR,), SEMANTIC, {"per_tensor": True}),
        ("no-denominator-eps", (DENOMINATOR,), SEMANTIC, {"denominator_eps": 0.0}),
        ("by-value", (BY_VALUE,), SEMANTIC, {"by_value": True}),
        ("unclamped", (UNCLAMPED,), SEMANTIC, {"clamped": False}),
        ("one-norm", (NORM_TYPE,), SEMANTIC, {"norm_type": 1.0}),
        ("two-norm", (NORM_TYPE,), SEMANTIC, {"norm_type": 2.0}),
        ("max-norm", (NORM_TYPE,), SEMANTIC, {"norm_type": float("inf")}),
        ("unclipped", (STALE,), SEMANTIC, post(("grads", "copy", "itself"))),
        ("clip-doubled", (SCALED,), SEMANTIC, post(("grads", "scale", "2"))),
        ("clip-negated", (SIGN,), SEMANTIC, post(("grads", "scale", "-1"))),
        ("clip-bf16", (REDUCED,), LOWER, {"operands": "bf16"}),
        ("clip-float32-inside", (IN_FLOAT32,), DEGRADED, {"float32_inside": True}),
        ("float32-max-norm", (ATTRIBUTE,), DEGRADED, {"float32_attributes": True}),
        ("clip-tail", (LOCAL,), SEMANTIC, post(("grads.0", "unwritten", "tail"))),
    ],
)  # fmt: skip

CLAMP_FAULTS = table(
    CLAMP,
    [
        ("value-unclipped", (STALE,), SEMANTIC, post(("grads", "copy", "itself"))),
        ("value-doubled", (SCALED,), SEMANTIC, post(("grads", "scale", "2"))),
        ("value-negated", (SIGN,), SEMANTIC, post(("grads", "scale", "-1"))),
        ("value-rolled", (SHIFTED,), SEMANTIC, post(("grads.0", "index", "rolled"))),
        ("value-permuted", (ELEMENTS,), SEMANTIC, post(("grads.0", "index", "permuted"))),
        ("value-tail", (LOCAL,), SEMANTIC, post(("grads.0", "unwritten", "tail"))),
        ("value-bf16", (REDUCED,), LOWER, {"operands": "bf16"}),
        ("float32-clip-value", (ATTRIBUTE,), DEGRADED, {"float32_attributes": True}),
        ("value-float32-inside", (IN_FLOAT32,), DEGRADED, {"float32_inside": True}),
    ],
)  # fmt: skip

SINGLE: tuple[Fault, ...] = (*NORM_FAULTS, *BATCH_FAULTS, *LINEAR_FAULTS, *CLIP_FAULTS, *CLAMP_FAULTS)

PAIRS = (
    ("swapped", "ddof"),
    ("eps-outside", "bias-first"),
    ("naive-clamped", "swapped"),
    ("bias-first", "eps-1e-3"),
    ("ddof", "eps-1e-3"),
    ("detached", "dbias-negated"),
    ("wrong-axis", "dweight-mean"),
    ("running-biased", "momentum-complement"),
    ("running-biased", "eps-doubled"),
    ("running-biased", "float32-eps"),
    ("running-biased", "naive-clamped"),
    ("untransposed", "linear-dbias-mean"),
    ("linear-dweight-mean", "linear-dbias-zero"),
    ("per-tensor", "no-denominator-eps"),
    ("one-norm", "no-denominator-eps"),
)
"""Faults planted together, by name."""


def together(one: Fault, other: Fault) -> Fault:
    """Two faults in one kernel, in the ops that can have both."""
    ops = tuple(op for op in one.ops if op in other.ops)
    switches = {**one.switches, **other.switches}
    actions = (*one.switches.get("post", ()), *other.switches.get("post", ()))
    verdicts = tuple(dict.fromkeys((*one.verdicts, *other.verdicts)))
    switches = {**switches, **post(*actions)} if actions else switches
    return Fault(f"{one.name}+{other.name}", ops, (*one.parts, *other.parts), verdicts, switches, (one, other))


BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in SINGLE}
FAULTS: tuple[Fault, ...] = (*SINGLE, *(together(BY_NAME[one], BY_NAME[other]) for one, other in PAIRS))

BASE = Healthy("two-pass", FAMILIES, {})
"""The kernel that all faults start from; the baseline of every run."""

HEALTHY: tuple[Healthy, ...] = (
    BASE,
    Healthy("welford", (NORMS, BATCH), {"variance": "welford"}, loops=True),
    Healthy("double-sums", (NORMS, BATCH, LINEAR, CLIP), {"summation": "double"}),
    Healthy("blocked-sums", (NORMS, BATCH, LINEAR, CLIP), {"summation": "blocked"}),
    Healthy("sequential-sums", (NORMS, BATCH, LINEAR, CLIP), {"summation": "sequential"}, loops=True),
    Healthy("pairwise-sums", (NORMS, BATCH, CLIP), {"summation": "pairwise"}),
    Healthy("folded", (NORMS, BATCH), {"folded": True}),
    Healthy("folded-welford", (NORMS, BATCH), {"folded": True, "variance": "welford"}, loops=True),
    Healthy("two-level-norm", (CLIP,), {"two_level": True}),
    Healthy("two-level-in-sequence", (CLIP,), {"two_level": True, "summation": "sequential"}, loops=True),
)
"""Right kernels; those that loop over single elements are left out where a framework takes too long over that."""


def faults_of(family: tuple[str, ...]) -> list[Fault]:
    """The faults that belong to exactly these ops."""
    return [fault for fault in FAULTS if fault.ops == family]


def healthy_of(family: tuple[str, ...], *, loops: bool = True) -> list[Healthy]:
    """The healthy variants of a family, the base first."""
    return [item for item in HEALTHY if family in item.families and (loops or not item.loops)]
