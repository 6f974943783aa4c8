"""cross_entropy of oneflow 0.9.0 exceeds the error bound in float32: y, grad.x

case       cross_entropy-none (configs/ops/loss.yaml:6)
seen with  oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          close: it passes only because the tolerance is loose: the error of oneflow is 11.7 times
           that of a careful implementation in float32
grad.x     close: it passes only because the tolerance is loose: the error of oneflow is 9.64 times
           that of a careful implementation in float32
cause      unexplained: no known cause explains the error (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python cross_entropy-none.float32.oneflow.py (needs oneflow and numpy)
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

# OneFlow 0.9.0 would write a folder `log` into the working directory.
os.environ.setdefault("GLOG_logtostderr", "1")
# Its virtual machine's scheduler spins while kernels run in a thread beside it; here it runs them itself.
os.environ.setdefault("ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD", "0")
import oneflow

DATA = {
    "inputs/x": np.array(
        [
            0.061776675, -0.7979746, -1.7755247, -0.4805653, 1.9837826, -0.2247924, -2.7105427,
            -0.25842476, 0.083591715, 1.5538263, -1.4683958, 0.90972984, 1.1965503, 0.09764763,
            0.30975878, 0.47550243, 0.25496206, -0.6614266, 0.23525202, -0.34263188, 1.5040812,
            0.58152395, -0.9523348, 0.81008166, -0.5102743, 0.036664598, -1.7213044, 0.22862695,
            -1.2814648, 0.9806714
        ],
        "float32",
    ).reshape(2, 3, 5),
    "inputs/target": np.array([[1, 3, 3], [3, 0, 4]], "int64"),
    "inputs/grad.y": np.array(
        [
            -0.18661773, 1.2132827, -1.5286928, 0.18068798, -1.1690853, -0.46387008
        ],
        "float32",
    ).reshape(2, 3),
    "exact/y": np.array(
        [
            3.056815144787958, 1.9251815083682564, 2.041041071795262, 1.4493817779205262,
            0.7496330065692075, 0.7088572625558749
        ],
        "float64",
    ).reshape(2, 3),
    "exact/grad.x": np.array(
        [
            -0.020738635874112177, 0.17783974455757845, -0.003302557000931656, -0.012057133097840829,
            -0.1417414185846938, 0.12999803241582686, 0.010824034110153818, 0.12569859801711494,
            -1.0363262935597117, 0.7698056290166161, -0.041474706794677664, -0.447291019977947,
            -0.5958743638045562, 1.330125712298257, -0.24548562172107627, 0.05392748645593765,
            0.043254441693313654, 0.017300082418140857, -0.13827773676140115, 0.02379572619400898,
            0.6166457836302542, -0.21959536340764024, -0.047367096430003745, -0.2759843887129342,
            -0.0736989350796761, -0.08883142199926627, -0.015314060976075195, -0.10763036307530165,
            -0.023774439332418188, 0.2355502853830613
        ],
        "float64",
    ).reshape(2, 3, 5),
}


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        values = (array.astype("uint32") << 16).view("float32")
        tensor = oneflow.tensor(values).to(oneflow.bfloat16)
    else:
        tensor = oneflow.tensor(array)
    return oneflow.nn.Parameter(tensor) if requires_grad else tensor


def to_numpy(tensor):
    values = tensor.detach()
    if values.dtype == oneflow.bfloat16:
        return (values.to(oneflow.float32).numpy().view("uint32") >> 16).astype("uint16")
    return values.numpy()


def has_history(tensor):
    """Whether a gradient can go through a tensor."""
    return tensor.requires_grad


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        oneflow.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def of_rows(function, x, target, **options):
    """A loss of x [rows, C] and target [rows], in the shape of `target` where it is not reduced."""
    losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
    return losses.reshape(target.shape) if losses.shape else losses


def cross_entropy(x, target, weight=None, **options):
    return of_rows(oneflow.nn.functional.cross_entropy, x, target, weight=weight, **options)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    result = cross_entropy(x=x, target=target, ignore_index=-100, reduction="none", label_smoothing=0.0)
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


def check(tensor, side, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"]
    here, there = described(live), described(other, "float32")
    if here != there:
        print(f"{tensor}: oneflow has {here}, {side} has {there}")
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
    values = {"oneflow": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
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
    check("y", "exact", rtol=1.3e-06, atol=1e-05),
    inaccurate("y", rms=2.501575505993302e-07, largest=4.794491026416381e-07, limit=8.0),
    check("grad.x", "exact", rtol=0.0001, atol=1e-05),
    inaccurate("grad.x", rms=7.848650504401319e-08, largest=2.612103053856174e-07, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
