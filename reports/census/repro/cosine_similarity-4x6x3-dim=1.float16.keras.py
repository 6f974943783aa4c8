"""cosine_similarity of keras 3.15.1 is less accurate than a careful implementation in float16: y

case       cosine_similarity-4x6x3-dim=1 (configs/census/../ops/loss.yaml:56)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          unstable: the error of keras is 11.1 times that of a careful implementation in float16
           (the largest: 0.00293 in bfloat16, 0.00139 in float16, 1.05e-07 in float32, 1.67e-16 in
           float64): the error changes with the precision, so the algorithm loses digits
cause      narrow-accumulation: sums are accumulated in a narrow format (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python cosine_similarity-4x6x3-dim=1.float16.keras.py (needs keras and numpy)
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
            -0.1318, -0.4219, 1.328, -0.1338, 1.25, 0.3633, 0.7266, -0.0835, 0.2031, -1.039, -1.016,
            -1.359, -1.953, 0.4902, 1.82, 0.914, -0.0708, 1.195, -2.188, -1.172, -1.016, 0.3672, 0.2236,
            0.2227, -0.9688, -0.703, 1.4375, 0.2695, 1.0625, -0.2305, -0.9453, -0.6016, -0.578, -0.8867,
            1.555, -0.7734, -0.007263, -0.2656, 0.1699, 0.6562, -0.8477, 0.8047, 1.789, 0.3848, 1.633,
            -0.6016, -0.9375, -0.4434, -0.7617, 1.734, 0.699, -2.016, -0.6016, 0.1797, 0.4844, 0.746,
            -0.715, 2.203, 1.516, 1.852, -1.352, 0.42, 0.127, -0.1138, 1.086, -0.1089, -2.0, -1.461,
            -0.418, 0.6133, 0.4258, 0.633
        ],
        "float16",
    ).reshape(4, 6, 3),
    "inputs/other": np.array(
        [
            -1.133, 0.6406, -1.008, -0.1875, 1.1875, 0.00946, 0.1943, -0.965, -0.6484, -0.3086, 0.07666,
            -0.01221, 0.8633, -0.8438, -2.14, -1.211, 0.3242, 1.648, 1.516, -0.871, 0.8047, 2.312,
            -0.8125, -1.875, -0.4902, -0.4062, 0.2676, -2.016, -0.2402, -0.543, 0.3418, 0.6133, 0.875,
            0.504, 0.871, 2.531, -3.17e-05, -1.648, 0.957, 0.8555, -0.2441, 1.398, -0.4531, 0.926,
            -1.867, -2.016, -1.141, -0.918, 2.39, -0.5234, -0.1641, -0.1484, 0.5156, -0.05664, -1.234,
            -1.945, 0.459, -0.746, -0.8477, -0.3535, 0.4102, -0.7383, -0.8633, -0.3418, 1.023, -0.578,
            0.582, 0.621, 0.463, 0.5586, 0.9883, 1.305
        ],
        "float16",
    ).reshape(4, 6, 3),
    "inputs/grad.y": np.array(
        [
            -0.1895, 1.359, -0.1348, -0.252, -0.9688, 0.918, 0.4727, -0.582, -1.273, 0.287, -0.2432,
            -0.08545
        ],
        "float16",
    ).reshape(4, 3),
    "exact/y": np.array(
        [
            -0.4491975438398672, 0.23730497592568375, -0.3911910617993719, -0.34128493391696424,
            0.46119459969736976, -0.4584859342143108, -0.05800198275213887, 0.15995960158964773,
            -0.2729147043069231, -0.612864568467826, -0.3471057947112609, -0.10209191435592764
        ],
        "float64",
    ).reshape(4, 3),
    "torch/y": np.array(
        [
            -0.4492, 0.2372, -0.3918, -0.341, 0.4614, -0.4585, -0.05786, 0.1599, -0.273, -0.613,
            -0.3472, -0.1023
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


def cosine_similarity(x, other, dim=1, eps=1e-08):
    return -keras.losses.cosine_similarity(x, other, dim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    other = leaf(DATA["inputs/other"], True)
    result = in_mode(cosine_similarity)(x=x, other=other, dim=1, eps=1e-08)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, other])
    outputs.update(zip(["grad.x", "grad.other"], returned))
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


def inaccurate(tensor, rms, largest, limit):
    """Whether an error is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float16"):
        return True
    live = live.astype("float64")
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
        check("y", "torch", rtol=0.001, atol=1e-05)
        | check("y", "exact", rtol=0.001, atol=1e-05)
    )
    and inaccurate("y", rms=7.461467503671853e-05, largest=0.00012568511658031588, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
