"""rms_norm of mlx 0.32.4 has only float32 accuracy in float64: grad.weight, y, grad.x

case         rms_norm (configs/census/../ops/norm.yaml:15)
seen with    mlx 0.32.4, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
             Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.weight  degraded: the error of mlx is 3e+08 times that of a careful implementation in float64,
             5.44e-07 of the value where it is worst: the float64 result has float32 accuracy (unit
             roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
y            degraded: the error of mlx is 4.13e+08 times that of a careful implementation in
             float64, 1.37e-07 of the value where it is worst: the float64 result has float32
             accuracy (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower
             precision
grad.x       close: it passes only because the tolerance is loose: the error of mlx is 2.31e+08
             times that of a careful implementation in float64
cause        reduced-precision: computed in or through a lower precision (y and grad.weight)
cause        reduced-precision: computed in or through a lower precision (grad.x)
exact        the textbook formula in extended precision on the same inputs, rounded to float64
torch        the result of torch 2.13.0+cpu in the same run
run          python rms_norm.float64.mlx.py (needs mlx and numpy)
exit code    1 while the difference is there, 0 once it is fixed
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
            -2.1875, -0.546875, 0.32421875, 0.259765625, -0.1640625, -0.57421875, 1.0390625,
            -0.060791015625, 1.03125, -0.453125, 0.058349609375, 0.70703125, -0.94140625, 1.296875,
            -2.609375, -0.76953125, -2.6875, -0.63671875, 0.80078125, 0.85546875, 0.08544921875,
            -0.1572265625, 1.5078125, 0.62109375, -0.953125, 0.353515625, -0.56640625, 0.6796875,
            -0.85546875, 0.69921875, 0.1982421875, -0.72265625, -0.451171875, 1.4296875, -0.306640625,
            2.25, -1.234375, -2.40625, 0.859375, 0.35546875, 0.91015625, -0.68359375, -0.62109375,
            -0.7421875, -0.8984375, 0.255859375, -0.76171875, 0.59765625, 0.380859375, -2.484375,
            -0.00689697265625, 0.275390625, 1.8828125, -0.7265625, 0.62109375, -0.035400390625,
            0.0289306640625, -0.2216796875, -0.1611328125, -1.4296875
        ],
        "float64",
    ).reshape(4, 3, 5),
    "inputs/weight": np.array(
        [
            0.63671875, 0.8125, 1.296875, 0.703125, 1.2578125, 1.078125, 1.296875, 0.984375, 1.1875,
            1.25, 1.3203125, 0.80859375, 0.77734375, 0.82421875, 1.3828125
        ],
        "float64",
    ).reshape(3, 5),
    "inputs/grad.y": np.array(
        [
            -1.484375, -1.1875, -0.404296875, -1.203125, 0.6875, 0.95703125, -0.2333984375, 0.57421875,
            1.5390625, 1.1328125, -0.466796875, 1.7421875, 1.6484375, 0.58984375, 1.15625, 0.1494140625,
            -1.4609375, -0.0286865234375, -0.044921875, 1.3828125, -0.58984375, -0.043701171875,
            -1.9765625, -0.50390625, 1.1640625, 0.0947265625, 2.046875, -2.140625, -1.6328125,
            0.7265625, 1.3828125, 0.72265625, -1.0234375, 1.2421875, -0.67578125, 2.03125, 1.4140625,
            -1.140625, -0.4453125, 0.49609375, 0.578125, 1.375, 0.431640625, -0.96875, 1.0703125,
            0.314453125, 0.041015625, 1.25, 1.21875, 0.004180908203125, 0.045166015625, -1.703125,
            0.828125, -0.609375, 1.7734375, -0.50390625, -0.7421875, 1.328125, -1.3125, -0.09130859375
        ],
        "float64",
    ).reshape(4, 3, 5),
    "exact/grad.weight": np.array(
        [
            3.188916114607715, 3.9860801047559424, 1.0801612582611784, 1.7291478404128473,
            1.239541410665542, 3.4873198073232103, -2.244906370299739, 1.0614400735119713,
            1.2657299080218534, -0.2713398205508461, 0.4919260095350191, -0.8712266214037485,
            -3.4044248540810393, 2.9382728859547242, -2.9784823170868915
        ],
        "float64",
    ).reshape(3, 5),
    "torch/grad.weight": np.array(
        [
            3.1889161146077156, 3.986080104755942, 1.0801612582611781, 1.729147840412847,
            1.2395414106655418, 3.487319807323211, -2.2449063702997387, 1.0614400735119716,
            1.2657299080218531, -0.27133982055084616, 0.4919260095350191, -0.8712266214037485,
            -3.404424854081039, 2.9382728859547242, -2.978482317086891
        ],
        "float64",
    ).reshape(3, 5),
    "exact/y": np.array(
        [
            -1.2769449284144305, -0.4073689342181005, 0.38548964118523277, 0.1674521340175365,
            -0.18919153387244475, -0.5675746016173343, 1.2354246331960472, -0.05486260706627183,
            1.122726689031864, -0.5192834765857105, 0.07063031688703339, 0.5241377698609057,
            -0.6709136921760261, 0.9799796902419773, -3.308081957844185, -0.4848060428619915,
            -2.1605581874660533, -0.8170335341633562, 0.5571094946157854, 1.0646679496291587,
            0.0911530778792088, -0.20175214570598213, 1.4685949799530267, 0.7297681444918321,
            -1.178837651479689, 0.46182716343637564, -0.4531610157423523, 0.522777055841902,
            -0.6976550850054426, 0.9566883532743594, 0.11161510595296915, -0.5191996466584367,
            -0.5173916229408632, 0.8889000187592986, -0.34105533962020024, 2.145017750186373,
            -1.4155476437169936, -2.0945010278087954, 0.902392733069549, 0.39290784071449264,
            1.0626052227894627, -0.488773575888822, -0.42692297349063396, -0.5409229166979399,
            -1.0985767991405904, 0.1687743790769456, -0.6411734946247284, 0.8029844386823892,
            0.2774308390203152, -3.237357058954324, -0.007703448190318367, 0.37000263351051266,
            1.9201059504708584, -0.8938489664709232, 0.804312312783683, -0.04842195662530501,
            0.024235184350957343, -0.17852397850519514, -0.13758909772781017, -2.048150953095619
        ],
        "float64",
    ).reshape(4, 3, 5),
    "torch/y": np.array(
        [
            -1.2769449284144305, -0.40736893421810055, 0.3854896411852327, 0.1674521340175365,
            -0.18919153387244475, -0.5675746016173342, 1.235424633196047, -0.05486260706627183,
            1.1227266890318637, -0.5192834765857105, 0.07063031688703338, 0.5241377698609055,
            -0.6709136921760261, 0.9799796902419771, -3.3080819578441845, -0.48480604286199147,
            -2.1605581874660533, -0.8170335341633562, 0.5571094946157854, 1.0646679496291587,
            0.0911530778792088, -0.20175214570598216, 1.4685949799530267, 0.7297681444918321,
            -1.178837651479689, 0.4618271634363756, -0.45316101574235235, 0.5227770558419021,
            -0.6976550850054426, 0.9566883532743594, 0.11161510595296915, -0.5191996466584367,
            -0.5173916229408632, 0.8889000187592986, -0.3410553396202002, 2.1450177501863728,
            -1.4155476437169936, -2.0945010278087954, 0.902392733069549, 0.39290784071449264,
            1.0626052227894627, -0.488773575888822, -0.42692297349063396, -0.5409229166979399,
            -1.0985767991405904, 0.1687743790769456, -0.6411734946247284, 0.802984438682389,
            0.2774308390203152, -3.237357058954324, -0.007703448190318366, 0.3700026335105126,
            1.9201059504708582, -0.8938489664709232, 0.8043123127836829, -0.04842195662530501,
            0.02423518435095734, -0.1785239785051951, -0.13758909772781014, -2.048150953095619
        ],
        "float64",
    ).reshape(4, 3, 5),
    "exact/grad.x": np.array(
        [
            -1.0263671789448012, -0.9245397515394849, -0.45700609296683914, -0.7565833544912374,
            0.7808124555323809, 0.9039921002630339, -0.20156840065308426, 0.5137775049699111,
            1.7509512646692595, 1.2650930042839632, -0.5607781766716471, 1.343193688761576,
            1.1059942349506748, 0.5404930348473542, 1.2751559945822566, 0.07897834087393615,
            -1.2274088391193594, -0.04934794896502669, -0.015484360795582606, 1.737815080835897,
            -0.6275341006261016, -0.05917300790961084, -1.8954627828732558, -0.5798461316855921,
            1.420960039085681, 0.13071031699408928, 1.6264770907971136, -1.6330636041451165,
            -1.348442347336138, 1.0078690105179258, 0.7239213824470367, 0.718362512793634,
            -1.049308039732471, 0.3783034589809934, -0.6671154947634973, 1.316378082705123,
            1.9618000831427183, -0.32968937337691945, -0.7044458344319492, 0.4503773105507239,
            0.4241219849289356, 1.1715304413056526, 0.4678704505982052, -0.5015011081257714,
            1.5563472048645937, 0.12645780033868137, 0.2755721156516558, 1.4903150877914642,
            0.7672549903560003, 0.7916334179570089, 0.05262992032391596, -2.3753911392129905,
            0.24870822838859025, -0.5197576534209589, 2.100043541653765, -0.6780589838345278,
            -0.630884789111756, 1.1397219434486636, -1.0697349476612468, 0.32161995208376715
        ],
        "float64",
    ).reshape(4, 3, 5),
}


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


def rms_norm(x, normalized_shape, eps, weight=None):
    rows = x.reshape((*x.shape[: -len(normalized_shape)], -1))
    weight = weight if weight is None else weight.reshape((-1,))
    return mlx.core.fast.rms_norm(rows, weight, eps).reshape(x.shape)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight = leaf(DATA["inputs/weight"], True)
    result = in_mode(rms_norm)(x=x, weight=weight, normalized_shape=(3, 5), eps=1e-06)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, weight])
    outputs.update(zip(["grad.x", "grad.weight"], returned))
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
        print(f"{tensor}: mlx has {here}, {label} has {there}")
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
    values = {"mlx": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("grad.weight", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.weight", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight", rms=7.945820844323161e-16, largest=1.5543122344752192e-15, limit=8.0),
    (
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=3.2838387119084915e-16, largest=1.0978631198588218e-15, limit=8.0),
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=4.278255790180635e-16, largest=1.183406671267928e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
