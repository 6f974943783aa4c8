"""A user's function of any framework but PyTorch, called with tensors by name: arguments, weights, numbers."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Dict, Mapping

from parity.program.worker.user_module import ARGUMENTS, INIT, UserModuleError, decoded, outputs_of, parsed

STATISTICS = ("running_mean", "running_var")
"""The ends of names of weights that a function need not take: those that norms do not use in training mode."""
SPELLED = {"mlx": {"bool": "bool_"}}
"""Names of dtypes that are others in a framework's module."""


class UserFunction:
    """A user's function as one of tensors and params by keyword.

    It gets the arguments of a call by position, weights by their names, and the constructor's arguments of the
    reference, and `training`, by name where it has a parameter of that name.
    """

    def __init__(self, entry: Any) -> None:
        self.entry = entry

    def __call__(self, **given: Any) -> Dict[str, Any]:
        """The outputs by name. Raises UserModuleError, or what the user's code raises."""
        spec = list(parsed(given.pop(ARGUMENTS)))
        absent = [name for name, _ in spec if name not in given]
        if absent:
            raise UserModuleError(f"{absent[0]} is not given")
        arguments = [in_dtype(given.pop(name), dtype) if dtype else decoded(given.pop(name)) for name, dtype in spec]
        init = {name[len(INIT) :]: decoded(given.pop(name)) for name in list(given) if name.startswith(INIT)}
        optional = {**init, **{n: given.pop(n) for n in list(given) if n == "training" or n.endswith(STATISTICS)}}
        try:
            signature = inspect.signature(self.entry)
        except ValueError:  # A function written in C does not show its parameters.
            return outputs_of(self.entry(*arguments, **given))
        given.update({n: v for n, v in optional.items() if n in signature.parameters and n not in given})
        try:
            bound = signature.bind(*arguments, **given)
        except TypeError as error:
            raise UserModuleError(f"{self.call_of(spec, given)} does not fit its parameters: {error}") from error
        return outputs_of(self.entry(*bound.args, **bound.kwargs))

    def call_of(self, spec: Any, named: Mapping[str, Any]) -> str:
        """How the function is called, in words: `model(x, fc_weight=, fc_bias=)`."""
        words = [*(name for name, _ in spec), *(f"{name}=" for name in named)]
        return f"{getattr(self.entry, '__name__', 'the function')}({', '.join(words)})"


def in_dtype(tensor: Any, dtype: str) -> Any:
    """A tensor of any framework in a dtype of PyTorch's names."""
    name = type(tensor).__module__.partition(".")[0]
    if name == "tensorflow":
        return sys.modules[name].cast(tensor, dtype)
    if name in ("oneflow", "mlx", "mindspore"):
        module = sys.modules["mlx.core" if name == "mlx" else name]
        kind = getattr(module, SPELLED.get(name, {}).get(dtype, dtype))
        return tensor.to(kind) if name == "oneflow" else tensor.astype(kind)
    return tensor.astype(dtype)
