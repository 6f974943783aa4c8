"""The base of all adapters. Runs on Python 3.8 inside a worker, without the rest of parity.

An adapter has one method per op, named after it, that takes the framework's tensors and the op's params by keyword in
PyTorch's names and layouts, and returns a tensor, or a mapping by output name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from parity.adapters import load_object
from parity.adapters.bits import in_dtype
from parity.adapters.strides import is_narrow, is_whole, widened

PARTS: Mapping[str, Sequence[str]] = {"multi_head_attention": ("linear", "scaled_dot_product_attention")}
"""Composed ops and the ops that they call, which a user's functions may replace."""


Method = TypeVar("Method", bound="Callable[..., Any]")
DECLARED = "composed_unless"
"""The attribute of a method that `composed_unless` sets."""


def parts_of(op: str) -> Sequence[str]:
    """The ops that an op calls; just itself if it is not composed."""
    return PARTS.get(op, (op,))


@dataclass(frozen=True)
class Job:
    """One op to compute.

    `inputs` and `grad_outputs` map input and output names to NumPy arrays (or lists of arrays) that nothing else uses.
    `function` and `backward` are the user's own, if any; `params` are the op's keyword arguments. If `watched`, inputs
    and grad_outputs are returned as `input.<name>`, as the op leaves them. `storage` maps inputs to a dtype narrower
    than `dtype`, which is then the dtype of the results. `leaves` are an earlier job's, which share the memory of the
    `inputs`.
    """

    op: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    grad_outputs: Mapping[str, Any] = field(default_factory=dict)
    differentiable: Sequence[str] = ()
    function: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    watched: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    leaves: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NotATensor:
    """What a user's op returned in place of a tensor of the framework: its type in words, and its shape."""

    kind: str
    axes: Sequence[int] = ()


def composed_unless(**plain: Any) -> Callable[[Method], Method]:
    """Declare a method parity's own composition of the framework's calls, unless its arguments have these values.

    Whatever follows from how a composition rounds is parity's, not the framework's.
    """

    def declared(method: Method) -> Method:
        setattr(method, DECLARED, plain)
        return method

    return declared


def composed(method: Method) -> Method:
    """Declare a method parity's own composition of the framework's calls, whatever its arguments are."""
    return composed_unless()(method)


class Unsupported(Exception):  # noqa: N818 - an outcome, not an error
    """The framework cannot do this; the message says why."""


