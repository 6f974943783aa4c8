"""conv_transpose3d of mindspore 2.10.0 returns a different shape, dtype or set of outputs in float16:
grad.weight, y

case         conv_transpose3d (configs/ops/conv.yaml:16)
seen with    mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
             Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
grad.weight  structure: mindspore has dtype float32, oracle float16; the values were not compared
y            rounding: rounding alone: the tolerance is tighter than float16 allows: the error is
             mindspore's 1 times that of a careful implementation, the error bound is 8
cause        rounding: rounding: the tolerance is smaller than the rounding error of this case (y)
exact        the textbook formula in extended precision on the same inputs, rounded to float64
torch        the result of torch 2.13.0+cpu in the same run
run          python conv_transpose3d.float16.mindspore.py (needs mindspore and numpy;
             conv_transpose3d.float16.mindspore.npz must lie beside it)
exit code    1 while the difference is there, 0 once it is fixed
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


def each(value, n):
    """A param of `n` axes: one for all, or one per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(held, lacking):
    """Raise Unsupported with what the framework is lacking, unless `held`."""
    if not held:
        raise Unsupported(lacking)


def transposed_convolution(
    x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    n = x.ndim - 2
    stride, padding, extra, dilation = (each(value, n) for value in (stride, padding, output_padding, dilation))
    kernel = tuple(weight.shape[2:])
    around = tuple(p for p in padding for _ in range(2))
    if n == 3:
        layer = mindspore.ops.Conv3DTranspose(
            weight.shape[0], weight.shape[1] * groups, kernel, 1, "pad", around, stride, dilation, groups, extra
        )
        y = layer(x, weight)
    elif n == 2:
        axes = zip(x.shape[2:], kernel, stride, padding, dilation)
        sizes = tuple((size - 1) * s + d * (k - 1) + 1 - 2 * p for size, k, s, p, d in axes)
        layer = mindspore.ops.Conv2DTranspose(
            weight.shape[0], kernel, "pad", around, stride=stride, dilation=dilation, group=groups
        )
        y = layer(x, weight, (x.shape[0], weight.shape[1] * groups, *sizes))
        y = mindspore.ops.Pad(((0, 0), (0, 0), *((0, more) for more in extra)))(y) if any(extra) else y
    else:
        require(extra == (0,), "mindspore.nn.Conv1dTranspose has no output_padding")
        y = transposed_convolution(
            x.expand_dims(2),
            weight.expand_dims(2),
            stride=(1, *stride),
            padding=(0, *padding),
            groups=groups,
            dilation=(1, *dilation),
        ).squeeze(2)
    return y if bias is None else y + bias.reshape((-1, *(1 for _ in range(n))))


def conv_transpose3d(**given):
    return transposed_convolution(**given)


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
        return np.asarray(value, "float16")
    if str(value.dtype).endswith("bfloat16"):
        return value
    try:
        return np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else to_numpy(value))
    except TypeError:
        return value


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight = leaf(DATA["inputs/weight"], True)
    bias = leaf(DATA["inputs/bias"], True)
    result = in_mode(conv_transpose3d)(
        x=x, weight=weight, bias=bias,
        stride=2, padding=0, output_padding=0, groups=1, dilation=1,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    wanted = [name for name in ["y"] if tuple(getattr(outputs.get(name), "shape", "?")) == DATA[f"inputs/grad.{name}"].shape]
    if wanted:
        returned = gradients([outputs[name] for name in wanted], [leaf(DATA[f"inputs/grad.{name}"], False) for name in wanted], [x, weight, bias])
        outputs.update(zip(["grad.x", "grad.weight", "grad.bias"], returned))
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
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"] if f"{side}/{tensor}" in DATA else None
    here, there = described(live), described(other, "float16" if side == "exact" else "")
    if here != there or other is None:
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


RESULT = compute()
DIFFERS = [
    check("grad.weight", "exact", rtol=0.01, atol=0.001),
    check("grad.weight", "torch", rtol=0.01, atol=0.001),
    check("y", "exact", rtol=0.001, atol=1e-05),
    check("y", "torch", rtol=0.001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
