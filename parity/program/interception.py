"""The calls of PyTorch's functions that a reference makes, as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from parity.cases import OPS
from parity.program.torch_functions import TORCH

Function = Callable[..., Any]
NOTICING = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""What PyTorch's functions in Python ask before they begin, so that others can take the whole call."""


@contextmanager
def intercepted(record: Function, drew: Function) -> Iterator[None]:
    """Inside, each call of PyTorch's functions is passed to `record` with its result, and to `drew` if it has drawn
    random numbers.

    Of a function in Python that has no meaning in NumPy the calls are that it makes. A class with its own backward pass
    is one call.
    """
    from torch.overrides import TorchFunctionMode

    class CallMode(TorchFunctionMode):  # type: ignore[misc] # PyTorch has no types here
        """Passes every call to `record`."""

        def __torch_function__(self, function: Any, _kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if is_entered(function):
                with self, unnoticed(function):
                    return function(*args, **(kwargs or {}))
            before = generator_state()
            result = function(*args, **(kwargs or {}))
            if before != generator_state():
                drew(function)
            return record(function, args, kwargs or {}, result)

    with own_gradients(record), CallMode():
        yield


def generator_state() -> bytes:
    """The state of PyTorch's random numbers."""
    import torch

    state: bytes = torch.get_rng_state().numpy().tobytes()
    return state


def is_entered(function: Any) -> bool:
    """Whether the calls that a function makes are recorded instead of the function."""
    if not isinstance(function, FunctionType) or function.__name__.strip("_") in {*TORCH, *OPS}:
        return False
    return function.__module__.startswith("torch.") and any(name in function.__globals__ for name in NOTICING)


@contextmanager
def unnoticed(function: FunctionType) -> Iterator[None]:
    """Inside, the next function of a module does not notice that its calls are recorded."""
    names = function.__globals__
    before = {name: names[name] for name in NOTICING if name in names}

    def once(*_: Any) -> bool:
        names.update(before)
        return False

    names.update(dict.fromkeys(before, once))
    try:
        yield
    finally:
        names.update(before)


@contextmanager
def own_gradients(record: Function) -> Iterator[None]:
    """Inside, the application of a class with its own backward pass is passed to `record` as one call."""
    import torch

    own = torch.autograd.Function.__dict__["apply"]

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        def whole(*args: Any, **kwargs: Any) -> Any:
            return own.__func__(kind, *args, **kwargs)

        whole.__name__ = f"{kind.__name__}.apply"
        with torch._C.DisableTorchFunction():
            result = whole(*args, **kwargs)
            return record(whole, args, kwargs, result)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = own
