"""avg_pool3d of mlx 0.32.4 is less accurate than a careful implementation in bfloat16: grad.x

case       avg_pool3d (configs/census/../ops/pooling.yaml:16)
seen with  mlx 0.32.4, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     unstable: the error of mlx is 8.18 times that of a careful implementation in bfloat16
           (the largest: 0.00659 in bfloat16, 0.000793 in float16, 0 in float32, 0 in float64): the
           error changes with the precision, so the algorithm loses digits
cause      reduced-precision: computed in or through a lower precision (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python avg_pool3d.bfloat16.mlx.py (needs mlx and numpy)
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

import mlx.core
import mlx.nn
import mlx.optimizers

mlx.core.set_default_device(mlx.core.cpu)
latest = SimpleNamespace()

DATA = {
    "inputs/x": np.array(
        [
            -1.15625, 1.15625, -1.6875, 0.8046875, 1.1015625, -0.07080078, -0.45117188, 0.96484375,
            0.48632812, 1.8046875, -0.28125, 0.07861328, -1.2734375, 0.5234375, -2.0, -0.359375,
            0.3359375, 0.40820312, 0.74609375, -0.8046875, -0.65234375, 0.55078125, 0.107421875, -0.375,
            -1.3984375, 0.9375, 0.5625, 0.27734375, 1.6640625, 1.8359375, -0.51171875, -0.92578125,
            1.6015625, 0.19140625, -0.07714844, 0.41015625, 0.82421875, 0.38671875, 0.73828125,
            -1.265625, 0.64453125, -0.53515625, 1.203125, 0.6640625, 0.30078125, -0.24023438, 1.71875,
            0.31054688, 0.5234375, -1.015625, -0.37695312, -0.26757812, 0.41601562, 0.32226562,
            -2.703125, 0.265625, -0.7890625, -1.0078125, -2.359375, 0.49023438, 0.35742188, 0.30273438,
            0.48046875, -0.2578125, -0.19042969, -2.078125, 0.40820312, -0.1875, 3.125, 0.91015625,
            1.6015625, -0.021850586
        ],
        "float32",
    ).reshape(2, 2, 2, 3, 3),
    "inputs/grad.y": np.array(
        [
            -1.6875, -0.90234375, 0.7578125, -0.84375, -0.6328125, -1.546875, -1.5, -0.24414062,
            -0.89453125, -2.15625, -0.296875, -1.484375, 0.31445312, -1.046875, 0.032958984, -0.6796875,
            -0.007598877, 1.9609375, 0.29296875, -0.34179688, 2.015625, 1.5390625, -0.70703125,
            -0.890625, -0.045410156, 0.703125, -1.125, -1.828125, 0.29492188, -0.63671875, 0.46875,
            -0.05883789, -0.78515625, -1.3359375, 0.019042969, -0.17480469, -2.375, 1.3203125,
            -2.203125, -2.234375, 1.421875, 1.265625, -0.47851562, 0.11669922, -0.5078125, -0.16894531,
            0.46289062, -1.171875, 0.31640625, 0.19140625, -0.21582031, -0.59765625, 0.84375,
            -0.061035156, -0.8671875, 2.71875, 0.20703125, -0.14453125, 0.010192871, 0.032226562,
            0.2734375, -1.921875, 1.6796875, -0.484375, -0.23242188, 1.28125, 0.052978516, -0.734375,
            0.640625, 0.096191406, -0.6796875, -1.0859375, -1.5390625, 1.0546875, 0.33203125, 0.9765625,
            -1.328125, -1.2265625, -1.4140625, 0.12402344, 1.0234375, -0.73828125, 1.0234375,
            -0.30664062, 0.63671875, 1.203125, 0.14746094, -0.07519531, 0.92578125, 0.17480469,
            -0.107910156, -0.27148438, -0.87890625, -1.2265625, 0.43945312, -0.76171875, 0.73828125,
            1.2265625, 0.02368164, 0.20800781, 1.078125, -1.1328125, -1.6796875, 0.8984375, -0.08203125,
            0.91015625, -0.7265625, -0.66796875, -1.3515625, -1.40625, -0.703125, 0.084472656,
            -0.03881836, -1.5625, -1.0, 0.51953125, -1.1875, 0.3046875, 0.05029297, -1.4140625,
            -1.515625, -0.16992188, 0.052246094, 0.71875, -0.515625, 1.5078125, -0.18359375, 0.69140625,
            1.21875, 0.06298828, -0.80859375, -2.46875, 0.08300781, 0.18066406, -0.98828125, -0.21875,
            -0.26171875, -0.6171875, -0.828125, -1.5625, 1.4140625, -1.0625, 0.47070312, -1.578125,
            -0.56640625, -0.29296875, -0.63671875, 1.0859375, -1.34375, 0.061279297, -0.64453125,
            1.5546875, 1.4140625, 0.1328125, 0.096191406, -1.078125, 0.19726562, 0.048828125,
            -1.4296875, 0.21386719, 0.1484375, 2.125, 0.091308594, -1.2265625, -1.328125, 0.9765625,
            -0.7109375, -1.015625, 0.45117188, 0.609375, 2.015625, -0.26367188, 0.953125, -0.064453125,
            0.43359375, -1.515625, 0.7734375, 0.95703125, -2.203125, -1.140625, -1.3984375, 0.24316406,
            -1.3203125, 0.5078125, 1.265625, 1.109375, 0.11621094, 0.071777344, 0.984375, 1.3984375,
            0.14160156, 1.046875
        ],
        "float32",
    ).reshape(2, 2, 3, 4, 4),
    "exact/grad.x": np.array(
        [
            0.09231185913085938, -0.01318359375, -0.4345703125, -0.12725830078125, -0.63623046875,
            -1.009521484375, -0.43341064453125, -0.507110595703125, -0.62139892578125,
            0.2915306091308594, 0.11077880859375, -0.77996826171875, 0.73065185546875, 0.039306640625,
            -1.16876220703125, 0.29083251953125, 0.0614013671875, -0.451751708984375, 0.384521484375,
            -0.025238037109375, -0.176116943359375, 0.13720703125, -0.03241729736328125,
            0.17961883544921875, -0.578125, -0.20380401611328125, 0.15703582763671875, 0.48883056640625,
            0.298309326171875, -0.207244873046875, 0.39910888671875, 0.277587890625, -0.09552001953125,
            -0.5054931640625, -0.24676513671875, -0.08538818359375, -0.071746826171875,
            -0.471221923828125, -0.299224853515625, -0.224365234375, -0.2989501953125, -0.3460693359375,
            -0.327880859375, -0.08990478515625, -0.091796875, -0.117340087890625, -0.4700927734375,
            -0.79107666015625, -0.39794921875, -0.251953125, -0.5238037109375, -0.152587890625,
            -0.10382080078125, -0.27740478515625, -0.027496337890625, 0.121124267578125,
            -0.18780517578125, 0.121673583984375, 0.317047119140625, -0.00579833984375, 0.4677734375,
            0.23028564453125, -0.19097900390625, 0.3121337890625, 0.01983642578125, -0.87725830078125,
            0.2410888671875, 0.3798828125, -0.07489013671875, 0.83837890625, 0.719970703125,
            0.25579833984375
        ],
        "float64",
    ).reshape(2, 2, 2, 3, 3),
}

# NumPy has no bfloat16: float32 holds its numbers, and uint16 the bits that a framework's tensors are made of.
DATA = dict(DATA)
for name, values in DATA.items():
    if name.startswith("inputs/") and values.dtype == "float32":
        DATA[name] = np.asarray(values.view("uint32") >> 16, "uint16")


def leaf(array, requires_grad):
    tensor = mlx.core.array(array, dtype=getattr(mlx.core, str(array.dtype)))
    return tensor.view(mlx.core.bfloat16) if array.dtype == "uint16" else tensor


def to_numpy(tensor):
    return (tensor.view(mlx.core.uint16) if tensor.dtype == mlx.core.bfloat16 else tensor).__array__()


def staged(function):
    """The function as the mode runs it; in eager mode, the function itself."""
    return function


def shape_of(value):
    """The shape of a tensor of any framework; None if it is not a tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)


