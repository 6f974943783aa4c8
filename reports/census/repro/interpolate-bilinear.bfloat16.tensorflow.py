"""interpolate of tensorflow 2.21.0 returns a different shape, dtype or set of outputs in bfloat16: y

case       interpolate-bilinear (configs/census/../ops/resample.yaml:9)
seen with  tensorflow 2.21.0, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          structure: tensorflow has dtype float32, oracle bfloat16; the values were not compared
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bilinear.bfloat16.tensorflow.py (needs tensorflow and numpy)
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
            1.7890625, 1.203125, 0.40625, 0.56640625, 0.28710938, -1.109375, 0.3125, 1.2734375,
            0.19335938, 1.1640625, 0.75, 0.123535156, -0.859375, 2.0625, 0.29296875, -1.3515625,
            -0.44140625, -0.61328125, -0.796875, 0.037597656, 0.70703125, -1.5078125, -0.78125,
            -0.40039062, -1.8359375, 1.171875, -0.13964844, 1.5703125, 0.036865234, -1.0234375,
            -0.015014648, -1.7578125, 1.234375, 1.4375, 0.46679688, 0.92578125, -0.92578125, 1.140625,
            -1.390625, -0.4921875, -0.875, 0.82421875, 0.55859375, 0.640625, -0.14941406, -0.2265625,
            -0.31640625, 1.4921875, -0.7734375, 1.0703125, -1.0390625, 0.69140625, 0.90625, 1.21875,
            -0.47460938, 0.98046875, -1.125, 0.7734375, 0.45507812, 1.7265625
        ],
        "float32",
    ).reshape(2, 2, 3, 5),
    "inputs/grad.y": np.array(
        [
            0.029418945, -0.5390625, 0.4140625, 0.98046875, -0.28125, 1.0546875, 1.171875, -1.6640625,
            -0.9765625, -0.265625, -0.22070312, -1.625, 0.546875, 0.071777344, -0.58203125, 0.30078125,
            -0.52734375, 0.66015625, 1.71875, 1.4296875, -0.51171875, -0.79296875, -0.64453125,
            1.359375, -0.36328125, 0.58203125, 1.1796875, -0.546875, 1.7265625, -0.6328125, -0.47460938,
            0.48632812, 0.578125, -1.4375, -0.33984375, 0.37109375, -0.42578125, 0.49414062, -1.578125,
            -1.7578125, 0.23632812, -0.69140625, -0.057128906, 2.1875, 0.115234375, 1.1015625,
            0.81640625, -1.4140625, -0.035888672, -0.43359375, -1.2421875, 0.34179688, -0.26367188,
            -0.50390625, 0.52734375, -0.21972656, 0.39648438, 0.80859375, -0.17480469, 0.76953125
        ],
        "float32",
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
            1.59375, 0.40625, 0.38085938, 0.703125, 0.75390625, 0.5625, -0.63671875, 1.2734375,
            0.83984375, 0.0703125, -0.0062561035, 0.8671875, 0.54296875, -0.859375, 0.8828125,
            -1.046875, -0.61328125, -0.24023438, -0.640625, -0.6796875, -0.6875, -0.03125, -0.78125,
            -1.359375, 0.42773438, 0.62890625, -0.9453125, 0.734375, 1.5703125, -0.671875, -0.59765625,
            1.234375, 0.7890625, -0.234375, 1.1953125, 0.15722656, 0.30859375, 1.140625, -0.79296875,
            -0.061767578, 0.79296875, -0.24804688, -0.30859375, 0.55859375, 0.11376953, -0.25585938,
            1.4921875, 0.45507812, -0.33789062, 1.2578125, 0.30859375, -0.46289062, 0.90625, 0.08984375,
            -0.017700195, 0.828125, 0.81640625, 0.27929688, 0.7734375, 1.3046875
        ],
        "float32",
    ).reshape(2, 2, 5, 3),
}

# NumPy has no bfloat16: float32 holds its numbers, and uint16 the bits that a framework's tensors are made of.
DATA = dict(DATA)
for name, values in DATA.items():
    if name.startswith("inputs/") and values.dtype == "float32":
        DATA[name] = np.asarray(values.view("uint32") >> 16, "uint16")


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
        print(f"{tensor}: tensorflow has {here}, {label} has {there}")
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
    check("y", "exact", rtol=0.016, atol=1e-05),
    check("y", "torch", rtol=0.016, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
