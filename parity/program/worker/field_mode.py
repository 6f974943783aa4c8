"""PyTorch code, run on FieldTensors: numbers that carry their residues in two finite fields (`field.py`).

Every call of PyTorch's dispatcher, of the backward pass, too, gives its values in float64 without any cast, and the
residues of its results by a rule (`field_rules.py`), or by PyTorch's own decomposition into simpler calls.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, Dict, Iterator, List

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from parity.program.worker import field, field_constants
from parity.program.worker.field_arithmetic import filled_p, name_of, only_p, result
from parity.program.worker.field_complex import (
    FieldComplex,
    as_complex,
    evaluated_complex,
    has_complex,
    is_complex,
)
from parity.program.worker.field_functions import SPELLED
from parity.program.worker.field_primes import P
from parity.program.worker.field_rules import DECOMPOSITIONS, RULES
from parity.program.worker.field_tensor import (
    NOTES,
    Dispatched,
    FieldTensor,
    as_field,
    is_floating,
    of_constants,
    of_input,
    part_of,
)

RANDOM = frozenset(
    (
        *("rand", "randn", "rand_like", "randn_like", "bernoulli", "normal", "multinomial", "uniform", "exponential"),
        "native_dropout",
    )
)
"""Functions of PyTorch's dispatcher that draw numbers."""


class SpelledMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch's types are not read, here and below.
    """Inside, some functions are spelled out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SPELLED:
            own = SPELLED[func](*args, **(kwargs or {}))
            if own is not NotImplemented:
                return own
        return func(*args, **(kwargs or {}))


class FieldMode(TorchDispatchMode):  # type: ignore[misc]
    """Inside, tensors that are made are FieldTensors, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return evaluated(func, args, kwargs or {})


@contextlib.contextmanager
def exact_arithmetic(*, fresh: bool = True) -> Iterator[None]:
    """Inside, code computes with residues, by calls that have rules, as `field.NOW` says; what has been noted is
    forgotten before if `fresh`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    fused = torch._C._get_mkldnn_enabled()
    torch.set_default_dtype(torch.float64)
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    if fresh:
        NOTES.clear()
        field_constants.READ.clear()
    try:
        with sdpa_kernel(SDPBackend.MATH), SpelledMode(), FieldMode():
            yield
    finally:
        torch._C._set_mkldnn_enabled(fused)
        torch.set_default_dtype(dtype)
        torch.backends.mha.set_fastpath_enabled(fast)


def without_formats(value: Any) -> Any:
    """An argument; float64 for any floating-point format."""
    if isinstance(value, torch.dtype):
        wide = torch.complex128 if value.is_complex else torch.float64
        return wide if value.is_complex or value.is_floating_point else value
    return value


def evaluated(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The results of a call of PyTorch's dispatcher."""
    args, kwargs = tree_map(without_formats, (args, kwargs))
    flat, spec = tree_flatten((args, kwargs))
    name = name_of(func)
    if torch.Tag.inplace_view in func.tags:
        return turned(func, args, kwargs)
    if name.endswith("_") and func._schema.arguments and func._schema.arguments[0].alias_info is not None:
        return written(name, args, kwargs)
    if "out" in kwargs:
        return written_out(func, args, kwargs)
    if has_complex(name, args, kwargs):
        args, kwargs = tree_unflatten([as_complex(v) if is_complex(v) else as_field(v) for v in flat], spec)
        own = evaluated_complex(name, args, kwargs)
        return uninterpreted(func, name, args, kwargs) if own is NotImplemented else own
    if not any(map(is_floating, flat)):
        return made(name, func(*args, **kwargs))
    args, kwargs = tree_unflatten(list(map(as_field, flat)), spec)
    rule = RULES.get(name)
    if rule is not None:
        own = rule(func, args, kwargs)
        if own is not NotImplemented:
            return own
    if func in DECOMPOSITIONS:
        return DECOMPOSITIONS[func](*args, **kwargs)
    composite = func.decompose(*args, **kwargs)
    return composite if composite is not NotImplemented else uninterpreted(func, name, args, kwargs)


def made(name: str, results: Any) -> Any:
    """What a call without tensors of floating-point numbers returns; what has no values yet is zeros."""
    drawn = name.rstrip("_") in RANDOM

    def own(value: Any) -> Any:
        if name.startswith("empty") and isinstance(value, torch.Tensor):
            value.zero_()
        if is_complex(value):
            return as_complex(value)
        if not is_floating(value):
            return value
        return of_input(value) if drawn else of_constants(value)

    return tree_map(own, results)