def named_outputs(result):
    """An op's result by output name: a mapping as it is, a single tensor as `y`.

    Raises TypeError for anything else.
    """
    if not isinstance(result, Mapping):
        if shape_of(result) is None:
            raise TypeError(
                f"an op must return a tensor, or a mapping of tensors by name, not a {type(result).__name__}"
            )
        return {"y": result}
    for name, value in result.items():
        if not isinstance(name, str):
            raise TypeError(f"an op must return tensors by name; {name!r} is a {type(name).__name__}")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not (item is None or isinstance(item, (bool, int, float)) or shape_of(item) is not None):
                raise TypeError(
                    f"an op must return tensors, or lists of them, by name; {name} is a {type(item).__name__}"
                )
    return dict(result)


def in_mode(function):
    """The staged function, whose calls are kept."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def pullback(forward, leaves, grad_outputs):
    return list(mlx.core.vjp(forward, list(leaves), list(grad_outputs))[1])


def gradients(outputs, grad_outputs, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return [results[name] for name in wanted]

    return pullback(forward, leaves, [dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs)])


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pads(padding, n):
    """Elements before and after each of `n` axes, for a padding that is no word."""
    return [(p, p) for p in each(padding, n)]


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with the message `lacking`, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def channels_first(framework, x):
    """[N, ..., C] to [N, C, ...]."""
    return framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])


def channels_last(framework, x):
    """[N, C, ...] to [N, ..., C], for images and for weights."""
    return framework.transpose(x, [0, *range(2, x.ndim), 1])


def avg_pool(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    n = x.ndim - 2
    padded = any(before for before, _ in pads(padding, n))
    require(not ceil_mode and (count_include_pad or not padded), "mlx.nn counts every element that is padded")
    layer = getattr(mlx.nn, f"AvgPool{n}d")(kernel_size, stride, padding)
    return channels_first(mlx.core, layer(channels_last(mlx.core, x)))


def avg_pool3d(**given):
    return avg_pool(**given)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(avg_pool3d)(
        x=x,
        kernel_size=2, stride=1, padding=1, ceil_mode=False, count_include_pad=True,
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


def check(tensor, label, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "bfloat16")
    if here != there:
        print(f"{tensor}: mlx has {here}, {label} has {there}")
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
    values = {"mlx": live, label: other, "exact": DATA[f"exact/{tensor}"]}
    n_wrong = int((outside | strange).sum())
    print(f"{tensor} {list(live.shape)} against {label}: {n_wrong} of {a.size} elements", end=" ")
    got, wanted = ("a number" if np.isfinite(v[worst]) else str(v[worst]).replace("nan", "NaN") for v in (a, e))
    odd = f"{got} where {wanted} is expected"
    print(f"exceed rtol={rtol} atol={atol};", odd if strange.any() else f"largest difference {float(diff.max())}")
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
    check("grad.x", "exact", rtol=0.05, atol=0.001)
    and inaccurate(
        "grad.x", rms=0.0005336947384039617, largest=0.0005336947384039617, limit=8.0,
        part=np.s_[0, 0, 0, 0, 0], where=" in [0, 0, 0, 0, 0]",
    ),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
