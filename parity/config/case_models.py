"""The models of a case of an op and of its defaults, made from the op's dataclass of params and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from parity.cases import OPS
from parity.cases.dtypes import COARSENESS
from parity.cases.op import Op
from parity.config.grammar import Allowed, Text, Word, list_of, model_of, options, refusal
from parity.config.sweep import ROOTS, sweep_of
from parity.config.tensors import TENSOR
from parity.config.tolerance_grammar import Tolerances


def _unequal(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(dtypes)) < len(dtypes):
        raise refusal("duplicate dtype")
    return dtypes


Dtypes: Any = Annotated[
    tuple[Annotated[str, Word("no such dtype", tuple(COARSENESS))], ...],
    MinLen(1),
    AfterValidator(_unequal),
    Allowed(tuple(COARSENESS)),
    Field(description="a list, for example [float32, float64]", json_schema_extra={"uniqueItems": True}),
]


COMMON: Mapping[str, Any] = {
    "dtypes": (Dtypes, ()),
    "tolerance": (Tolerances, None),
    "gradients": (bool, True),
    "stress": (bool, False),
}
"""The keys of every case of an op, and of their defaults."""

OP_KEYS: Mapping[str, Any] = {
    "id": (Text, ""),
    "op": (Annotated[Any, WithJsonSchema({"type": "string"})], None),
    "params": (Annotated[Any, WithJsonSchema({"type": "object"})], None),
    "inputs": (Annotated[Any, WithJsonSchema({"type": "object"})], None),
    "sweep": (sweep_of(ROOTS), None),
    **COMMON,
    "kind": (Annotated[Any, WithJsonSchema({"type": "null"})], None),
    "reference": (Annotated[Any, WithJsonSchema({"type": "string"})], None),
    "differentiable": (list_of(str), ()),
}
OpCase = model_of("op_case", "a case", OP_KEYS)
"""A case of any op."""


def tensor_names(op: Op) -> tuple[str, ...]:
    """The keys of `inputs`: the op's tensors and the gradients of its outputs (`grad.y`)."""
    grad_outputs = tuple(f"grad.{name}" for name in op.grad_outputs) if op.differentiable else ()
    return tuple(item.name for item in op.inputs) + grad_outputs


def _input_type(name: str, op: Op) -> Any:
    """A tensor, a list of tensors, or null for an optional one."""
    item = next((item for item in op.inputs if item.name == name), None)
    if item is not None and item.optional:
        return TENSOR | None
    optional = [i.name for i in op.inputs if i.optional]
    message = f"null leaves out an optional input, but {name} is required"

    def check(value: Any) -> Any:
        if value is None:
            raise refusal(message, allowed=optional)
        return value

    if item is None or not item.listed:
        return Annotated[TENSOR, BeforeValidator(check)]
    phrase = "a list of tensors, for example [{shape: [3, 4]}, {shape: [4]}]"
    items = list_of(Annotated[TENSOR, AfterValidator(_with_shape)])
    return Annotated[items, BeforeValidator(check), Field(description=phrase)]


def _with_shape(tensor: Any) -> Any:
    if tensor.shape is None and tensor.values is None and tensor.file is None:
        raise refusal("a tensor in a list needs a shape (or values, or a file)")
    return tensor


def parts_of(op: Op) -> dict[str, Any]:
    """The keys of a case that depend on its op."""
    inputs = {name: (_input_type(name, op), None) for name in tensor_names(op)}
    params = options(op.params, f"{op.name}-params", op.name)
    return {"params": (params, None), "inputs": (model_of(f"{op.name}-inputs", op.name, inputs), None)}


@cache
def case_model_of(op: str) -> type[Any]:
    """The model of a case of an op of parity, made when a config uses it: all of them take a second."""
    return model_of(f"{op}-case", "a case", {**OP_KEYS, **parts_of(OPS[op])})


@cache
def defaults_model_of(op: str) -> type[Any]:
    """The model of an op's entry in `defaults.ops`."""
    return model_of(f"{op}-defaults", f"the defaults of {op}", {**parts_of(OPS[op]), **COMMON})


DefaultsByOp = model_of("defaults-ops", "parity", dict.fromkeys(OPS, (Any, None)))
DefaultKeys = model_of("defaults", "defaults", {**COMMON, "ops": (DefaultsByOp, None)})
"""`defaults`; the entries of its ops are read with `defaults_model_of`."""