class Adapter:
    """Base of all adapters. A subclass imports its framework in its constructor and nowhere else."""

    no_kernel: ClassVar[tuple[str, ...]] = ()
    """Regular expressions for the framework's messages about missing kernels."""

    differentiable: ClassVar[bool] = True
    """Whether it computes gradients."""

    dtypes: ClassVar[Sequence[str] | None] = ("float16", "float32", "float64")
    """The dtypes that it computes in; None means all, including bfloat16, which `leaf` and `to_numpy` must support."""

    modules: ClassVar[bool] = False
    """Whether a user's function may be a class of PyTorch's modules."""

    strided: ClassVar[bool] = False
    """Whether its tensors have strides; then it has `strided_leaf` and `shared`."""

    needs_backward: ClassVar[bool] = False
    """Whether a user's op needs a `<op>_backward`, because there is no autograd."""

    trainers: ClassVar[Mapping[str, str]] = {}
    """Mode to the path of the class that trains in it: `module:Class`."""

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        self.device = device
        self.threads = threads
        self.mode = mode
        self.ranks = ranks
        self.worn_out = False

    def probe(self) -> None:
        """Raise Unsupported if this mode does not work here; asked once, after the constructor."""

    def version(self) -> str:
        """The framework's version."""
        raise NotImplementedError

    def flags(self) -> dict[str, Any]:
        """Settings of the framework that can change results."""
        return {}

    def settings(self) -> Any:
        """The framework's settings that a user's op might change, for `restore`."""
        return None

    def restore(self, settings: Any) -> None:
        """Restore these settings."""

    def open_modes(self) -> Sequence[str]:
        """The framework's modes in which its functions compute something else, by name, that have not been left."""
        return ()

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        """A tensor of the framework with the values of `array`, a NumPy array that nothing else uses.

        An array of uint16 holds the bits of a bfloat16 tensor.
        """
        raise NotImplementedError

    def strided_leaf(self, array: Any, requires_grad: bool) -> Any:
        """A leaf with the strides and the offset of a view that `strides.placed` made."""
        return self.leaf(array, requires_grad)

    def stored(self, tensor: Any, storage: str) -> Any:  # noqa: ARG002 - a framework without these dtypes
        """The tensor in a dtype of `parity.cases.dtypes.STORAGES`, which can hold its values."""
        raise Unsupported(f"{type(self).__name__} has no tensors in {storage}")

    def shared(self, tensor: Any, requires_grad: bool) -> Any:
        """Another leaf that shares a tensor's memory."""
        raise NotImplementedError

    def to_numpy(self, tensor: Any) -> Any:
        """The values of a tensor as a NumPy array of the same dtype; the bits of a bfloat16 tensor in uint16."""
        raise NotImplementedError

    def gradients(self, outputs: Sequence[Any], grad_outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The gradient of sum(outputs * grad_outputs) for each leaf by the framework's autograd, or None."""
        raise NotImplementedError

    def run(self, job: Job) -> dict[str, Any]:
        """Outputs of the job's op and `grad.<input>` for its differentiable inputs, as the framework's tensors.

        A composition in float16 or bfloat16 is computed in float32, and its results are arrays, rounded once. Raises
        Unsupported, or whatever the framework or the user's op raises.
        """
        dtype = narrow_dtype(job) if self.is_composition(job) else ""
        if not dtype:
            return self.computed(job)
        return {name: self.rounded(value, dtype) for name, value in self.computed(in_float32(job)).items()}

    def rounded(self, value: Any, dtype: str) -> Any:
        """The array of a result, or of each in a list, in a dtype narrower than float32; integers stay integers."""
        if isinstance(value, (list, tuple)):
            return [self.rounded(item, dtype) for item in value]
        return value if shape_of(value) is None else in_dtype(self.to_numpy(value), dtype)

    def computed(self, job: Job) -> dict[str, Any]:
        """The results of `run` in the dtype of the job's inputs."""
        function = self.in_mode(job.function or (self.stored_method(job) if job.storage else self.method(job.op)))
        leaves = dict(job.leaves) or self.all_leaves(job)
        outputs = named_outputs(function(**leaves, **job.params))
        if job.function is not None:
            outputs = {name: self.returned(value) for name, value in outputs.items()}
        fits = all(shape_of(outputs.get(name)) == dy.shape for name, dy in job.grad_outputs.items())
        wanted = list(job.grad_outputs) if fits else []
        grad_outputs = {f"grad.{name}": self.leaves(job.grad_outputs[name], False) for name in wanted}
        if wanted:
            grads = self.gradients(
                [outputs[name] for name in wanted],
                list(grad_outputs.values()),
                [leaves[name] for name in job.differentiable],
            )
            outputs.update({f"grad.{name}": grad for name, grad in zip(job.differentiable, grads)})
        if job.watched:
            outputs.update({f"input.{name}": value for name, value in {**leaves, **grad_outputs}.items()})
        return outputs

    def returned(self, value: Any) -> Any:
        """What a user's op returned, or a `NotATensor` where the framework could not use it as a tensor."""
        return value

    def all_leaves(self, job: Job) -> dict[str, Any]:
        """The job's inputs as leaves; two names of the same array share memory."""
        leaves: dict[str, Any] = {}
        for name, value in job.inputs.items():
            twin = next((other for other in leaves if job.inputs[other] is value), None)
            has_gradient = name in job.differentiable
            leaves[name] = self.leaves(value, has_gradient) if twin is None else self.shared(leaves[twin], has_gradient)
            if name in job.storage:
                leaves[name] = self.stored(leaves[name], job.storage[name])
        return leaves

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this adapter's mode runs it; in eager mode, the function itself."""
        return function

    @classmethod
    def offers(cls, op: str) -> bool:
        """Whether this adapter has a method for `op`."""
        return hasattr(cls, op)

    @classmethod
    def declared(cls, op: str) -> Mapping[str, Any] | None:
        """The arguments for which an op is a call of the framework, if it is parity's own composition otherwise."""
        return getattr(getattr(cls, op, None), DECLARED, None)

    @classmethod
    def composes(cls, op: str, arguments: Mapping[str, Any]) -> bool:
        """Whether an op with these inputs and params by name is parity's own composition of the framework's calls."""
        plain = cls.declared(op)
        return plain is not None and not (plain and all(has(arguments.get(name), v) for name, v in plain.items()))

    def is_composition(self, job: Job) -> bool:
        """Whether a job is parity's own composition, nothing of which a user's function computes."""
        own = job.function is not None or any(part in vars(self) for part in parts_of(job.op))
        op = f"stored_{job.op}" if job.storage else job.op
        return not own and self.composes(op, {**job.inputs, **job.params})

    def method(self, op: str) -> Callable[..., Any]:
        """This adapter's method for `op`."""
        function = getattr(self, op, None)
        if function is None:
            raise Unsupported(f"{type(self).__name__} has no method for {op}")
        return function  # type: ignore[no-any-return]

    def stored_method(self, job: Job) -> Callable[..., Any]:
        """This adapter's kernel of an op whose operands are stored in a narrower dtype: `stored_<op>`."""
        function = getattr(self, f"stored_{job.op}", None)
        if function is None:
            dtypes = " and ".join(sorted(set(job.storage.values())))
            raise Unsupported(f"{type(self).__name__} has no kernel of {job.op} for operands in {dtypes}")
        return functools.partial(function, dtype=job.dtype)

    def adopt(self, own: Callable[[str], Callable[..., Any] | None]) -> None:
        """Use the user's functions, `own(name)`, in composed ops."""
        for name in {part for parts in PARTS.values() for part in parts}:
            vars(self).pop(name, None)
            function = own(name)
            if function is not None:
                setattr(self, name, function)

    def trainer(self, job: Any) -> Any:
        """The `training.worker.trainer.Trainer` of a job in this mode; raises Unsupported where there is none."""
        if self.mode not in self.trainers:
            raise Unsupported(f"{type(self).__name__} does not train in the mode {self.mode}")
        return load_object(self.trainers[self.mode])(self, job)

    def leaves(self, value: Any, requires_grad: bool) -> Any:
        """The leaf of an array, or the leaves of a list of arrays."""
        if isinstance(value, list):
            return [self.leaves(item, requires_grad) for item in value]
        return self.leaf(value, requires_grad) if is_whole(value) else self.strided_leaf(value, requires_grad)

    def lacks_kernel(self, error: BaseException) -> bool:
        """Whether `error` means that the framework has no kernel for this, or that this release lacks the function."""
        if isinstance(error, AttributeError) and re.match(r"module '[\w.]+' has no attribute ", str(error)):
            return True
        return any(re.search(pattern, str(error)) for pattern in self.no_kernel)

    def refuses(self, error: BaseException) -> bool:  # noqa: ARG002 - nothing between the framework and the user's code
        """Whether what runs the user's code in this mode cannot run it, although the code may be right."""
        return False

    def origin(self, error: BaseException) -> BaseException:
        """The error of the user's code itself, where this mode has wrapped it in `error`."""
        return error

    def describe(self, error: BaseException) -> str:
        """The framework's message in `error`, without stack traces."""
        return str(error)


def has(value: Any, wanted: Any) -> bool:
    """Whether an argument, which may be a tensor, has a value."""
    return value is None if wanted is None else bool(value == wanted)


def narrow_dtype(job: Job) -> str:
    """float16 or bfloat16 if inputs or grad_outputs of a job have this dtype, else nothing."""
    arrays = [*job.inputs.values(), *job.grad_outputs.values()]
    narrow = (a for value in arrays for a in (value if isinstance(value, list) else [value]) if is_narrow(a))
    return next(("bfloat16" if array.dtype == "uint16" else "float16" for array in narrow), "")


def in_float32(job: Job) -> Job:
    """A job in float16 or bfloat16 with its tensors in float32, those that are one array still one."""
    arrays: dict[int, Any] = {}

    def wide(value: Any) -> Any:
        if isinstance(value, list):
            return [wide(item) for item in value]
        return arrays.setdefault(id(value), widened(value))

    inputs, grad_outputs = ({n: wide(v) for n, v in given.items()} for given in (job.inputs, job.grad_outputs))
    return replace(job, inputs=inputs, grad_outputs=grad_outputs, dtype=job.dtype and "float32")


def with_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options or params of a message, with lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def named_outputs(result: Any) -> dict[str, Any]:
    """An op's result by output name: a mapping as it is, anything else as `y`."""
    return {str(name): value for name, value in result.items()} if isinstance(result, Mapping) else {"y": result}


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor of any framework; None if it is not a tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)
