"""cross_entropy of paddle 3.3.1 computes a different formula in float64: y

case       cross_entropy-1 (torch-paddle.yaml:93)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
y          semantic: the error of paddle is 3.52e+14 times that of a careful implementation in
           float64 (the largest: 5 in float32, 5 in float64): the error is the same in every
           precision, so the formula differs
cause      logits-clipped: small logits are clipped (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python cross_entropy-1.float64.paddle.py (needs paddle and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

import paddle

paddle.set_device("cpu")

DATA = {
    "inputs/x": np.array([[-24.0, 45.0]], "float64"),
    "inputs/target": np.array([0], "int64"),
    "exact/y": np.array(69.0, "float64"),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def of_rows(function, x, target, **options):
    """A loss of x [rows, C] and target [rows], in the shape of `target` where it is not reduced."""
    losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
    return losses.reshape(target.shape) if losses.shape else losses


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def ignoring(function, x, target, ignore_index, **options):
    ignored = x.shape[-1]
    target = paddle.where(target == ignore_index, paddle.full_like(target, ignored), target)
    return of_rows(function, x, target, ignore_index=ignored, **options)


def cross_entropy(x, target, weight=None, **options):
    if options.get("label_smoothing"):
        if bool((target == options.pop("ignore_index")).any()):
            raise Unsupported("paddle.nn.functional.cross_entropy ignores no targets with label_smoothing")
        return of_rows(paddle.nn.functional.cross_entropy, x, target, weight=weight, **options)
    return ignoring(paddle.nn.functional.cross_entropy, x, target, weight=weight, **options)


def compute():
    """The outputs, by name."""
    x = leaf(DATA["inputs/x"], False)
    target = leaf(DATA["inputs/target"], False)
    result = cross_entropy(x=x, target=target, ignore_index=-100, reduction="mean", label_smoothing=0.0)
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
        print(f"{tensor}: paddle has {here}, {side} has {there}")
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
    values = {"paddle": live, side: other, "exact": DATA[f"exact/{tensor}"]}
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
    and inaccurate("y", rms=1.4210854715202004e-14, largest=1.4210854715202004e-14, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
