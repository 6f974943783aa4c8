"""gelu of mlx 0.32.4 has only float32 accuracy in float64: grad.x, y

case       gelu (configs/census/../ops/elementwise.yaml:10)
seen with  mlx 0.32.4, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     degraded: the error of mlx is 7.14e+08 times that of a careful implementation in float64,
           5.26e-07 of the value where it is worst: the float64 result has float32 accuracy (unit
           roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
y          close: it passes only because the tolerance is loose: the error of mlx is 1.11e+09 times
           that of a careful implementation in float64
cause      reduced-precision: computed in or through a lower precision (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python gelu.float64.mlx.py (needs mlx and numpy)
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
            -1.3046875, 0.69140625, -0.33203125, 1.7578125, -1.09375, -0.06591796875, -0.5546875,
            -0.216796875, 0.0157470703125, -1.4453125, 2.3125, -0.671875, 0.1376953125, -0.03857421875,
            0.8203125, 0.365234375, 0.419921875, -0.48046875, -0.984375, -0.67578125, 0.341796875,
            -0.75390625, 1.3359375, -2.4375, 0.40234375, -0.6328125, 1.78125, 0.79296875, 0.52734375,
            -0.333984375, -0.138671875, -0.036376953125, -0.78515625, 0.1904296875, 0.97265625,
            -0.51171875
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            2.375, -0.427734375, -1.0390625, 0.439453125, -0.1484375, 2.71875, -0.0128173828125,
            -1.953125, 1.90625, 1.4296875, 1.09375, -0.2197265625, 1.3203125, -0.09521484375, -1.296875,
            -0.0047607421875, 0.220703125, -0.2021484375, 0.625, 0.447265625, -0.302734375, -0.50390625,
            0.65234375, 0.73046875, 1.171875, -0.8515625, 0.89453125, -0.0079345703125, -0.66015625,
            -1.1015625, -2.421875, 0.94921875, 0.140625, -0.86328125, 0.5390625, -0.4609375
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            -0.29977740656225293, -0.4159861438339145, -0.2541292468402174, 0.4878833718669681,
            0.015271636493849562, 1.2165894422213488, -0.0012794237848789453, -0.6439506392997517,
            0.9770738017010916, -0.18401196720062946, 1.1520137772485328, -0.008118755534488693,
            0.8042994799174279, -0.04467837398504859, -1.332850282488032, -0.003707846025512131,
            0.18011925342611546, -0.029243447786416573, -0.04965360178169652, 0.015667484788812105,
            -0.23079516156135177, 0.00045893496555693473, 0.7355581198748028, -0.031014815759067303,
            0.942558289194144, -0.048353000029321705, 0.9911369189911694, -0.008070318262768867,
            -0.5836391954950592, -0.26788121770380846, -0.9446814487195148, 0.4470708205109155,
            -0.0019636737830925253, -0.5612356920327768, 0.5802609472265636, -0.05776944847692775
        ],
        "float64",
    ).reshape(4, 9),
    "torch/grad.x": np.array(
        [
            -0.299777406562253, -0.4159861438339145, -0.2541292468402174, 0.4878833718669681,
            0.015271636493849565, 1.2165894422213488, -0.0012794237848789453, -0.6439506392997517,
            0.9770738017010917, -0.18401196720062946, 1.1520137772485328, -0.00811875553448868,
            0.8042994799174279, -0.04467837398504859, -1.3328502824880317, -0.003707846025512131,
            0.18011925342611546, -0.029243447786416563, -0.04965360178169653, 0.015667484788812094,
            -0.2307951615613518, 0.00045893496555694753, 0.7355581198748029, -0.03101481575906731,
            0.9425582891941441, -0.048353000029321705, 0.9911369189911694, -0.008070318262768867,
            -0.5836391954950592, -0.26788121770380846, -0.9446814487195148, 0.4470708205109155,
            -0.0019636737830925313, -0.5612356920327769, 0.5802609472265636, -0.057769448476927734
        ],
        "float64",
    ).reshape(4, 9),
    "exact/y": np.array(
        [
            -0.1252495300512861, 0.5222501579707424, -0.12282926032836261, 1.6885727773663162,
            -0.14987909923974707, -0.031226763472863496, -0.16061210296465966, -0.0897936502590731,
            0.007972456874365229, -0.1072206005704107, 2.288507644478241, -0.1685275071447708,
            0.07638776727958554, -0.01869364227009245, 0.6513125463330539, 0.23467468933776317,
            0.27829429366312597, -0.15156245431963652, -0.1599270580081308, -0.168668087051694,
            0.21661312669667102, -0.16997024386983622, 1.2146546127296562, -0.018024354832771698,
            0.2640519545232743, -0.16670056065359862, 1.7145674645730091, 0.6233543084341497,
            0.36967986091462285, -0.12330558665100755, -0.061688838390530285, -0.017660679543781265,
            -0.16973584876477246, 0.10959490965549452, 0.8118157815812079, -0.15577943335122943
        ],
        "float64",
    ).reshape(4, 9),
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


def gelu(x, approximate='none'):
    return mlx.nn.gelu(x) if approximate == "none" else mlx.nn.gelu_approx(x)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = in_mode(gelu)(x=x, approximate="none")
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
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=1.421458519814804e-16, largest=3.4870652372565036e-16, limit=8.0),
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=1.3707767021008493e-16, largest=4.718447854656915e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
