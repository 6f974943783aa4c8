"""log_softmax of mindspore 2.10.0 computes a different formula in float64: y, grad.x

case       log_softmax-0 (configs/census/../ops/softmax.yaml:8)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          semantic: the error of mindspore is 2.65e+09 times that of a careful implementation in
           float64 (the largest: 0.00172 in float16, 3.56e-06 in float32, 3.56e-06 in float64): the
           error is the same in every precision, so the formula differs
grad.x     semantic: the error of mindspore is 4e+09 times that of a careful implementation in
           float64 (the largest: 0.00089 in float16, 5.73e-06 in float32, 5.73e-06 in float64): the
           error is the same in every precision, so the formula differs
cause      reduced-precision: computed in or through a lower precision (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python log_softmax-0.float64.mindspore.py (needs mindspore and numpy)
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
            -1.875, -0.138671875, 5.59375, -5.03125, 4.28125, 1.8671875, -1.265625, -0.40625, -2.40625,
            -1.7421875, 2.34375, -0.48046875, 2.40625, 4.59375, 4.75, -2.265625, 5.96875, 0.2080078125,
            -3.296875, -1.765625, -1.0703125, -0.44921875, -4.0, 0.8671875, -0.439453125, -1.0625,
            -0.56640625, -2.34375, 2.296875, -3.234375
        ],
        "float64",
    ).reshape(6, 5),
    "inputs/grad.y": np.array(
        [
            -1.21875, 0.10791015625, -0.62890625, -0.859375, 2.421875, 0.28125, 0.2412109375, -1.171875,
            -0.357421875, -0.73828125, -0.126953125, -0.16015625, 0.376953125, 1.3359375, -1.9453125,
            0.51171875, 1.3984375, 1.015625, -0.3359375, 0.41796875, -0.91796875, 0.09130859375,
            1.5234375, -1.4375, 0.240234375, 1.5390625, 2.1875, -0.74609375, -0.20703125, -2.21875
        ],
        "float64",
    ).reshape(6, 5),
    "exact/y": np.array(
        [
            -4.756214693666646, -6.115005911868185, -0.04760886843927693, -9.743671769388992,
            -0.9602063473226399, -1.0140271936666463, -7.241959036868185, -6.047608868439277,
            -7.118671769388993, -6.983643847322639, -0.5374646936666463, -6.456802786868185,
            -3.235108868439277, -0.11867176938899293, -0.4914563473226398, -5.146839693666646,
            -0.007584036868185398, -5.433351055939277, -8.009296769388992, -7.007081347322639,
            -3.9515271936666463, -6.425552786868185, -9.641358868439276, -3.845234269388993,
            -5.680909472322639, -3.9437146936666463, -6.542740286868185, -7.985108868439277,
            -2.415546769388993, -8.47583134732264
        ],
        "float64",
    ).reshape(6, 5),
    "torch/y": np.array(
        [
            -4.756214693666646, -6.115005911868185, -0.047608868439276926, -9.743671769388992,
            -0.9602063473226399, -1.014027193666646, -7.241959036868185, -6.047608868439277,
            -7.1186717693889925, -6.983643847322639, -0.5374646936666461, -6.456802786868185,
            -3.235108868439277, -0.11867176938899283, -0.4914563473226398, -5.146839693666646,
            -0.00758403686818512, -5.433351055939277, -8.009296769388992, -7.007081347322639,
            -3.951527193666646, -6.425552786868185, -9.641358868439276, -3.845234269388993,
            -5.680909472322639, -3.943714693666646, -6.542740286868185, -7.985108868439277,
            -2.415546769388993, -8.47583134732264
        ],
        "float64",
    ).reshape(6, 5),
    "exact/grad.x": np.array(
        [
            -1.2193377603523243, 0.09936790736494226, -0.9808842946723833, -0.8592658056778287,
            3.1194635837805142, 0.256452284753607, 0.23844308656423122, -1.1727474663443704,
            -0.35591449387889007, -0.7365921564780861, -0.1668905566920624, -0.16622545384151155,
            0.3624252560607963, 2.9889816197981887, -0.8305691171812318, 0.5113210514521854,
            -2.4385628582748144, 1.0140124341387124, -0.3353188720343554, 0.41961871571262177,
            -0.9192829807608981, 0.08504673269775223, 1.5234135115112577, -1.3977022137769155,
            0.2464491304912013, 1.5377379615994924, 2.1819305854894004, -0.7462194406940129,
            -0.0407802344301989, -2.2183701563250193
        ],
        "float64",
    ).reshape(6, 5),
    "torch/grad.x": np.array(
        [
            -1.2193377603523243, 0.09936790736494226, -0.9808842946723833, -0.8592658056778287,
            3.1194635837805142, 0.256452284753607, 0.23844308656423122, -1.1727474663443704,
            -0.35591449387889007, -0.7365921564780861, -0.16689055669206243, -0.16622545384151155,
            0.3624252560607963, 2.9889816197981887, -0.8305691171812318, 0.5113210514521854,
            -2.438562858274816, 1.0140124341387124, -0.3353188720343554, 0.41961871571262177,
            -0.9192829807608981, 0.08504673269775223, 1.5234135115112577, -1.3977022137769155,
            0.2464491304912013, 1.5377379615994924, 2.1819305854894004, -0.7462194406940129,
            -0.04078023443019891, -2.2183701563250193
        ],
        "float64",
    ).reshape(6, 5),
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


def log_softmax(x, dim=-1):
    return mindspore.ops.log_softmax(x, dim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(log_softmax)(x=x, dim=0)
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
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=1.1114269954612118e-15, largest=2.224782857940255e-15, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=3.913134202756864e-16, largest=1.6319411100251813e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