def written(name: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The tensor that a call has written to."""
    target = args[0]
    if isinstance(target, FieldComplex):
        own = as_complex(args[1] if name == "copy_" else getattr(torch.ops.aten, name[:-1])(*args, **kwargs))
        target.re.copy_(own.re)
        target.im.copy_(own.im)
        return target
    if not is_floating(target):
        getattr(torch.ops.aten, name)(*part_of(args, "value"), **part_of(kwargs, "value"))
        return target
    if not isinstance(target, FieldTensor):
        raise NotImplementedError(f"{name} writes to a tensor that was made before")
    if name.rstrip("_") in RANDOM:
        getattr(torch.ops.aten, name)(target.value, *args[1:], **kwargs)
        new: Any = of_input(target.value)
    elif name == "copy_":
        new = args[1]
    else:
        new = getattr(torch.ops.aten, name[:-1])(*args, **kwargs)
    new = as_field(new if is_floating(new) else new.double())
    for part in ("value", "q", "p"):
        getattr(target, part).copy_(getattr(new, part))
    return target


def turned(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The tensor whose shape a call has changed in place, as `transpose_`."""
    from torch.utils._mode_utils import no_dispatch

    names = ("value", "q", "p") if isinstance(args[0], FieldTensor) else ("re", "im")
    for part in (getattr(args[0], name) for name in names if hasattr(args[0], name)):
        func(part, *args[1:], **kwargs)
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
    return args[0]


def written_out(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The tensor given as `out`, to which a call has written."""
    name = name_of(func)
    out = kwargs["out"]
    new = getattr(torch.ops.aten, name)(*args, **{key: value for key, value in kwargs.items() if key != "out"})
    return out.copy_(new)


def uninterpreted(func: Any, name: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The results of a call without a rule: residues are a hash of the call and of all residues that it reads, so that
    they are equal where the same is called with the same numbers; element by element where the call works so."""
    values = tree_map(value_of, (args, kwargs))
    results = func(*values[0], **values[1])
    if not any(is_floating(value) or is_complex(value) for value in tree_flatten(results)[0]):
        return results
    NOTES.add(name)
    flat = [part for value in tree_flatten((args, kwargs))[0] for part in parts_of(value)]
    tensors = [value for value in flat if isinstance(value, FieldTensor)]
    if is_pointwise(func, results, tensors):
        p = torch.zeros_like(results)
        for tensor in tensors:
            p = field.mixed(torch.remainder(filled_p(tensor) + 3 * p, P), 11, P)
        key = digest(name, [None if isinstance(value, FieldTensor) else value for value in flat])
        return result(results, *only_p(field.mixed(p, key, P)))
    key = digest(name, flat)

    def own(value: Any) -> Any:
        if is_complex(value):
            return FieldComplex(by_position(value.real, key), by_position(value.imag, key + 1))
        return by_position(value, key) if is_floating(value) else value

    return tree_map(own, results)


def by_position(value: Any, key: int) -> Any:
    """A result whose residues are a hash of the position."""
    positions = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
    return FieldTensor(value.contiguous(), *only_p(field.mixed(positions, key, P)))


def value_of(value: Any) -> Any:
    """An argument with the values of a tensor only."""
    if isinstance(value, FieldComplex):
        return torch.complex(value.re.value, value.im.value)
    return value.value if isinstance(value, FieldTensor) else value


def parts_of(value: Any) -> List[Any]:
    """An argument, or both parts of a complex one."""
    return [value.re, value.im] if isinstance(value, FieldComplex) else [value]


def is_pointwise(func: Any, results: Any, tensors: List[FieldTensor]) -> bool:
    """Whether a call computes element by element: what it is decomposed into has no tag that says so."""
    if not is_floating(results):
        return False
    is_primitive = func.namespace == "prims" and all(tensor.shape == results.shape for tensor in tensors)
    return is_primitive or torch.Tag.pointwise in func.tags


def digest(name: str, flat: List[Any]) -> int:
    """A number for a call and its arguments."""
    total = hashlib.sha256(name.encode())
    for value in flat:
        if isinstance(value, FieldTensor):
            part = value.p if not bool(value.p.isnan().any()) else value.q
            total.update(str(tuple(value.shape)).encode() + part.contiguous().numpy().tobytes())
        elif isinstance(value, torch.Tensor):
            total.update(value.contiguous().numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return int.from_bytes(total.digest()[:6], "big")


Dispatched.evaluate = staticmethod(evaluated)
