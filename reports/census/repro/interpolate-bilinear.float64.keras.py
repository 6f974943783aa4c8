"""interpolate of keras 3.15.1 has only float32 accuracy in float64: y, grad.x

case       interpolate-bilinear (configs/census/../ops/resample.yaml:9)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of keras is 1.97e+08 times that of a careful implementation in
           float64, 4.2e-05 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     degraded: the error of keras is 2.34e+08 times that of a careful implementation in
           float64, 6.61e-07 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      reduced-precision: computed in or through a lower precision (y)
cause      reduced-precision: computed in or through a lower precision (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bilinear.float64.keras.py (needs keras and numpy)
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
            1.7890625, 1.203125, 0.40625, 0.56640625, 0.287109375, -1.109375, 0.3125, 1.2734375,
            0.193359375, 1.1640625, 0.75, 0.12353515625, -0.859375, 2.0625, 0.29296875, -1.3515625,
            -0.44140625, -0.61328125, -0.796875, 0.03759765625, 0.70703125, -1.5078125, -0.78125,
            -0.400390625, -1.8359375, 1.171875, -0.1396484375, 1.5703125, 0.036865234375, -1.0234375,
            -0.0150146484375, -1.7578125, 1.234375, 1.4375, 0.466796875, 0.92578125, -0.92578125,
            1.140625, -1.390625, -0.4921875, -0.875, 0.82421875, 0.55859375, 0.640625, -0.1494140625,
            -0.2265625, -0.31640625, 1.4921875, -0.7734375, 1.0703125, -1.0390625, 0.69140625, 0.90625,
            1.21875, -0.474609375, 0.98046875, -1.125, 0.7734375, 0.455078125, 1.7265625
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
    "inputs/grad.y": np.array(
        [
            0.0294189453125, -0.5390625, 0.4140625, 0.98046875, -0.28125, 1.0546875, 1.171875,
            -1.6640625, -0.9765625, -0.265625, -0.220703125, -1.625, 0.546875, 0.07177734375,
            -0.58203125, 0.30078125, -0.52734375, 0.66015625, 1.71875, 1.4296875, -0.51171875,
            -0.79296875, -0.64453125, 1.359375, -0.36328125, 0.58203125, 1.1796875, -0.546875,
            1.7265625, -0.6328125, -0.474609375, 0.486328125, 0.578125, -1.4375, -0.33984375,
            0.37109375, -0.42578125, 0.494140625, -1.578125, -1.7578125, 0.236328125, -0.69140625,
            -0.05712890625, 2.1875, 0.115234375, 1.1015625, 0.81640625, -1.4140625, -0.035888671875,
            -0.43359375, -1.2421875, 0.341796875, -0.263671875, -0.50390625, 0.52734375, -0.2197265625,
            0.396484375, 0.80859375, -0.1748046875, 0.76953125
        ],
        "float64",
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
            1.59375, 0.40625, 0.38020833333333326, 0.7020833333333334, 0.7531249999999999,
            0.5643229166666668, -0.6354166666666666, 1.2734375, 0.8404947916666669, 0.07054036458333322,
            -0.006249999999999752, 0.8658854166666664, 0.5411783854166665, -0.859375,
            0.8828124999999996, -1.0481770833333333, -0.61328125, -0.2405598958333331,
            -0.6414062500000001, -0.6804687500000001, -0.6873046875, -0.0312500000000001, -0.78125,
            -1.3574218750000004, 0.4283203124999998, 0.6296874999999997, -0.9449707031250005,
            0.7347005208333333, 1.5703125, -0.6700032552083337, -0.5959472656250001, 1.234375,
            0.790364583333333, -0.23413085937500008, 1.1968750000000001, 0.1575520833333334,
            0.3085937499999999, 1.140625, -0.7916666666666664, -0.06171874999999993, 0.7914062500000001,
            -0.2483072916666668, -0.3085937499999999, 0.55859375, 0.11393229166666641,
            -0.2565104166666667, 1.4921875, 0.4557291666666672, -0.33880208333333334,
            1.2578125000000002, 0.3093750000000001, -0.46223958333333326, 0.90625, 0.08984374999999947,
            -0.017708333333333413, 0.8265625, 0.8175781249999998, 0.27864583333333326, 0.7734375,
            1.3027343750000004
        ],
        "float64",
    ).reshape(2, 2, 5, 3),
    "exact/grad.x": np.array(
        [
            0.41180013020833334, 0.20590006510416667, -0.7078125, 0.3489583333333333,
            0.6979166666666666, 0.971875, 0.4859375, -1.86484375, -0.4015625, -0.803125,
            0.25833333333333336, 0.12916666666666668, -0.06064453125, -0.5190104166666667,
            -1.0380208333333334, 0.8880208333333334, 0.4440104166666667, 0.33046875,
            0.11770833333333333, 0.23541666666666666, -0.1671875, -0.08359375, 0.16015625, 0.5421875,
            1.084375, -0.5098958333333333, -0.25494791666666666, 2.07578125, 0.025, 0.05, -0.89140625,
            -0.445703125, 0.282421875, 0.2669270833333333, 0.5338541666666666, -1.1359375, -0.56796875,
            0.452734375, -0.56875, -1.1375, -0.7412109375, -0.37060546875, 2.329296875,
            -0.09986979166666667, -0.19973958333333333, 0.72001953125, 0.360009765625, 0.55625,
            -0.7197916666666667, -1.4395833333333334, 0.35891927083333336, 0.17945963541666668, -0.525,
            -0.28072916666666664, -0.5614583333333333, 0.75, 0.375, -0.306640625, 0.3358072916666667,
            0.6716145833333333
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
    "torch/grad.x": np.array(
        [
            0.41180013020833334, 0.2059000651041667, -0.7078125000000001, 0.34895833333333304,
            0.6979166666666671, 0.971875, 0.48593749999999997, -1.8648437500000001, -0.4015624999999997,
            -0.8031250000000005, 0.2583333333333333, 0.12916666666666668, -0.06064453124999996,
            -0.5190104166666661, -1.0380208333333336, 0.8880208333333334, 0.44401041666666674,
            0.33046875000000014, 0.11770833333333323, 0.23541666666666672, -0.16718750000000007,
            -0.08359375000000006, 0.16015625, 0.5421874999999996, 1.0843750000000005,
            -0.5098958333333332, -0.25494791666666666, 2.07578125, 0.024999999999999956,
            0.0499999999999999, -0.8914062500000001, -0.4457031250000001, 0.282421875,
            0.2669270833333331, 0.533854166666667, -1.1359375, -0.5679687500000001, 0.452734375,
            -0.5687499999999995, -1.1375000000000006, -0.7412109374999999, -0.37060546874999994,
            2.329296875, -0.09986979166666657, -0.19973958333333333, 0.72001953125, 0.36000976562500003,
            0.5562499999999999, -0.719791666666666, -1.439583333333334, 0.35891927083333336,
            0.1794596354166667, -0.525, -0.28072916666666636, -0.5614583333333335, 0.7499999999999999,
            0.375, -0.306640625, 0.33580729166666634, 0.6716145833333337
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
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


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


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


def channels_last(framework, x):
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def channels_first(framework, x):
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def interpolate(x, size=None, scale_factor=None, mode='nearest', align_corners=None):
    known = x.ndim == 4 and mode in ("nearest", "bilinear", "bicubic") and not align_corners
    require(known, f"keras.ops.image.resize has no {mode} of these axes, or none with align_corners")
    sizes = resized(x.shape[2:], size, scale_factor)
    y = keras.ops.image.resize(channels_last(keras.ops, x), sizes, mode, data_format="channels_last")
    return channels_first(keras.ops, y)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(interpolate)(
        x=x,
        size=(5, 3), scale_factor=None, mode="bilinear", align_corners=None,
    )
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
    here, there = described(live), described(other, "float64")
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
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=7.26900679317551e-16, largest=1.9984014443252818e-15, limit=8.0),
    (
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=8.607358068165705e-16, largest=2.3243126173744244e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
