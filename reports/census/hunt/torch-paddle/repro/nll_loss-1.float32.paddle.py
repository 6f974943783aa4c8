"""nll_loss of paddle 3.3.1 differs in NaN or infinity in float32: y

case       nll_loss-1 (torch-paddle.yaml:201)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
y          nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
           answer is, or the reverse; no tolerance accepts that
cause      affine-missing: weight or bias is not applied (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python nll_loss-1.float32.paddle.py (needs paddle and numpy)
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
    "inputs/x": np.array([[0.0]], "float32"),
    "inputs/target": np.array([0], "int64"),
    "inputs/weight": np.array([0.0], "float32"),
    "exact/y": np.array(np.nan, "float64"),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def of_rows(function, x, target, **options):
    """A loss of x [rows, C] and target [rows], in the shape of `target` where it is not reduced."""
    losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
    return losses.reshape(target.shape) if losses.shape else losses


def nll_loss(x, target, weight=None, **options):
    if x.dtype == paddle.float64 and bool((target == options["ignore_index"]).any()):
        raise Unsupported("paddle.nn.functional.nll_loss in float64 crashes where targets are ignored")
    return of_rows(paddle.nn.functional.nll_loss, x, target, weight=weight, **options)


def compute():
    """The outputs, by name."""
    x = leaf(DATA["inputs/x"], False)
    target = leaf(DATA["inputs/target"], False)
    weight = leaf(DATA["inputs/weight"], False)
    result = nll_loss(x=x, target=target, weight=weight, ignore_index=-100, reduction="mean")
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
    here, there = described(live), described(other, "float32")
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


RESULT = compute()
DIFFERS = [
    check("y", "exact", rtol=1.3e-06, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
