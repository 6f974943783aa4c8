"""avg_pool2d of jax 0.10.2 is less accurate than a careful implementation in bfloat16: y

case       avg_pool2d-padding (configs/ops/pooling.yaml:13)
seen with  jax 0.10.2, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          unstable: the error of jax is 9.68 times that of a careful implementation in bfloat16
           (the largest: 0.00456 in bfloat16, 0.00038 in float16, 2.65e-08 in float32, 0 in
           float64): the error changes with the precision, so the algorithm loses digits
cause      narrow-accumulation: sums are accumulated in a narrow format (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python avg_pool2d-padding.bfloat16.jax.py (needs jax and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# XLA would use all cores otherwise.
if 1 == 1:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax

jax.config.update("jax_platforms", "cpu")
latest = SimpleNamespace()

DATA = {
    "inputs/x": np.array(
        [
            0.076660156, 0.6328125, 0.74609375, 1.6953125, -0.875, -0.56640625, 0.65234375, -0.09765625,
            -0.6875, 1.2890625, 1.2421875, 1.3359375, 0.859375, -0.2109375, 0.95703125, -0.84375,
            0.62890625, -1.21875, 1.71875, 0.625, -0.16601562, -0.8359375, 1.046875, 0.30273438,
            0.57421875, -1.015625, 0.007598877, -0.18652344, 0.9921875, -0.33007812, -0.12988281,
            -0.83203125, -0.63671875, -1.6015625, 1.7265625, -0.96875, -0.33984375, 0.35351562,
            -1.03125, 1.046875, -1.03125, -0.60546875, 1.375, -0.8046875, 0.20214844, 0.95703125,
            -2.203125, 0.75390625, -0.51171875, -0.111328125, 0.23144531, -0.52734375, -0.011169434,
            -0.47851562, 0.921875, 1.4375, -0.76953125, -0.40234375, -1.1171875, 1.5703125, -1.484375,
            -2.453125, 1.0, -1.0546875, 0.328125, 0.28710938, -1.140625, -0.10986328, -0.96875,
            -0.94140625, 0.34765625, -0.94140625, 0.083984375, 0.90625, 2.5, 0.89453125, 2.21875,
            1.390625, 1.3515625, -0.9765625
        ],
        "float32",
    ).reshape(2, 2, 5, 4),
    "inputs/grad.y": np.array(
        [
            0.3828125, -0.51171875, 1.1796875, -0.071777344, 1.390625, 1.9375, -1.546875, 0.075683594,
            1.484375, 0.21191406, 0.60546875, -0.072265625, 1.3984375, 0.15234375, -1.03125, 1.9140625,
            1.890625, -0.4296875, -0.65625, -1.03125, -0.76953125, -0.14160156, 0.76171875, -0.80078125,
            0.28710938, -0.55078125, -1.609375, -0.90625, 0.24414062, 0.625, 1.3671875, 0.46484375,
            0.23632812, 2.125, -0.50390625, -0.04638672, -1.0390625, -0.61328125, -0.609375, 0.49804688
        ],
        "float32",
    ).reshape(2, 2, 5, 2),
    "exact/y": np.array(
        [
            -0.0813259548611111, 0.3402777777777778, -0.014485677083333334, 0.7699652777777778,
            -0.021267361111111112, 0.4175347222222222, 0.07335069444444445, 0.5438368055555556,
            0.006510416666666667, 0.11414930555555555, -0.1603732638888889, -0.075653076171875,
            -0.08680555555555555, -0.219207763671875, -0.2241753472222222, -0.3700324164496528,
            -0.1736111111111111, -0.1962890625, -0.24717881944444445, -0.052734375,
            -0.053059895833333336, -0.05859375, -0.1222873263888889, -0.10384114583333333,
            0.005160861545138889, 0.10904947916666667, -0.25384521484375, 0.1693793402777778,
            -0.18461778428819445, 0.2146267361111111, -0.369140625, -0.3856879340277778,
            -0.5813802083333334, -0.5562608506944444, -0.033854166666666664, 0.2002495659722222,
            0.298828125, 0.5034722222222222, 0.5110677083333334, 0.6740451388888888
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "torch/y": np.array(
        [
            -0.08154297, 0.33984375, -0.014465332, 0.76953125, -0.021240234, 0.41796875, 0.07324219,
            0.54296875, 0.006500244, 0.11425781, -0.16015625, -0.075683594, -0.08691406, -0.21875,
            -0.22460938, -0.36914062, -0.17382812, -0.19628906, -0.24707031, -0.052734375, -0.052978516,
            -0.05859375, -0.12207031, -0.104003906, 0.0051574707, 0.10888672, -0.25390625, 0.16894531,
            -0.18457031, 0.21484375, -0.36914062, -0.38476562, -0.58203125, -0.5546875, -0.033935547,
            0.20019531, 0.29882812, 0.50390625, 0.51171875, 0.67578125
        ],
        "float32",
    ).reshape(2, 2, 5, 2),
}

# NumPy has no bfloat16: float32 holds its numbers, and uint16 the bits that a framework's tensors are made of.
DATA = dict(DATA)
for name, values in DATA.items():
    if name.startswith("inputs/") and values.dtype == "float32":
        DATA[name] = np.asarray(values.view("uint32") >> 16, "uint16")


def leaf(array, requires_grad):
    if array.dtype.kind in "fu":
        jax.config.update("jax_enable_x64", array.dtype.itemsize == 8)
    return jax.numpy.array(array.view(jax.numpy.bfloat16.dtype) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    values = tensor.__array__()
    return values.view("uint16") if values.dtype == jax.numpy.bfloat16 else values


def staged(function):
    """The function as it is in eager mode."""
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
    """The function in its stage."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def pullback(forward, leaves, upstream):
    _, back = jax.vjp(forward, *leaves)
    return list(back(list(upstream)))


