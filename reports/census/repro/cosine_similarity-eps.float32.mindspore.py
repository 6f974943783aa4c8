"""cosine_similarity of mindspore 2.10.0 follows a different convention: epsilon is outside the square
root instead of inside, or the reverse (float32: grad.x, grad.other, y)

case        cosine_similarity-eps (configs/census/../ops/loss.yaml:57)
seen with   mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
            Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x      semantic: the error of mindspore is 5.35e+06 times and the error of torch is 4.38e+05
            times that of a careful implementation in float32 (the largest: 0.658 in float16, 0.658
            in float32): the error is the same in every precision, so the formula differs
grad.other  semantic: the error of mindspore is 6.09e+06 times and the error of torch is 1.08e+06
            times that of a careful implementation in float32 (the largest: 0.236 in float16, 0.236
            in float32): the error is the same in every precision, so the formula differs
y           unstable: the error of mindspore is 3.88e+06 times that of a careful implementation in
            float32 (the largest: 0.321 in float16, 0.321 in float32): the error changes with the
            precision, so the algorithm loses digits
cause       eps-placement: epsilon is outside the square root instead of inside, or the reverse (y,
            grad.x and grad.other)
exact       the textbook formula in extended precision on the same inputs, rounded to float64
torch       the result of torch 2.13.0+cpu in the same run
run         python cosine_similarity-eps.float32.mindspore.py (needs mindspore and numpy)
exit code   1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import numpy as np
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# MindSpore would write files about failed graphs into the working directory.
os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())
import mindspore

mindspore.set_device("cpu".upper())
mindspore.set_context(runtime_num_threads=1)
# Otherwise a later op may raise an op's error.
mindspore.runtime.launch_blocking()
latest = SimpleNamespace()

DATA = {
    "inputs/x": np.array(
        [
            -0.9609375, 2.078125, -0.44335938, -1.046875, 1.859375, -0.027832031, 0.15332031,
            -1.0078125, -0.8828125, -0.80078125, 1.765625, 0.071777344, 0.24804688, -0.21972656,
            0.36328125, -0.10253906, -2.234375, -1.015625, 0.71484375, 1.578125, -0.84375, -0.80078125,
            -1.6875, 0.37304688
        ],
        "float32",
    ).reshape(6, 4),
    "inputs/other": np.array(
        [
            -1.1875, 0.42382812, -0.09863281, 2.546875, -2.15625, 0.7109375, 1.5546875, -0.045654297,
            -1.515625, -0.63671875, -0.515625, 0.31640625, 0.04272461, 1.0, -2.4375, -0.95703125,
            -0.70703125, 0.6953125, -0.52734375, 0.56640625, 1.03125, -0.48828125, 0.91796875,
            0.86328125
        ],
        "float32",
    ).reshape(6, 4),
    "inputs/grad.y": np.array(
        [
            1.6640625, 2.078125, 0.87109375, 0.83984375, -0.90234375, -0.051513672
        ],
        "float32",
    ),
    "exact/grad.x": np.array(
        [
            -0.29206935702375997, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177882, 0.24489221413106246, 0.5990362127837535, -0.3150594055722799,
            -0.27157748340954513, -0.09552406581356651, -0.18161507356268045, 0.061554748734325246,
            0.00639969202064158, 0.14978936295170237, -0.3651115721947745, -0.14335310126237139,
            0.054484136449027096, -0.12791982521371587, 0.09573527097871579, -0.04854896805897924,
            -0.008649078029713606, 0.009929101564501391, -0.003147516862325242, -0.012486516421150347
        ],
        "float64",
    ).reshape(6, 4),
    "torch/grad.x": np.array(
        [
            -0.29206938, 0.14075424, -0.031909, 0.56101483, -0.21649712, 0.24489225, 0.5990363,
            -0.31505945, -0.2715775, -0.09552407, -0.18161508, 0.06155475, 0.043255456, 0.11714154,
            -0.31113386, -0.15858875, 0.054484136, -0.12791982, 0.095735274, -0.04854897, -0.008649077,
            0.009929101, -0.0031475173, -0.012486516
        ],
        "float32",
    ).reshape(6, 4),
    "exact/grad.other": np.array(
        [
            -0.24017621125989963, 0.4829423672112863, -0.1031733819069344, -0.19634653828003704,
            0.28246862752506446, 0.11524793760786471, 0.32829028345416816, -0.36688983396323366,
            -0.18039430520515437, -0.1636320025091002, 0.36078861041030874, 0.014667014859047397,
            0.03796622753566901, -0.013920271950895855, 0.008121619202778386, -0.033535609748129275,
            0.33555577034192025, 0.1525253501554183, -0.10735438107092904, -0.2370009287030346,
            0.010431870534382338, 0.009900617868279534, 0.020863741068764676, -0.00461223905571071
        ],
        "float64",
    ).reshape(6, 4),
    "torch/grad.other": np.array(
        [
            -0.24017622, 0.48294237, -0.103173375, -0.19634654, 0.28246868, 0.11524796, 0.3282903,
            -0.36688983, -0.09551304, -0.12797314, 0.38966578, -0.003053045, 0.03796623, -0.013920272,
            0.008121621, -0.03353561, 0.2768683, 0.21024011, -0.15112682, -0.18998611, 0.004033615,
            0.012930094, 0.015168324, -0.009968354
        ],
        "float32",
    ).reshape(6, 4),
    "exact/y": np.array(
        [
            -0.0826313107061401, -0.6416235174560063, 0.22524187649329738, -0.17772850478464788,
            0.23142153818869138, -0.4094870830248059
        ],
        "float64",
    ),
    "torch/y": np.array(
        [
            -0.08263135, -0.64162356, 0.22524187, -0.1777285, 0.23142156, -0.4094871
        ],
        "float32",
    ),
}


def values_of(bits):
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        return mindspore.Tensor(values_of(array)).astype(mindspore.bfloat16)
    return mindspore.Tensor(array)


def to_numpy(tensor):
    if tensor.dtype == mindspore.bfloat16:
        return (tensor.astype(mindspore.float32).asnumpy().view("uint32") >> 16).astype("uint16")
    return tensor.asnumpy()


def staged(function):
    """The function as it is in PyNative mode."""
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
    """The function in its stage; the latest call is kept, since mindspore.vjp calls it again."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def gradients(outputs, grad_outputs, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return tuple(results[name] for name in wanted) if len(wanted) > 1 else results[wanted[0]]

    _, pullback = mindspore.vjp(forward, *leaves)
    return list(pullback(*(dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs))))


