"""softplus of mindspore 2.10.0 has only float32 accuracy in float64: y, grad.x

case       softplus (configs/census/../ops/elementwise.yaml:15)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of mindspore is 4.98e+09 times that of a careful implementation in
           float64, 1.79e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     degraded: the error of mindspore is 8.63e+08 times that of a careful implementation in
           float64, 9.24e-07 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      stateful: a result depends on earlier calls (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python softplus.float64.mindspore.py (needs mindspore and numpy)
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
            0.671875, -0.337890625, 2.78125, 0.051513671875, 0.7734375, 1.7265625, -2.03125, -1.5703125,
            1.171875, -0.3671875, 0.07763671875, -1.46875, -0.5078125, 1.3671875, -0.0791015625,
            -0.345703125, -0.0024871826171875, -1.5078125, -0.5859375, -0.75390625, -0.06591796875,
            0.361328125, 1.40625, 0.84765625, -0.35546875, 2.6875, -0.9453125, -0.859375, -1.875,
            -0.003814697265625, 0.62109375, -0.5703125, -1.3046875, 0.376953125, -0.734375, -0.68359375
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            -0.640625, -0.55859375, -0.2578125, 0.61328125, 0.3203125, -0.447265625, 0.3828125,
            0.400390625, 0.60546875, -1.078125, 0.1767578125, -0.099609375, -0.6484375, -0.16015625,
            -1.546875, 0.1552734375, 0.51953125, 1.015625, 1.8125, 1.140625, -2.125, -0.07666015625,
            -0.3125, -1.0703125, -0.35546875, 1.3984375, 0.13671875, 1.109375, 0.404296875, -0.31640625,
            -0.1552734375, 0.70703125, 1.0703125, -0.310546875, -1.1484375, 0.0257568359375
        ],
        "float64",
    ).reshape(4, 9),
    "exact/y": np.array(
        [
            0.7877742291107336, 0.20564366219783534, 2.78125, 0.37299354760982917, 0.8699496579409295,
            1.7265625, 0.008529802178925863, 0.02117317825545812, 1.217693578547022,
            0.19595524346380241, 0.38689730334673095, 0.02582069463934077, 0.15454171021843693,
            1.3986441843347337, 0.3085854447623098, 0.20302287755991946, 0.34533154548912726,
            0.023925905558895216, 0.13493171017963632, 0.0999963113202446, 0.31470011477564064,
            0.5591907179921887, 1.4354102401401243, 0.9319120108719394, 0.19978504898532576, 2.6875,
            0.07030575524102715, 0.08245633234695403, 0.011622732186212514, 0.344669879617144,
            0.7479308582737226, 0.13867160407204596, 0.035499669959544275, 0.5697628547695406,
            0.10359369172240003, 0.11349712047465914
        ],
        "float64",
    ).reshape(4, 9),
    "torch/y": np.array(
        [
            0.7877742291107336, 0.20564366219783534, 2.78125, 0.37299354760982917, 0.8699496579409295,
            1.7265625, 0.008529802178925863, 0.02117317825545812, 1.217693578547022,
            0.19595524346380241, 0.38689730334673095, 0.02582069463934077, 0.15454171021843693,
            1.3986441843347337, 0.3085854447623098, 0.20302287755991946, 0.34533154548912726,
            0.023925905558895216, 0.13493171017963632, 0.0999963113202446, 0.31470011477564064,
            0.5591907179921887, 1.4354102401401245, 0.9319120108719394, 0.19978504898532579, 2.6875,
            0.07030575524102715, 0.08245633234695403, 0.011622732186212514, 0.344669879617144,
            0.7479308582737226, 0.13867160407204598, 0.035499669959544275, 0.5697628547695406,
            0.10359369172240003, 0.11349712047465914
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            -0.5080834999773217, -0.18835978620991223, -0.2578125, 0.3224228517960297,
            0.2640854607924953, -0.447265625, 0.006475240234918742, 0.016601105284841745,
            0.552451581538773, -0.34956628952633934, 0.09522660199225663, -0.005013402856389298,
            -0.17240686927566254, -0.15039069368959548, -0.7123846691865416, 0.051817901091499086,
            0.25911954178519686, 0.047455036104625106, 0.428685678557845, 0.2067533452889063,
            -0.9925634245092431, -0.051606978840373754, -0.2947961170912582, -0.9043300733585679,
            -0.11708846299168732, 1.3984375, 0.017933839186185734, 0.16866076804959956,
            0.009289678850342388, -0.157599630898978, -0.12048357770718802, 0.1712469484347268,
            0.07335653551080204, -0.21118096007828832, -0.21491018967091177, 0.005230559881344997
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            -0.5080834999773217, -0.18835978620991223, -0.2578125, 0.3224228517960297,
            0.2640854607924953, -0.447265625, 0.006475240234918742, 0.016601105284841745,
            0.5524515815387732, -0.34956628952633934, 0.09522660199225663, -0.005013402856389299,
            -0.17240686927566254, -0.15039069368959548, -0.7123846691865416, 0.05181790109149909,
            0.25911954178519686, 0.04745503610462511, 0.428685678557845, 0.20675334528890632,
            -0.9925634245092432, -0.051606978840373754, -0.2947961170912582, -0.9043300733585677,
            -0.11708846299168732, 1.3984375, 0.017933839186185734, 0.16866076804959956,
            0.009289678850342386, -0.157599630898978, -0.12048357770718804, 0.1712469484347268,
            0.07335653551080204, -0.21118096007828835, -0.21491018967091177, 0.005230559881344997
        ],
        "float64",
    ).reshape(4, 9),
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


def softplus(x, beta=1.0, threshold=20.0):
    return mindspore.ops.softplus(x, beta, threshold)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(softplus)(x=x, beta=2.0, threshold=3.0)
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
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=1.39007044910941e-16, largest=4.440892098500626e-16, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=8.788213980702324e-17, largest=2.780436471339076e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
