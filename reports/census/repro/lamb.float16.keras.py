"""lamb of keras 3.15.1 follows a different convention: weight decay is coupled instead of decoupled,
or the reverse (float16: param, exp_avg)

case       lamb (configs/census/../ops/optimizer.yaml:12)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
param      semantic: the error of keras is 803 times that of a careful implementation in float16
           (the largest: 0.228 in bfloat16, 0.257 in float16, 0.257 in float32, 0.257 in float64):
           the error is the same in every precision, so the formula differs
exp_avg    rounding: rounding alone: the tolerance is tighter than float16 allows: the error is
           keras's 2.66 times that of a careful implementation, the error bound is 8
cause      weight-decay-coupling: weight decay is coupled instead of decoupled, or the reverse
           (param)
cause      rounding: rounding: the tolerance is smaller than the rounding error of this case
           (exp_avg)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python lamb.float16.keras.py (needs keras and numpy)
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
    "inputs/param": np.array(
        [
            1.484, 1.492, -0.09863, 1.852, 1.789, -0.4453, 1.391, 0.07227, 0.04395, -1.852, -0.0586,
            1.008, 0.01575, -0.4766, 0.104, 1.172, -0.5195, 0.208, 0.10693, -0.8984, -0.6562, -1.055,
            1.617, -0.1387, -0.715, 1.4375, -1.117, -0.3652, -0.1445, -1.234
        ],
        "float16",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            -0.5195, -0.6914, -1.125, 0.2109, -0.4512, -0.1836, 0.0515, -1.031, -0.6562, 0.4082, 1.102,
            -0.508, 0.84, -1.016, 0.9297, -0.6406, -0.801, 1.43, 0.504, -1.344, 1.602, -0.254, 1.211,
            -0.05322, -0.5117, -1.516, 0.793, 1.102, -0.629, 1.078
        ],
        "float16",
    ).reshape(5, 6),
    "inputs/exp_avg": np.array(
        [
            0.01807, 0.1768, -0.05957, 0.2383, -0.03125, -0.0586, -0.02368, -0.03687, -0.1167, 0.02295,
            0.06445, -0.2324, 0.03516, 0.07275, -0.004883, 0.006042, -0.1201, -0.2334, 0.1094, 0.01733,
            -0.1426, 0.0603, -0.02734, -0.06152, -0.11865, 0.1138, 0.0781, -0.02002, 0.05103, 0.1562
        ],
        "float16",
    ).reshape(5, 6),
    "inputs/exp_avg_sq": np.array(
        [
            0.6953, 0.582, 0.1943, 0.3555, 0.66, 0.4941, 0.582, 0.8203, 0.4805, 0.5156, 0.6914, 0.2969,
            0.8594, 0.375, 0.9844, 0.664, 0.746, 0.0713, 0.9297, 0.711, 0.7266, 0.3242, 0.7305, 0.5,
            0.6055, 0.621, 0.4102, 0.789, 0.0762, 0.9727
        ],
        "float16",
    ).reshape(5, 6),
    "exact/param": np.array(
        [
            1.348829066244008, 1.3292486558940662, -0.0268629317253208, 1.608114968604944,
            1.6320872404099644, -0.38574663580186586, 1.2605037874555234, 0.0902641426814198,
            0.08053567821886982, -1.6878293411499903, -0.08647489146893118, 0.9900591776490917,
            -0.006443512016503429, -0.42100714137131023, 0.07920989662804849, 1.0711890516145997,
            -0.43348899704214927, 0.22910675465679037, 0.07106175155393057, -0.788767602510193,
            -0.5993698464112595, -0.9617468832388981, 1.4430769441468174, -0.11111061532857479,
            -0.612489288314552, 1.3096891287232075, -1.0485429134023043, -0.34732606346593003,
            -0.12047240793655299, -1.1575087133654054
        ],
        "float64",
    ).reshape(5, 6),
    "exact/exp_avg": np.array(
        [
            -0.03569335937499999, 0.08994140625000002, -0.16611328124999997, 0.235546875,
            -0.07324218749999999, -0.07109375, -0.016162109375, -0.1363037109375, -0.170654296875,
            0.06147460937499999, 0.1681640625, -0.2599609375, 0.11562499999999998,
            -0.036083984374999975, 0.08857421874999998, -0.058624267578124986, -0.18818359375,
            -0.06708984375000003, 0.14882812499999998, -0.11877441406249997, 0.03183593749999996,
            0.028881835937500006, 0.09648437499999997, -0.060693359375, -0.157958984375,
            -0.04916992187499997, 0.149609375, 0.09213867187499998, -0.016967773437499986,
            0.24843749999999998
        ],
        "float64",
    ).reshape(5, 6),
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


def stepped(optimizer, param, grad, step, **states):
    """One step of an optimizer from these states, in its order; returns the new parameter and states."""
    variable = keras.Variable(param)
    optimizer.build([variable])
    optimizer.iterations.assign(step - 1)
    kept = dict(zip(states, optimizer.variables[2:]))
    for name, own in kept.items():
        own.assign(states[name])
    optimizer.apply([grad], [variable])
    return {"param": variable.value, **{name: own.value for name, own in kept.items()}}


def lamb(param, grad, lr, betas, eps, weight_decay, step, **states):
    optimizer = keras.optimizers.Lamb(lr, *betas, eps, weight_decay)
    return stepped(optimizer, param, grad, step, **states)


def compute():
    """The outputs, by name."""
    param = leaf(DATA["inputs/param"], False)
    grad = leaf(DATA["inputs/grad"], False)
    exp_avg = leaf(DATA["inputs/exp_avg"], False)
    exp_avg_sq = leaf(DATA["inputs/exp_avg_sq"], False)
    result = in_mode(lamb)(
        param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq,
        lr=0.1, betas=(0.9, 0.999), eps=1e-06, weight_decay=0.1, step=5,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
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
    check("param", "exact", rtol=0.001, atol=1e-05)
    and inaccurate("param", rms=0.0001981849608635111, largest=0.00034613687660302534, limit=8.0),
    check("exp_avg", "exact", rtol=0.001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