def cosine_similarity(x, other, dim=1, eps=1e-08):
    return mindspore.ops.cosine_similarity(x, other, dim, eps)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    other = leaf(DATA["inputs/other"], True)
    result = in_mode(cosine_similarity)(x=x, other=other, dim=1, eps=2.0)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, other])
    outputs.update(zip(["grad.x", "grad.other"], returned))
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
    here, there = described(live), described(other, "float32")
    if here != there:
        print(f"{tensor}: mindspore has {here}, {label} has {there}")
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
    values = {"mindspore": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    if described(live) != described(exact, "float32"):
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
    (
        check("grad.x", "torch", rtol=0.0001, atol=1e-05)
        | check("grad.x", "exact", rtol=0.0001, atol=1e-05)
    )
    and inaccurate("grad.x", rms=5.410694744569208e-08, largest=1.2316137587564668e-07, limit=8.0),
    (
        check("grad.other", "torch", rtol=0.0001, atol=1e-05)
        | check("grad.other", "exact", rtol=0.0001, atol=1e-05)
    )
    and inaccurate("grad.other", rms=3.813222484999703e-08, largest=8.963276115769858e-08, limit=8.0),
    (
        check("y", "torch", rtol=1.3e-06, atol=1e-05)
        | check("y", "exact", rtol=1.3e-06, atol=1e-05)
    )
    and inaccurate("y", rms=5.069521629800043e-08, largest=8.260170383800336e-08, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
