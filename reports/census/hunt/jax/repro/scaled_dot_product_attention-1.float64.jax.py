"""scaled_dot_product_attention of jax 0.10.2 has only float32 accuracy in float64: y

case       scaled_dot_product_attention-1 (jax.yaml:36)
seen with  jax 0.10.2, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of jax is 4.02e+08 times that of a careful implementation in float64,
           0.000432 of the value where it is worst: the float64 result has float32 accuracy (unit
           roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      localized: wrong in one part of the tensor only (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python scaled_dot_product_attention-1.float64.jax.py (needs jax and numpy)
exit code  1 while the difference is there, 0 once it is fixed
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
    "inputs/query": np.array(
        [
            0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(2, 2, 1, 3),
    "inputs/key": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10000.0, 0.0, 10000.0048828125, 10000.0, 0.0, 10000.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(2, 2, 2, 3),
    "inputs/value": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(2, 2, 2, 3),
    "exact/y": np.array(
        [
            0.0, 0.0, 0.0, 0.5007047728110668, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(2, 2, 1, 3),
}


def leaf(array, requires_grad):
    if array.dtype.kind in "fu":
        jax.config.update("jax_enable_x64", array.dtype.itemsize == 8)
    return jax.numpy.array(array.view(jax.numpy.bfloat16.dtype) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    values = tensor.__array__()
    return values.view("uint16") if values.dtype == jax.numpy.bfloat16 else values


def staged(function):
    """The function as it is in eager mode."""
    return function


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


def in_mode(function):
    """The function in its stage."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def heads_first(x):
    """[N, L, heads, d] to [N, heads, L, d], or back."""
    return jax.numpy.swapaxes(x, -3, -2)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, keep_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    query, key, value = (heads_first(tensor) for tensor in (query, key, value))
    bias, mask = (m if m is None else m[(None,) * (4 - m.ndim)] for m in (attn_mask, keep_mask))
    y = jax.nn.dot_product_attention(
        query, key, value, bias, None if mask is None else mask != 0, scale=scale, is_causal=is_causal
    )
    return heads_first(y)


def compute():
    """The outputs, by name."""
    query = leaf(DATA["inputs/query"], False)
    key = leaf(DATA["inputs/key"], False)
    value = leaf(DATA["inputs/value"], False)
    result = in_mode(scaled_dot_product_attention)(
        query=query, key=key, value=value,
        is_causal=False, scale=None, enable_gqa=False,
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


def check(tensor, side, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"]
    here, there = described(live), described(other, "float64")
    if here != there:
        print(f"{tensor}: jax has {here}, {side} has {there}")
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
    values = {"jax": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
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
    check("y", "exact", rtol=1e-07, atol=1e-07)
    and inaccurate("y", rms=1.553759953750977e-13, largest=5.382382365325122e-13, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
