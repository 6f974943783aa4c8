"""The model of a training as a program: output, loss and gradients of a step from the references of its ops.

Variants map what they change to options of its reference: `{"layer_norm": {"ddof": 1}}` for all layers of an op,
`{"layer_norm@encoder.norm": {...}}` for one layer by its name. Other keys are `matmul` (`operands` and `result` of
`exact.matmul.reduced`), `loss` (options of the loss's reference, and `edits` of it), `accumulation` and `ranks` (see
`gradients`), `backward` (`only`: the variants change gradients, but not the values of layers and loss), and `program`
(`edits` of the program of a whole pass).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from autograd.tracer import getval
from numpy.typing import DTypeLike

from parity.cases import OPS
from parity.cases.edits import edited
from parity.cases.exact.matmul import MATMUL, matmul_in_sequence, reduced
from parity.cases.op import IncompatibleError, Op
from parity.cases.oracle import IN_PAIRS, IN_SEQUENCE, Functions, evaluate
from parity.cases.program import Program, trace
from parity.outcome import Array, Arrays
from parity.training.data import IGNORED
from parity.training.edits import ProgramEdits
from parity.training.spec import RESIDUAL, Layer, Training

Variants = Mapping[str, Mapping[str, Any]]
Batch = tuple[Array, Array]
"""x and target of a micro-batch."""

NONE: Variants = {}
MAX_LOOPED = 1 << 24
"""Larger products are never computed in a loop: BLAS itself sums a few hundred terms in sequence."""
MODEL_IN_SEQUENCE: Functions = {**IN_SEQUENCE, MATMUL: partial(matmul_in_sequence, most=MAX_LOOPED)}
"""The functions that sum one element after another, if that is quick enough for a model."""


@dataclass
class Pass:
    """One forward pass: weights and buffers by name, the variants, and the updated buffers."""

    tensors: Mapping[str, Any]
    variants: Variants = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)

    def run(self, layers: Sequence[Layer], x: Any) -> Any:
        """The output of consecutive layers for `x`."""
        for layer in layers:
            x = self.apply(layer, x)
        return x

    def apply(self, layer: Layer, x: Any) -> Any:
        """The output of one layer for `x`: an op's, or x + the output of a residual's layers."""
        if layer.op == RESIDUAL:
            return x + self.run(layer.layers, x)
        op = OPS[layer.op]
        options = {**self.variants.get(layer.op, {}), **self.variants.get(f"{layer.op}@{layer.name}", {})}
        absent = options.pop("absent", ())
        names = {parameter.name.removeprefix(f"{layer.name}."): parameter.name for parameter in layer.parameters}
        own = {name: self.tensors[full] for name, full in names.items() if name not in absent}
        changed = bool(options or absent)
        params, options = overridden(layer.params, options)
        outputs = op.reference({op.inputs[0].name: x, **own}, params, **options)
        y = outputs[op.grad_outputs[0]]
        if changed and backward_only(self.variants):
            every = {name: self.tensors[full] for name, full in names.items()}
            outputs = op.reference({op.inputs[0].name: x, **every}, layer.params)
            y = with_gradient_of(outputs[op.grad_outputs[0]], y)
        self.buffers.update({f"{layer.name}.{item.name}": outputs[item.name] for item in op.inputs if item.state})
        return y


def backward_only(variants: Variants) -> bool:
    """Whether the variants change only gradients."""
    return bool(variants.get("backward", {}).get("only"))


def with_gradient_of(values: Any, other: Any) -> Any:
    """`values` with the gradient of `other`."""
    return other + (getval(values) - getval(other))


def overridden(params: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The params with the options that are fields of them, and the remaining options."""
    names = {f.name for f in fields(params)}
    changed = replace(params, **{name: value for name, value in options.items() if name in names})
    return changed, {name: value for name, value in options.items() if name not in names}


