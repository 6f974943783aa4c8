"""hardtanh of oneflow 0.9.0 computes a different formula in float64: grad.x

case       hardtanh (configs/census/../ops/elementwise.yaml:20)
seen with  oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     semantic: the error of oneflow is 7.81e+15 times that of a careful implementation in
           float64 (the largest: 0 in float32, 1.73 in float64): the error is the same in every
           precision, so the formula differs
cause      stale: an output repeats an input (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python hardtanh.float64.oneflow.py (needs oneflow and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import numpy as np

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# OneFlow 0.9.0 would write a folder `log` into the working directory.
os.environ.setdefault("GLOG_logtostderr", "1")
# By default OneFlow's scheduler spins while kernels run in another thread; now it runs them itself.
os.environ.setdefault("ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD", "0")
import oneflow

DATA = {
    "inputs/x": np.array(
        [
            0.46875, -0.51171875, 1.6328125, 0.018310546875, 1.0703125, -0.2431640625, -0.26953125,
            -1.3046875, -0.5, 0.6015625, 0.96484375, -0.609375, 0.61328125, 0.0177001953125, -2.4375,
            -1.8671875, -0.82421875, -1.1875, -0.2314453125, 0.37890625, 0.04736328125, 0.314453125,
            -0.0296630859375, -0.037841796875, -0.2001953125, -0.50390625, 0.55078125, 0.369140625,
            1.9140625, -1.015625, -0.126953125, -1.03125, -0.640625, -0.046875, -0.7421875, 0.099609375
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            0.7734375, 0.6953125, 1.2890625, -0.58203125, 0.5234375, -0.421875, -1.765625, -0.181640625,
            -0.65625, -0.35546875, 0.2578125, 0.294921875, -1.1328125, 0.69921875, 0.80078125,
            -1.734375, 0.1279296875, -1.5703125, 0.15234375, -1.1953125, 0.5546875, 0.8046875, 1.328125,
            -1.9140625, -1.3046875, -0.357421875, 1.0234375, 1.71875, -0.2431640625, 1.015625, -0.75,
            0.92578125, -0.55078125, -0.734375, -1.609375, -0.012451171875
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            0.7734375, 0.6953125, 0.0, -0.58203125, 0.5234375, -0.421875, -1.765625, 0.0, -0.65625,
            -0.35546875, 0.2578125, 0.294921875, -1.1328125, 0.69921875, 0.0, 0.0, 0.0, 0.0, 0.15234375,
            -1.1953125, 0.5546875, 0.8046875, 1.328125, -1.9140625, -1.3046875, -0.357421875, 1.0234375,
            1.71875, 0.0, 0.0, -0.75, 0.0, -0.55078125, -0.734375, 0.0, -0.012451171875
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            0.7734375, 0.6953125, 0.0, -0.58203125, 0.5234375, -0.421875, -1.765625, 0.0, -0.65625,
            -0.35546875, 0.2578125, 0.294921875, -1.1328125, 0.69921875, 0.0, 0.0, 0.0, 0.0, 0.15234375,
            -1.1953125, 0.5546875, 0.8046875, 1.328125, -1.9140625, -1.3046875, -0.357421875, 1.0234375,
            1.71875, 0.0, 0.0, -0.75, 0.0, -0.55078125, -0.734375, 0.0, -0.012451171875
        ],
        "float64",
    ).reshape(4, 9),
}


def values_of(bits):
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        tensor = oneflow.tensor(values_of(array)).to(oneflow.bfloat16)
    else:
        tensor = oneflow.tensor(array)
    return oneflow.nn.Parameter(tensor) if requires_grad else tensor


def to_numpy(tensor):
    values = tensor.detach()
    if values.dtype == oneflow.bfloat16:
        return (values.to(oneflow.float32).numpy().view("uint32") >> 16).astype("uint16")
    return values.numpy()


def has_history(tensor):
    """Whether a tensor can be differentiated."""
    return tensor.requires_grad


def gradients(outputs, grad_outputs, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, grad_outputs) if has_history(y)]
    if pairs:
        oneflow.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def hardtanh(x, min_val=-1.0, max_val=1.0):
    return oneflow.nn.functional.hardtanh(x, min_val, max_val)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = hardtanh(x=x, min_val=-0.7, max_val=1.2)
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
        print(f"{tensor}: oneflow has {here}, {label} has {there}")
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
    values = {"oneflow": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=1.1772784881172894e-16, largest=2.220446049250313e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
