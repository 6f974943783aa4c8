"""interpolate of tensorflow 2.21.0 returns a different shape, dtype or set of outputs in float16: y

case       interpolate-bilinear (configs/census/../ops/resample.yaml:9)
seen with  tensorflow 2.21.0, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          structure: tensorflow has dtype float32, oracle float16; the values were not compared
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bilinear.float16.tensorflow.py (needs tensorflow and numpy)
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
    "inputs/x": np.array(
        [
            1.789, 1.203, 0.4062, 0.5664, 0.287, -1.109, 0.3125, 1.273, 0.1934, 1.164, 0.75, 0.12354,
            -0.8594, 2.062, 0.293, -1.352, -0.4414, -0.6133, -0.797, 0.0376, 0.707, -1.508, -0.7812,
            -0.4004, -1.836, 1.172, -0.1396, 1.57, 0.03687, -1.023, -0.015015, -1.758, 1.234, 1.4375,
            0.4668, 0.926, -0.926, 1.141, -1.391, -0.4922, -0.875, 0.824, 0.5586, 0.6406, -0.1494,
            -0.2266, -0.3164, 1.492, -0.7734, 1.07, -1.039, 0.6914, 0.9062, 1.219, -0.4746, 0.9805,
            -1.125, 0.7734, 0.455, 1.727
        ],
        "float16",
    ).reshape(2, 2, 3, 5),
    "inputs/grad.y": np.array(
        [
            0.02942, -0.539, 0.414, 0.9805, -0.2812, 1.055, 1.172, -1.664, -0.9766, -0.2656, -0.2207,
            -1.625, 0.547, 0.0718, -0.582, 0.3008, -0.5273, 0.66, 1.719, 1.43, -0.5117, -0.793, -0.6445,
            1.359, -0.3633, 0.582, 1.18, -0.547, 1.727, -0.633, -0.4746, 0.4863, 0.578, -1.4375,
            -0.3398, 0.371, -0.4258, 0.4941, -1.578, -1.758, 0.2363, -0.6914, -0.05713, 2.188, 0.11523,
            1.102, 0.8164, -1.414, -0.0359, -0.4336, -1.242, 0.3418, -0.2637, -0.504, 0.5273, -0.2197,
            0.3965, 0.8086, -0.1748, 0.7695
        ],
        "float16",
    ).reshape(2, 2, 5, 3),
    "exact/y": np.array(
        [
            1.59375, 0.40625, 0.3802083333333333, 0.7020833333333333, 0.753125, 0.5643229166666667,
            -0.6354166666666666, 1.2734375, 0.8404947916666666, 0.07054036458333333,
            -0.0062499999999999995, 0.8658854166666666, 0.5411783854166666, -0.859375, 0.8828125,
            -1.0481770833333333, -0.61328125, -0.24055989583333334, -0.64140625, -0.68046875,
            -0.6873046875, -0.03125, -0.78125, -1.357421875, 0.4283203125, 0.6296875, -0.944970703125,
            0.7347005208333334, 1.5703125, -0.6700032552083334, -0.595947265625, 1.234375,
            0.7903645833333334, -0.234130859375, 1.196875, 0.15755208333333334, 0.30859375, 1.140625,
            -0.7916666666666666, -0.06171875, 0.79140625, -0.24830729166666668, -0.30859375, 0.55859375,
            0.11393229166666667, -0.2565104166666667, 1.4921875, 0.4557291666666667,
            -0.33880208333333334, 1.2578125, 0.309375, -0.4622395833333333, 0.90625, 0.08984375,
            -0.017708333333333333, 0.8265625, 0.817578125, 0.2786458333333333, 0.7734375, 1.302734375
        ],
        "float64",
    ).reshape(2, 2, 5, 3),
    "torch/y": np.array(
        [
            1.594, 0.4062, 0.3801, 0.702, 0.753, 0.5645, -0.6353, 1.273, 0.8403, 0.07056, -0.00625,
            0.8657, 0.541, -0.8594, 0.883, -1.048, -0.6133, -0.2406, -0.6416, -0.6807, -0.6875,
            -0.03125, -0.7812, -1.357, 0.4282, 0.63, -0.945, 0.735, 1.57, -0.67, -0.5957, 1.234, 0.7905,
            -0.2341, 1.197, 0.1576, 0.3086, 1.141, -0.7915, -0.0617, 0.7915, -0.2483, -0.3086, 0.5586,
            0.11395, -0.2566, 1.492, 0.4558, -0.3389, 1.258, 0.3093, -0.4622, 0.9062, 0.08984, -0.01772,
            0.8267, 0.8174, 0.2786, 0.7734, 1.303
        ],
        "float16",
    ).reshape(2, 2, 5, 3),
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


def gradients(outputs, grad_outputs, leaves):
    given = [tensorflow.cast(dy, y.dtype) for y, dy in zip(outputs, grad_outputs)]
    grads = latest.tape.gradient(list(outputs), list(leaves), output_gradients=given)
    return [None if grad is None else tensorflow.convert_to_tensor(grad) for grad in grads]


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def channels_last(x):
    """[N, C, ...] to [N, ..., C]."""
    return tensorflow.transpose(x, [0, *range(2, x.ndim), 1])


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def resized(sizes, size, scale_factor):
    """The sizes after an interpolation, for a framework that takes nothing else."""
    if size is not None:
        return each(size, len(sizes))
    scaled = [old * factor for old, factor in zip(sizes, each(scale_factor, len(sizes)))]
    require(all(new == int(new) for new in scaled), "it takes sizes, but these factors give no whole numbers")
    return tuple(map(int, scaled))


def channels_first(x):
    """[N, ..., C] to [N, C, ...]."""
    return tensorflow.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def interpolate(x, size=None, scale_factor=None, mode='nearest', align_corners=None):
    require(
        x.ndim == 4 and mode in ("nearest", "bilinear", "bicubic"), f"tf.image.resize has no {mode} of these axes"
    )
    require(mode == "nearest" or x.dtype != "float64", "tf.image.resize returns float32")
    last, sizes = channels_last(x), resized(x.shape[2:], size, scale_factor)
    if align_corners:
        resize = tensorflow.compat.v1.image.resize
        return channels_first(resize(last, sizes, mode, align_corners=True))
    return channels_first(tensorflow.image.resize(last, sizes, mode))


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
        return np.asarray(value, "float16")
    if str(value.dtype).endswith("bfloat16"):
        return value
    try:
        return np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else to_numpy(value))
    except TypeError:
        return value


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(interpolate)(
        x=x,
        size=(5, 3), scale_factor=None, mode="bilinear", align_corners=None,
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
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def check(tensor, label, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"] if f"{label}/{tensor}" in DATA else None
    here, there = described(live), described(other, "float16" if label == "exact" else "")
    if here != there or other is None:
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


RESULT = compute()
DIFFERS = [
    check("y", "exact", rtol=0.001, atol=1e-05),
    check("y", "torch", rtol=0.001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
