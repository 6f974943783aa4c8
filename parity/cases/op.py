"""The definition of an op: its params, its tensors with their shapes, and its reference, a few lines of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from numpy.typing import NDArray

from parity.cases.draw import Draw, Shape

GRADIENT = "grad."
"""The prefix of a gradient's name: `grad.x` of an input, `grad.y` of an output (a grad_output)."""


class CaseError(ValueError):
    """An invalid case. `key` is the path inside the case, e.g. `params.normalized_shape`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


class IncompatibleError(ValueError):
    """Two variants that contradict each other: together they describe no kernel."""


@dataclass(frozen=True)
class Input:
    """An input tensor of an op.

    `default` is drawn if the config says nothing (None: it must say). `optional` inputs may be switched off with
    `null`; those that are `opt_in` are drawn only where the config mentions them. A `listed` input is a list of
    tensors, named `grads.0`, `grads.1`, ... in results. `integers`: it holds int64. `state`: it is an output too, which
    a training carries from step to step. `start` is the value in a layer before the first step of a training (None: a
    draw by the number of inputs, `training.layers`).
    """

    name: str
    default: Draw | None = None
    differentiable: bool = False
    optional: bool = False
    opt_in: bool = False
    listed: bool = False
    integers: bool = False
    state: bool = False
    start: Draw | None = None


@dataclass(frozen=True)
class TensorShapes:
    """The shapes of an op's inputs and outputs (a gradient has the shape of its tensor).

    `integers` are the smallest value of an integer input, and the largest plus one. Raises CaseError for a negative
    dimension, and for an integer input that has no valid value.
    """

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, shape in (*self.inputs.items(), *self.outputs.items()):
            if any(size < 0 for size in shape):
                raise CaseError("params", f"with these params, {name} has the shape {list(shape)}")
        for name, (low, high) in self.integers.items():
            if low >= high:
                raise CaseError("params", f"with these params, {name} has no valid value: {low} <= {name} < {high}")


@dataclass(frozen=True)
class Variant:
    """One way in which a kernel may differ from the oracle: a hypothesis that can be computed.

    `id` is the diagnosis. The reference is run with other `arguments`, with other `params`, or without the inputs in
    `absent`. `unstable`: the variant is exact in exact arithmetic and loses precision in a dtype, so it is recognised
    by the size of its error. `shown_by` is the input that distinguishes it.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    unstable: bool = False
    shown_by: str = ""

    def changed(self, params: Any) -> Any:
        """`params` as this variant has them."""
        return replace(params, **self.params) if self.params else params


@dataclass(frozen=True)
class Fit:
    """A number whose value may differ in a kernel, at most `most`. `target` is a param or an option of the
    reference."""

    id: str
    target: str
    start: Callable[[Any], float]
    shown_by: str = ""
    most: float = 1.0


@dataclass(frozen=True)
class Implied:
    """Exact mean and variance of each group of `n` elements, and the errors of both that an output implies."""

    n: int
    mean: NDArray[Any]
    variance: NDArray[Any]
    mean_error: NDArray[Any]
    variance_error: NDArray[Any]


@dataclass(frozen=True)
class Statistics:
    """How the tensor `output` implies the kernel's mean and variance.

    `implied(tensors, params, values)` is None if they cannot be recovered. The reference takes the errors of both as
    its option `errors`; its option `algorithm` chooses how a variance is computed.
    """

    output: str
    implied: Callable[[Mapping[str, Any], Any, Any], Implied | None]
    errors: str = "errors"
    algorithm: str = "variance"


