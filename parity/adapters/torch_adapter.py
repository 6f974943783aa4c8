"""PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parity.adapters.base import Adapter, Unsupported


class TorchAdapter(Adapter):
    """torch.nn.functional and torch.nn.utils in eager mode, on a CPU or a CUDA device."""

    no_kernel = (r'"\w+" not implemented for',)

    def __init__(self, device: str, threads: int) -> None:
        import torch

        super().__init__(device, threads)
        if device == "cuda" and not torch.cuda.is_available():
            raise Unsupported("torch sees no CUDA device here; use `device: cpu`")
        torch.set_num_threads(threads)
        # TF32 keeps 10 bits of the operands: a mode, not a default, when precision is compared.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.torch = torch
        self.functional = torch.nn.functional

    def version(self) -> str:
        return str(self.torch.__version__)

    def flags(self) -> dict[str, Any]:
        torch = self.torch
        return {
            "num_threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "cuda": torch.version.cuda,
        }

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        return self.torch.from_numpy(array).to(self.device).requires_grad_(requires_grad)

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.detach().cpu().numpy()

    def gradients(self, outputs: Sequence[Any], upstream: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        pairs = [(y, dy) for y, dy in zip(outputs, upstream) if y.requires_grad]
        if pairs:
            self.torch.autograd.backward(*map(list, zip(*pairs)))
        return [leaf.grad for leaf in leaves]

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.functional.layer_norm(x, normalized_shape, weight, bias, eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.functional.group_norm(x, num_groups, weight, bias, eps)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.functional.instance_norm(x, weight=weight, bias=bias, eps=eps)

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
        norms = [self.torch.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        total = norms[0] if scope == "global" else self.torch.linalg.vector_norm(self.torch.stack(norms), norm_type)
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        parameters = self.parameters_with(grads)
        self.torch.nn.utils.clip_grad_value_(parameters, clip_value)
        return {"grads": [p.grad for p in parameters]}

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        parameters = [self.torch.nn.Parameter(self.torch.zeros_like(grad)) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters
