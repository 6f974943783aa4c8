"""PyTorch's modes of execution."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job, Unsupported, named_outputs
from parity.adapters.modes import check_traceable
from parity.adapters.torch.adapter import TorchAdapter

REMEDY = "pip install triton"
LIMIT = "Triton's interpreter refuses this, a GPU may not"


class TorchCompile(TorchAdapter):
    """`torch.compile` of each op as one graph; an op that it cannot compile as a whole is unsupported."""

    def __init__(self, device: str, threads: int, mode: str = "compile", ranks: int = 1) -> None:
        # Otherwise Inductor starts processes that outlive a cell.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        super().__init__(device, threads, mode, ranks)

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # After eight shapes of one function, Dynamo would fall back to eager mode.
        self.framework.compiler.reset()
        return self.framework.compile(function, fullgraph=True, dynamic=False)  # type: ignore[no-any-return]

    def lacks_kernel(self, error: BaseException) -> bool:
        return isinstance(error, self.framework._dynamo.exc.Unsupported) or super().lacks_kernel(error)

    def describe(self, error: BaseException) -> str:
        """The message without the explanations and stack traces after it."""
        return str(error).partition("\n")[0]


class TorchScript(TorchAdapter):
    """Each op as a TorchScript graph, traced at the shapes of its tensors, with gradients by TorchScript."""

    no_kernel = (*TorchAdapter.no_kernel, r"Tracer cannot|Only tensors, lists, tuples of tensors")

    def __init__(self, device: str, threads: int, mode: str = "script", ranks: int = 1) -> None:
        super().__init__(device, threads, mode, ranks)
        self.framework._C._jit_set_num_profiled_runs(1)

    def run(self, job: Job) -> dict[str, Any]:
        check_traceable(job, "torch.jit.trace")
        return super().run(job)

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if self.framework.is_tensor(value)}
            params = {name: value for name, value in given.items() if name not in tensors}

            def program(*values: Any) -> Any:
                return named_outputs(function(**dict(zip(tensors, values)), **params))

            def copies() -> tuple[Any, ...]:
                return tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in tensors.values())

            graph = self.framework.jit.trace(program, copies(), strict=False, check_trace=False)
            # The executor profiles the first run, and optimises the graph for later ones.
            graph(*copies())
            return graph(*tensors.values())

        return call


class TorchChannelsLast(TorchAdapter):
    """Tensors of four and five axes in memory as NHWC and NDHWC."""

    def run(self, job: Job) -> dict[str, Any]:
        if not any(getattr(array, "ndim", 0) in (4, 5) for array in job.inputs.values()):
            raise Unsupported("channels_last is an order of four or five axes, and no input has as many")
        return super().run(job)

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        tensor = self.framework.from_numpy(array).to(self.device)
        formats = {4: self.framework.channels_last, 5: self.framework.channels_last_3d}
        tensor = tensor.contiguous(memory_format=formats.get(tensor.dim(), self.framework.contiguous_format))
        return tensor.requires_grad_(requires_grad)


class TorchAmp(TorchAdapter):
    """`torch.autocast` to bfloat16; results come back in the dtype of the inputs."""

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            outputs = named_outputs(in_bfloat16(self.framework, self.device, function, **given))
            tensors = [value for value in given.values() if self.framework.is_tensor(value)]
            dtype = next(tensor.dtype for tensor in tensors if tensor.is_floating_point())
            low = self.framework.bfloat16
            return {k: v.to(dtype) if getattr(v, "dtype", None) == low else v for k, v in outputs.items()}

        return call


def in_bfloat16(torch: Any, device: str, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """A function's result under autocast; raises Unsupported if nothing in it is computed in bfloat16."""
    seen: set[Any] = set()

    def watch(_mode: Any, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        seen.add(getattr(result, "dtype", None))
        return result

    watching = type("Watch", (torch.overrides.TorchFunctionMode,), {"__torch_function__": watch})
    with watching(), torch.autocast(device, torch.bfloat16):
        result = function(*args, **given)
    if torch.bfloat16 not in seen:
        raise Unsupported("torch.autocast computes nothing of this in bfloat16")
    return result


class TorchTf32(TorchAdapter):
    """Products of float32 matrices in TF32, which keeps 10 bits of the operands, on a CUDA device."""

    def __init__(self, device: str, threads: int, mode: str = "tf32", ranks: int = 1) -> None:
        super().__init__(device, threads, mode, ranks)
        self.framework.backends.cuda.matmul.allow_tf32 = True
        self.framework.backends.cudnn.allow_tf32 = True

    def run(self, job: Job) -> dict[str, Any]:
        self.check_device()
        return super().run(job)

    def trainer(self, job: Any) -> Any:
        self.check_device()
        return super().trainer(job)

    def check_device(self) -> None:
        """Raise Unsupported if there is no TF32."""
        if self.device != "cuda":
            raise Unsupported("TF32 is a format of CUDA devices; use `device: cuda`")


class TorchTritonInterpret(TorchAdapter):
    """Triton's kernels in its interpreter, which needs no GPU; everything else is eager."""

    dtypes = ("float16", "float32", "float64")  # type: ignore[assignment] # the eager adapter has all: None

    def __init__(self, device: str, threads: int, mode: str = "triton-interpret", ranks: int = 1) -> None:
        # Triton reads it when it is imported, and when a kernel is defined.
        os.environ["TRITON_INTERPRET"] = "1"
        super().__init__(device, threads, mode, ranks)

    def probe(self) -> None:
        try:
            from parity.adapters.torch import triton_interpreter
        except ImportError as error:
            raise Unsupported(f"Triton's interpreter needs triton, which is not here ({error}): {REMEDY}") from error
        if problem := triton_interpreter.problem():
            raise Unsupported(f"Triton's interpreter does not work here: {problem}; try another release: {REMEDY}")
        triton_interpreter.adapt()
        self.interpreter = triton_interpreter

    def refuses(self, error: BaseException) -> bool:
        return bool(self.interpreter.is_limit(error))

    def origin(self, error: BaseException) -> BaseException:
        return self.interpreter.origin(error)

    def describe(self, error: BaseException) -> str:
        text = super().describe(self.origin(error))
        return f"{LIMIT}: {text}" if self.refuses(error) else text
