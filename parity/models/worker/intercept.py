"""Intercepts the calls of a framework that has no hook for them, by wrapping functions and tensors' methods."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from typing import Any, Callable, Collection, Dict, Iterator, List, Tuple

OPERATORS = frozenset(
    (
        *("__neg__", "__invert__", "__abs__", "__getitem__", "__setitem__"),
        *(
            f"__{prefix}{name}__"
            for prefix in ("", "r", "i")
            for name in ("add", "sub", "mul", "truediv", "matmul", "pow")
        ),
        *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "floordiv", "mod")),
    )
)
TURNED = ("T", "mT")
"""Properties that compute a tensor."""
CALLABLE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
Site = Tuple[Any, str, Any, Any]
"""An object, the name of its attribute, its original value, and its replacement."""


class Interception:
    """Wraps the functions of some modules (`namespaces`) wherever modules of the packages `roots` refer to them, and
    the methods of the classes `kinds`. Only outermost calls are recorded."""

    def __init__(self, roots: Collection[str], namespaces: Collection[Any], kinds: Collection[Any]) -> None:
        self.record: Callable[..., Any] = lambda _function, _args, _kwargs, result: result
        self.inside = False
        self.sites: List[Site] = [*self._methods(kinds), *self._functions(roots, namespaces)]

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            self.inside = True
            try:
                result = function(*args, **kwargs)
            finally:
                self.inside = False
            return self.record(call, args, kwargs, result)

        call.__name__ = name
        return call

    def _methods(self, kinds: Collection[Any]) -> Iterator[Site]:
        for kind in kinds:
            for name in dir(kind):
                own = inspect.getattr_static(kind, name)
                if isinstance(own, CALLABLE) and (name in OPERATORS or not name.startswith("_")):
                    yield kind, name, own, self._wrapped(getattr(kind, name), name)
                elif name in TURNED and hasattr(own, "__get__"):
                    yield kind, name, own, property(self._wrapped(reading(own), name))

    def _functions(self, roots: Collection[str], namespaces: Collection[Any]) -> Iterator[Site]:
        wrapped: Dict[int, Any] = {}
        for namespace in namespaces:
            for name, value in vars(namespace).items():
                if isinstance(value, CALLABLE) and not name.startswith("_"):
                    wrapped.setdefault(id(value), self._wrapped(value, value.__name__))
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and name.partition(".")[0] in roots:
                for attribute, value in list(vars(module).items()):
                    if id(value) in wrapped and isinstance(value, CALLABLE):
                        yield module, attribute, value, wrapped[id(value)]

    @contextlib.contextmanager
    def handing(self, record: Callable[..., Any], scopes: Collection[Dict[str, Any]]) -> Iterator[None]:
        """Pass each call to `record` (function, args, kwargs, result), whose result the caller gets. `scopes` are the
        namespaces of the user's code, and the attributes of layers."""
        wrappers = {id(own): other for _, _, own, other in self.sites}
        here = [(scope, name, own) for scope in scopes for name, own in list(scope.items()) if id(own) in wrappers]
        done: List[Tuple[Any, str, Any, bool]] = []
        self.record = record
        try:
            for owner, name, own, other in self.sites:
                held = name in vars(owner)
                with contextlib.suppress(TypeError, AttributeError):  # a class that cannot be changed
                    setattr(owner, name, other)
                    done.append((owner, name, own, held))
            for scope, name, own in here:
                scope[name] = wrappers[id(own)]
            yield
        finally:
            for scope, name, own in here:
                scope[name] = own
            for owner, name, own, held in reversed(done):
                if held:
                    setattr(owner, name, own)
                else:
                    delattr(owner, name)


def reading(own: Any) -> Callable[[Any], Any]:
    """The function that reads an attribute."""

    def read(tensor: Any) -> Any:
        return own.__get__(tensor, type(tensor))

    return read
