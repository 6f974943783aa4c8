"""ctc_loss, parity's own composition of mindspore 2.10.0 calls, computes a different formula in
float64: y, grad.x

case       ctc_loss-repeats (configs/census/../ops/loss.yaml:35)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          semantic: the error of mindspore is 5.23e+09 times that of a careful implementation in
           float64 (the largest: 0.00729 in bfloat16, 0.000527 in float16, 2.41e-06 in float32,
           2.18e-06 in float64): the error is the same in every precision, so the formula differs
grad.x     close: it passes only because the tolerance is loose: the error of mindspore is 7.94e+07
           times that of a careful implementation in float64
cause      reference-edit: one step differs from the reference (y)
cause      reduced-precision: computed in or through a lower precision (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python ctc_loss-repeats.float64.mindspore.py (needs mindspore and numpy)
exit code  1 while the difference is there, 0 once it is fixed
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
            -0.91015625, -0.55859375, -1.4921875, 0.388671875, -0.94140625, 0.6953125, 0.0218505859375,
            -1.109375, 2.359375, 0.30859375, -0.8515625, -3.140625, 1.921875, -0.53125, 0.984375,
            0.43359375, 0.173828125, 1.375, 0.1259765625, 0.30078125, 0.06298828125, -0.5078125,
            1.0703125, 0.07275390625, -1.625, -0.7265625, -0.68359375, -0.6015625, -0.30078125,
            -0.93359375, 0.66796875, 0.4921875, 0.51171875, -1.5546875, 0.01171875, 0.24609375,
            0.58203125, 0.1298828125, -0.76953125, -0.8671875, 2.0, 0.19921875, -0.74609375,
            0.2373046875, -0.380859375, 0.78125, 0.458984375, -0.421875, -1.9375, 2.046875, 0.72265625,
            0.062255859375, -1.71875, 0.75, 1.4609375, -0.1083984375
        ],
        "float64",
    ).reshape(7, 2, 4),
    "inputs/target": np.array([[1, 1, 2], [0, 2, 2]], "int64"),
    "inputs/input_lengths": np.array([5, 5], "int64"),
    "inputs/target_lengths": np.array([3, 3], "int64"),
    "inputs/grad.y": np.array(-0.66015625, "float64"),
    "exact/y": np.array(2.0552144355856607, "float64"),
    "torch/y": np.array(2.0552144355856607, "float64"),
    "exact/grad.x": np.array(
        [
            -0.01655759915505003, 0.01606817450743875, -0.009251760982457525, 0.009741185630068804,
            0.06688356923751466, -0.058866303165055846, -0.030018291436781405, 0.022001025364322583,
            -0.09379564856372863, 0.08567015456925044, -0.003781727683570881, 0.01190722167804908,
            0.004575093292868109, -0.005556517218642149, 0.00710200400115105, -0.00612058007537701,
            -0.01715765839956127, -0.04560935839283442, -0.016355971587106152, 0.07912298837950184,
            -0.020708248923794574, -0.011701667328685265, 0.035602575810457726, -0.0031926595579778883,
            -0.012499989210212309, 0.07044645489768074, -0.026040724628813395, -0.03190574105865504,
            -0.01725711217322024, -0.009165183092044522, -0.033160535748836935, 0.05958283101410169,
            -0.04401222409967376, -0.005573711478948541, 0.07997905696203417, -0.03039312138341187,
            -0.05165908448541499, -0.03286859452234882, 0.09080208487434305, -0.006274405866579246, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(7, 2, 4),
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


def ctc_loss(x, target, input_lengths, target_lengths, **options):
    return mindspore.ops.ctc_loss(mindspore.ops.log_softmax(x, -1), target, input_lengths, target_lengths, **options)[0]


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    input_lengths = leaf(DATA["inputs/input_lengths"], False)
    target_lengths = leaf(DATA["inputs/target_lengths"], False)
    result = in_mode(ctc_loss)(
        x=x, target=target, input_lengths=input_lengths, target_lengths=target_lengths,
        blank=3, reduction="mean",
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
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=4.163336342344337e-16, largest=4.163336342344337e-16, limit=8.0),
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=2.608439012654201e-17, largest=9.966528470573e-17, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
