"""The faulty ops for the adapter `oneflow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow
from fault_ops_autograd import Ops


class OneflowLib:
    """oneflow's tensor operations; see `fault_kernels.NumpyLib`."""

    @staticmethod
    def array(values: Any, like: Any) -> Any:
        return oneflow.tensor(np.asarray(values, dtype=OneflowLib.dtype(like)), dtype=like.dtype)

    @staticmethod
    def dtype(x: Any) -> str:
        return str(x.dtype).rpartition(".")[2]

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.to(getattr(oneflow, dtype))

    @staticmethod
    def sum(x: Any, axes: Any) -> Any:
        return oneflow.sum(x, dim=list(axes), keepdim=True)

    @staticmethod
    def sequential(rows: Any) -> Any:
        acc = rows[0]
        for i in range(1, rows.shape[0]):
            acc = acc + rows[i]
        return acc

    @staticmethod
    def reshape(x: Any, shape: Any) -> Any:
        return oneflow.reshape(x, tuple(shape))

    @staticmethod
    def permute(x: Any, order: Any) -> Any:
        return oneflow.permute(x, tuple(order))

    @staticmethod
    def expand(x: Any, shape: Any) -> Any:
        return x.expand(*shape)

    @staticmethod
    def take(flat: Any, index: Any) -> Any:
        return oneflow.index_select(flat, 0, oneflow.tensor(index))

    @staticmethod
    def detach(x: Any) -> Any:
        return x.detach()

    @staticmethod
    def concat(parts: Any) -> Any:
        return oneflow.cat(parts, dim=0)

    sqrt = staticmethod(oneflow.sqrt)
    abs = staticmethod(oneflow.abs)
    maximum = staticmethod(oneflow.maximum)
    minimum = staticmethod(oneflow.minimum)
    matmul = staticmethod(oneflow.matmul)
    largest = staticmethod(oneflow.max)


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    class Kernel(oneflow.autograd.Function):
        """A forward and a backward as they are given."""

        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            ctx.save_for_backward(*tensors)
            return forward(*tensors)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return backward(dy, *ctx.saved_tensors)

    return Kernel.apply


def functions(given: dict[str, Any]) -> dict[str, Any]:
    return Ops(OneflowLib, differentiable, given).functions()
