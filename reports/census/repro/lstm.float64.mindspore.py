"""lstm of mindspore 2.10.0 computes a different formula in float64: grad.c0, grad.x, grad.weight_ih,
grad.bias_hh, grad.bias_ih, grad.weight_hh and 4 more

case            lstm (configs/ops/recurrent.yaml:6)
seen with       mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
                Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
grad.c0         semantic: the error of mindspore is 2.13e+15 times that of a careful implementation
                in float64 (the largest: 1.79 in float16, 2.56e-07 in float32, 1.79 in float64): the
                error is the same in every precision, so the formula differs
grad.x          semantic: the error of mindspore is 1.08e+15 times that of a careful implementation
                in float64 (the largest: 1.61 in float16, 2.34e-07 in float32, 1.61 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_ih  semantic: the error of mindspore is 1.02e+15 times that of a careful implementation
                in float64 (the largest: 1.43 in float16, 1.69e-07 in float32, 1.43 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_hh    semantic: the error of mindspore is 1.03e+15 times that of a careful implementation
                in float64 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_ih    semantic: the error of mindspore is 9.43e+14 times that of a careful implementation
                in float64 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_hh  semantic: the error of mindspore is 8.55e+14 times that of a careful implementation
                in float64 (the largest: 0.531 in float16, 8.74e-08 in float32, 0.531 in float64):
                the error is the same in every precision, so the formula differs
cause           nondeterministic: the same call gives different results (y, h, c, grad.x,
                grad.weight_ih, grad.weight_hh, grad.bias_ih, grad.bias_hh, grad.h0 and grad.c0)
exact           the textbook formula in extended precision on the same inputs, rounded to float64
torch           the result of torch 2.13.0+cpu in the same run
run             python lstm.float64.mindspore.py (needs mindspore and numpy;
                lstm.float64.mindspore.npz must lie beside it)
exit code       1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import numpy as np
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# MindSpore would write what it knows of a graph that fails into the working directory.
os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())
import mindspore

mindspore.set_device("cpu".upper())
mindspore.set_context(runtime_num_threads=1)
# Otherwise an op's error may be raised by one that follows.
mindspore.runtime.launch_blocking()
latest = SimpleNamespace()

DATA = np.load(os.path.splitext(os.path.abspath(__file__))[0] + ".npz", allow_pickle=False)


def values_of(bits):
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        return mindspore.Tensor(values_of(array)).astype(mindspore.bfloat16)
    return mindspore.Tensor(array)


def to_numpy(tensor):
    if tensor.dtype == mindspore.bfloat16:
        return (tensor.astype(mindspore.float32).asnumpy().view("uint32") >> 16).astype("uint16")
    return tensor.asnumpy()


def staged(function):
    """The function as it is in PyNative mode."""
    return function


def shape_of(value):
    """The shape of a tensor of any framework; None for what is no tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)


def named_outputs(result):
    """What an op returned, by output name: a mapping is taken as it is, a single tensor is `y`.

    Raises TypeError for what is neither.
    """
    if not isinstance(result, Mapping):
        if shape_of(result) is None:
            raise TypeError(
                f"an op must return a tensor, or a mapping of tensors by name, not a {type(result).__name__}"
            )
        return {"y": result}
    for name, value in result.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not (item is None or isinstance(item, (bool, int, float)) or shape_of(item) is not None):
                raise TypeError(
                    f"an op must return tensors, or lists of them, by name; {name} is a {type(item).__name__}"
                )
    return dict(result)


def in_mode(function):
    """The function in its stage; the latest call is kept, since mindspore.vjp calls it again."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def gradients(outputs, upstream, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return tuple(results[name] for name in wanted) if len(wanted) > 1 else results[wanted[0]]

    _, pullback = mindspore.vjp(forward, *leaves)
    return list(pullback(*(dy.astype(y.dtype) for y, dy in zip(outputs, upstream))))


def state(state, x, weights):
    """An initial state of one layer; zeros where there is none."""
    return mindspore.ops.zeros((x.shape[1], weights["weight_hh"].shape[1]), x.dtype) if state is None else state


def recurrent(kind, x, states, weights):
    """What one layer computes; its own weights are Parameters, so its steps are called with ours."""
    steps = kind(x.shape[2], weights["weight_hh"].shape[1], has_bias="bias_ih" in weights).rnn
    given = (weights.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return steps(x, states, None, *given)


def lstm(x, h0=None, c0=None, **weights):
    states = tuple(state(state_, x, weights) for state_ in (h0, c0))
    y, (h, c) = recurrent(mindspore.nn.LSTM, x, states, weights)
    return {"y": y, "h": h.reshape(states[0].shape), "c": c.reshape(states[1].shape)}


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight_ih = leaf(DATA["inputs/weight_ih"], True)
    weight_hh = leaf(DATA["inputs/weight_hh"], True)
    bias_ih = leaf(DATA["inputs/bias_ih"], True)
    bias_hh = leaf(DATA["inputs/bias_hh"], True)
    h0 = leaf(DATA["inputs/h0"], True)
    c0 = leaf(DATA["inputs/c0"], True)
    result = in_mode(lstm)(
        x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh, h0=h0, c0=c0,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"], outputs["h"], outputs["c"]], [leaf(DATA["inputs/grad.y"], False), leaf(DATA["inputs/grad.h"], False), leaf(DATA["inputs/grad.c"], False)], [x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0])
    outputs.update(zip(["grad.x", "grad.weight_ih", "grad.weight_hh", "grad.bias_ih", "grad.bias_hh", "grad.h0", "grad.c0"], returned))
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
        print(f"{tensor}: mindspore has {here}, {side} has {there}")
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
    values = {"mindspore": live, side: other, "exact": DATA[f"exact/{tensor}"]}
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
    (
        check("grad.c0", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.c0", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.c0", rms=5.680613597962013e-16, largest=8.402566836762659e-16, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=6.873885467814132e-16, largest=1.813870234568249e-15, limit=8.0),
    (
        check("grad.weight_ih", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.weight_ih", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_ih", rms=4.3284861403096334e-16, largest=1.4049091751067166e-15, limit=8.0),
    (
        check("grad.bias_hh", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.bias_hh", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.bias_hh", rms=5.462868169538432e-16, largest=1.1532116407642068e-15, limit=8.0),
    (
        check("grad.bias_ih", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.bias_ih", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.bias_ih", rms=5.80206514346694e-16, largest=1.2642339432267224e-15, limit=8.0),
    (
        check("grad.weight_hh", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.weight_hh", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_hh", rms=2.494805725568151e-16, largest=6.20651533639327e-16, limit=8.0),
    (
        check("grad.h0", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.h0", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.h0", rms=3.32829797477208e-16, largest=4.927969924489739e-16, limit=8.0),
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=2.017243772281879e-16, largest=6.19865487064275e-16, limit=8.0),
    check("c", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("c", rms=5.09143513271771e-16, largest=8.429265315260115e-16, limit=8.0),
    check("h", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("h", rms=2.696353226311055e-16, largest=6.19865487064275e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
