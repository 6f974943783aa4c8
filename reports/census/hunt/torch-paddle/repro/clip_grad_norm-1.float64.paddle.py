"""clip_grad_norm of paddle 3.3.1 follows a different convention: a different constant is added to the
norm in the denominator (float64: grads.1)

case       clip_grad_norm-1 (torch-paddle.yaml:82)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
grads.1    semantic: the error of paddle is 9.01e+09 times that of a careful implementation in
           float64 (the largest: 1e-06 in float32, 1e-06 in float64): the error is the same in every
           precision, so the formula differs
cause      clip-denominator-eps: a different constant is added to the norm in the denominator
           (grads.1)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python clip_grad_norm-1.float64.paddle.py (needs paddle and numpy)
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
    "inputs/grads.0": np.array([[0.0]], "float64"),
    "inputs/grads.1": np.array([1.0], "float64"),
    "exact/grads.1": np.array([0.999999000001], "float64"),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def norm(tensors, norm_type):
    flat = paddle.concat([tensor.reshape([-1]) for tensor in tensors])
    return paddle.linalg.norm(flat, norm_type)


def clip_two_norm(grads, max_norm, scope):
    """The classes that Paddle's optimizers take; they keep the norm to themselves, so it is taken beside them."""
    kind = paddle.nn.ClipGradByGlobalNorm if scope == "global" else paddle.nn.ClipGradByNorm
    total = norm([norm([grad], 2.0) for grad in grads], 2.0)
    pairs = [(paddle.zeros_like(grad), grad.clone()) for grad in grads]
    return {"grads": [clipped for _, clipped in kind(max_norm)(pairs)], "total_norm": total}


def parameters_with(grads):
    """Parameters that have these gradients."""
    parameters = [leaf(to_numpy(grad) * 0, True) for grad in grads]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad
    return parameters


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def clip_grad_norm(grads, max_norm, norm_type, scope):
    if norm_type == 2.0:
        return clip_two_norm(grads, max_norm, scope)
    parameters = parameters_with(grads)
    groups = [parameters] if scope == "global" else [[p] for p in parameters]
    try:
        norms = [paddle.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
    except ValueError as error:
        raise Unsupported(f"paddle.nn.utils.clip_grad_norm_: {error}") from error
    total = norms[0] if scope == "global" else norm(norms, norm_type)
    return {"grads": [p.grad for p in parameters], "total_norm": total}


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
    result = clip_grad_norm(grads=grads, max_norm=1.0, norm_type=2.0, scope="global")
    outputs = result if isinstance(result, dict) else {"y": result}
    return to_arrays(outputs)


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
    check("grads.1", "exact", rtol=1e-07, atol=1e-07)
    and inaccurate("grads.1", rms=1.1102219144032421e-16, largest=1.1102219144032421e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
