"""cross_entropy of paddle 3.3.1 computes a different formula in float64: y, grad.x

case       cross_entropy-smoothing-weight (configs/census/../ops/loss.yaml:12)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          semantic: the error of paddle is 1.3e+14 times that of a careful implementation in
           float64 (the largest: 0.0418 in float32, 0.0418 in float64): the error is the same in
           every precision, so the formula differs
grad.x     semantic: the error of paddle is 2.71e+14 times that of a careful implementation in
           float64 (the largest: 0.00586 in float32, 0.00586 in float64): the error is the same in
           every precision, so the formula differs
cause      label-smoothing: targets are smoothed (y and grad.x)
cause      attribute-precision: an attribute of a float64 computation is stored in float32 (y and
           grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python cross_entropy-smoothing-weight.float64.paddle.py (needs paddle and numpy)
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
            0.54296875, 0.0091552734375, -0.11474609375, -0.7265625, 1.0546875, 1.7421875, 0.0859375,
            0.81640625, -0.1279296875, -0.11865234375, -0.1328125, 0.1611328125, -1.953125, -1.4375,
            2.265625, 0.376953125, -1.5703125, -1.1328125, -0.482421875, 0.6875, -0.1220703125,
            0.482421875, -1.734375, -0.427734375, 0.8828125, 0.057861328125, -0.48046875, -0.328125,
            -0.50390625, -0.9921875
        ],
        "float64",
    ).reshape(6, 5),
    "inputs/target": np.array([0, 0, 2, 3, 1, 1], "int64"),
    "inputs/weight": np.array([1.140625, 0.65625, 0.9921875, 1.4296875, 1.421875], "float64"),
    "inputs/grad.y": np.array(-0.474609375, "float64"),
    "exact/y": np.array(1.9758534488355248, "float64"),
    "torch/y": np.array(1.975853448835525, "float64"),
    "exact/grad.x": np.array(
        [
            0.053440303039969904, -0.010918141719809519, -0.008344308703894854, -0.001712035360061409,
            -0.03246581725620413, 0.02825086456220484, -0.00696425397885006, -0.015626528974364312,
            -0.002783713995896202, -0.0028763676130942636, -0.0022363166882814196,
            -0.005759134738680521, 0.06480969262412418, 0.002928826574202184, -0.05974306777136443,
            -0.03068494399821186, -0.002820139886767006, -0.004444391728794643, 0.08023228574961612,
            -0.042282810135842605, -0.00551419271144568, 0.026810233715571535, 0.0013136416087392937,
            -0.0022016846021912003, -0.020407998010673948, -0.015002250018525114, 0.032633144001990376,
            -0.009513996739965969, -0.0060949293098779235, -0.0020219679336213716
        ],
        "float64",
    ).reshape(6, 5),
    "torch/grad.x": np.array(
        [
            0.053440303039969904, -0.010918141719809515, -0.008344308703894852, -0.0017120353600614086,
            -0.032465817256204114, 0.028250864562204832, -0.0069642539788500575, -0.015626528974364312,
            -0.0027837139958962, -0.002876367613094261, -0.0022363166882814166, -0.005759134738680518,
            0.06480969262412417, 0.0029288265742021843, -0.059743067771364414, -0.030684943998211853,
            -0.0028201398867670055, -0.0044443917287946425, 0.0802322857496161, -0.0422828101358426,
            -0.005514192711445678, 0.026810233715571535, 0.0013136416087392944, -0.002201684602191199,
            -0.020407998010673944, -0.015002250018525114, 0.032633144001990376, -0.009513996739965969,
            -0.0060949293098779235, -0.0020219679336213716
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


def of_rows(function, x, target, **options):
    """A loss of x [rows, C] and target [rows]; without reduction it has the shape of `target`."""
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
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    weight = leaf(DATA["inputs/weight"], False)
    result = cross_entropy(
        x=x, target=target, weight=weight,
        ignore_index=-100, reduction="mean", label_smoothing=0.2,
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
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=3.207070026212122e-16, largest=3.207070026212122e-16, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=1.1038594962968624e-17, largest=3.2376987375848376e-17, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
