"""The faulty ops for the adapter `torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fault_ops_autograd import Ops


class TorchLib:
    """torch's tensor operations; see `fault_kernels.NumpyLib`."""

    @staticmethod
    def array(values: Any, like: Any) -> Any:
        return torch.as_tensor(values, dtype=like.dtype)

    @staticmethod
    def dtype(x: Any) -> str:
        return str(x.dtype).rpartition(".")[2]

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    @staticmethod
    def sum(x: Any, axes: Any) -> Any:
        return torch.sum(x, dim=axes, keepdim=True)

    @staticmethod
    def sequential(rows: Any) -> Any:
        # torch.cumsum would accumulate in float64.
        acc = rows[0]
        for i in range(1, rows.shape[0]):
            acc = acc + rows[i]
        return acc

    reshape = staticmethod(torch.reshape)
    permute = staticmethod(torch.permute)
    sqrt = staticmethod(torch.sqrt)
    abs = staticmethod(torch.abs)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    matmul = staticmethod(torch.matmul)
    largest = staticmethod(torch.max)
    concat = staticmethod(torch.cat)

    @staticmethod
    def expand(x: Any, shape: Any) -> Any:
        return x.expand(shape)

    @staticmethod
    def take(flat: Any, index: Any) -> Any:
        return torch.index_select(flat, 0, torch.as_tensor(index))

    @staticmethod
    def detach(x: Any) -> Any:
        return x.detach()


class Kernel(torch.autograd.Function):
    """A forward and a backward as they are given."""

    @staticmethod
    def forward(ctx: Any, run: Any, back: Any, *tensors: Any) -> Any:
        ctx.back = back
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return (None, None, *ctx.back(dy, *ctx.saved_tensors))


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: Kernel.apply(forward, backward, *tensors)


def functions(given: dict[str, Any]) -> dict[str, Any]:
    return Ops(TorchLib, differentiable, given).functions()
