"""rmsprop of jax 0.10.2 follows a different convention: the learning rate is inside the momentum
buffer (float64: param, momentum_buffer)

case             rmsprop-momentum (configs/census/../ops/optimizer.yaml:14)
seen with        jax 0.10.2, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
                 Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
param            semantic: the error of jax is 8.34e+15 times that of a careful implementation in
                 float64 (the largest: 1.58 in bfloat16, 1.58 in float16, 1.58 in float32, 1.58 in
                 float64): the error is the same in every precision, so the formula differs
momentum_buffer  semantic: the error of jax is 4.28e+15 times that of a careful implementation in
                 float64 (the largest: 1.46 in bfloat16, 1.46 in float16, 1.46 in float32, 1.46 in
                 float64): the error is the same in every precision, so the formula differs
cause            lr-in-momentum: the learning rate is inside the momentum buffer (param and
                 momentum_buffer)
exact            the textbook formula in extended precision on the same inputs, rounded to float64
torch            the result of torch 2.13.0+cpu in the same run
run              python rmsprop-momentum.float64.jax.py (needs jax and numpy)
exit code        1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# XLA would use all cores otherwise.
if 1 == 1:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax

jax.config.update("jax_platforms", "cpu")
latest = SimpleNamespace()

DATA = {
    "inputs/param": np.array(
        [
            1.578125, 0.57421875, 0.279296875, -0.40234375, -0.6328125, -1.265625, 0.90234375,
            -0.3046875, -0.77734375, -0.236328125, -2.078125, 0.09423828125, -0.7109375, 2.0, 0.40625,
            -0.34765625, 0.2734375, 0.2236328125, 0.00762939453125, -0.68359375, 0.5390625, 2.015625,
            0.103515625, -1.3984375, -0.7421875, -2.0, -1.7109375, -0.734375, -1.0703125, -0.77734375
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            -0.68359375, 0.58984375, 0.3671875, -0.8515625, 0.63671875, -1.5234375, 1.515625,
            -0.51171875, -0.94921875, 0.83984375, 0.95703125, 1.03125, -0.25390625, -0.82421875,
            0.7421875, -0.443359375, 0.0517578125, -0.90234375, 1.46875, 0.78125, 1.640625, -1.90625,
            0.353515625, -1.90625, 1.2109375, 1.7421875, 0.96875, -0.64453125, 1.390625, 0.69921875
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/square_avg": np.array(
        [
            1.078125, 1.484375, 1.1796875, 1.1875, 1.7265625, 1.34375, 1.2265625, 1.59375, 1.59375,
            1.5078125, 1.8828125, 1.15625, 1.5390625, 1.296875, 1.984375, 1.765625, 1.4453125,
            1.3828125, 1.234375, 1.21875, 1.984375, 1.578125, 1.5546875, 1.8515625, 1.65625, 1.1484375,
            1.1171875, 1.140625, 1.6953125, 1.0625
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad_avg": np.array(
        [
            0.12109375, 0.177734375, 0.005126953125, 0.0986328125, -0.040771484375, 0.06689453125,
            0.0458984375, -0.09326171875, -0.041259765625, 0.0269775390625, 0.09814453125,
            -0.10107421875, 0.040771484375, 0.0130615234375, 0.10986328125, -0.00064849853515625,
            0.0274658203125, 0.00946044921875, 0.1328125, -0.1435546875, 0.1591796875, -0.044921875,
            0.0252685546875, -0.022705078125, -0.072265625, 0.07568359375, 0.0673828125, 0.07861328125,
            -0.173828125, 0.028076171875
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/momentum_buffer": np.array(
        [
            -0.408203125, -0.87890625, -0.44140625, 0.220703125, -0.7109375, 0.93359375, 0.8671875,
            0.97265625, 0.220703125, 0.3984375, -1.015625, 0.2890625, -0.049560546875, -1.4765625,
            -0.05126953125, 1.015625, -1.0625, -0.8515625, -0.1357421875, 0.08447265625, 0.36328125,
            -0.69140625, 0.0230712890625, -1.953125, 0.326171875, -0.400390625, -0.44140625, -1.875,
            -0.0166015625, 0.0013427734375
        ],
        "float64",
    ).reshape(5, 6),
    "exact/param": np.array(
        [
            1.6812836795242372, 0.6041656258560082, 0.28506478338827745, -0.34364546974196125,
            -0.617488000817857, -1.2185765181005848, 0.6878369148428638, -0.3513991196010906,
            -0.7217935212753456, -0.3407935006889407, -2.056858669983498, -0.02805637269036125,
            -0.6859020570270014, 2.2054399864760925, 0.35780401580188137, -0.4055468071071356,
            0.3647344734748714, 0.3771661343444469, -0.11300642421702733, -0.762674508997706,
            0.3892147628537088, 2.2288066852990265, 0.07294817849564209, -1.0831701140643448,
            -0.8657909412523948, -2.1258082278687622, -1.763178682707568, -0.5049463382569112,
            -1.176342048081375, -0.845521608170858
        ],
        "float64",
    ).reshape(5, 6),
    "torch/param": np.array(
        [
            1.6812836795242372, 0.6041656258560082, 0.28506478338827745, -0.34364546974196125,
            -0.617488000817857, -1.2185765181005845, 0.6878369148428638, -0.3513991196010906,
            -0.7217935212753456, -0.3407935006889407, -2.056858669983498, -0.02805637269036126,
            -0.6859020570270014, 2.2054399864760925, 0.35780401580188137, -0.4055468071071356,
            0.3647344734748714, 0.3771661343444469, -0.11300642421702736, -0.762674508997706,
            0.3892147628537088, 2.2288066852990265, 0.07294817849564209, -1.0831701140643448,
            -0.8657909412523948, -2.1258082278687622, -1.763178682707568, -0.5049463382569112,
            -1.176342048081375, -0.845521608170858
        ],
        "float64",
    ).reshape(5, 6),
    "exact/momentum_buffer": np.array(
        [
            -1.0315867952423718, -0.29946875856008176, -0.05767908388277481, -0.5869828025803874,
            -0.1532449918214297, -0.47048481899415334, 2.1450683515713616, 0.4671161960109061,
            -0.555502287246544, 1.0446537568894072, -0.2126633001650208, 1.2229465394036125,
            -0.2503544297299865, -2.054399864760923, 0.48445984198118636, 0.578905571071356,
            -0.9129697347487142, -1.5353332184444686, 1.2063581874827733, 0.7908075899770597,
            1.4984773714629118, -2.1318168529902635, 0.30567446504357915, -3.152673859356552,
            1.2360344125239469, 1.2580822786876202, 0.5224118270756785, -2.2942866174308882,
            1.0602954808137508, 0.6817785817085797
        ],
        "float64",
    ).reshape(5, 6),
    "torch/momentum_buffer": np.array(
        [
            -1.0315867952423718, -0.2994687585600817, -0.05767908388277476, -0.5869828025803874,
            -0.15324499182142975, -0.4704848189941536, 2.1450683515713616, 0.46711619601090604,
            -0.555502287246544, 1.0446537568894072, -0.21266330016502077, 1.2229465394036125,
            -0.2503544297299865, -2.054399864760923, 0.4844598419811863, 0.5789055710713559,
            -0.9129697347487142, -1.5353332184444688, 1.2063581874827736, 0.7908075899770597,
            1.4984773714629118, -2.131816852990263, 0.30567446504357915, -3.152673859356552,
            1.236034412523947, 1.2580822786876202, 0.5224118270756786, -2.2942866174308882,
            1.060295480813751, 0.6817785817085797
        ],
        "float64",
    ).reshape(5, 6),
}


def leaf(array, requires_grad):
    if array.dtype.kind in "fu":
        jax.config.update("jax_enable_x64", array.dtype.itemsize == 8)
    return jax.numpy.array(array.view(jax.numpy.bfloat16.dtype) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    values = tensor.__array__()
    return values.view("uint16") if values.dtype == jax.numpy.bfloat16 else values


def staged(function):
    """The function as the mode runs it; in eager mode, the function itself."""
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
    """The staged function, whose calls are kept."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def optax():
    """Optax, imported by the first cell that needs it, since few do."""
    import optax

    return optax


