"""interpolate of paddle 3.3.1 has only float32 accuracy in float64: y, grad.x

case       interpolate-bicubic (configs/census/../ops/resample.yaml:12)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of paddle is 2.75e+07 times that of a careful implementation in
           float64, 2.38e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     degraded: the error of paddle is 3.35e+07 times that of a careful implementation in
           float64, 1.9e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      attribute-precision: an attribute of a float64 computation is stored in float32 (y)
cause      reduced-precision: computed in or through a lower precision (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bicubic.float64.paddle.py (needs paddle and numpy;
           interpolate-bicubic.float64.paddle.npz must be beside it)
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

DATA = np.load(os.path.splitext(os.path.abspath(__file__))[0] + ".npz", allow_pickle=False)


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def has_history(tensor):
    return not tensor.stop_gradient


def gradients(outputs, grad_outputs, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, grad_outputs) if has_history(y)]
    if pairs:
        paddle.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(condition, message):
    if not condition:
        raise Unsupported(message)


def interpolate(x, mode='nearest', align_corners=None, **options):
    require(mode != "nearest-exact", "paddle.nn.functional.interpolate has no mode nearest-exact")
    # Paddle takes a single number only for images.
    stated = {n: v if isinstance(v, tuple) else (v,) * (len(x.shape) - 2) for n, v in options.items() if v}
    return paddle.nn.functional.interpolate(x, mode=mode, align_corners=bool(align_corners), **stated)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = interpolate(x=x, size=(5, 7), scale_factor=None, mode="bicubic", align_corners=None)
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
        print(f"{tensor}: paddle has {here}, {label} has {there}")
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
    values = {"paddle": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    and inaccurate("y", rms=3.5233724788425236e-15, largest=1.1751450507135885e-14, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=4.708741240015909e-15, largest=1.3416351363204626e-14, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
