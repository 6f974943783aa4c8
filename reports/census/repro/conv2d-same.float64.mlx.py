"""conv2d of mlx 0.32.4 has only float32 accuracy in float64: y, grad.x

case       conv2d-same (configs/census/../ops/conv.yaml:9)
seen with  mlx 0.32.4, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of mlx is 1.68e+08 times that of a careful implementation in float64,
           3.76e-07 of the value where it is worst: the float64 result has float32 accuracy (unit
           roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     close: it passes only because the tolerance is loose: the error of mlx is 1.79e+08 times
           that of a careful implementation in float64
cause      reduced-precision: computed in or through a lower precision (grad.x)
cause      reduced-precision: computed in or through a lower precision (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python conv2d-same.float64.mlx.py (needs mlx and numpy; conv2d-same.float64.mlx.npz must
           be beside it)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

import mlx.core
import mlx.nn
import mlx.optimizers

mlx.core.set_default_device(mlx.core.cpu)
latest = SimpleNamespace()

DATA = np.load(os.path.splitext(os.path.abspath(__file__))[0] + ".npz", allow_pickle=False)


def leaf(array, requires_grad):
    tensor = mlx.core.array(array, dtype=getattr(mlx.core, str(array.dtype)))
    return tensor.view(mlx.core.bfloat16) if array.dtype == "uint16" else tensor


def to_numpy(tensor):
    return (tensor.view(mlx.core.uint16) if tensor.dtype == mlx.core.bfloat16 else tensor).__array__()


def staged(function):
    """The function as the mode runs it; in eager mode, the function itself."""
    return function


def shape_of(value):
    """The shape of a tensor of any framework; None if it is not a tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)


def named_outputs(result):
    """An op's result by output name: a mapping as it is, a single tensor as `y`.

    Raises TypeError for anything else.
    """
    if not isinstance(result, Mapping):
        if shape_of(result) is None:
            raise TypeError(
                f"an op must return a tensor, or a mapping of tensors by name, not a {type(result).__name__}"
            )
        return {"y": result}
    for name, value in result.items():
        if not isinstance(name, str):
            raise TypeError(f"an op must return tensors by name; {name!r} is a {type(name).__name__}")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not (item is None or isinstance(item, (bool, int, float)) or shape_of(item) is not None):
                raise TypeError(
                    f"an op must return tensors, or lists of them, by name; {name} is a {type(item).__name__}"
                )
    return dict(result)


def in_mode(function):
    """The staged function, whose calls are kept."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def pullback(forward, leaves, grad_outputs):
    return list(mlx.core.vjp(forward, list(leaves), list(grad_outputs))[1])


def gradients(outputs, grad_outputs, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return [results[name] for name in wanted]

    return pullback(forward, leaves, [dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs)])


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pads(padding, n):
    """Elements before and after each of `n` axes, for a padding that is no word."""
    return [(p, p) for p in each(padding, n)]


def conv_pads(padding, kernel, dilation):
    """`pads` of a convolution without stride, also for "same" (an odd element goes after) and "valid"."""
    n = len(kernel)
    if padding == "valid":
        return pads(0, n)
    if padding != "same":
        return pads(padding, n)
    totals = [d * (k - 1) for k, d in zip(kernel, each(dilation, n))]
    return [(total // 2, total - total // 2) for total in totals]


def of_axes(value, n):
    """A param of `n` axes; one axis takes a number."""
    return each(value, n)[0] if n == 1 else each(value, n)


def channels_last(framework, x):
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def filled(layer, **tensors):
    """A layer of mlx.nn with these tensors as parameters."""
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(layer, name, tensor)
    return layer


def channels_first(framework, x):
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def convolution(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    n = x.ndim - 2
    require(n < 3 or groups == 1, "mlx.nn.Conv3d has no groups")
    around = conv_pads(padding, weight.shape[2:], dilation)
    # MLX pads both sides alike.
    more = [(0, behind - before) for before, behind in around]
    options = (weight.shape[2:], stride, [before for before, _ in around], dilation)
    layer = getattr(mlx.nn, f"Conv{n}d")(
        x.shape[1],
        weight.shape[0],
        *(of_axes(value, n) for value in options),
        **({"groups": groups} if n < 3 else {}),
        bias=bias is not None,
    )
    last = mlx.core.pad(channels_last(mlx.core, x), [(0, 0), *more, (0, 0)])
    y = filled(layer, weight=channels_last(mlx.core, weight), bias=bias)(last)
    return channels_first(mlx.core, y)


def conv2d(**given):
    return convolution(**given)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight = leaf(DATA["inputs/weight"], True)
    bias = leaf(DATA["inputs/bias"], True)
    result = in_mode(conv2d)(
        x=x, weight=weight, bias=bias,
        stride=1, padding="same", dilation=1, groups=1,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, weight, bias])
    outputs.update(zip(["grad.x", "grad.weight", "grad.bias"], returned))
    return {name: to_numpy(value) for name, value in outputs.items() if value is not None}


def described(values, dtype=""):
    """Shape and dtype; integers of any size are the same."""
    if values is None:
        return "no such tensor"
    own = str(values.dtype).rpartition(".")[2]
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def check(tensor, label, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "float64")
    if here != there:
        print(f"{tensor}: mlx has {here}, {label} has {there}")
        return here != there
    a, e = (np.asarray(values, "float64").ravel() for values in (live, other))
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(e)
        strange = ~finite & (a != e) & ~(np.isnan(a) & np.isnan(e))
        diff = np.where(finite, np.abs(a - e), 0.0)
        allowed = np.where(finite, atol + rtol * np.abs(e), np.inf)
        outside = diff > allowed
        excess = np.where(diff > 0, diff / allowed, 0.0)
    worst = int((strange if strange.any() else excess).argmax())
    index = [int(i) for i in np.unravel_index(worst, live.shape)]
    values = {"mlx": live, label: other, "exact": DATA[f"exact/{tensor}"]}
    n_wrong = int((outside | strange).sum())
    print(f"{tensor} {list(live.shape)} against {label}: {n_wrong} of {a.size} elements", end=" ")
    got, wanted = ("a number" if np.isfinite(v[worst]) else str(v[worst]).replace("nan", "NaN") for v in (a, e))
    odd = f"{got} where {wanted} is expected"
    print(f"exceed rtol={rtol} atol={atol};", odd if strange.any() else f"largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit):
    """Whether an error is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float64"):
        return True
    live = live.astype("longdouble")
    if (np.isfinite(live) != np.isfinite(exact)).any():
        print("    NaN or infinity where the exact answer is finite, or the reverse")
        return True
    with np.errstate(all="ignore"):
        error = np.abs(live - exact)
        error = error[np.isfinite(error)]
        peak = error.max() if error.size else 0.0
        ratio = max(peak * np.sqrt(np.mean((error / peak) ** 2)) / rms, peak / largest) if peak else 0.0
    print(f"    its error is {float(ratio):.3g} times that of a careful implementation;", end=" ")
    print(f"the error bound is {limit:g}")
    return bool(ratio >= limit)


RESULT = compute()
DIFFERS = [
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=1.303048256480733e-15, largest=3.552713678800501e-15, limit=8.0),
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=1.2828169233570518e-15, largest=3.552713678800501e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