@dataclass(frozen=True)
class Share:
    """The input of one pass: the rows of one rank of one micro-batch.

    Its gradient is divided by `divisor` before it is added to the step's, or left out if that is 0. Only a pass that
    `leads`, the first rank's, updates the buffers.
    """

    x: Array
    target: Array
    divisor: int
    leads: bool


def shares(batches: Sequence[Batch], variants: Variants) -> list[Share]:
    """The passes of a step with these micro-batches, in the order of the rows."""
    ranks = variants.get("ranks", {})
    count, reduction = ranks.get("count", 1), ranks.get("reduction", "mean")
    summed = variants.get("accumulation", {}).get("reduction", "mean") == "sum"
    divisor = (1 if summed else len(batches)) * (count if reduction == "mean" else 1)
    return [
        Share(x, target, divisor if rank == 0 or reduction != "first" else 0, rank == 0)
        for batch in batches
        for rank, (x, target) in enumerate(zip(*(np.array_split(v, count) for v in batch), strict=True))
    ]


@dataclass(frozen=True)
class StepGradients:
    """The result of a step's micro-batches: all outputs [rows, ...], the mean loss, its gradient by parameter (empty
    without a backward pass), and the updated buffers."""

    output: Array
    loss: Array
    grads: dict[str, Array]
    buffers: dict[str, Array]


def gradients(
    training: Training,
    tensors: Arrays,
    batches: Sequence[Batch],
    *,
    dtype: DTypeLike = np.float64,
    variants: Variants = NONE,
    backward: bool = True,
    functions: Functions = IN_PAIRS,
) -> StepGradients:
    """A step's forward and backward passes over its micro-batches `(x, target)`, in `dtype`.

    `tensors` are all parameters and buffers; `functions` are those of `Program.run`. With the variant `accumulation`,
    `reduction` `sum`, the gradients of micro-batches are summed. With `ranks`, `count` ranks share every micro-batch in
    passes of their own, and the gradient is the mean of theirs, with `reduction` `sum` their sum, with `first` that of
    the first rank.
    """
    kind = np.dtype(dtype)
    cast = {p.name: np.asarray(tensors[p.name], kind) for p in training.tensors}
    buffers = {p.name: cast.pop(p.name) for p in training.buffers}
    passes = []
    for share in shares(batches, variants):
        passes.append(one_pass(training, cast, buffers, share, variants, kind, functions, backward))
        if share.leads:
            buffers = {**buffers, **passes[-1].buffers}
    grads = {name: added([one.grads.get(name) for one in passes], value) for name, value in cast.items()}
    loss = np.asarray(np.sum([one.loss for one in passes], dtype=kind)) / kind.type(len(passes))
    output = np.concatenate([one.output for one in passes])
    return StepGradients(output, np.asarray(loss), grads if backward else {}, buffers)


def one_pass(
    training: Training,
    weights: Arrays,
    buffers: Arrays,
    share: Share,
    variants: Variants,
    kind: np.dtype[Any],
    functions: Functions,
    backward: bool,
) -> StepGradients:
    """One pass through the model and its loss."""
    given = {"x": share.x, "target": counted(share.target), **prefixed("param", weights), **prefixed("buffer", buffers)}
    backward = backward and share.divisor > 0
    arriving = {"loss": np.asarray(1.0 / float(share.divisor), kind)} if backward else {}
    program = program_of(training, given, arriving, variants)
    functions = {**functions, **({MATMUL: reduced(**variants["matmul"])} if "matmul" in variants else {})}
    try:
        values = program.run({**given, **prefixed("grad", arriving)}, kind, functions=functions)
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        if "program" not in variants:
            raise
        raise IncompatibleError(f"the edited program cannot be run: {error}") from error
    return StepGradients(
        values["output"], values["loss"], unprefixed("grad.param", values), unprefixed("buffer", values)
    )


PROGRAMS: dict[Any, tuple[tuple[Layer, ...], Program]] = {}
MAX_PROGRAMS = 256
MAX_STEPS = 1 << 18
"""Limits of the cache of programs: it is cleared when both are reached; a step takes a kilobyte. The search for two
causes makes a few thousand programs of a small model, the same for every backend."""


