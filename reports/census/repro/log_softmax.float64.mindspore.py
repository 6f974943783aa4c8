"""log_softmax of mindspore 2.10.0 computes a different formula in float64: grad.x, y

case       log_softmax (configs/census/../ops/softmax.yaml:7)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     semantic: the error of mindspore is 7.19e+09 times that of a careful implementation in
           float64 (the largest: 0.000931 in float16, 2.52e-06 in float32, 2.52e-06 in float64): the
           error is the same in every precision, so the formula differs
y          semantic: the error of mindspore is 6.08e+09 times that of a careful implementation in
           float64 (the largest: 0.00135 in float16, 2.79e-06 in float32, 2.79e-06 in float64): the
           error is the same in every precision, so the formula differs
cause      unexplained: no known cause explains the error (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python log_softmax.float64.mindspore.py (needs mindspore and numpy)
exit code  1 while the difference is there, 0 once it is fixed
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

# MindSpore would write files about failed graphs into the working directory.
os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())
import mindspore

mindspore.set_device("cpu".upper())
mindspore.set_context(runtime_num_threads=1)
# Otherwise a later op may raise an op's error.
mindspore.runtime.launch_blocking()
latest = SimpleNamespace()

DATA = {
    "inputs/x": np.array(
        [
            2.359375, -0.5703125, -0.515625, 0.7109375, -1.328125, -0.71875, 0.0830078125, -1.34375,
            -0.6484375, -1.84375, 0.427734375, 0.01080322265625, 1.2421875, 0.234375, 0.3984375,
            -0.49609375, -0.287109375, 0.8671875, -0.859375, -1.1328125, -0.54296875, -0.5625, -1.625,
            -0.031982421875, -0.5078125, -1.3125, 0.63671875, 0.271484375, 1.1796875, 0.1787109375,
            0.75, -0.193359375, -0.9375, -0.34765625, -0.828125
        ],
        "float64",
    ).reshape(5, 7),
    "inputs/grad.y": np.array(
        [
            0.07568359375, 2.09375, 0.0595703125, -0.90234375, -0.6953125, -0.79296875, 1.5390625,
            -1.2734375, -1.0390625, -1.375, 0.87890625, 1.046875, -1.359375, -1.03125, 0.41796875,
            1.984375, 0.54296875, -0.49609375, -0.72265625, -1.65625, 0.65234375, 0.390625, -0.8984375,
            -1.2109375, -0.396484375, -0.59375, -0.29296875, 0.96875, 0.248046875, -0.154296875,
            0.443359375, -0.1533203125, -0.97265625, 1.53125, -1.125
        ],
        "float64",
    ).reshape(5, 7),
    "exact/grad.x": np.array(
        [
            -0.857595043583423, 2.0439001093452034, 0.006918334700302383, -1.0818601022959649,
            -0.7186766735190645, -0.8359420418486935, 1.4432554172016403, -1.1415628911495992,
            -0.7747415622359087, -1.295014006494621, 1.6542728216182483, 1.5578929725004005,
            0.39135660256262433, -0.3922039368011446, 0.2537745379072955, 1.9172525410065622,
            0.4602453036884322, -0.7584753538323711, -0.7693325922914064, -1.6917594886707306,
            0.5882950521922181, 0.5900763908556297, -0.8295089437316786, -0.8719076590500958,
            -0.1858217222738216, -0.4995358340621255, 0.3687160448143984, 1.4279817234476935,
            0.31461458028110556, -0.12983188803956341, 0.4866758069703714, -0.13645645572713974,
            -0.9646435157751312, 1.5457026213188114, -1.116061149028454
        ],
        "float64",
    ).reshape(5, 7),
    "torch/grad.x": np.array(
        [
            -0.8575950435834228, 2.0439001093452034, 0.006918334700302383, -1.0818601022959649,
            -0.7186766735190645, -0.8359420418486935, 1.4432554172016403, -1.1415628911495992,
            -0.7747415622359087, -1.295014006494621, 1.6542728216182485, 1.5578929725004005,
            0.39135660256262456, -0.39220393680114446, 0.2537745379072955, 1.9172525410065622,
            0.4602453036884322, -0.7584753538323711, -0.7693325922914063, -1.6917594886707306,
            0.5882950521922181, 0.5900763908556297, -0.8295089437316786, -0.8719076590500958,
            -0.18582172227382157, -0.4995358340621255, 0.36871604481439835, 1.4279817234476935,
            0.31461458028110556, -0.12983188803956341, 0.4866758069703714, -0.13645645572713974,
            -0.9646435157751312, 1.5457026213188114, -1.116061149028454
        ],
        "float64",
    ).reshape(5, 7),
    "exact/y": np.array(
        [
            -0.3892792009038107, -3.3189667009038106, -3.2642792009038106, -2.0377167009038106,
            -4.076779200903811, -3.4674042009038106, -2.6656463884038106, -3.449576674681901,
            -2.754264174681901, -3.949576674681901, -1.678092299681901, -2.095023452025651,
            -0.8636391746819009, -1.871451674681901, -1.4818837123147472, -2.3764149623147475,
            -2.1674305873147475, -1.0131337123147472, -2.7396962123147475, -3.0131337123147475,
            -2.4232899623147475, -2.321797170775347, -3.384297170775347, -1.7912795926503469,
            -2.267109670775347, -3.071797170775347, -1.1225784207753469, -1.4878127957753469,
            -1.0091725359848163, -2.010149098484816, -1.4388600359848163, -2.382219410984816,
            -3.126360035984816, -2.536516285984816, -3.016985035984816
        ],
        "float64",
    ).reshape(5, 7),
    "torch/y": np.array(
        [
            -0.3892792009038108, -3.3189667009038106, -3.2642792009038106, -2.0377167009038106,
            -4.076779200903811, -3.4674042009038106, -2.6656463884038106, -3.449576674681901,
            -2.754264174681901, -3.949576674681901, -1.6780922996819008, -2.095023452025651,
            -0.8636391746819008, -1.8714516746819008, -1.4818837123147472, -2.3764149623147475,
            -2.1674305873147475, -1.0131337123147472, -2.7396962123147475, -3.0131337123147475,
            -2.4232899623147475, -2.321797170775347, -3.384297170775347, -1.7912795926503469,
            -2.267109670775347, -3.071797170775347, -1.1225784207753469, -1.4878127957753469,
            -1.0091725359848163, -2.010149098484816, -1.4388600359848163, -2.382219410984816,
            -3.126360035984816, -2.536516285984816, -3.016985035984816
        ],
        "float64",
    ).reshape(5, 7),
}


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
    """The function in its stage; the latest call is kept, since mindspore.vjp calls it again."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def gradients(outputs, grad_outputs, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return tuple(results[name] for name in wanted) if len(wanted) > 1 else results[wanted[0]]

    _, pullback = mindspore.vjp(forward, *leaves)
    return list(pullback(*(dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs))))


def log_softmax(x, dim=-1):
    return mindspore.ops.log_softmax(x, dim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(log_softmax)(x=x, dim=-1)
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
        print(f"{tensor}: mindspore has {here}, {label} has {there}")
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
    values = {"mindspore": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    and inaccurate("grad.x", rms=1.9953859729010577e-16, largest=3.4998046127832083e-16, limit=8.0),
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=3.2237010523800676e-16, largest=4.744468706796567e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
