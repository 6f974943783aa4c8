"""sum of keras 3.15.1 is less accurate than a careful implementation in float16: y

case       sum (configs/census/../ops/reduction.yaml:5)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          unstable: the error of keras is 8.84 times that of a careful implementation in float16
           (the largest: 0.00757 in bfloat16, 0.000977 in float16, 0 in float32, 0 in float64): the
           error changes with the precision, so the algorithm loses digits
cause      narrow-accumulation: sums are accumulated in a narrow format (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python sum.float16.keras.py (needs keras and numpy)
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

# Keras's default backend is TensorFlow.
os.environ["KERAS_BACKEND"] = "tensorflow" if "eager" == "eager" else "eager"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow

tensorflow.config.threading.set_intra_op_parallelism_threads(1)
tensorflow.config.threading.set_inter_op_parallelism_threads(1)
latest = SimpleNamespace()
import keras

DATA = {
    "inputs/x": np.array(
        [
            0.3477, -1.125, -0.551, -0.0757, -1.68, -1.211, 1.047, 1.047, 0.629, 1.055, -0.3887, 1.086,
            -1.594, 1.117, -0.3516, -0.1138, -0.6367, -0.2461, 0.08203, -1.727, 0.9375, -0.3535, 1.102,
            1.234, 1.266, -0.0608, -0.543, -1.328, 1.016, -0.914, 0.5273, -0.01965, 0.4473, -0.461,
            0.010376, -2.484, -0.879, 0.629, 1.172, 1.234, -0.2598, 1.414, 1.273, -0.375, 0.2197,
            -1.469, 0.1436, 0.254, 0.965, -1.75, 0.0923, 0.0654, 0.418, -0.2676, 0.668, -0.4844, 0.105,
            -0.7617, 0.4258, 1.227, 0.1729, 0.4062, -0.84, 2.156, 1.523, 1.1875, -0.621, -0.04028,
            -0.252, 0.3574, -1.195, 1.219, -1.07, -0.005096, -1.18, 1.219, 1.32, 0.9453, 0.504, -1.094,
            1.391, -0.3105, 0.1465, 0.3848, -0.746, 0.953, -0.010315, 0.1758, 0.01288, 0.42, 2.344,
            0.1777, 0.949, 0.06226, 0.3613, 0.2236, -1.047, -0.879, -0.883, 0.3008, 0.5977, -0.664,
            -0.04443, 1.133, -0.7617, 1.773, -1.117, -0.547
        ],
        "float16",
    ).reshape(4, 9, 3),
    "inputs/grad.y": np.array(
        [
            -0.042, 0.6094, 0.04248, 0.7656, 0.463, -0.992, -1.336, 0.742, 0.00161, 0.207, 0.5664,
            -1.211
        ],
        "float16",
    ).reshape(4, 3),
    "exact/y": np.array(
        [
            1.66015625, -2.351806640625, 0.984375, -0.0712890625, -0.18798828125, -0.06689453125,
            2.6240234375, 0.856964111328125, 3.80224609375, 2.508056640625, 1.38592529296875,
            -0.88824462890625
        ],
        "float64",
    ).reshape(4, 3),
    "torch/y": np.array(
        [
            1.66, -2.352, 0.9844, -0.0713, -0.188, -0.0669, 2.625, 0.857, 3.803, 2.508, 1.386, -0.888
        ],
        "float16",
    ).reshape(4, 3),
}


def leaf(array, requires_grad):
    low = tensorflow.bfloat16.as_numpy_dtype
    return tensorflow.constant(array.view(low) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    return tensor.numpy().view("uint16") if tensor.dtype == "bfloat16" else tensor.numpy()


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


def staged(function):
    """The function, run with its tensors' dtype as Keras's floatx and dtype policy."""

    def call(*args: Any, **given: Any) -> Any:
        values = [*args, *given.values()]
        tensors = [part for value in values for part in (value if isinstance(value, list) else [value])]
        dtypes = [keras.backend.standardize_dtype(v.dtype) for v in tensors if hasattr(v, "dtype")]
        dtype = next(dtype for dtype in dtypes if "float" in dtype)
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        return named_outputs(function(*args, **given))

    return call


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


def gradients(outputs, grad_outputs, leaves):
    given = [tensorflow.cast(dy, y.dtype) for y, dy in zip(outputs, grad_outputs)]
    grads = latest.tape.gradient(list(outputs), list(leaves), output_gradients=given)
    return [None if grad is None else tensorflow.convert_to_tensor(grad) for grad in grads]


def sum(x, dim=None, keepdim=False):
    return keras.ops.sum(x, dim, keepdims=keepdim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(sum)(x=x, dim=1, keepdim=False)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x])
    outputs.update(zip(["grad.x"], returned))
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
    here, there = described(live), described(other, "float16")
    if here != there:
        print(f"{tensor}: keras has {here}, {label} has {there}")
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
    values = {"keras": live, label: other, "exact": DATA[f"exact/{tensor}"]}
    n_wrong = int((outside | strange).sum())
    print(f"{tensor} {list(live.shape)} against {label}: {n_wrong} of {a.size} elements", end=" ")
    got, wanted = ("a number" if np.isfinite(v[worst]) else str(v[worst]).replace("nan", "NaN") for v in (a, e))
    odd = f"{got} where {wanted} is expected"
    print(f"exceed rtol={rtol} atol={atol};", odd if strange.any() else f"largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit, part=(), where=""):
    """Whether an error, of a part, is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float16"):
        return True
    live = live.astype("float64")
    if (np.isfinite(live) != np.isfinite(exact)).any():
        print("    NaN or infinity where the exact answer is finite, or the reverse")
        return True
    with np.errstate(all="ignore"):
        error = np.abs(live - exact)[part]
        error = error[np.isfinite(error)]
        peak = error.max() if error.size else 0.0
        ratio = max(peak * np.sqrt(np.mean((error / peak) ** 2)) / rms, peak / largest) if peak else 0.0
    print(f"    its error{where} is {float(ratio):.3g} times that of a careful implementation;", end=" ")
    print(f"the error bound is {limit:g}")
    return bool(ratio >= limit)


RESULT = compute()
DIFFERS = [
    (
        check("y", "exact", rtol=0.001, atol=1e-05)
        | check("y", "torch", rtol=0.001, atol=1e-05)
    )
    and inaccurate(
        "y", rms=5.521987269539718e-05, largest=5.521987269539718e-05, limit=8.0,
        part=np.s_[1, 1], where=" in [1, 1]",
    ),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
