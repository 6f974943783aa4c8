"""clip_grad_norm of mindspore 2.10.0 computes a different formula in float64: grads.0, grads.1

case       clip-1 (configs/census/../ops/clip.yaml:6)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grads.0    semantic: the error of mindspore is 5.88e+15 times that of a careful implementation in
           float64 (the largest: 0.271 in float16, 0.271 in float32, 0.271 in float64): the error is
           the same in every precision, so the formula differs
grads.1    semantic: the error of mindspore is 7.29e+15 times that of a careful implementation in
           float64 (the largest: 0.189 in float16, 0.189 in float32, 0.189 in float64): the error is
           the same in every precision, so the formula differs
cause      reference-edit: one step differs from the reference (grads.0 and grads.1)
cause      reduced-precision: computed in or through a lower precision (grads.0 and grads.1)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python clip-1.float64.mindspore.py (needs mindspore and numpy)
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
    "inputs/grads.0": np.array(
        [
            1.2734375, -0.46875, 0.40234375, -0.3984375, -0.58984375, 0.859375, -0.01043701171875,
            -0.71875, 0.59375, -2.28125, 0.7578125, 1.5703125
        ],
        "float64",
    ).reshape(3, 4),
    "inputs/grads.1": np.array([-0.1865234375, 0.88671875, 1.59375, 0.46484375, 0.349609375], "float64"),
    "exact/grads.0": np.array(
        [
            0.06649335016628324, -0.024476079815809782, 0.02100863517523673, -0.020804667843438315,
            -0.03079906710156064, 0.04487281299565127, -0.0005449752146488897, -0.03752998905090833,
            0.031003034433359056, -0.11911692177027428, 0.03956966236889248, 0.08199486738296277
        ],
        "float64",
    ).reshape(3, 4),
    "torch/grads.0": np.array(
        [
            0.06649335016628324, -0.024476079815809782, 0.02100863517523673, -0.020804667843438315,
            -0.030799067101560645, 0.04487281299565127, -0.0005449752146488897, -0.03752998905090833,
            0.03100303443335906, -0.11911692177027428, 0.039569662368892485, 0.08199486738296277
        ],
        "float64",
    ).reshape(3, 4),
    "exact/grads.1": np.array(
        [
            -0.009739440093374309, 0.04630058431824017, 0.08321867137375326, 0.024272112484011368,
            0.01825507619595813
        ],
        "float64",
    ),
    "torch/grads.1": np.array(
        [
            -0.009739440093374309, 0.04630058431824017, 0.08321867137375326, 0.024272112484011368,
            0.01825507619595813
        ],
        "float64",
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


def clip_grad_norm(grads, max_norm, norm_type, scope):
    groups = [grads] if scope == "global" else [[grad] for grad in grads]
    clipped = [grad for group in groups for grad in mindspore.ops.clip_by_norm(group, max_norm, norm_type)]
    # MindSpore does not return the norm, so it is computed separately.
    flat = mindspore.ops.cat([grad.reshape((-1,)) for grad in grads])
    return {"grads": clipped, "total_norm": mindspore.ops.vector_norm(flat, norm_type)}


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
        return np.asarray(value, "float64")
    if str(value.dtype).endswith("bfloat16"):
        return value
    try:
        return np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else to_numpy(value))
    except TypeError:
        return value


def compute():
    """The outputs, by name."""
    grads = [leaf(DATA[f"inputs/grads.{i}"], False) for i in range(2)]
    result = in_mode(clip_grad_norm)(grads=grads, max_norm=0.7, norm_type=1.0, scope="global")
    outputs = result if isinstance(result, dict) else {"y": result}
    return to_arrays(outputs)


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
        check("grads.0", "exact", rtol=1e-07, atol=1e-07)
        | check("grads.0", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grads.0", rms=2.114064520867625e-17, largest=5.2583805365546965e-17, limit=8.0),
    (
        check("grads.1", "exact", rtol=1e-07, atol=1e-07)
        | check("grads.1", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grads.1", rms=1.427515234863671e-17, largest=2.818248022104508e-17, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
