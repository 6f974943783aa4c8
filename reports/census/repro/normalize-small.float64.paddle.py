"""normalize of paddle 3.3.1 follows a different convention: epsilon is outside the square root instead
of inside, or the reverse (float64: grad.x)

case       normalize-small (configs/census/../ops/norm.yaml:19)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     semantic: the error of paddle is 5.55e+14 times that of a careful implementation in
           float64 (the largest: 0.145 in float32, 0.145 in float64): the error is the same in every
           precision, so the formula differs
cause      eps-placement: epsilon is outside the square root instead of inside, or the reverse
           (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python normalize-small.float64.paddle.py (needs paddle and numpy)
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
    "inputs/x": np.array(
        [
            -0.302734375, 0.326171875, 1.3515625, -0.048828125, -1.046875, -0.26953125, 1.9140625,
            0.007415771484375, -0.060791015625, 0.478515625, -0.5, 0.46875, 0.8046875, 1.78125,
            0.31640625, -0.158203125, 2.765625, -0.49609375, 1.0703125, -0.57421875, 0.494140625,
            0.107421875, 0.412109375, 1.3359375, 0.8125, 0.283203125, 0.05224609375, -0.12255859375,
            -1.796875, 0.6015625
        ],
        "float64",
    ).reshape(6, 5),
    "inputs/grad.y": np.array(
        [
            -0.75390625, -0.890625, 0.99609375, -0.55078125, 1.421875, 1.65625, -0.1611328125, 1.15625,
            0.5546875, 1.2265625, -0.296875, -1.625, 0.1337890625, 0.76171875, 2.15625, -0.443359375,
            1.328125, 0.546875, 0.3359375, 0.1748046875, -0.63671875, -0.09228515625, -1.0859375,
            0.30078125, 1.0234375, 0.51953125, 0.60546875, -0.67578125, -0.08740234375, -0.478515625
        ],
        "float64",
    ).reshape(6, 5),
    "exact/grad.x": np.array(
        [
            -0.376953125, -0.4453125, 0.498046875, -0.275390625, 0.7109375, 0.828125, -0.08056640625,
            0.578125, 0.27734375, 0.61328125, -0.058336752008459815, -0.8536924793709258,
            -0.07028975238258936, 0.06660348617903822, 0.9763517600074101, -0.12414797775308012,
            0.07497261929045987, 0.2426934231712029, -0.029075203996546853, 0.13142814230509337,
            -0.318359375, -0.046142578125, -0.54296875, 0.150390625, 0.51171875, 0.259765625,
            0.302734375, -0.337890625, -0.043701171875, -0.2392578125
        ],
        "float64",
    ).reshape(6, 5),
    "torch/grad.x": np.array(
        [
            -0.376953125, -0.4453125, 0.498046875, -0.275390625, 0.7109375, 0.828125, -0.08056640625,
            0.578125, 0.27734375, 0.61328125, -0.05833675200845982, -0.8536924793709257,
            -0.07028975238258939, 0.06660348617903816, 0.9763517600074101, -0.12414797775308012,
            0.0749726192904599, 0.2426934231712029, -0.029075203996546825, 0.13142814230509337,
            -0.318359375, -0.046142578125, -0.54296875, 0.150390625, 0.51171875, 0.259765625,
            0.302734375, -0.337890625, -0.043701171875, -0.2392578125
        ],
        "float64",
    ).reshape(6, 5),
}


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


def normalize(x, p, dim, eps):
    return paddle.nn.functional.normalize(x, p, dim, eps)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = normalize(x=x, p=2.0, dim=1, eps=2.0)
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
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=1.0627074031714009e-16, largest=2.6129272356900657e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
