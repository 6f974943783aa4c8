"""PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from parity.adapters.base import Unsupported
from parity.adapters.torch_style import TapeAdapter, TorchStyleAdapter
from parity.torch_gradients import scalar_of

SWITCHES: Mapping[str, str] = {
    "get_default_dtype": "set_default_dtype",
    "is_grad_enabled": "set_grad_enabled",
    "is_anomaly_enabled": "set_anomaly_enabled",
    "are_deterministic_algorithms_enabled": "use_deterministic_algorithms",
    "get_num_threads": "set_num_threads",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "is_autocast_cpu_enabled": "set_autocast_cpu_enabled",
    "is_autocast_enabled": "set_autocast_enabled",
}
"""Functions of torch that read a setting, by those that change it."""


class TorchTensors(TapeAdapter):
    """PyTorch's tensors, on a CPU or a CUDA device."""

    modules = True
    no_kernel: ClassVar[tuple[str, ...]] = (
        r'"\w+" not implemented for',
        "Expected more than 1 value per channel",
        "Invalid scaling configuration|must be a matrix|itensor_view_from_dense expects",
    )

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import torch

        super().__init__(device, threads, mode, ranks)
        if device == "cuda" and not torch.cuda.is_available():
            raise Unsupported("torch sees no CUDA device here; use `device: cpu`")
        torch.set_num_threads(threads)
        # TF32 keeps 10 bits of the operands: a mode, not a default, when precision is compared.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.framework = torch
        self.math = torch
        self.nn = torch.nn.functional

    def settings(self) -> Any:
        return [(read, write, read()) for read, write in self.switches()]

    def switches(self) -> list[tuple[Any, Any]]:
        """The functions that read and change a setting, of those that this release has."""
        names = [pair for pair in SWITCHES.items() if all(hasattr(self.framework, name) for name in pair)]
        return [(getattr(self.framework, read), getattr(self.framework, write)) for read, write in names]

    def restore(self, settings: Any) -> None:
        for read, write, value in settings:
            if read() != value:
                write(value)

    def open_modes(self) -> list[str]:
        functions = getattr(self.framework.overrides, "_get_current_function_mode_stack", list)
        dispatch = getattr(self.framework.utils._python_dispatch, "_get_current_dispatch_mode_stack", list)
        names = [type(mode).__name__ for mode in (*functions(), *dispatch())]
        return [*names, "inference_mode"] if self.framework.is_inference_mode_enabled() else names

    def flags(self) -> dict[str, Any]:
        torch = self.framework
        return {
            "num_threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "cuda": torch.version.cuda,
        }

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        if array.dtype == "uint16":
            tensor = self.framework.from_numpy(array.view("int16")).view(self.framework.bfloat16)
        else:
            tensor = self.framework.from_numpy(array)
        return tensor.to(self.device).requires_grad_(requires_grad)

    def stored(self, tensor: Any, storage: str) -> Any:
        return tensor.to(getattr(self.framework, storage))

    def backward(self, outputs: list[Any], grad_outputs: list[Any]) -> None:
        self.framework.autograd.backward(scalar_of(outputs, grad_outputs))

    def to_numpy(self, tensor: Any) -> Any:
        values = tensor.detach().cpu()
        if tensor.is_conj() or tensor.is_neg():  # A lazy conjugate, whose memory holds other numbers.
            values = values.resolve_conj().resolve_neg()
        if values.dtype == self.framework.bfloat16:
            return values.view(self.framework.int16).numpy().view("uint16")
        return values.numpy()


class TorchAdapter(TorchTensors, TorchStyleAdapter):
    """torch.nn.functional and torch.nn.utils in eager mode."""

    trainers: ClassVar[Mapping[str, str]] = {
        "eager": "parity.training.worker.torch_trainer:TorchTrainer",
        "compile": "parity.training.worker.torch_trainer:CompileTrainer",
        "channels_last": "parity.training.worker.torch_trainer:ChannelsLastTrainer",
        "amp-bf16": "parity.training.worker.torch_trainer:AmpTrainer",
        "tf32": "parity.training.worker.torch_trainer:TorchTrainer",
        "triton-interpret": "parity.training.worker.torch_trainer:TorchTrainer",
    }

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.framework.nn.functional.group_norm(x, num_groups, weight, bias, eps)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.framework.nn.functional.instance_norm(x, weight=weight, bias=bias, eps=eps)

    def stored_linear(self, x: Any, weight: Any, dtype: str, bias: Any = None) -> Any:
        y = self.scaled(x.reshape(-1, x.shape[-1]), weight.t(), dtype, bias)
        return y.reshape(*x.shape[:-1], -1)

    def stored_matmul(self, x: Any, other: Any, dtype: str) -> Any:
        return self.scaled(x, other, dtype)

    def scaled(self, x: Any, other: Any, dtype: str, bias: Any = None) -> Any:
        """The product of 8-bit matrices, with both scales 1."""
        one = self.framework.ones((), device=x.device)
        return self.framework._scaled_mm(x, other, one, one, bias=bias, out_dtype=getattr(self.framework, dtype))

    def lstm(self, x: Any, h0: Any = None, c0: Any = None, **weights: Any) -> Any:
        y, h, c = self.framework.lstm(x, self.states(x, weights, h0, c0), *self.recurrent(weights))
        return {"y": y, "h": h[0], "c": c[0]}

    def gru(self, x: Any, h0: Any = None, **weights: Any) -> Any:
        y, h = self.framework.gru(x, self.states(x, weights, h0)[0], *self.recurrent(weights))
        return {"y": y, "h": h[0]}

    def states(self, x: Any, weights: Mapping[str, Any], *given: Any) -> list[Any]:
        """The initial states of a single layer, zeros if none are given."""
        zeros = x.new_zeros((x.shape[1], weights["weight_hh"].shape[1]))
        return [(zeros if state is None else state).unsqueeze(0) for state in given]

    @staticmethod
    def recurrent(weights: Mapping[str, Any]) -> tuple[Any, ...]:
        """The weights, and the options of a single layer in one direction, without dropout, steps first."""
        flat = [weights[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if name in weights]
        return flat, "bias_ih" in weights, 1, 0.0, False, False, False

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, step: int, **options: Any) -> Any:
        leaf = self.framework.nn.Parameter(param)
        leaf.grad = grad
        optimizer = getattr(self.framework.optim, kind)([leaf], **options)
        before = {**state, "step": self.framework.tensor(float(step - 1))}
        if kind == "SGD" and step == 1:
            before = {}
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": {0: before} if before else {}, "param_groups": groups})
        optimizer.step()
        return {"param": leaf, **{name: optimizer.state[leaf][name] for name in state}}
