"""clip_grad_norm of tensorflow 2.21.0 follows a different convention: a different constant is added to
the norm in the denominator (float64: grads.1, grads.0)

case       clip-each (configs/census/../ops/clip.yaml:8)
seen with  tensorflow 2.21.0, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grads.1    semantic: the error of tensorflow is 3e+09 times that of a careful implementation in
           float64 (the largest: 0.000462 in bfloat16, 0.00027 in float16, 2.47e-07 in float32,
           2.32e-07 in float64): the error is the same in every precision, so the formula differs
grads.0    close: it passes only because the tolerance is loose: the error of tensorflow is 1.22e+09
           times that of a careful implementation in float64
cause      clip-denominator-eps: a different constant is added to the norm in the denominator
           (grads.0 and grads.1)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python clip-each.float64.tensorflow.py (needs tensorflow and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow

tensorflow.config.threading.set_intra_op_parallelism_threads(1)
tensorflow.config.threading.set_inter_op_parallelism_threads(1)
latest = SimpleNamespace()

DATA = {
    "inputs/grads.0": np.array(
        [
            -0.90625, 1.3984375, -1.515625, 1.7109375, -0.52734375, 0.1953125, -0.48828125, 0.20703125,
            -0.80859375, 1.2265625, 0.640625, 0.8046875
        ],
        "float64",
    ).reshape(3, 4),
    "inputs/grads.1": np.array([0.0206298828125, -0.9375, 0.73046875, 1.265625, 0.89453125], "float64"),
    "exact/grads.1": np.array(
        [
            0.0073935408011147, -0.3359904932104195, 0.2617925926264519, 0.45358716583406633,
            0.3205909289382753
        ],
        "float64",
    ),
    "torch/grads.1": np.array(
        [
            0.007393540801114699, -0.3359904932104195, 0.2617925926264518, 0.45358716583406633,
            0.3205909289382753
        ],
        "float64",
    ),
    "exact/grads.0": np.array(
        [
            -0.18455588728434683, 0.2847888260680869, -0.3086538114927869, 0.3484287872006203,
            -0.1073924344111501, 0.039774975707833365, -0.09943743926958341, 0.04216147425030337,
            -0.16466839943043013, 0.24978684744519355, 0.13046192032169346, 0.16387289991627346
        ],
        "float64",
    ).reshape(3, 4),
}


def leaf(array, requires_grad):
    low = tensorflow.bfloat16.as_numpy_dtype
    return tensorflow.constant(array.view(low) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    return tensor.numpy().view("uint16") if tensor.dtype == "bfloat16" else tensor.numpy()


def staged(function):
    """The function as it is in eager mode."""
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
    """The staged function, recorded by the tape that `gradients` reads."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        # tf.custom_gradient silently ignores a user's gradient for tensors passed by keyword.
        bound = inspect.signature(function).bind(**given)
        with tensorflow.GradientTape() as latest.tape:
            for value in given.values():
                if tensorflow.is_tensor(value) and value.dtype.is_floating:
                    latest.tape.watch(value)
            return named_outputs(staged_(*bound.args, **bound.kwargs))

    return call


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def clip_grad_norm(grads, max_norm, norm_type, scope):
    require(norm_type == 2, "TensorFlow clips norms of order 2")
    if scope == "global":
        clipped, total = tensorflow.clip_by_global_norm(grads, max_norm)
        return {"grads": clipped, "total_norm": total}
    clipped = [tensorflow.clip_by_norm(grad, max_norm) for grad in grads]
    return {"grads": clipped, "total_norm": tensorflow.linalg.global_norm(grads)}


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
        return np.asarray(value, "float64")
    if str(value.dtype).endswith("bfloat16"):
        return value
    try:
        return np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else to_numpy(value))
    except TypeError:
        return value


def compute():
    """The outputs, by name."""
    grads = [leaf(DATA[f"inputs/grads.{i}"], False) for i in range(2)]
    result = in_mode(clip_grad_norm)(grads=grads, max_norm=0.7, norm_type=2.0, scope="per_tensor")
    outputs = result if isinstance(result, dict) else {"y": result}
    return to_arrays(outputs)


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
        print(f"{tensor}: tensorflow has {here}, {label} has {there}")
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
    values = {"tensorflow": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("grads.1", "exact", rtol=1e-07, atol=1e-07)
        | check("grads.1", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grads.1", rms=5.781577005692784e-17, largest=7.735782500684074e-17, limit=8.0),
    check("grads.0", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grads.0", rms=5.3339540906892287e-17, largest=9.947554932554503e-17, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
