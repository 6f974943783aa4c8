"""NumPy: the references, in float32 and rounded once where the dtype is narrower; the home of user ops that bring their
own backward.

The one adapter that looks into another room: its framework is `parity.cases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from parity.adapters.base import Adapter, Job, Unsupported, named_outputs
from parity.adapters.bits import in_dtype, values_of


class NumpyAdapter(Adapter):
    """Forward and gradients through HIPS autograd; a user's op through its `<op>_backward`."""

    needs_backward = True
    dtypes = None
    strided = True
    trainers: ClassVar[Mapping[str, str]] = {"eager": "parity.training.worker.numpy_trainer:NumpyTrainer"}

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import numpy

        super().__init__(device, threads, mode, ranks)
        self.numpy = numpy

    @classmethod
    def offers(cls, op: str) -> bool:  # noqa: ARG003 - every op has an oracle
        return True

    def version(self) -> str:
        return str(self.numpy.__version__)

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - NumPy tracks nothing
        if array.dtype != "uint16":
            return array
        try:
            from ml_dtypes import bfloat16
        except ImportError as error:
            raise Unsupported(f"bfloat16 needs the package ml_dtypes in this interpreter: {error}") from error
        return array.view(bfloat16)

    def shared(self, tensor: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - NumPy tracks nothing
        return tensor

    def to_numpy(self, tensor: Any) -> Any:
        return self.numpy.asarray(tensor)

    def run(self, job: Job) -> dict[str, Any]:
        if job.function is None:
            return reference_outputs(job)
        inputs, grad_outputs = (
            self.all_leaves(job),
            {name: self.leaf(dy, False) for name, dy in job.grad_outputs.items()},
        )
        outputs = named_outputs(job.function(**inputs, **job.params))
        if job.grad_outputs and job.backward is not None:
            gradients = job.backward(*grad_outputs.values())
            outputs.update(named_gradients(gradients, job))
        if job.watched:
            arriving = {f"grad.{name}": value for name, value in grad_outputs.items()}
            outputs.update({f"input.{name}": value for name, value in {**inputs, **arriving}.items()})
        return outputs


def reference_outputs(job: Job) -> dict[str, Any]:
    """The reference of `parity.cases` in the dtype of the inputs; in float32 and rounded once if that is narrower."""
    try:
        from parity.cases import OPS
        from parity.cases.oracle import evaluate
    except ImportError as error:
        raise Unsupported(f"the oracle needs HIPS autograd in this interpreter: {error}") from error
    op = OPS.get(job.op)
    if op is None:
        raise Unsupported(f"there is no oracle for {job.op}")
    grad_outputs = {f"grad.{name}": value for name, value in job.grad_outputs.items()}
    given = {**flat(job.inputs), **grad_outputs}
    dtype = next(array.dtype for array in given.values() if array.dtype.kind in "fu")
    tensors = {name: values_of(array) if array.dtype == "uint16" else array for name, array in given.items()}
    outputs = evaluate(op, op.params(**job.params), tensors, dtype="float32" if dtype.itemsize == 2 else dtype)
    return {name: in_dtype(values, "bfloat16" if dtype == "uint16" else str(dtype)) for name, values in outputs.items()}


def flat(inputs: Any) -> dict[str, Any]:
    """Inputs by tensor name, lists as `grads.0`, `grads.1`, ..."""
    result: dict[str, Any] = {}
    for name, value in inputs.items():
        result.update(
            {f"{name}.{i}": item for i, item in enumerate(value)} if isinstance(value, list) else {name: value}
        )
    return result


def named_gradients(gradients: Any, job: Job) -> dict[str, Any]:
    """The results of `<op>_backward`: a mapping by `grad.x` or `x`, or a sequence in the order of the inputs."""
    if not hasattr(gradients, "items"):
        values = gradients if isinstance(gradients, (tuple, list)) else [gradients]
        gradients = dict(zip(job.differentiable, values))
    return {name if name.startswith("grad.") else f"grad.{name}": value for name, value in gradients.items()}
