"""Passes each call of PyTorch's functions on."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator


@contextlib.contextmanager
def passing(record: Callable[..., Any], change: Callable[..., Any] = lambda _, kwargs: kwargs) -> Iterator[None]:
    """Inside, each call of PyTorch's functions is passed to `record` with its result; `change` gives its keywords."""
    from torch.overrides import TorchFunctionMode

    class PassingMode(TorchFunctionMode):  # type: ignore[misc] # PyTorch has no types here
        """Passes every call on."""

        def __torch_function__(self, function: Any, _kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = change(function, kwargs or {})
            return record(function, args, given, function(*args, **given))

    with PassingMode():
        yield
