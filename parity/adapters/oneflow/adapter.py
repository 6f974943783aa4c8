"""OneFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.adapters.base import Unsupported, composed
from parity.adapters.bits import values_of
from parity.adapters.strides import storage_of
from parity.adapters.torch_style import TorchStyleAdapter

RENAMED = {"momentum_buffer": "momentum_buf"}
"""State of an optimizer to OneFlow's name."""


class OneflowAdapter(TorchStyleAdapter):
    """oneflow.nn, oneflow.nn.functional and oneflow.nn.utils in eager mode on the CPU."""

    no_kernel: ClassVar[tuple[str, ...]] = (
        r"Cannot find the kernel matching",
        r"no kernel|kernel.*not (found|registered)",
        # Messages about float16 and bfloat16, which some checks of OneFlow do not count as floating-point types.
        r"[Oo]nly supports? (the )?float|Data type is not floating|mean of floating types|common dtype to be floating",
        r"InferDataType Failed\. Expected kB?Float16|not support backward for bfloat16",
    )
    trainers: ClassVar[Mapping[str, str]] = {
        "eager": "parity.training.worker.oneflow_trainer:OneflowTrainer",
        "graph": "parity.training.worker.oneflow_graph:GraphTrainer",
    }

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        # OneFlow 0.9.0 would write a folder `log` into the working directory.
        os.environ.setdefault("GLOG_logtostderr", "1")
        # By default OneFlow's scheduler spins while kernels run in another thread; now it runs them itself.
        os.environ.setdefault("ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD", "0")
        import oneflow

        super().__init__(device, threads, mode, ranks)
        self.framework = oneflow
        self.math = oneflow
        self.nn = oneflow.nn.functional

    def describe(self, error: BaseException) -> str:
        """The message without the C++ frames after it."""
        return re.split(r'\n?\s*File "', str(error))[0]

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        if array.dtype == "uint16":
            tensor = self.framework.tensor(values_of(array)).to(self.framework.bfloat16)
        else:
            tensor = self.framework.tensor(array)
        return self.framework.nn.Parameter(tensor) if requires_grad else tensor

    def strided_leaf(self, array: Any, requires_grad: bool) -> Any:
        storage = storage_of(array)
        whole = self.leaf(storage.flat, False)
        # OneFlow 0.9.0 loses the offset of a view in detach(), and in nn.Parameter.
        return self.framework.as_strided(whole, array.shape, storage.strides, storage.offset).requires_grad_(
            requires_grad
        )

    def to_numpy(self, tensor: Any) -> Any:
        values = tensor.detach()
        if values.dtype == self.framework.bfloat16:
            return (values.to(self.framework.float32).numpy().view("uint32") >> 16).astype("uint16")
        return values.numpy()

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.layer(self.framework.nn.GroupNorm(num_groups, x.shape[1], eps=eps), weight, bias)(x)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        nn = self.framework.nn
        kinds = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
        return self.layer(kinds[len(x.shape)](x.shape[1], eps=eps, affine=True), weight, bias)(x)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        # OneFlow 0.9.0 does not take an nn.Parameter as src.
        return self.framework.scatter_add(x, dim, index, src.clone())

    def pad(self, x: Any, pad: Sequence[int], mode: str, value: float) -> Any:
        try:
            return super().pad(x, pad, mode, value)
        except NotImplementedError as error:
            raise Unsupported(f"oneflow.nn.functional.pad: {error}") from error

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return self.framework.nn.PixelShuffle(upscale_factor)(x)

    def lstm(self, x: Any, h0: Any = None, c0: Any = None, **weights: Any) -> Any:
        states = tuple(self.state(state, x, weights) for state in (h0, c0))
        y, (h, c) = self.recurrent(self.framework.nn.LSTM, x, weights)(x, states)
        return {"y": y, "h": h[0], "c": c[0]}

    def gru(self, x: Any, h0: Any = None, **weights: Any) -> Any:
        y, h = self.recurrent(self.framework.nn.GRU, x, weights)(x, self.state(h0, x, weights))
        return {"y": y, "h": h[0]}

    def state(self, state: Any, x: Any, weights: Mapping[str, Any]) -> Any:
        """The initial state of a single layer; zeros if none is given."""
        zeros = self.framework.zeros(x.shape[1], weights["weight_hh"].shape[1], dtype=x.dtype)
        return (zeros if state is None else state).unsqueeze(0)

    @staticmethod
    def recurrent(kind: Any, x: Any, weights: Mapping[str, Any]) -> Any:
        """A layer with these leaves as parameters."""
        module = kind(x.shape[2], weights["weight_hh"].shape[1], bias="bias_ih" in weights)
        for name, leaf in weights.items():
            delattr(module, f"{name}_l0")
            setattr(module, f"{name}_l0", leaf)
        return module

    def conv1d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv1d(x, weight, bias, **with_numbers(options))

    def conv2d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv2d(x, weight, bias, **with_numbers(options))

    def conv3d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv3d(x, weight, bias, **with_numbers(options))

    def interpolate(self, x: Any, mode: str = "nearest", **options: Any) -> Any:
        if mode == "nearest-exact":
            raise Unsupported("oneflow.nn.functional.interpolate has no mode nearest-exact")
        return self.framework.nn.functional.interpolate(x, mode=mode, **options)

    def remainder(self, x: Any, other: Any) -> Any:  # noqa: ARG002 - as in every adapter
        raise Unsupported("oneflow has no remainder")

    def sum(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.sum(x, dim=self.axes(x, dim), keepdim=keepdim)

    def mean(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.mean(x, dim=self.axes(x, dim), keepdim=keepdim)

    def var(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.moment("var", x, dim, correction, keepdim)

    def std(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.moment("std", x, dim, correction, keepdim)

    def moment(self, name: str, x: Any, dim: Any, correction: int, keepdim: bool) -> Any:
        if correction not in (0, 1):
            raise Unsupported(f"oneflow.{name} has no correction of {correction}")
        return getattr(self.framework, name)(x, dim=dim, unbiased=correction == 1, keepdim=keepdim)

    @composed
    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, keep_mask: Any = None, **options: Any
    ) -> Any:
        # OneFlow 0.9 has no attention that trains on a CPU, so products and a softmax are used.
        flow, scale = self.framework, options.get("scale")
        if options.get("enable_gqa"):
            shared = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        scores = flow.matmul(query, key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if options.get("is_causal"):
            keep_mask = flow.ones(tuple(scores.shape[-2:])).tril()
        if attn_mask is not None:
            scores = scores + attn_mask
        if keep_mask is not None:
            scores = flow.where(keep_mask.bool(), scores, flow.full_like(scores, float("-inf")))
        return flow.matmul(flow.softmax(scores, dim=-1), value)

    def nll_loss(self, x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
        return self.of_rows(self.framework.nn.NLLLoss(weight, **options), x, target)

    @composed
    def ctc_loss(self, x: Any, target: Any, input_lengths: Any, target_lengths: Any, **options: Any) -> Any:
        logs = self.framework.nn.functional.log_softmax(x, -1)
        return self.framework.nn.CTCLoss(**options)(logs, target, input_lengths, target_lengths)

    def lamb(self, **given: Any) -> Any:
        return self.updated("lamb", **given)

    @staticmethod
    def layer(module: Any, weight: Any, bias: Any) -> Any:
        """`module` with these leaves as parameters, so that they get the gradients."""
        # A graph's tensors are not Parameters and cannot replace them.
        del module.weight, module.bias
        module.weight, module.bias = weight, bias
        return module

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, step: int, **options: Any) -> Any:
        leaf = self.framework.nn.Parameter(param)
        leaf.grad = grad
        try:
            optimizer = getattr(self.framework.optim, kind)([leaf], **options)
        except AssertionError as error:
            raise Unsupported(f"oneflow.optim.{kind}: {error}") from error
        names = {name: RENAMED.get(name, name) for name in state}
        first = kind == "SGD" and step == 1
        before = {
            ours: self.framework.zeros_like(value) if first else value
            for (_, ours), value in zip(names.items(), state.values())
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": {"step": step - 1, 0: before}, "param_groups": groups})
        optimizer.step()
        after = optimizer.state_dict()["state"][0]
        return {"param": leaf, **{name: after[ours] for name, ours in names.items()}}


def with_numbers(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a convolution; raises Unsupported for a padding by name."""
    if isinstance(options.get("padding"), str):
        raise Unsupported("OneFlow's convolutions take a padding in numbers")
    return options
