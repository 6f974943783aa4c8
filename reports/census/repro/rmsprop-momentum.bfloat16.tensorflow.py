"""rmsprop of tensorflow 2.21.0 follows a different convention: the learning rate is inside the
momentum buffer (bfloat16: param, momentum_buffer, grad_avg)

case             rmsprop-momentum (configs/census/../ops/optimizer.yaml:14)
seen with        tensorflow 2.21.0, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
                 Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
param            semantic: the error of tensorflow is 364 times that of a careful implementation in
                 bfloat16 (the largest: 1.58 in bfloat16, 1.58 in float16, 1.58 in float32, 1.58 in
                 float64): the error is the same in every precision, so the formula differs
momentum_buffer  semantic: the error of tensorflow is 489 times that of a careful implementation in
                 bfloat16 (the largest: 1.46 in bfloat16, 1.46 in float16, 1.46 in float32, 1.46 in
                 float64): the error is the same in every precision, so the formula differs
grad_avg         unstable: the error of tensorflow is 19 times that of a careful implementation in
                 bfloat16 (the largest: 0.00338 in bfloat16, 0.000433 in float16, 1.73e-08 in
                 float32, 1.39e-17 in float64): the error changes with the precision, so the
                 algorithm loses digits
cause            lr-in-momentum: the learning rate is inside the momentum buffer (param and
                 momentum_buffer)
cause            attribute-precision: an attribute of a float64 computation is stored in float32
                 (grad_avg)
exact            the textbook formula in extended precision on the same inputs, rounded to float64
torch            the result of torch 2.13.0+cpu in the same run
run              python rmsprop-momentum.bfloat16.tensorflow.py (needs tensorflow and numpy)
exit code        1 while the difference is there, 0 once it is fixed
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
    "inputs/param": np.array(
        [
            1.578125, 0.57421875, 0.27929688, -0.40234375, -0.6328125, -1.265625, 0.90234375,
            -0.3046875, -0.77734375, -0.23632812, -2.078125, 0.09423828, -0.7109375, 2.0, 0.40625,
            -0.34765625, 0.2734375, 0.22363281, 0.0076293945, -0.68359375, 0.5390625, 2.015625,
            0.103515625, -1.3984375, -0.7421875, -2.0, -1.7109375, -0.734375, -1.0703125, -0.77734375
        ],
        "float32",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            -0.68359375, 0.58984375, 0.3671875, -0.8515625, 0.63671875, -1.5234375, 1.515625,
            -0.51171875, -0.94921875, 0.83984375, 0.95703125, 1.03125, -0.25390625, -0.82421875,
            0.7421875, -0.44335938, 0.051757812, -0.90234375, 1.46875, 0.78125, 1.640625, -1.90625,
            0.35351562, -1.90625, 1.2109375, 1.7421875, 0.96875, -0.64453125, 1.390625, 0.69921875
        ],
        "float32",
    ).reshape(5, 6),
    "inputs/square_avg": np.array(
        [
            1.078125, 1.484375, 1.1796875, 1.1875, 1.7265625, 1.34375, 1.2265625, 1.59375, 1.59375,
            1.5078125, 1.8828125, 1.15625, 1.5390625, 1.296875, 1.984375, 1.765625, 1.4453125,
            1.3828125, 1.234375, 1.21875, 1.984375, 1.578125, 1.5546875, 1.8515625, 1.65625, 1.1484375,
            1.1171875, 1.140625, 1.6953125, 1.0625
        ],
        "float32",
    ).reshape(5, 6),
    "inputs/grad_avg": np.array(
        [
            0.12109375, 0.17773438, 0.005126953, 0.09863281, -0.040771484, 0.06689453, 0.045898438,
            -0.09326172, -0.041259766, 0.026977539, 0.09814453, -0.10107422, 0.040771484, 0.013061523,
            0.10986328, -0.00064849854, 0.02746582, 0.009460449, 0.1328125, -0.14355469, 0.15917969,
            -0.044921875, 0.025268555, -0.022705078, -0.072265625, 0.075683594, 0.06738281, 0.07861328,
            -0.17382812, 0.028076172
        ],
        "float32",
    ).reshape(5, 6),
    "inputs/momentum_buffer": np.array(
        [
            -0.40820312, -0.87890625, -0.44140625, 0.22070312, -0.7109375, 0.93359375, 0.8671875,
            0.97265625, 0.22070312, 0.3984375, -1.015625, 0.2890625, -0.049560547, -1.4765625,
            -0.05126953, 1.015625, -1.0625, -0.8515625, -0.13574219, 0.084472656, 0.36328125,
            -0.69140625, 0.023071289, -1.953125, 0.32617188, -0.40039062, -0.44140625, -1.875,
            -0.016601562, 0.0013427734
        ],
        "float32",
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
            1.6796875, 0.60546875, 0.28515625, -0.34375, -0.6171875, -1.21875, 0.6875, -0.3515625,
            -0.72265625, -0.34179688, -2.0625, -0.028320312, -0.6875, 2.203125, 0.35742188, -0.40625,
            0.36523438, 0.37890625, -0.11328125, -0.76171875, 0.38867188, 2.234375, 0.07324219,
            -1.078125, -0.8671875, -2.125, -1.765625, -0.50390625, -1.171875, -0.84375
        ],
        "float32",
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
            -1.03125, -0.29492188, -0.055908203, -0.5859375, -0.15527344, -0.46875, 2.140625,
            0.46484375, -0.5546875, 1.046875, -0.21386719, 1.2265625, -0.25, -2.0625, 0.484375,
            0.578125, -0.9140625, -1.5390625, 1.2109375, 0.7890625, 1.5, -2.125, 0.3046875, -3.15625,
            1.234375, 1.2578125, 0.5234375, -2.296875, 1.0546875, 0.6796875
        ],
        "float32",
    ).reshape(5, 6),
    "exact/grad_avg": np.array(
        [
            0.11304687499999999, 0.18185546875, 0.008747558593750003, 0.089130859375,
            -0.03399658203124999, 0.05099121093749998, 0.06059570312500001, -0.09744628906250001,
            -0.050339355468750006, 0.035106201171875004, 0.1067333984375, -0.08975097656249999,
            0.037824707031249995, 0.004688720703124993, 0.11618652343750001, -0.005075607299804692,
            0.027708740234375, 0.0003424072265624919, 0.146171875, -0.134306640625, 0.17399414062500002,
            -0.06353515625000002, 0.028551025390625002, -0.041540527343750015, -0.059433593749999986,
            0.09234863281250001, 0.076396484375, 0.0713818359375, -0.15818359375, 0.03478759765625001
        ],
        "float64",
    ).reshape(5, 6),
    "torch/grad_avg": np.array(
        [
            0.11328125, 0.18164062, 0.008728027, 0.08935547, -0.033935547, 0.05102539, 0.060546875,
            -0.09765625, -0.05029297, 0.03515625, 0.106933594, -0.08984375, 0.037841797, 0.004699707,
            0.11621094, -0.005065918, 0.027709961, 0.00034332275, 0.14648438, -0.13476562, 0.17382812,
            -0.06347656, 0.028564453, -0.041503906, -0.059326172, 0.092285156, 0.076171875, 0.07128906,
            -0.15820312, 0.03466797
        ],
        "float32",
    ).reshape(5, 6),
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


def stepped(kind, slots, given, **options):
    """One step of the kernel `kind`; `slots` maps the tensors that it updates (0 if not given) to its names."""
    framework, zeros = tensorflow, tensorflow.zeros_like(given["param"])
    variables = {slot: framework.Variable(given.get(name, zeros)) for name, slot in slots.items()}
    getattr(framework.raw_ops, kind)(
        **{slot: variable.handle for slot, variable in variables.items()},
        **{
            n: v if isinstance(v, bool) else framework.convert_to_tensor(v, zeros.dtype) for n, v in options.items()
        },
    )
    return {name: framework.convert_to_tensor(variables[slot]) for name, slot in slots.items() if name in given}


def decayed(given, weight_decay):
    """The gradient plus that of the L2 penalty."""
    return given["grad"] + weight_decay * given["param"] if weight_decay else given["grad"]


def rmsprop(lr, alpha, eps, weight_decay=0.0, momentum=0.0, centered=False, **given):
    kind = "ResourceApplyCenteredRMSProp" if centered else "ResourceApplyRMSProp"
    slots = {
        "param": "var",
        "square_avg": "ms",
        "momentum_buffer": "mom",
        **({"grad_avg": "mg"} if centered else {}),
    }
    options = {"lr": lr, "rho": alpha, "momentum": momentum, "epsilon": eps}
    return stepped(kind, slots, given, grad=decayed(given, weight_decay), **options)


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


def inaccurate(tensor, rms, largest, limit):
    """Whether an error is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "bfloat16"):
        return True
    live = numbers(live).astype("float64")
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
        check("param", "exact", rtol=0.016, atol=1e-05)
        | check("param", "torch", rtol=0.016, atol=1e-05)
    )
    and inaccurate("param", rms=0.0022099155754763317, largest=0.005641330016501911, limit=8.0),
    (
        check("momentum_buffer", "torch", rtol=0.016, atol=1e-05)
        | check("momentum_buffer", "exact", rtol=0.016, atol=1e-05)
    )
    and inaccurate("momentum_buffer", rms=0.002853367036136053, largest=0.007524864760922956, limit=8.0),
    (
        check("grad_avg", "exact", rtol=0.016, atol=1e-05)
        | check("grad_avg", "torch", rtol=0.016, atol=1e-05)
    )
    and inaccurate("grad_avg", rms=0.00017904107190409375, largest=0.0004589843749999989, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
