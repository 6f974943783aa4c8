"""ctc_loss of keras 3.15.1 returns a different shape, dtype or set of outputs in bfloat16: y

case       ctc_loss-6x4x5-reduction=mean (configs/ops/loss.yaml:33)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          structure: keras has dtype float32, oracle bfloat16; the values were not compared
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python ctc_loss-6x4x5-reduction=mean.bfloat16.keras.py (needs keras and numpy)
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

# Without a word, Keras is on TensorFlow.
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
            -1.5390625, 0.4296875, 2.59375, -1.0234375, -0.58984375, 1.0546875, -0.86328125, -0.609375,
            1.5, 1.1875, -0.7421875, -1.0625, -0.18554688, 1.4609375, -0.484375, -0.19628906, -2.234375,
            -1.8046875, 0.11279297, 0.16113281, 0.15820312, -0.1328125, 0.19628906, 1.015625,
            -1.8203125, 0.359375, -0.43945312, 0.953125, -0.039794922, 1.0625, 1.6640625, -1.015625,
            1.0078125, 0.02331543, -0.13769531, 0.9921875, -1.21875, -0.390625, 0.71484375, 2.140625,
            -0.57421875, -0.9921875, -0.114746094, 0.9609375, 0.40429688, -1.2734375, 0.07324219,
            0.46679688, -0.703125, 0.2421875, 1.0078125, -0.32617188, 0.6875, 2.03125, -0.37304688,
            -0.25390625, -0.29882812, 1.359375, -1.109375, 1.015625, 0.5703125, 0.33984375, -2.015625,
            0.78125, -0.083984375, -1.4375, -1.7734375, 0.15039062, 1.4765625, -0.3046875, 1.9140625,
            -3.21875, 0.8984375, -0.875, -0.58984375, 1.390625, 0.50390625, -0.859375, 0.28320312,
            0.9140625, 0.032226562, 0.66796875, -0.27148438, -0.06738281, -0.43554688, -0.35546875,
            -0.48046875, 0.421875, 1.296875, -0.69921875, -0.23632812, -1.1328125, 0.07373047,
            0.92578125, -0.11816406, 0.2109375, 0.17578125, -0.66015625, -0.03564453, 0.33984375,
            0.59765625, 0.50390625, 0.4921875, 0.875, 2.34375, 0.040039062, -0.84765625, 0.4296875,
            -0.06298828, -0.63671875, 2.515625, -0.088378906, -0.70703125, -1.125, 0.46875, 0.71875,
            0.17285156, -0.19824219, 0.9140625, 0.73046875
        ],
        "float32",
    ).reshape(6, 4, 5),
    "inputs/target": np.array([[1, 2, 2], [3, 4, 3], [4, 1, 1], [4, 1, 3]], "int64"),
    "inputs/input_lengths": np.array([5, 6, 6, 6], "int64"),
    "inputs/target_lengths": np.array([3, 2, 3, 2], "int64"),
    "inputs/grad.y": np.array(-0.029907227, "float32"),
    "exact/y": np.array(2.6934858424547903, "float64"),
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


def shape_of(value):
    """The shape of a tensor of any framework; None for what is no tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)


def named_outputs(result):
    """What an op returned, by output name: a mapping is taken as it is, a single tensor is `y`.

    Raises TypeError for what is neither.
    """
    if not isinstance(result, Mapping):
        if shape_of(result) is None:
            raise TypeError(
                f"an op must return a tensor, or a mapping of tensors by name, not a {type(result).__name__}"
            )
        return {"y": result}
    for name, value in result.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not (item is None or isinstance(item, (bool, int, float)) or shape_of(item) is not None):
                raise TypeError(
                    f"an op must return tensors, or lists of them, by name; {name} is a {type(item).__name__}"
                )
    return dict(result)


def staged(function):
    """The function with the dtype of its tensors as that of Keras's numbers (floatx) and layers (policy)."""

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
    """The function in its stage, under the tape that `gradients` reads."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        # tf.custom_gradient leaves out a user's gradient, without a word, for tensors by keyword.
        bound = inspect.signature(function).bind(**given)
        with tensorflow.GradientTape() as latest.tape:
            for value in given.values():
                if tensorflow.is_tensor(value) and value.dtype.is_floating:
                    latest.tape.watch(value)
            return named_outputs(staged_(*bound.args, **bound.kwargs))

    return call


def gradients(outputs, upstream, leaves):
    given = [tensorflow.cast(dy, y.dtype) for y, dy in zip(outputs, upstream)]
    found = latest.tape.gradient(list(outputs), list(leaves), output_gradients=given)
    return [None if grad is None else tensorflow.convert_to_tensor(grad) for grad in found]


def ctc_loss(x, target, input_lengths, target_lengths, blank=0, reduction='mean'):
    logits = keras.ops.swapaxes(x, 0, 1)
    losses = keras.ops.ctc_loss(target, logits, target_lengths, input_lengths, blank)
    if reduction == "mean":
        losses = losses / keras.ops.cast(keras.ops.maximum(target_lengths, 1), losses.dtype)
    return {"mean": keras.ops.mean, "sum": keras.ops.sum}[reduction](losses) if reduction != "none" else losses


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
    target = leaf(DATA["inputs/target"], False)
    input_lengths = leaf(DATA["inputs/input_lengths"], False)
    target_lengths = leaf(DATA["inputs/target_lengths"], False)
    result = in_mode(ctc_loss)(
        x=x, target=target, input_lengths=input_lengths, target_lengths=target_lengths,
        blank=0, reduction="mean",
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


def check(tensor, side, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"] if f"{side}/{tensor}" in DATA else None
    here, there = described(live), described(other, "bfloat16" if side == "exact" or getattr(other, "dtype", "") == "float32" else "")
    if here != there or other is None:
        print(f"{tensor}: keras has {here}, {side} has {there}")
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
    values = {"keras": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


RESULT = compute()
DIFFERS = [
    check("y", "exact", rtol=0.016, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
