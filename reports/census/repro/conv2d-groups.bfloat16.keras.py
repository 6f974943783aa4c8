"""conv2d of keras 3.15.1 is less accurate than a careful implementation in bfloat16: grad.bias, y

case       conv2d-groups (configs/census/../ops/conv.yaml:7)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.bias  unstable: the error of keras is 41.2 times that of a careful implementation in bfloat16
           (the largest: 0.0273 in bfloat16, 0.000488 in float16, 0 in float32, 0 in float64): the
           error changes with the precision, so the algorithm loses digits
y          rounding: rounding alone: the tolerance is tighter than bfloat16 allows: the error is
           keras's 1 and torch's 0.912 times that of a careful implementation, the error bound is 8
cause      narrow-accumulation: sums are accumulated in a narrow format (grad.bias)
cause      rounding: rounding: the tolerance is smaller than the rounding error of this case (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python conv2d-groups.bfloat16.keras.py (needs keras and numpy)
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
            0.921875, 0.22851562, 1.9921875, 0.06738281, -1.484375, -0.4140625, 0.4765625, -0.54296875,
            -0.00018596649, 0.59765625, -0.5859375, 1.65625, 0.14648438, 0.3203125, -0.34179688,
            -0.44726562, -1.203125, -1.09375, -0.080566406, -0.32617188, 2.25, -0.328125, 1.75,
            2.796875, -0.67578125, -0.26171875, 0.19921875, -1.5625, -2.28125, -1.4609375, -0.703125,
            -0.24121094, 2.25, -0.21484375, -0.28320312, 0.85546875, 0.77734375, -0.60546875,
            0.99609375, -0.03125, 0.31445312, 1.1875, -1.1953125, -0.8125, 0.49023438, -1.109375,
            -0.7734375, -0.5703125, 0.15820312, 0.17871094, 0.44335938, -0.013244629, -0.28710938,
            -0.47851562, -0.06738281, -1.5859375, 0.8828125, 1.8671875, -0.91796875, 0.51953125,
            0.97265625, 1.203125, 1.3828125, -1.015625, -1.0390625, 0.24414062, 1.4609375, -0.012939453,
            -0.50390625, 1.5625, -0.88671875, -0.90625, 1.609375, -0.23339844, 0.29492188,
            -0.0018692017, -1.25, 1.046875, -0.56640625, 0.515625, 0.64453125, -0.27539062, -0.85546875,
            0.65234375, -0.2421875, -1.3203125, 0.35351562, 0.07714844, -0.59765625, 1.265625,
            -1.640625, -1.21875, -0.53125, 0.045898438, -0.80078125, -0.8828125, -1.65625, 2.34375,
            1.15625, 1.1484375, 0.16210938, -0.71875, 0.02331543, 0.012451172, -0.66015625, -1.203125,
            0.73828125, -1.0703125, -1.0625, -2.21875, 0.77734375, 0.43164062, 1.171875, -0.66015625,
            -1.390625, -0.24609375, -1.6953125, -0.04663086, -0.609375, 1.3125, 0.84765625, -0.48632812,
            -0.4296875, -0.091796875, -0.18945312, 1.59375, -1.0, -0.765625, -0.54296875, 0.7734375,
            0.65625, -1.0703125, -0.7578125, -1.3046875, -0.76171875, 0.1015625, -0.5234375, 0.87109375,
            -1.21875, 1.25, 0.5625, -1.8203125, -0.55859375, 0.059570312, -2.15625, -0.23632812,
            0.0015869141, 0.55078125, 0.7890625, 0.19238281, 1.7734375, -0.37890625, 0.14648438,
            1.2265625, 0.64453125, -1.1640625, -0.86328125, -0.22070312, -0.22265625, -0.6484375,
            -0.7890625, -0.36914062, -0.23535156, 0.45898438, -1.4296875, -0.56640625, 1.2109375,
            -0.91796875, -0.11767578, -1.21875, -3.65625, -0.05053711, 1.125, -1.3046875, -0.9765625,
            0.2890625, 0.48242188, 0.55078125, 0.107421875, 0.8203125, 1.4375, -0.39257812, -1.1640625,
            0.7578125, 0.625, -0.040039062, -0.72265625, 1.515625, -0.44335938, 1.046875, 1.3515625,
            0.7734375, 0.265625, -0.76171875, 0.24804688, -0.103027344, -0.921875, 0.49609375, 2.359375,
            0.29492188, 0.31054688, 0.103515625, 0.65625, 0.7578125, -0.7578125, -0.03881836,
            -0.19628906, -0.84765625, 2.28125, 0.890625, -0.23730469, -1.609375, -1.5703125, 0.51953125,
            1.484375, 0.27148438, 1.09375, 1.609375, -2.0625, -0.24511719, -0.048095703, 1.1484375,
            0.1328125, -1.34375, -0.83984375, 0.23730469, -0.021362305, -1.53125, 0.90625, -0.30273438,
            -0.3125, -2.15625, -0.37109375, -1.4609375, -1.109375, 0.375, -0.65234375, 0.047851562,
            -0.81640625, -0.40820312
        ],
        "float32",
    ).reshape(2, 4, 5, 6),
    "inputs/weight": np.array(
        [
            -1.6328125, -0.65234375, -0.06542969, 0.34765625, 0.296875, -0.25195312, -0.087890625,
            -0.17578125, 1.640625, 0.7734375, -1.890625, -0.24707031, -1.3046875, -1.796875, 1.1484375,
            0.31445312, 0.25195312, 0.6640625, -1.578125, 2.28125, -1.0625, -0.47460938, 1.5078125,
            0.82421875, -0.122558594, -0.84375, -1.4296875, 1.7421875, 1.1796875, -0.06542969, 1.046875,
            0.40429688
        ],
        "float32",
    ).reshape(4, 2, 2, 2),
    "inputs/bias": np.array([1.578125, -1.5234375, -0.359375, -0.58203125], "float32"),
    "inputs/grad.y": np.array(
        [
            -1.09375, 1.234375, -0.24707031, 1.6015625, -0.41015625, -0.60546875, 1.6171875, -0.7578125,
            1.75, -0.19140625, -0.36328125, 0.37304688, 1.8046875, -0.828125, -1.890625, 0.76953125,
            1.3984375, -1.515625, 0.19433594, 1.21875, -0.080566406, -0.58203125, 0.048339844,
            0.43945312, -0.46484375, 0.1328125, 0.953125, -0.79296875, 0.4765625, 1.2109375, 0.17578125,
            0.23925781, 1.6484375, -1.4765625, 0.14257812, -1.359375, 1.8203125, -0.0009841919,
            0.09472656, -2.34375, -1.625, 0.4765625, 0.81640625, 2.0625, 0.079589844, -1.03125,
            -0.41796875, 1.6796875, -0.059326172, -0.095703125, 0.032958984, 0.2890625, 1.9296875,
            0.6484375, -0.33984375, -0.47070312, -0.69921875, 0.13671875, -0.40039062, -1.125,
            -0.41601562, -0.19042969, 0.23632812, 1.453125, 0.875, 0.5390625, -0.80859375, 0.063964844,
            -2.375, 0.90234375, -1.1640625, 1.4375, 0.9140625, -0.57421875, 1.1484375, 0.70703125, -0.5,
            0.18945312, 0.609375, -0.89453125, 0.38085938, -0.75390625, -1.0625, -0.47070312,
            0.69140625, -1.046875, 0.984375, -2.0625, -0.20117188, 0.09375, 0.018310547, -0.24804688,
            0.6015625, -0.115234375, -1.3203125, 0.94140625
        ],
        "float32",
    ).reshape(2, 4, 3, 4),
    "exact/grad.bias": np.array([2.75390625, 1.52978515625, 0.5791015625, -0.05249786376953125], "float64"),
    "torch/grad.bias": np.array([2.75, 1.53125, 0.578125, -0.052490234], "float32"),
    "exact/y": np.array(
        [
            -2.111879348754883, 1.2335319519042969, -0.2701396942138672, 1.3056621551513672,
            1.4755732603371143, 1.7968266010284424, 2.6498321518301964, 0.29244673252105713,
            1.0477542877197266, 0.6702690124511719, 2.5391197204589844, 2.1751708984375,
            -3.0068492889404297, -2.172697067260742, -0.5664825439453125, -3.327545166015625,
            -3.628252811729908, -0.2070838212966919, -8.108943864703178, -1.591264247894287,
            0.5597953796386719, 1.35626220703125, -1.3523941040039062, 4.99176025390625,
            0.42330074310302734, -0.06634068489074707, -3.4603347778320312, -0.3880413770675659,
            2.287933349609375, -6.7919793128967285, -3.211345672607422, 0.5828857421875,
            -1.7749481201171875, 1.9884790778160095, -5.743892669677734, 5.898578807711601,
            -5.798236846923828, -1.4562527537345886, -3.4411087036132812, -0.4173639416694641,
            -1.2307701110839844, -2.574261784553528, 0.4570045471191406, 3.1081466674804688,
            -2.1364927291870117, 1.287118673324585, -3.958367347717285, -0.2379033900797367,
            1.020711898803711, 2.1904640197753906, 2.0650672912597656, 1.8531036376953125,
            4.2932939529418945, 1.8229246139526367, 2.0618896484375, 1.287553310394287,
            3.7454018592834473, 4.00587272644043, 2.646727681159973, 0.7454147338867188,
            -2.141002655029297, -1.3113555908203125, -3.4158554077148438, -1.2963600158691406,
            -1.1772575378417969, -4.057311534881592, -4.969013214111328, 3.3854799270629883,
            2.6266106367111206, -2.350566864013672, -3.0987300872802734, 1.5070180892944336,
            -0.118072509765625, 0.6448593139648438, -3.052076816558838, -0.4858512878417969,
            -2.9251632690429688, -3.3389110565185547, 2.8706088066101074, -2.7565765380859375,
            -1.3325119018554688, -0.5721874237060547, 3.8507721424102783, 3.523861885070801,
            -0.10135650634765625, -3.507143974304199, -5.76486611366272, 0.5949306488037109,
            -0.7038974761962891, -1.1664800643920898, -3.8758881092071533, -3.4029464721679688,
            -1.2959022521972656, -3.0118322372436523, 2.418049454689026, 2.0407297611236572
        ],
        "float64",
    ).reshape(2, 4, 3, 4),
    "torch/y": np.array(
        [
            -2.109375, 1.234375, -0.26953125, 1.3046875, 1.4765625, 1.796875, 2.65625, 0.29296875,
            1.046875, 0.671875, 2.546875, 2.171875, -3.0, -2.171875, -0.56640625, -3.328125, -3.625,
            -0.20703125, -8.125, -1.59375, 0.55859375, 1.359375, -1.3515625, 5.0, 0.42382812,
            -0.06640625, -3.453125, -0.38867188, 2.28125, -6.78125, -3.21875, 0.58203125, -1.7734375,
            1.9921875, -5.75, 5.90625, -5.8125, -1.453125, -3.4375, -0.41796875, -1.234375, -2.578125,
            0.45703125, 3.109375, -2.140625, 1.2890625, -3.953125, -0.23828125, 1.0234375, 2.1875,
            2.0625, 1.8515625, 4.28125, 1.8203125, 2.0625, 1.2890625, 3.75, 4.0, 2.640625, 0.74609375,
            -2.140625, -1.3125, -3.421875, -1.296875, -1.1796875, -4.0625, -4.96875, 3.390625, 2.625,
            -2.34375, -3.09375, 1.5078125, -0.11816406, 0.64453125, -3.046875, -0.48632812, -2.921875,
            -3.34375, 2.875, -2.75, -1.3359375, -0.5703125, 3.84375, 3.53125, -0.1015625, -3.5, -5.75,
            0.59375, -0.703125, -1.1640625, -3.875, -3.40625, -1.296875, -3.015625, 2.421875, 2.046875
        ],
        "float32",
    ).reshape(2, 4, 3, 4),
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


def channels_last(framework, x):
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pads(padding, n):
    """Elements before and after each of `n` axes, for a padding that is no word."""
    return [(p, p) for p in each(padding, n)]


def conv_pads(padding, kernel, dilation):
    """`pads` of a convolution without stride, also for "same" (an odd element goes after) and "valid"."""
    n = len(kernel)
    if padding == "valid":
        return pads(0, n)
    if padding != "same":
        return pads(padding, n)
    totals = [d * (k - 1) for k, d in zip(kernel, each(dilation, n))]
    return [(total // 2, total - total // 2) for total in totals]


def channels_first(framework, x):
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def layer(layer, x, weights, states=(), **options):
    """The output of a layer with these tensors as weights, and its states after the call."""
    layer.build(x.shape)
    # A random layer has a seed among its states.
    others = [variable.value for variable in layer.non_trainable_variables][len(states) :]
    given = [weight for weight in weights if weight is not None]
    return layer.stateless_call(given, [*states, *others], x, **options)


def convolution(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    n = x.ndim - 2
    last = channels_last(keras.ops, x)
    if not isinstance(padding, str):
        around = conv_pads(padding, weight.shape[2:], dilation)
        last, padding = keras.ops.pad(last, [(0, 0), *around, (0, 0)]), "valid"
    layer_ = getattr(keras.layers, f"Conv{n}D")(
        weight.shape[0],
        tuple(weight.shape[2:]),
        each(stride, n),
        padding,
        "channels_last",
        each(dilation, n),
        groups,
        use_bias=bias is not None,
    )
    kernel = keras.ops.transpose(weight, [*range(2, n + 2), 1, 0])
    return channels_first(keras.ops, layer(layer_, last, (kernel, bias))[0])


def conv2d(**given):
    return convolution(**given)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight = leaf(DATA["inputs/weight"], True)
    bias = leaf(DATA["inputs/bias"], True)
    result = in_mode(conv2d)(x=x, weight=weight, bias=bias, stride=1, padding=0, dilation=2, groups=2)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, weight, bias])
    outputs.update(zip(["grad.x", "grad.weight", "grad.bias"], returned))
    return {name: to_numpy(value) for name, value in outputs.items() if value is not None}


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
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "bfloat16")
    if here != there:
        print(f"{tensor}: keras has {here}, {label} has {there}")
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
    if described(live) != described(exact, "bfloat16"):
        return True
    live = numbers(live).astype("float64")
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
        check("grad.bias", "torch", rtol=0.05, atol=0.001)
        | check("grad.bias", "exact", rtol=0.05, atol=0.001)
    )
    and inaccurate(
        "grad.bias", rms=0.00014794840397793104, largest=0.00014794840397793104, limit=8.0,
        part=np.s_[3], where=" in [3]",
    ),
    check("y", "torch", rtol=0.016, atol=1e-05),
    check("y", "exact", rtol=0.016, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