def no_remarks(_op: Any, _params: Any, _tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """No blind spots: the default of an op."""
    return ()


def no_variants(_params: Any, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """No variants: the default of an op."""
    return ()


def affine_remarks(tensors: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Weights and biases that hide faults."""
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is not None and (weight == 1).all():
        yield "the weight is 1 everywhere: y does not show whether it is applied, or applied after the bias"
    if bias is not None and not bias.any():
        yield "the bias is 0 everywhere: y does not show whether it is added, or in which order"


@dataclass(frozen=True)
class Op:
    """An op as parity knows it, in PyTorch's names and layouts.

    `params` is a frozen dataclass whose fields are the YAML keys; a field with `metadata={"implied": True}` only
    determines shapes and is not passed to backends. `infer_shapes(params, given)` takes the shapes in the config and
    returns all of them, or raises CaseError. `reference(tensors, params, **options)` is the op in a few lines of NumPy:
    `tensors` maps input names to arrays (lists for listed inputs), the result maps output names to arrays.
    `grad_outputs` names the outputs with a grad_output. `variants(params, shapes)` are what a kernel may compute
    instead; `fits` are the numbers that can be fitted. `terms` are options under which nothing cancels in a gradient,
    and `gradient_scale(op, params, tensors, gradients)` is the size of these terms by tensor: a scale for gradients
    whose exact value is zero. `careful` are options for algorithms as accurate as the reference's; `forms` are options
    for other formulas, such as a kernel's hand-written backward pass, within a careful implementation's error;
    `customary` are those of the formula that most kernels compute, where it keeps fewer digits than the reference: the
    error bound allows for it, the exact answer does not have it.
    `statistics` says how an output implies the kernel's mean and variance. `remarks(op, params, tensors)` are the blind
    spots of a case's inputs, a sentence each. `rounded_together` are inputs that a kernel may read in a lower precision
    together. An `exact` op rounds nothing, so a careful implementation makes no error, however near inputs are to a
    tie. `indexes` are outputs of integers that point into an input along the param `dim`, by that input's name: another
    index of an equal value is right, too.
    """

    name: str
    summary: str
    params: type[Any]
    inputs: tuple[Input, ...]
    infer_shapes: Callable[[Any, Mapping[str, Shape]], TensorShapes]
    reference: Callable[..., Mapping[str, Any]]
    grad_outputs: tuple[str, ...] = ("y",)
    variants: Callable[[Any, Mapping[str, Shape]], Iterable[Variant]] = no_variants
    fits: tuple[Fit, ...] = ()
    terms: Mapping[str, Any] = field(default_factory=dict)
    careful: tuple[Mapping[str, Any], ...] = ()
    forms: tuple[Mapping[str, Any], ...] = ()
    customary: Mapping[str, Any] = field(default_factory=dict)
    statistics: Statistics | None = None
    remarks: Callable[[Any, Any, Mapping[str, Any]], Iterable[str]] = no_remarks
    gradient_scale: Callable[[Any, Any, Mapping[str, Any], bool], Mapping[str, Any]] | None = None
    rounded_together: tuple[tuple[str, ...], ...] = ()
    exact: bool = False
    indexes: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> str | None:
        """The first input with a gradient: others' gradients are summed over its axes."""
        return self.differentiable[0] if self.differentiable else None

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the inputs that get a gradient."""
        return tuple(i.name for i in self.inputs if i.differentiable)

    def is_grad_output(self, tensor: str) -> bool:
        """Whether `tensor` (`grad.y`) is the gradient of an output."""
        return tensor.startswith(GRADIENT) and tensor.removeprefix(GRADIENT) in self.grad_outputs

    def input(self, tensor: str) -> Input | None:
        """The input that `tensor` (`x`, or `grads.3` of a list) belongs to."""
        head, _, index = tensor.partition(".")
        for item in self.inputs:
            if (item.listed and head == item.name and index.isdigit()) or (not item.listed and tensor == item.name):
                return item
        return None


def call_params(params: Any) -> dict[str, Any]:
    """The params that are passed to a framework: all but the implied ones."""
    values = asdict(params)
    return {f.name: values[f.name] for f in fields(params) if not f.metadata.get("implied")}


def default_params(params: Any) -> frozenset[str]:
    """Names of the passed params at their default."""
    passed = call_params(params)
    return frozenset(f.name for f in fields(params) if f.name in passed and getattr(params, f.name) == f.default)


def group_lists(tensors: Mapping[str, Any], op: Op) -> dict[str, Any]:
    """Tensors by input name, `grads.0`, `grads.1`, ... gathered into a list under `grads`."""
    grouped: dict[str, Any] = {}
    for name, value in tensors.items():
        item = op.input(name)
        if item is not None and item.listed:
            grouped.setdefault(item.name, []).append(value)
        else:
            grouped[name] = value
    return grouped


def flatten_lists(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `group_lists`: a list under `grads` becomes `grads.0`, `grads.1`, ..."""
    flat: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, Sequence):
            flat.update({f"{name}.{i}": item for i, item in enumerate(value)})
        else:
            flat[name] = value
    return flat


def require_shape(given: Mapping[str, Shape], name: str, expected: Shape, why: str) -> Shape:
    """`expected`; CaseError if the config has another shape for `name`."""
    stated = given.get(name, expected)
    if stated != expected:
        raise CaseError(f"inputs.{name}", f"shape {list(stated)} must be {list(expected)}, which follows from {why}")
    return expected


def require_x(given: Mapping[str, Shape], ranks: Sequence[int], takes: str) -> Shape:
    """The shape of `x`, which every config must state, with one of the allowed ranks (empty: any)."""
    if "x" not in given:
        raise CaseError("inputs.x", "a shape (or `values`, or a `file`) is needed for x")
    if ranks and len(given["x"]) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise CaseError("inputs.x", f"shape {list(given['x'])} has {len(given['x'])} axes; {takes} has {allowed}")
    return given["x"]
