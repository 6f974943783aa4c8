"""batch_norm of keras 3.15.1 follows a different convention: running_var is updated with the biased
variance (float64: running_var)

case         batch_norm-1d (configs/census/../ops/norm.yaml:12)
seen with    keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
             Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
running_var  semantic: the error of keras is 2.89e+13 times that of a careful implementation in
             float64 (the largest: 0.00952 in bfloat16, 0.00961 in float16, 0.00948 in float32,
             0.00947 in float64): the error is the same in every precision, so the formula differs
cause        running-var-ddof: running_var is updated with the biased variance (running_var)
exact        the textbook formula in extended precision on the same inputs, rounded to float64
torch        the result of torch 2.13.0+cpu in the same run
run          python batch_norm-1d.float64.keras.py (needs keras and numpy)
exit code    1 while the difference is there, 0 once it is fixed
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
            1.5859375, 0.033935546875, -0.21484375, -1.1796875, 0.81640625, 0.50390625, -0.318359375,
            -0.4765625, 1.3203125, 1.4140625, 1.3203125, -1.15625, 0.86328125, -1.1328125, 0.08984375,
            0.64453125, -0.70703125, 0.6328125, -1.0625, 0.330078125, 1.65625, -0.19140625, -1.5,
            -0.9296875, -0.796875, -1.5546875, -3.0, 0.333984375, 0.1826171875, 1.40625, 1.2890625,
            0.67578125, -1.5625, -0.337890625, -0.9921875, 0.16796875, 0.10107421875, 0.76953125,
            1.765625, -1.8984375, 1.0078125, -0.2421875, 0.5625, 1.8984375, -0.09814453125, -1.0,
            -0.470703125, -0.9453125, -0.56640625, -0.0908203125, -0.984375, 0.01287841796875,
            -0.259765625, -0.828125, -0.78125, -0.953125, 0.2431640625, 0.06884765625, -1.40625,
            0.63671875, 1.2734375, -0.32421875, 0.52734375, 0.88671875
        ],
        "float64",
    ).reshape(16, 4),
    "inputs/weight": np.array([1.390625, 0.59375, 1.2421875, 1.046875], "float64"),
    "inputs/bias": np.array([-0.140625, -0.00174713134765625, 0.306640625, -0.333984375], "float64"),
    "inputs/running_mean": np.array([0.490234375, 0.365234375, -0.462890625, -0.2236328125], "float64"),
    "inputs/running_var": np.array([1.390625, 1.40625, 0.53125, 1.1328125], "float64"),
    "inputs/grad.y": np.array(
        [
            -1.890625, -1.8125, 1.5390625, 0.0211181640625, -1.25, -0.96484375, -0.7421875, -0.63671875,
            1.265625, 1.5390625, 0.71484375, -0.98046875, 0.34375, -0.1982421875, 1.03125, -0.71875,
            -1.1015625, 0.6953125, 1.0234375, 0.80078125, 0.1435546875, 0.47265625, -1.265625,
            -0.95703125, -0.984375, 0.322265625, 1.375, -0.0311279296875, 0.138671875, -0.4453125,
            -1.1328125, 0.07666015625, 0.16796875, 1.125, -0.82421875, 0.76171875, 0.458984375, 1.25,
            -0.0026397705078125, -0.859375, -0.349609375, -0.390625, -0.388671875, -0.75, 0.71484375,
            0.0537109375, 0.76953125, -0.71875, -0.91796875, 0.5859375, 1.921875, 0.72265625, -2.3125,
            -1.9375, 1.7578125, -0.69140625, -0.255859375, -0.796875, -0.44921875, 0.77734375, 2.1875,
            -0.7890625, 0.0263671875, -1.3125
        ],
        "float64",
    ).reshape(16, 4),
    "exact/running_var": np.array(
        [
            1.3417469402154287, 1.3382308610032, 0.6297244199117025, 1.118896069189844
        ],
        "float64",
    ),
    "torch/running_var": np.array(
        [
            1.3417469402154287, 1.3382308610032, 0.6297244199117025, 1.118896069189844
        ],
        "float64",
    ),
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


def layer(layer, x, weights, states=(), **options):
    """The output of a layer with these tensors as weights, and its states after the call."""
    layer.build(x.shape)
    # A random layer has a seed among its states.
    others = [variable.value for variable in layer.non_trainable_variables][len(states) :]
    given = [weight for weight in weights if weight is not None]
    return layer.stateless_call(given, [*states, *others], x, **options)


def batch_norm(x, running_mean, running_var, training, momentum, eps, weight=None, bias=None):
    layer_ = keras.layers.BatchNormalization(
        1, 1 - momentum, eps, center=bias is not None, scale=weight is not None
    )
    y, after = layer(layer_, x, (weight, bias), (running_mean, running_var), training=training)
    return {"y": y, "running_mean": after[0], "running_var": after[1]}


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight = leaf(DATA["inputs/weight"], True)
    bias = leaf(DATA["inputs/bias"], True)
    running_mean = leaf(DATA["inputs/running_mean"], False)
    running_var = leaf(DATA["inputs/running_var"], False)
    result = in_mode(batch_norm)(
        x=x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var,
        training=True, momentum=0.1, eps=1e-05,
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
        check("running_var", "exact", rtol=1e-07, atol=1e-07)
        | check("running_var", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("running_var", rms=2.964466196668389e-16, largest=3.7968760080442365e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
