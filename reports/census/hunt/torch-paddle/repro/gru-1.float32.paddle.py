"""gru of paddle 3.3.1 differs in NaN or infinity in float32: grad.x, grad.weight_ih, grad.weight_hh,
grad.bias_ih, grad.bias_hh

case            gru-1 (torch-paddle.yaml:121)
seen with       paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
                Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
grad.x          nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
                answer is, or the reverse; no tolerance accepts that
grad.weight_ih  nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
                answer is, or the reverse; no tolerance accepts that
grad.weight_hh  nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
                answer is, or the reverse; no tolerance accepts that
grad.bias_ih    nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
                answer is, or the reverse; no tolerance accepts that
grad.bias_hh    nonfinite: NaN or infinity in one backend only: paddle is not finite where the exact
                answer is, or the reverse; no tolerance accepts that
cause           localized: wrong in one part of the tensor only (grad.weight_ih, grad.weight_hh,
                grad.bias_ih and grad.bias_hh)
cause           unexplained: no known cause explains the error (grad.x)
exact           the textbook formula in extended precision on the same inputs, rounded to float64
run             python gru-1.float32.paddle.py (needs paddle and numpy)
exit code       1 while the difference is there, 0 once it is fixed
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
    "inputs/x": np.array([[[-2e+30]]], "float32"),
    "inputs/weight_ih": np.array([[1.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0]], "float32"),
    "inputs/weight_hh": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float32",
    ).reshape(9, 3),
    "inputs/bias_ih": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "float32"),
    "inputs/bias_hh": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "float32"),
    "inputs/grad.y": np.array([[[0.0, 0.0, 0.0]]], "float32"),
    "inputs/grad.h": np.array([[0.0, 0.0, 0.0]], "float32"),
    "exact/grad.x": np.array([[[0.0]]], "float64"),
    "exact/grad.weight_ih": np.array([[0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0]], "float64"),
    "exact/grad.weight_hh": np.array(
        [
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        ],
        "float64",
    ).reshape(9, 3),
    "exact/grad.bias_ih": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "float64"),
    "exact/grad.bias_hh": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "float64"),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def has_history(tensor):
    return not tensor.stop_gradient


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        paddle.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def state(state, x, weights):
    """An initial state of one layer; zeros where there is none."""
    zeros = paddle.zeros([x.shape[1], weights["weight_hh"].shape[1]], x.dtype)
    return (zeros if state is None else state).unsqueeze(0)


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def recurrent(kind, x, weights):
    """A layer that takes steps first, with our own leaves as its parameters."""
    if not {"bias_ih", "bias_hh"} <= weights.keys():
        # Paddle 3.3.1 ends with SIGSEGV in the backward pass of a layer with bias_ih_attr=False on a CPU.
        raise Unsupported(f"paddle.nn.{kind.__name__} has no backward pass without biases")
    layer = kind(x.shape[2], weights["weight_hh"].shape[1], time_major=True)
    layer._all_weights = [weights[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return layer


def gru(x, h0=None, **weights):
    states = None if h0 is None else state(h0, x, weights)
    y, h = recurrent(paddle.nn.GRU, x, weights)(x, states)
    return {"y": y, "h": h[0]}


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight_ih = leaf(DATA["inputs/weight_ih"], True)
    weight_hh = leaf(DATA["inputs/weight_hh"], True)
    bias_ih = leaf(DATA["inputs/bias_ih"], True)
    bias_hh = leaf(DATA["inputs/bias_hh"], True)
    result = gru(x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"], outputs["h"]], [leaf(DATA["inputs/grad.y"], False), leaf(DATA["inputs/grad.h"], False)], [x, weight_ih, weight_hh, bias_ih, bias_hh])
    outputs.update(zip(["grad.x", "grad.weight_ih", "grad.weight_hh", "grad.bias_ih", "grad.bias_hh"], returned))
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
    check("grad.x", "exact", rtol=0.0001, atol=1e-05),
    check("grad.weight_ih", "exact", rtol=0.0001, atol=1e-05),
    check("grad.weight_hh", "exact", rtol=0.0001, atol=1e-05),
    check("grad.bias_ih", "exact", rtol=0.0001, atol=1e-05),
    check("grad.bias_hh", "exact", rtol=0.0001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