def program_of(
    training: Training, given: Arrays, arriving: Arrays, variants: Variants, *, labelled: bool = False
) -> Program:
    """The program of one pass for these shapes, from the cache or traced."""
    shapes = tuple(values.shape for values in given.values())
    key = (id(training.layers), training.loss.name, repr(sorted(variants.items())), shapes, bool(arriving), labelled)
    if key not in PROGRAMS:
        names = [name for name in given if name.startswith("param.")]
        reference = partial(model_reference, training=training, variants=variants)
        try:
            program, _ = trace(reference, given, differentiable=names, gradients=arriving, labelled=labelled)
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
            if "edits" not in variants.get("loss", {}):
                raise
            raise IncompatibleError(f"the edited loss cannot be differentiated: {error}") from error
        edits = variants.get("program", {}).get("edits", ())
        program = edited(program, edits, {**given, **prefixed("grad", arriving)}, None, names)
        if len(PROGRAMS) >= MAX_PROGRAMS and sum(len(kept.steps) for _, kept in PROGRAMS.values()) >= MAX_STEPS:
            PROGRAMS.clear()
        # The layers are kept with the program, so that no others can get their id.
        PROGRAMS[key] = training.layers, program
    return PROGRAMS[key][1]


def model_reference(
    tensors: Mapping[str, Any], _params: Any, *, training: Training, variants: Variants
) -> dict[str, Any]:
    """`output`, `loss` and `buffer.<name>` of one pass."""
    run = Pass({**unprefixed("param", tensors), **unprefixed("buffer", tensors)}, variants)
    output = run.run(training.layers, tensors["x"])
    op, given = OPS[training.loss.name], {"x": output, "target": tensors["target"]}
    options = dict(variants.get("loss", {}))
    edits = options.pop("edits", None)
    reference = partial(edits.replayed, op) if edits else op.reference
    loss = reference(given, op.params(), **options)["y"]
    if backward_only(variants) and variants.get("loss"):
        loss = with_gradient_of(op.reference(given, op.params())["y"], loss)
    return {"output": output, "loss": loss, **prefixed("buffer", run.buffers)}


def prefixed(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors as `<prefix>.<name>`."""
    return {f"{prefix}.{name}": values for name, values in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors called `<prefix>.<name>`, as `<name>`."""
    return {n.removeprefix(f"{prefix}."): values for n, values in tensors.items() if n.startswith(f"{prefix}.")}


def counted(target: Array) -> Array:
    """Targets in which every negative class is IGNORED."""
    return np.where(target < 0, IGNORED, target) if target.dtype.kind in "iu" else target


def added(grads: Sequence[Array | None], like: Array) -> Array:
    """The sum of a parameter's gradients that are not None, in the order of the passes."""
    total = np.zeros_like(like)
    for grad in grads:
        total = total if grad is None else total + grad
    return total


def evaluate_in_dtype(op: Op, params: Any, tensors: Arrays, functions: Functions, **options: Any) -> dict[str, Any]:
    """An op in the dtype of `x`."""
    return evaluate(op, params, tensors, dtype=tensors["x"].dtype, functions=functions, **options)


def loss_of_output(
    training: Training,
    output: Array,
    target: Array,
    *,
    variants: Variants = NONE,
    functions: Functions = IN_PAIRS,
) -> Array:
    """The step's loss from the model's output for all its rows, in the dtype of `output`."""
    n, op, kind = training.accumulation, OPS[training.loss.name], output.dtype
    parts = zip(np.array_split(output, n), np.array_split(counted(target), n), strict=True)
    options = dict(variants.get("loss", {}))
    edits: ProgramEdits | None = options.pop("edits", None)
    run = edits.run if edits else evaluate_in_dtype
    losses = [run(op, op.params(), {"x": x, "target": of}, functions, **options)["y"] for x, of in parts]
    with np.errstate(all="ignore"):
        return np.asarray(np.sum(losses, dtype=kind) / kind.type(n))
