"""The faulty ops for the adapter `paddle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from fault_ops_autograd import Ops


class PaddleLib:
    """paddle's tensor operations; see `fault_kernels.NumpyLib`.

    Scalars become tensors first: Paddle 3.3.1 keeps the number in `x + 1e-5` as float32, also where x is float64.
    """

    @staticmethod
    def array(values: Any, like: Any) -> Any:
        return paddle.to_tensor(np.asarray(values, dtype=PaddleLib.dtype(like)))

    @staticmethod
    def dtype(x: Any) -> str:
        return str(x.dtype).rpartition(".")[2]

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return paddle.cast(x, dtype)

    @staticmethod
    def sum(x: Any, axes: Any) -> Any:
        return paddle.sum(x, axis=list(axes), keepdim=True)

    @staticmethod
    def sequential(rows: Any) -> Any:
        acc = rows[0]
        for i in range(1, rows.shape[0]):
            acc = acc + rows[i]
        return acc

    @staticmethod
    def reshape(x: Any, shape: Any) -> Any:
        return paddle.reshape(x, list(shape))

    @staticmethod
    def permute(x: Any, order: Any) -> Any:
        return paddle.transpose(x, list(order))

    @staticmethod
    def expand(x: Any, shape: Any) -> Any:
        return paddle.expand(x, list(shape))

    @staticmethod
    def take(flat: Any, index: Any) -> Any:
        return paddle.index_select(flat, paddle.to_tensor(index), axis=0)

    @staticmethod
    def detach(x: Any) -> Any:
        return x.detach()

    sqrt = staticmethod(paddle.sqrt)
    abs = staticmethod(paddle.abs)
    maximum = staticmethod(paddle.maximum)
    minimum = staticmethod(paddle.minimum)
    matmul = staticmethod(paddle.matmul)
    largest = staticmethod(paddle.max)
    concat = staticmethod(paddle.concat)


class Kernel(paddle.autograd.PyLayer):
    """A forward and a backward as they are given."""

    @staticmethod
    def forward(ctx: Any, run: Any, back: Any, *tensors: Any) -> Any:
        ctx.back = back
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return ctx.back(dy, *ctx.saved_tensor())


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: Kernel.apply(forward, backward, *tensors)


def functions(given: dict[str, Any]) -> dict[str, Any]:
    return Ops(PaddleLib, differentiable, given).functions()