STATES = {
    "momentum_buffer": "trace",
    "exp_avg": "mu",
    "exp_avg_sq": "nu",
    "square_avg": "nu",
    "grad_avg": "mu",
    "sum": "sum_of_squares",
}


def stepped(optimizer, weight_decay, param, grad, count=None, **state):
    """One step of an optimizer, with decay added to the gradient; `state` is that after `count` steps."""
    optax_ = optax()
    if weight_decay:
        optimizer = optax_.chain(optax_.add_decayed_weights(weight_decay), optimizer)
    given = {STATES[name]: value for name, value in state.items()}
    given = given if count is None else {**given, "count": jax.numpy.asarray(count, "int32")}
    before = optax_.tree_utils.tree_set(optimizer.init(param), **given)
    updates, after = optimizer.update(grad, before, param)
    kept = {name: optax_.tree_utils.tree_get(after, STATES[name]) for name in state}
    return {"param": optax_.apply_updates(param, updates), **kept}


def rmsprop(lr, alpha, eps, weight_decay=0.0, momentum=0.0, centered=False, **given):
    optimizer = optax().rmsprop(
        lr, alpha, eps, eps_in_sqrt=False, centered=centered, momentum=momentum or None
    )
    if not momentum:
        return stepped(optimizer, weight_decay, **given)
    # Optax's buffer is added to the parameter, PyTorch's is subtracted.
    given["momentum_buffer"] = -given["momentum_buffer"]
    after = stepped(optimizer, weight_decay, **given)
    return {**after, "momentum_buffer": -after["momentum_buffer"]}


def compute():
    """The outputs, by name."""
    param = leaf(DATA["inputs/param"], False)
    grad = leaf(DATA["inputs/grad"], False)
    square_avg = leaf(DATA["inputs/square_avg"], False)
    grad_avg = leaf(DATA["inputs/grad_avg"], False)
    momentum_buffer = leaf(DATA["inputs/momentum_buffer"], False)
    result = in_mode(rmsprop)(
        param=param, grad=grad, square_avg=square_avg, grad_avg=grad_avg, momentum_buffer=momentum_buffer,
        lr=0.1, alpha=0.99, eps=1e-08, weight_decay=0.0, momentum=0.9, centered=True,
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
    here, there = described(live), described(other, "float64")
    if here != there:
        print(f"{tensor}: jax has {here}, {label} has {there}")
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
    values = {"jax": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("param", "exact", rtol=1e-07, atol=1e-07)
        | check("param", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("param", rms=1.8748600418174914e-16, largest=5.424263468944979e-16, limit=8.0),
    (
        check("momentum_buffer", "exact", rtol=1e-07, atol=1e-07)
        | check("momentum_buffer", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("momentum_buffer", rms=3.076403533738732e-16, largest=7.511352650979575e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
