"""The trail of a call: what each call of PyTorch's functions reads and returns, with values and the user's line.

`python trail.py REQUEST FOLDER` calls a user's class or function in a process of its own and writes the trails to
FOLDER: `trail.json`, and `values.bin` with all numbers in float64. The host reads both without trusting them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional

import numpy as np

from parity.program.worker.recording import attribute_of, is_inplace, tensors_in
from parity.program.worker.user_module import ARGUMENTS, UserModule, entry_of, parsed
from parity.torch_gradients import scalar_of

TRAIL, VALUES = "trail.json", "values.bin"
MOST_ROWS = 4000
MOST_NUMBERS = 1 << 23
"""Limits of a trail: 64 MB of values."""
SEVERAL = 64
"""The most results of one call that are kept."""
PLAIN = frozenset(
    (
        *("shape", "dtype", "device", "ndim", "layout", "requires_grad", "requires_grad_", "is_cuda", "grad_fn"),
        *("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_leaf", "register_hook"),
        "__set__",
    )
)
"""What is asked of a tensor besides its values."""
UNFILLED = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
"""Functions whose results have no values yet."""


class TrailEndedError(RuntimeError):
    """A trail has as many rows or numbers as are kept."""


class TrailValues:
    """Arrays by number; equal ones have the same number."""

    def __init__(self) -> None:
        self.arrays: List[Any] = []
        self.dtypes: List[str] = []
        self.n = 0
        self._numbers: Dict[Any, int] = {}

    def number(self, tensor: Any) -> int:
        """The number of a tensor's current value. Raises TrailEndedError."""
        array, dtype = plain(tensor), str(tensor.dtype).rpartition(".")[2]
        key = (dtype, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._numbers:
            self.n += array.size
            if self.n > MOST_NUMBERS:
                raise TrailEndedError
            self._numbers[key] = len(self.arrays)
            self.arrays.append(array)
            self.dtypes.append(dtype)
        return self._numbers[key]

    @property
    def content(self) -> bytes:
        """All numbers."""
        return b"".join(np.ascontiguousarray(array, np.float64).tobytes() for array in self.arrays)

    def listing(self, trails: List[Any]) -> bytes:
        """Trails, and the shapes and dtypes of the values, in JSON."""
        shapes = [list(array.shape) for array in self.arrays]
        return json.dumps({"trails": trails, "shapes": shapes, "dtypes": self.dtypes}).encode()


def plain(tensor: Any) -> Any:
    """A tensor as an array of float64; of complex numbers their real and imaginary parts."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
        return np.stack([plain(tensor.real), plain(tensor.imag)], -1)
    return np.array(tensor.double().cpu().numpy())


class CallTrail:
    """Rows of calls in their order; `path` is the file whose lines are told, `depth` how many classes with an own
    backward pass have been entered."""

    def __init__(self, torch: Any, path: str, values: TrailValues) -> None:
        self.torch, self.path, self.values = torch, path, values
        self.rows: List[Dict[str, Any]] = []
        self.inputs: Dict[str, int] = {}
        self.outputs: Dict[str, int] = {}
        self.gradients: Dict[str, int] = {}
        self.error: Optional[Dict[str, Any]] = None
        self._given: Dict[str, Any] = {}
        self._versions: Dict[str, int] = {}
        self._last: Dict[int, int] = {}
        self._active = True
        self._backward = False
        self.depth = 0

    def run(
        self, module: Any, given: Mapping[str, Any], params: Mapping[str, Any], arriving: Mapping[str, Any]
    ) -> None:
        """Call the code with tensors by name, and its backward pass if gradients arrive."""
        torch, leaves = self.torch, dict(given)
        copied = arguments_in(given, params) if arriving else frozenset()
        self._given = {n: t.clone() if t.requires_grad and n in copied else t for n, t in given.items()}
        self.inputs = {name: self.values.number(tensor) for name, tensor in self._given.items()}
        self._versions = {name: version_of(tensor) for name, tensor in self._given.items()}
        try:
            with torch.set_grad_enabled(bool(arriving)), recording(self):
                outputs = module(**self._given, **params)
            tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
            self.outputs = {name: self.values.number(value) for name, value in tensors.items()}
            self._backward = True
            self.differentiate(tensors, leaves, arriving)
        except TrailEndedError:
            raise
        except Exception as error:
            self.error = {"text": str(error)[:200], "line": self.line_of(error)}

    def differentiate(self, tensors: Mapping[str, Any], leaves: Mapping[str, Any], arriving: Mapping[str, Any]) -> None:
        """Make the backward pass."""
        ends = [name for name, value in tensors.items() if name in arriving and value.requires_grad]
        floats = {name: tensor for name, tensor in leaves.items() if tensor.requires_grad}
        if not ends or not floats:
            return
        arrived = [arriving[name].to(tensors[name].dtype) for name in ends]
        end = scalar_of([tensors[n] for n in ends], arrived)
        with recording(self):
            self.torch.autograd.backward(end, inputs=list(floats.values()))
        self.gradients = {n: self.values.number(t.grad) for n, t in floats.items() if t.grad is not None}

    def line_of(self, error: BaseException) -> int:
        """The user's innermost line of an error; 0 if it has none."""
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.path:
                line = trace.tb_lineno
            trace = trace.tb_next
        return line

    def here(self) -> int:
        """The user's innermost line; 0 outside the file."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)

    def call(self, function: Any, args: Any, kwargs: Any, make: Any = None) -> Any:
        """Make a call, and note it."""
        named = attribute_of(function) or function.__name__
        if not self._active or named in PLAIN or named in UNFILLED:
            return (make or function)(*args, **kwargs)
        with self.paused():
            operands = tensors_in((args, kwargs), self.torch.Tensor)
            is_read = not named.endswith("_like") and not named.startswith("new_")
            before = [self.values.number(tensor) for tensor in operands] if is_read else []
            needed = is_read and any(tensor.requires_grad for tensor in operands)
        result = (make or function)(*args, **kwargs)
        with self.paused():
            self.note(named, (args, kwargs), (operands, before, needed), result)
        return result

    def launch(self, make: Any, args: Any, kwargs: Any) -> Any:
        """Launch a kernel, which writes to its arguments, and note it as one call; its results are what has changed."""
        operands = tensors_in((args, kwargs), self.torch.Tensor)
        with self.paused():
            before = list(map(self.values.number, operands))
            result = make(*args, **kwargs)
            changed = [tensor for tensor, was in zip(operands, before) if self.values.number(tensor) != was]
            self.note("launch", (args, kwargs), (operands, before, False), changed)
        return result

    def note(self, named: str, given: Any, read: Any, result: Any) -> None:
        """Add a row."""
        (args, kwargs), (operands, before, needed) = given, read
        results = tensors_in(result, self.torch.Tensor)[:SEVERAL]
        if is_inplace(named) and operands and not any(result is operands[0] for result in results):
            results = [operands[0], *results]
        if not results:
            return
        if len(self.rows) >= MOST_ROWS:
            raise TrailEndedError
        row: Dict[str, Any] = {
            "function": named.strip("_"),
            "line": self.here(),
            "reads": before,
            "after": [self._last[key] for key in map(storage_of, operands) if key in self._last],
            "results": [self.values.number(tensor) for tensor in results],
            "numbers": [float(n) for n in numbers_in((args, kwargs))],
            "backward": self._backward,
            "gradients": [],
            "cut": needed and self.is_cut(results),
            "writes": [],
        }
        for name, tensor in self._given.items():
            if self._versions[name] != version_of(tensor):
                self._versions[name] = version_of(tensor)
                row["writes"].append(name)
        for tensor in results:
            self._last[storage_of(tensor)] = len(self.rows)
            if tensor.requires_grad and not self._backward:
                tensor.register_hook(self.hook(row))
        self.rows.append(row)

    def is_cut(self, results: List[Any]) -> bool:
        """Whether no result has a gradient, although it could."""
        could = not self.depth and not self._backward and results[0].is_floating_point()
        return could and not any(tensor.requires_grad for tensor in results)

    def hook(self, row: Dict[str, Any]) -> Any:
        """Notes the gradient of a call's result."""

        def note(gradient: Any) -> None:
            with self.paused():
                row["gradients"].append(self.values.number(gradient))

        return note

    def paused(self) -> Any:
        """Inside, no call is noted."""
        return Paused(self)

    @property
    def reply(self) -> Dict[str, Any]:
        """The trail in JSON."""
        names = ("rows", "inputs", "outputs", "gradients", "error")
        return {name: getattr(self, name) for name in names}


class PatchedTrail(CallTrail):
    """A trail in which some rows return other values: arrays in the shapes of their results, by the rows' numbers."""

    def __init__(self, torch: Any, path: str, values: TrailValues, patch: Mapping[int, List[Any]]) -> None:
        super().__init__(torch, path, values)
        self.patch = patch

    def call(self, function: Any, args: Any, kwargs: Any, make: Any = None) -> Any:
        """Make a call, and return what its row has instead."""
        n_before = len(self.rows)
        result = super().call(function, args, kwargs, make)
        arrays = self.patch.get(len(self.rows) - 1) if len(self.rows) > n_before else None
        if arrays is None:
            return result
        with self.paused(), self.torch.no_grad():
            return self.replaced(function, args, result, arrays)

    def replaced(self, function: Any, args: Any, result: Any, arrays: List[Any]) -> Any:
        """A result with other values, in place where the call writes in place."""
        torch = self.torch
        if is_inplace(attribute_of(function) or function.__name__):
            args[0].copy_(torch.tensor(arrays[0]))
            return result
        if isinstance(result, torch.Tensor):
            return torch.tensor(arrays[0]).to(result.dtype)
        tensors = [torch.tensor(array).to(own.dtype) for array, own in zip(arrays, result)]
        return type(result)(tensors)


class Paused:
    """Inside, a trail notes nothing."""

    def __init__(self, trail: CallTrail) -> None:
        self.trail, self.before = trail, trail._active

    def __enter__(self) -> None:
        self.before, self.trail._active = self.trail._active, False

    def __exit__(self, *_: Any) -> None:
        self.trail._active = self.before


def recording(trail: CallTrail) -> Any:
    """A context inside which calls of PyTorch's functions are noted, and those of classes with an own backward pass;
    such a class is entered."""
    from torch.overrides import TorchFunctionMode

    own = trail.torch.autograd.Function.__dict__["apply"]

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        def whole(*args: Any, **kwargs: Any) -> Any:
            trail.depth += 1
            try:
                return own.__func__(kind, *args, **kwargs)
            finally:
                trail.depth -= 1

        whole.__name__ = "apply"
        enter_backward(kind, trail)
        return trail.call(whole, args, kwargs)

    class TrailMode(TorchFunctionMode):  # type: ignore[misc] # PyTorch has no types here
        """Passes every call on."""

        def __enter__(self) -> Any:
            trail.torch.autograd.Function.apply = classmethod(apply)
            self.launches = noted_launches(trail)
            self.launches.__enter__()
            return super().__enter__()

        def __exit__(self, *given: Any) -> Any:
            trail.torch.autograd.Function.apply = own
            self.launches.__exit__(None, None, None)
            return super().__exit__(*given)

        def __torch_function__(self, function: Any, _kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            return trail.call(function, args, kwargs or {})

    return TrailMode()


@contextlib.contextmanager
def noted_launches(trail: CallTrail) -> Iterator[None]:
    """Inside, launches of kernels in Triton's interpreter are noted."""
    executor = getattr(sys.modules.get("triton.runtime.interpreter"), "GridExecutor", None)
    if executor is None:
        yield
        return
    own = executor.__call__

    def launch(*args: Any, **kwargs: Any) -> Any:
        return trail.launch(own, args, kwargs)

    executor.__call__ = launch
    try:
        yield
    finally:
        executor.__call__ = own


def enter_backward(kind: Any, trail: CallTrail) -> None:
    """Let calls in the backward pass of a class be noted: PyTorch runs it outside all modes."""
    own = kind.backward
    own = getattr(own, "noted", own)

    def backward(*args: Any, **kwargs: Any) -> Any:
        with recording(trail):
            return own(*args, **kwargs)

    backward.noted = own  # type: ignore[attr-defined]
    kind.backward = staticmethod(backward)


def numbers_in(value: Any) -> Iterator[float]:
    """The numbers among nested arguments."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        yield value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    for item in items:
        yield from numbers_in(item)


def version_of(tensor: Any) -> int:
    """How often a tensor was written to; 0 where PyTorch does not count."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return 0


def storage_of(tensor: Any) -> int:
    """Where a tensor's memory begins; 0 where that cannot be told."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def arguments_in(given: Mapping[str, Any], params: Mapping[str, Any]) -> FrozenSet[str]:
    """The names of the tensors that are arguments of a call, not a module's state."""
    spec = params.get(ARGUMENTS)
    return frozenset(given if spec is None else (name for name, _ in parsed(spec)))


def tensor_of(array: Any, dtype: str, torch: Any, *, gradients: bool) -> Any:
    """An array as a tensor, of floating-point numbers in `dtype`."""
    tensor = torch.tensor(np.asarray(array))
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(getattr(torch, dtype)).requires_grad_(gradients)


def trail_of(
    module: UserModule, path: str, values: TrailValues, dtype: str, given: Mapping[str, Any], params: Mapping[str, Any],
    arriving: Mapping[str, Any],
) -> CallTrail:  # fmt: skip
    """The trail of a call with these arrays by name, and of its backward pass if gradients arrive."""
    import torch

    def tensors(gradients: bool) -> Dict[str, Any]:
        return {name: tensor_of(array, dtype, torch, gradients=gradients) for name, array in given.items()}

    trail = CallTrail(torch, path, values)
    ends = {name: tensor_of(array, dtype, torch, gradients=False) for name, array in arriving.items()}
    try:
        with torch.no_grad():
            module(**tensors(False), **params)  # Builds the module before calls are noted.
        trail.run(module, tensors(bool(ends)), params, ends)
    except TrailEndedError:
        trail.error = {"text": "too long", "line": 0}
    except Exception as error:
        trail.error = {"text": str(error)[:200], "line": trail.line_of(error)}
    return trail


def patched(
    module: UserModule, path: str, values: TrailValues, given: Mapping[str, Any], params: Mapping[str, Any],
    patch: Mapping[int, List[Any]],
) -> Dict[str, Any]:  # fmt: skip
    """The outputs of a call in float64 with other values in some rows; none where it fails."""
    import torch

    trail = PatchedTrail(torch, path, TrailValues(), patch)
    with contextlib.suppress(TrailEndedError):
        trail.run(module, {n: tensor_of(a, "float64", torch, gradients=False) for n, a in given.items()}, params, {})
    outputs = {name: values.number(torch.tensor(trail.values.arrays[n])) for name, n in trail.outputs.items()}
    return {**CallTrail(torch, path, values).reply, "outputs": {} if trail.error else outputs}


def module_at(path: str, name: str) -> UserModule:
    """A class or function of a file, which is run anew. Raises ImportError, or what the file raises."""
    spec = importlib.util.spec_from_file_location("parity_user_ops", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return UserModule(entry_of(vars(loaded), name))


def main() -> None:
    """Answer a request."""
    import torch

    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    sys.path.append(os.path.dirname(request["path"]))
    sys.dont_write_bytecode = True
    module, values, trails = module_at(request["path"], request["name"]), TrailValues(), []
    for run in request["runs"]:
        arrays = {kind: {n: np.load(p) for n, p in run[kind].items()} for kind in ("given", "arriving")}
        given = run["dtype"], arrays["given"], request["params"], arrays["arriving"]
        trails.append(trail_of(module, request["file"], values, *given).reply)
        write(sys.argv[2], trails, values)
    if request["patches"]:
        given_arrays = {name: np.load(path) for name, path in request["given"].items()}
        trail_of(module, request["file"], TrailValues(), "float64", given_arrays, request["params"], {})
    for patch in request["patches"]:
        rows = {int(row): [np.load(path) for path in paths] for row, paths in patch.items()}
        trails.append(patched(module, request["file"], values, given_arrays, request["params"], rows))
        write(sys.argv[2], trails, values)


def write(folder: str, trails: List[Any], values: TrailValues) -> None:
    """Write trails and their values, so that a reader always finds both."""
    for name, content in ((VALUES, values.content), (TRAIL, values.listing(trails))):
        with open(os.path.join(folder, f"{name}.part"), "wb") as file:
            file.write(content)
        os.replace(os.path.join(folder, f"{name}.part"), os.path.join(folder, name))


if __name__ == "__main__":
    main()
