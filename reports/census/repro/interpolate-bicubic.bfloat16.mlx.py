"""interpolate of mlx 0.32.4 returns a different shape, dtype or set of outputs in bfloat16: y, grad.x

case       interpolate-bicubic (configs/census/../ops/resample.yaml:12)
seen with  mlx 0.32.4, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          structure: mlx has dtype float32, oracle bfloat16; the values were not compared
grad.x     semantic: the error of mlx is 587 times that of a careful implementation in bfloat16 (the
           largest: 1.68 in bfloat16, 1.68 in float16, 1.68 in float32, 1.68 in float64): the error
           is the same in every precision, so the formula differs
cause      localized: wrong in one part of the tensor only (y and grad.x)
cause      unexplained: no known cause explains the error (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bicubic.bfloat16.mlx.py (needs mlx and numpy;
           interpolate-bicubic.bfloat16.mlx.npz must be beside it)
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

# NumPy has no bfloat16: float32 holds its numbers, and uint16 the bits that a framework's tensors are made of.
DATA = dict(DATA)
for name, values in DATA.items():
    if name.startswith("inputs/") and values.dtype == "float32":
        DATA[name] = np.asarray(values.view("uint32") >> 16, "uint16")


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


RESIZES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def channels_first(framework, x):
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def channels_last(framework, x):
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def interpolate(x, size=None, scale_factor=None, mode='nearest', align_corners=None):
    n = x.ndim - 2
    require(mode in RESIZES, f"mlx.nn.Upsample has no mode {mode}")
    # MLX takes factors, multiplies them by the sizes, and truncates.
    factors = each(scale_factor, n) if size is None else [a / b for a, b in zip(each(size, n), x.shape[2:])]
    exact = size is None or tuple(int(f * b) for f, b in zip(factors, x.shape[2:])) == each(size, n)
    require(exact, "mlx.nn.Upsample takes scale factors, and none gives this size")
    layer = mlx.nn.Upsample(tuple(factors), RESIZES[mode], bool(align_corners))
    return channels_first(mlx.core, layer(channels_last(mlx.core, x)))


def to_arrays(outputs):
    """NumPy arrays by name; those of a list are `grads.0`, `grads.1`, ..."""
    arrays = {}
    for name, value in outputs.items():
        listed = isinstance(value, (list, tuple))
        for i, item in enumerate(value if listed else [value]):
            if item is not None:
                arrays[f"{name}.{i}" if listed else name] = to_array(item)
    return arrays


def to_array(value):
    """One output; dtypes that NumPy lacks stay as they are."""
    if isinstance(value, (bool, int, float)):
        return np.asarray(value, "bfloat16")
    try:
        return np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else to_numpy(value))
    except TypeError:
        return value


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(interpolate)(
        x=x,
        size=(5, 7), scale_factor=None, mode="bicubic", align_corners=None,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    wanted = [name for name in ["y"] if tuple(getattr(outputs.get(name), "shape", "?")) == DATA[f"inputs/grad.{name}"].shape]
    if wanted:
        returned = gradients([outputs[name] for name in wanted], [leaf(DATA[f"inputs/grad.{name}"], False) for name in wanted], [x])
        outputs.update(zip(["grad.x"], returned))
    return to_arrays(outputs)


def described(values, dtype=""):
    """Shape and dtype; integers of any size are the same."""
    if values is None:
        return "no such tensor"
    own = str(values.dtype).rpartition(".")[2]
    own = "bfloat16" if own == "uint16" else own
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def numbers(values):
    """The numbers of a bfloat16 tensor."""
    return (values.view("uint16").astype("uint32") << 16).view("float32")


def check(tensor, label, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"] if f"{label}/{tensor}" in DATA else None
    here, there = described(live), described(other, "bfloat16" if label == "exact" or getattr(other, "dtype", "") == "float32" else "")
    if here != there or other is None:
        print(f"{tensor}: mlx has {here}, {label} has {there}")
        return here != there
    live = numbers(live)
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
    if described(live) != described(exact, "bfloat16"):
        return True
    live = numbers(live).astype("float64")
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
    check("y", "exact", rtol=0.016, atol=1e-05),
    check("y", "torch", rtol=0.016, atol=1e-05),
    (
        check("grad.x", "exact", rtol=0.05, atol=0.001)
        | check("grad.x", "torch", rtol=0.05, atol=0.001)
    )
    and inaccurate("grad.x", rms=0.002207410258291187, largest=0.006280268455038485, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
