"""OneFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from parity.adapters.base import Adapter


class OneflowAdapter(Adapter):
    """oneflow.nn, oneflow.nn.functional and oneflow.nn.utils in eager mode on the CPU."""

    no_kernel = (r"Cannot find the kernel matching", r"no kernel|kernel.*not (found|registered)")

    def __init__(self, device: str, threads: int) -> None:
        # OneFlow 0.9.0 would write a folder `log` into the working directory.
        os.environ.setdefault("GLOG_logtostderr", "1")
        import oneflow

        super().__init__(device, threads)
        self.flow = oneflow
        self.functional = oneflow.nn.functional

    def version(self) -> str:
        return str(self.flow.__version__)

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        tensor = self.flow.tensor(array)
        return self.flow.nn.Parameter(tensor) if requires_grad else tensor

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.detach().numpy()

    def gradients(self, outputs: Sequence[Any], upstream: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        pairs = [(y, dy) for y, dy in zip(outputs, upstream) if y.requires_grad]
        if pairs:
            self.flow.autograd.backward(*map(list, zip(*pairs)))
        return [leaf.grad for leaf in leaves]

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.layer(self.flow.nn.GroupNorm(num_groups, x.shape[1], eps=eps), weight, bias)(x)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        kinds = {3: self.flow.nn.InstanceNorm1d, 4: self.flow.nn.InstanceNorm2d, 5: self.flow.nn.InstanceNorm3d}
        return self.layer(kinds[len(x.shape)](x.shape[1], eps=eps, affine=True), weight, bias)(x)

    def batch_norm(
        self,
        x: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        weight: Any = None,
        bias: Any = None,
    ) -> Any:
        y = self.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.functional.linear(x, weight, bias)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        parameters = self.parameters_with(grads)
        groups = [parameters] if scope == "global" else [[p] for p in parameters]
        norms = [self.flow.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        total = norms[0] if scope == "global" else self.norm(norms, norm_type)
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        parameters = self.parameters_with(grads)
        self.flow.nn.utils.clip_grad_value_(parameters, clip_value)
        return {"grads": [p.grad for p in parameters]}

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        parameters = [self.flow.nn.Parameter(self.flow.zeros_like(grad)) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters

    def norm(self, norms: Sequence[Any], norm_type: float) -> Any:
        stacked = self.flow.stack(list(norms))
        return stacked.max() if norm_type == float("inf") else self.flow.linalg.vector_norm(stacked, norm_type)

    @staticmethod
    def layer(module: Any, weight: Any, bias: Any) -> Any:
        """`module` with our own leaves as its parameters, so that gradients arrive in them."""
        module.weight, module.bias = weight, bias
        return module
