"""round of tensorflow 2.21.0 returns a different shape, dtype or set of outputs in bfloat16: grad.x

case       round (configs/census/../ops/elementwise.yaml:37)
seen with  tensorflow 2.21.0, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     structure: tensorflow has no grad.x; the values were not compared
cause      missing-gradient: a gradient is zero or absent (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python round.bfloat16.tensorflow.py (needs tensorflow and numpy)
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
            -5.625, -5.1875, 1.109375, 1.21875, 3.03125, -2.0625, -1.0546875, 4.625, 2.40625,
            -1.1953125, -2.0625, 7.65625, -2.984375, -3.421875, -4.3125, 1.46875, 0.33007812, 0.328125,
            0.53125, 0.69140625, -0.33984375, 1.9375, -1.609375, 4.15625, -2.875, 0.55078125, 1.921875,
            1.1640625, -3.546875, 3.40625, 2.546875, 2.15625, 3.25, -3.265625, -1.8125, -0.83203125
        ],
        "float32",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            1.7890625, 2.0, 0.3515625, -0.076171875, -0.734375, -0.47851562, 0.10839844, 0.23339844,
            0.32421875, -0.94140625, -0.62109375, -0.24121094, 1.0, -0.30078125, 0.2734375, -0.49609375,
            -0.42773438, 0.6640625, -0.17089844, -0.49023438, 0.44726562, 1.15625, 1.0546875,
            -0.011962891, 0.37304688, -0.98046875, -0.23339844, -0.52734375, -1.5859375, -1.09375,
            -0.41015625, 0.22265625, 1.328125, -0.88671875, 1.2734375, -0.2109375
        ],
        "float32",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float32",
    ).reshape(4, 9),
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


def round(x):
    return tensorflow.math.round(x)


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
    result = in_mode(round)(x=x)
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
    check("grad.x", "exact", rtol=0.05, atol=0.001),
    check("grad.x", "torch", rtol=0.05, atol=0.001),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
