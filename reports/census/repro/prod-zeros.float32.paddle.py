"""prod of paddle 3.3.1 differs in NaN or infinity in float32: grad.x

case       prod-zeros (configs/census/../ops/reduction.yaml:9)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
           answer is, or the reverse; no tolerance accepts that
cause      gradient-by-division: the gradient of a product is the product divided by the factor
           (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python prod-zeros.float32.paddle.py (needs paddle and numpy)
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
    "inputs/x": np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.5, -2.0, 0.5]], "float32"),
    "inputs/grad.y": np.array([-0.90234375, 0.8046875, 1.3828125], "float32"),
    "exact/grad.x": np.array(
        [
            -0.0, -5.4140625, -0.0, 0.0, 0.0, 0.0, -1.3828125, 1.037109375, -4.1484375
        ],
        "float64",
    ).reshape(3, 3),
    "torch/grad.x": np.array(
        [
            -0.0, -5.4140625, -0.0, 0.0, 0.0, 0.0, -1.3828125, 1.0371094, -4.1484375
        ],
        "float32",
    ).reshape(3, 3),
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


def prod(x, dim=None, keepdim=False):
    return paddle.prod(x, axis=dim, keepdim=keepdim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = prod(x=x, dim=1, keepdim=False)
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
    here, there = described(live), described(other, "float32")
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


RESULT = compute()
DIFFERS = [
    check("grad.x", "exact", rtol=0.0001, atol=1e-05),
    check("grad.x", "torch", rtol=0.0001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
