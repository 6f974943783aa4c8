"""softplus of mindspore 2.10.0 computes a different formula in float64: y, grad.x

case       softplus-plain (configs/census/../ops/elementwise.yaml:14)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          semantic: the error of mindspore is 8.5e+09 times that of a careful implementation in
           float64 (the largest: 0.000814 in float16, 1.42e-06 in float32, 1.42e-06 in float64): the
           error is the same in every precision, so the formula differs
grad.x     degraded: the error of mindspore is 2.77e+09 times that of a careful implementation in
           float64, 8.45e-07 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      nondeterministic: the same call gives different results (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python softplus-plain.float64.mindspore.py (needs mindspore and numpy)
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
            1.3046875, -0.8359375, -0.7265625, 0.7109375, 2.96875, 0.6640625, -0.703125, 0.49609375,
            -1.109375, 0.2294921875, -0.53515625, -1.1171875, 0.365234375, -0.375, -0.8125, -0.62109375,
            -1.1953125, -1.046875, -1.53125, -1.265625, 0.208984375, 0.0022125244140625, -0.333984375,
            -1.40625, 1.25, 1.8671875, 0.83984375, -0.609375, 1.8125, -0.220703125, -0.80859375,
            0.2470703125, -0.1474609375, 0.32421875, 0.0196533203125, -0.39453125
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            -1.0078125, -0.5234375, -0.1259765625, -0.408203125, 0.95703125, 0.462890625, 0.126953125,
            -0.796875, -2.046875, -0.5078125, 1.4375, -0.294921875, 0.89453125, -0.0771484375, 0.90625,
            0.53515625, -0.1884765625, 0.0284423828125, -1.7265625, 0.291015625, 0.357421875, 1.0625,
            0.5625, -0.443359375, -0.0927734375, -0.2138671875, -0.486328125, -0.95703125, -0.396484375,
            -1.03125, 0.435546875, -0.58203125, 0.43359375, 1.21875, 0.5, 0.228515625
        ],
        "float64",
    ).reshape(4, 9),
    "exact/y": np.array(
        [
            1.5446939026454325, 0.36009662361055506, 0.39445026870164596, 1.1105075979706516,
            3.018841678324936, 1.0793167941026902, 0.40215021787625455, 0.971647295924476,
            0.2850022347468197, 0.8144622110898087, 0.4609488749515062, 0.2830705167186638,
            0.8923470227425961, 0.52312326413984, 0.367242032138927, 0.43006430659072803,
            0.2643694634618537, 0.3008694961619363, 0.1957848245985067, 0.24847046157824984,
            0.8030887708312566, 0.6942540546748871, 0.5400338620360776, 0.21918415463449098,
            1.501929081345373, 2.010904865674622, 1.1987607670413178, 0.434176023171646,
            1.9637139539694013, 0.5888720341550373, 0.36844427442123434, 0.8242934748322079,
            0.6221323437122069, 0.8683391296199034, 0.70302212156409, 0.5152135233137065
        ],
        "float64",
    ).reshape(4, 9),
    "torch/y": np.array(
        [
            1.5446939026454325, 0.36009662361055506, 0.39445026870164596, 1.1105075979706516,
            3.018841678324936, 1.0793167941026902, 0.40215021787625455, 0.971647295924476,
            0.2850022347468197, 0.8144622110898087, 0.4609488749515062, 0.28307051671866373,
            0.8923470227425961, 0.5231232641398401, 0.367242032138927, 0.4300643065907281,
            0.2643694634618537, 0.3008694961619363, 0.1957848245985067, 0.2484704615782498,
            0.8030887708312566, 0.6942540546748871, 0.5400338620360775, 0.21918415463449098,
            1.501929081345373, 2.010904865674622, 1.1987607670413178, 0.434176023171646,
            1.9637139539694013, 0.5888720341550373, 0.36844427442123434, 0.8242934748322079,
            0.6221323437122069, 0.8683391296199034, 0.70302212156409, 0.5152135233137065
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            -0.7927683154004528, -0.15828283233921428, -0.041061999566062435, -0.27374439552053487,
            0.9102728290529967, 0.30558760624075887, 0.042036685695086805, -0.4952904124855632,
            -0.507599263085415, -0.2829138010645343, 0.5308904269667254, -0.07270807665521505,
            0.5280480008707662, -0.031425135355105945, 0.27854320278414535, 0.18705462822527266,
            -0.043785017770212764, 0.007390060259388331, -0.307001579333195, 0.06402550363698845,
            0.19731716543711725, 0.5318377015577391, 0.23471520768802104, -0.08726474263082687,
            -0.07211278008944888, -0.18523732439646445, -0.339667274266817, -0.33706811172551937,
            -0.3408432448310803, -0.45895482213438904, 0.13423129592737043, -0.32678451499135724,
            0.20084124188516536, 0.7073040589589394, 0.2524565859675967, 0.09200655416419398
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            -0.7927683154004528, -0.15828283233921428, -0.04106199956606243, -0.27374439552053487,
            0.9102728290529967, 0.30558760624075887, 0.04203668569508681, -0.4952904124855632,
            -0.507599263085415, -0.2829138010645343, 0.5308904269667254, -0.07270807665521503,
            0.5280480008707662, -0.031425135355105945, 0.2785432027841454, 0.18705462822527266,
            -0.043785017770212764, 0.00739006025938833, -0.30700157933319494, 0.06402550363698843,
            0.19731716543711728, 0.5318377015577391, 0.23471520768802107, -0.08726474263082688,
            -0.07211278008944888, -0.18523732439646443, -0.3396672742668169, -0.33706811172551937,
            -0.3408432448310803, -0.458954822134389, 0.13423129592737043, -0.32678451499135724,
            0.20084124188516536, 0.7073040589589394, 0.2524565859675967, 0.092006554164194
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
    result = in_mode(softplus)(x=x, beta=1.0, threshold=20.0)
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
    and inaccurate("y", rms=1.5434978937976777e-16, largest=6.099721422403448e-16, limit=8.0),
    (
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=7.611354642420527e-17, largest=2.1597307275911248e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
