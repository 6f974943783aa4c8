"""mish of mindspore 2.10.0 has only float32 accuracy in float64: grad.x, y

case       mish (configs/census/../ops/elementwise.yaml:13)
seen with  mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     degraded: the error of mindspore is 5.83e+08 times that of a careful implementation in
           float64, 1.73e-05 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
y          degraded: the error of mindspore is 3.04e+09 times that of a careful implementation in
           float64, 1.07e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      nondeterministic: the same call gives different results (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python mish.float64.mindspore.py (needs mindspore and numpy)
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
            -1.0703125, -0.265625, 0.87109375, -0.84375, 0.828125, 0.66015625, -0.9140625, -0.6328125,
            1.2578125, 0.80859375, -0.4453125, -0.2490234375, -0.0537109375, -0.171875, -0.92578125,
            0.89453125, -3.0, -0.037353515625, 1.0234375, 0.8046875, 0.0081787109375, 0.86328125,
            -0.169921875, -0.12109375, -1.25, 1.0078125, 0.00762939453125, -0.01708984375, 1.7734375,
            -0.8359375, 1.0078125, -0.255859375, -1.109375, -1.4453125, -0.78515625, -0.515625
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            -1.046875, -0.5078125, 2.421875, -0.6953125, -1.015625, -0.298828125, -0.18359375,
            0.224609375, 1.828125, -2.65625, 0.703125, -0.1611328125, -1.5, -2.265625, 0.267578125,
            -0.361328125, 0.859375, -0.9140625, -0.93359375, -1.9609375, 0.08642578125, 2.015625,
            0.02734375, -0.375, 0.7109375, 0.73046875, -0.92578125, 0.703125, -1.859375, 1.125,
            0.5546875, -1.0859375, 1.0234375, -1.296875, -1.5078125, 1.9375
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            -0.03739841730800342, -0.21835094293646293, 2.472237631037125, -0.0829931375190211,
            -1.0251029779804772, -0.28514921590289816, -0.01669396304224184, 0.048946802549748744,
            1.9762378432872645, -2.666268188893618, 0.22560812121989066, -0.07096796349065075,
            -0.8482723771196777, -1.1090349699383732, 0.02312093187219259, -0.370941767155815,
            -0.08025970780121322, -0.5265332091236821, -0.983283593715069, -1.9661005308407664,
            0.052307567529015594, 2.053496504329338, 0.01341911447810581, -0.19579512031363008,
            -0.010449048320662329, 0.7673306781632594, -0.5599865042235501, 0.4141753569130298,
            -2.010438127989614, 0.13799074202915007, 0.5826789106908173, -0.4736030110869009,
            0.02416025917928173, 0.07153428998394672, -0.21827721001839034, 0.5439377824423214
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            -0.03739841730800337, -0.21835094293646293, 2.472237631037125, -0.0829931375190211,
            -1.0251029779804774, -0.28514921590289816, -0.016693963042241845, 0.04894680254974875,
            1.9762378432872647, -2.666268188893618, 0.22560812121989068, -0.07096796349065074,
            -0.8482723771196777, -1.1090349699383732, 0.023120931872192593, -0.37094176715581495,
            -0.08025970780121322, -0.5265332091236821, -0.983283593715069, -1.9661005308407666,
            0.052307567529015594, 2.053496504329338, 0.013419114478105808, -0.1957951203136301,
            -0.010449048320662298, 0.7673306781632594, -0.5599865042235501, 0.4141753569130298,
            -2.010438127989614, 0.13799074202915007, 0.5826789106908173, -0.4736030110869008,
            0.024160259179281704, 0.07153428998394672, -0.2182772100183904, 0.5439377824423214
        ],
        "float64",
    ).reshape(4, 9),
    "exact/y": np.array(
        [
            -0.3067264251216688, -0.13672221383937935, 0.7315944944833405, -0.2895938699593748,
            0.6879747109679404, 0.522835125500188, -0.29697372542140305, -0.2543649757930664,
            1.1403136084437504, 0.6683151362248904, -0.20405841090556848, -0.1294971555452522,
            -0.03130130795042519, -0.09363041091178381, -0.29801274849547127, 0.7555880806488714,
            -0.14564746127562458, -0.021964873478542313, 0.8897348002881991, 0.6643963745672877,
            0.004928622823937057, 0.7236273475555891, -0.0926731245626677, -0.06794528472057115,
            -0.3084139611415277, 0.8732995790171058, 0.004596255909404533, -0.010160370217799494,
            1.7002861987199729, -0.2886484998501395, 0.8732995790171058, -0.13249318911639282,
            -0.30788308308431045, -0.3013651156238672, -0.28186339153229967, -0.2251987607287152
        ],
        "float64",
    ).reshape(4, 9),
    "torch/y": np.array(
        [
            -0.30672642512166876, -0.13672221383937938, 0.7315944944833405, -0.2895938699593748,
            0.6879747109679404, 0.522835125500188, -0.29697372542140305, -0.2543649757930664,
            1.1403136084437504, 0.6683151362248904, -0.2040584109055685, -0.1294971555452522,
            -0.03130130795042519, -0.09363041091178381, -0.29801274849547127, 0.7555880806488714,
            -0.1456474612756246, -0.021964873478542313, 0.8897348002881992, 0.6643963745672877,
            0.004928622823937057, 0.7236273475555892, -0.09267312456266769, -0.06794528472057115,
            -0.3084139611415277, 0.8732995790171058, 0.004596255909404534, -0.010160370217799494,
            1.7002861987199729, -0.2886484998501395, 0.8732995790171058, -0.1324931891163928,
            -0.30788308308431045, -0.3013651156238672, -0.2818633915322997, -0.22519876072871517
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


def mish(x):
    return mindspore.ops.mish(x)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(mish)(x=x)
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
    and inaccurate("grad.x", rms=3.0694275078538505e-16, largest=1.1173787589635609e-15, limit=8.0),
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=1.4057267220127696e-16, largest=5.856860135766695e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