def gradients(outputs, upstream, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return [results[name] for name in wanted]

    return pullback(forward, leaves, [dy.astype(y.dtype) for y, dy in zip(outputs, upstream)])


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pool_pads(sizes, kernel, stride, padding, dilation, ceil_mode):
    """`pads` of a pooling. With `ceil_mode` a last window may reach beyond the padding, but must begin before it."""
    n = len(sizes)
    result = []
    for size, k, s, p, d in zip(sizes, each(kernel, n), each(stride, n), each(padding, n), each(dilation, n)):
        rest = size + 2 * p - d * (k - 1) - 1
        count = -(-rest // s) if ceil_mode else rest // s
        if ceil_mode and count * s >= size + p:
            count -= 1
        result.append((p, max(p, p + count * s - rest)))
    return result


def windows(x, start, step, kernel, stride, around, dilation):
    """What `step` makes of each window; pooling in JAX is this primitive."""
    n = x.ndim - 2
    stride = each(kernel if stride is None else stride, n)
    return jax.lax.reduce_window(
        x,
        start,
        step,
        (1, 1, *each(kernel, n)),
        (1, 1, *stride),
        [(0, 0), (0, 0), *around],
        window_dilation=(1, 1, *each(dilation, n)),
    )


def pads(padding, n):
    """Elements before and after each of `n` axes, for a padding that is no word."""
    return [(p, p) for p in each(padding, n)]


def avg_pool(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    n, steps = x.ndim - 2, kernel_size if stride is None else stride
    around = pool_pads(x.shape[2:], kernel_size, steps, padding, 1, ceil_mode)
    add, ones = jax.lax.add, jax.numpy.ones_like(x)
    sums = windows(x, 0.0, add, kernel_size, stride, around, 1)
    if count_include_pad:
        inside = pads(padding, n)
        ones = jax.numpy.pad(ones, [(0, 0), (0, 0), *inside], constant_values=1)
        around = [(0, behind - p) for (_, behind), (p, _) in zip(around, inside)]
    return sums / windows(ones, 0.0, add, kernel_size, stride, around, 1)


def avg_pool2d(**given):
    return avg_pool(**given)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(avg_pool2d)(
        x=x,
        kernel_size=3, stride=(1, 2), padding=1, ceil_mode=False, count_include_pad=True,
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
    own = "bfloat16" if own == "uint16" else own
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def numbers(values):
    """The numbers of a bfloat16 tensor."""
    return (values.view("uint16").astype("uint32") << 16).view("float32")


def check(tensor, side, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"]
    here, there = described(live), described(other, "bfloat16")
    if here != there:
        print(f"{tensor}: jax has {here}, {side} has {there}")
        return here != there
    live = numbers(live)
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
    values = {"jax": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit, part=(), where=""):
    """Whether an error, of a part, is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "bfloat16"):
        return True
    live = numbers(live).astype("float64")
    if (np.isfinite(live) != np.isfinite(exact)).any():
        print("    NaN or infinity where the exact answer is finite, or the reverse")
        return True
    with np.errstate(all="ignore"):
        error = np.abs(live - exact)[part]
        error = error[np.isfinite(error)]
        peak = error.max() if error.size else 0.0
        ratio = max(peak * np.sqrt(np.mean((error / peak) ** 2)) / rms, peak / largest) if peak else 0.0
    print(f"    its error{where} is {float(ratio):.3g} times that of a careful implementation;", end=" ")
    print(f"the error bound is {limit:g}")
    return bool(ratio >= limit)


RESULT = compute()
DIFFERS = [
    (
        check("y", "exact", rtol=0.016, atol=1e-05)
        | check("y", "torch", rtol=0.016, atol=1e-05)
    )
    and inaccurate(
        "y", rms=5.323618694474723e-05, largest=6.33869183518664e-05, limit=8.0,
        part=np.s_[:, 0, 2, 0], where=" in [:, 0, 2, 0]",
    ),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
