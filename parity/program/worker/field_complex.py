"""Complex numbers in finite fields: two FieldTensors, and what PyTorch's calls do to them (`field_mode.py`)."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

import torch
from torch.utils._pytree import tree_flatten, tree_map

from parity.program.worker.field_rules import EMPTY, MADE, MOVES, SUMS
from parity.program.worker.field_tensor import Dispatched, FieldTensor, of_constants


class FieldComplex(Dispatched):
    """A tensor of complex128 for PyTorch, with its real part `re` and its imaginary part `im`."""

    re: Any
    im: Any

    def __new__(cls, re: Any, im: Any) -> Any:
        """Parts of one shape."""
        own = torch.Tensor._make_wrapper_subclass(cls, re.shape, dtype=torch.complex128)
        own.re, own.im = re, im
        return own

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FieldComplex({self.re!r}, {self.im!r})"


def is_complex(value: Any) -> bool:
    """Whether an argument is a complex number, or a tensor of some."""
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


def as_complex(value: Any) -> Any:
    """An operand as a complex tensor."""
    if isinstance(value, FieldComplex):
        return value
    if isinstance(value, FieldTensor):
        return FieldComplex(value, torch.zeros_like(value))
    tensor = torch.as_tensor(value, dtype=torch.complex128)
    return FieldComplex(of_constants(tensor.real), of_constants(tensor.imag))


def evaluated_complex(name: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    """The results of a call with complex numbers; NotImplemented for one without a rule."""
    if name in PARTS:
        call = getattr(torch.ops.aten, name)
        (re, other), (im, others) = (parts(part, (args, kwargs)) for part in ("re", "im"))
        return joined(call(*re, **other), call(*im, **others))
    return COMPLEX[name](*args, **kwargs) if name in COMPLEX else NotImplemented


def parts(part: str, given: Any) -> Any:
    """Arguments with the real or the imaginary parts of complex ones."""
    return tree_map(lambda value: getattr(value, part) if isinstance(value, FieldComplex) else value, given)


def joined(re: Any, im: Any) -> Any:
    """Results of the same call on real and imaginary parts."""
    if isinstance(re, (tuple, list)):
        return type(re)(joined(*items) for items in zip(re, im))
    return FieldComplex(re, im)


def multiplied(a: Any, b: Any) -> Any:
    """a b."""
    x, y = as_complex(a), as_complex(b)
    return FieldComplex(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def matrix_product(a: Any, b: Any) -> Any:
    """a @ b."""
    x, y = as_complex(a), as_complex(b)
    return FieldComplex(x.re @ y.re - x.im @ y.im, x.re @ y.im + x.im @ y.re)


def divided(a: Any, b: Any) -> Any:
    """a / b."""
    x, y = as_complex(a), as_complex(b)
    square = y.re * y.re + y.im * y.im
    return FieldComplex((x.re * y.re + x.im * y.im) / square, (x.im * y.re - x.re * y.im) / square)


def added(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """a + alpha b."""
    x, y = as_complex(a), as_complex(b if alpha == 1 else multiplied(b, alpha))
    return FieldComplex(x.re + y.re, x.im + y.im)


def magnitude(z: Any) -> Any:
    """|z|."""
    return (z.re * z.re + z.im * z.im).sqrt()


def exponential(z: Any) -> Any:
    """exp(z)."""
    return polar(z.re.exp(), z.im)


def polar(magnitudes: Any, angles: Any) -> Any:
    """Numbers of these magnitudes and angles."""
    return FieldComplex(magnitudes * angles.cos(), magnitudes * angles.sin())


def raised(z: Any, exponent: Any) -> Any:
    """A power with a small whole exponent; NotImplemented for others."""
    if not isinstance(exponent, (int, float)) or exponent not in (1, 2, 3, 4):
        return NotImplemented
    result = z
    for _ in range(int(exponent) - 1):
        result = multiplied(result, z)
    return result


def conjugated(z: Any) -> Any:
    """The complex conjugate."""
    z = as_complex(z)
    return FieldComplex(z.re, -z.im)


def cast(z: Any, **options: Any) -> Any:
    """Another format: complex numbers stay as they are."""
    kind = options.get("dtype")
    return as_complex(z) if kind is None or kind.is_complex else z.re.to(kind)


def filled(number: float) -> Callable[..., Any]:
    """Numbers like those of a tensor."""
    return lambda z, *_, **__: FieldComplex(torch.full_like(z.re, number), torch.zeros_like(z.im))


PARTS = frozenset((*MOVES, *SUMS, *MADE, *EMPTY, "mean", "neg", "index_put", "masked_fill", "scatter")) - {
    "ones_like",
    "new_ones",
}
"""Calls that do the same to either part."""
COMPLEX: Mapping[str, Callable[..., Any]] = {
    "view_as_complex": lambda x: FieldComplex(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": lambda z: torch.stack([as_complex(z).re, as_complex(z).im], -1),
    "complex": FieldComplex,
    "polar": polar,
    "mul": multiplied,
    "div": divided,
    "add": added,
    "sub": lambda a, b, alpha=1: added(a, b, alpha=-alpha),
    "rsub": lambda a, b, alpha=1: added(b, a, alpha=-alpha),
    "mm": matrix_product,
    "bmm": matrix_product,
    "mv": matrix_product,
    "dot": matrix_product,
    "exp": exponential,
    "pow": raised,
    "square": lambda z: multiplied(z, z),
    "reciprocal": lambda z: divided(1.0, z),
    "abs": magnitude,
    "sgn": lambda z: divided(z, magnitude(z)),
    "angle": lambda z: torch.atan2(z.im, z.re),
    "ones_like": filled(1.0),
    "_to_copy": cast,
    **dict.fromkeys(("_conj", "conj_physical", "_conj_physical"), conjugated),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), as_complex),
}
"""What other calls do, by name."""
CREATING = ("view_as_complex", "complex", "polar")
"""Calls that make complex numbers of others."""


def has_complex(name: str, args: Any, kwargs: Dict[str, Any]) -> bool:
    """Whether a call has to do with complex numbers."""
    return name in CREATING or any(map(is_complex, tree_flatten((args, kwargs))[0]))
