"""cross_entropy of paddle 3.3.1 computes a different formula in float64: y, grad.x

case       cross_entropy-smoothing-weight (configs/ops/loss.yaml:12)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          semantic: the error of paddle is 4.95e+13 times that of a careful implementation in
           float64 (the largest: 0.0419 in float32, 0.0419 in float64): the error is the same in
           every precision, so the formula differs
grad.x     semantic: the error of paddle is 2.41e+14 times that of a careful implementation in
           float64 (the largest: 0.00585 in float32, 0.00585 in float64): the error is the same in
           every precision, so the formula differs
cause      label-smoothing: targets are smoothed (y and grad.x)
cause      attribute-precision: an attribute of a float64 computation is stored in float32 (y and
           grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python cross_entropy-smoothing-weight.float64.paddle.py (needs paddle and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

import paddle

paddle.set_device("cpu")

DATA = {
    "inputs/x": np.array(
        [
            0.5412389039993286, 0.00918290764093399, -0.1145978569984436, -0.7251185774803162,
            1.0580424070358276, 1.7411384582519531, 0.0858049988746643, 0.816473126411438,
            -0.12806203961372375, -0.11850990355014801, -0.13248325884342194, 0.16091574728488922,
            -1.9502983093261719, -1.439327597618103, 2.272768974304199, 0.37778881192207336,
            -1.5707753896713257, -1.129411220550537, -0.48315858840942383, 0.687745213508606,
            -0.12204127758741379, 0.4826540946960449, -1.7310805320739746, -0.42817968130111694,
            0.883700966835022, 0.05780741199851036, -0.4808982312679291, -0.3286234438419342,
            -0.5035073757171631, -0.9907941222190857
        ],
        "float64",
    ).reshape(6, 5),
    "inputs/target": np.array([0, 0, 2, 3, 1, 1], "int64"),
    "inputs/weight": np.array(
        [
            1.1407296657562256, 0.6554519534111023, 0.9924424886703491, 1.427854299545288,
            1.4236482381820679
        ],
        "float64",
    ),
    "inputs/grad.y": np.array(-0.4754446744918823, "float64"),
    "exact/y": np.array(1.9773674355050623, "float64"),
    "torch/y": np.array(1.9773674355050623, "float64"),
    "exact/grad.x": np.array(
        [
            0.05362874326742766, -0.010932322637515021, -0.00835225276721178, -0.0017243184695268365,
            -0.03261984939317403, 0.028342442142097756, -0.006986777132106047, -0.01567362528197139,
            -0.0027992613199989036, -0.0028827784080214147, -0.002210690608245541,
            -0.0057296742979245415, 0.06497526494175185, 0.0029412591071391004, -0.05997615914272086,
            -0.030728330593866243, -0.002819033455645604, -0.0044674705451633, 0.08032497846200921,
            -0.04231014386733407, -0.005514034191695878, 0.02683669512301601, 0.001313903072860354,
            -0.0022002304255362734, -0.020436333578644213, -0.015017954970039889, 0.03266815018701318,
            -0.009516921763154086, -0.006109138060304228, -0.0020241353935149787
        ],
        "float64",
    ).reshape(6, 5),
    "torch/grad.x": np.array(
        [
            0.05362874326742767, -0.010932322637515021, -0.00835225276721178, -0.0017243184695268368,
            -0.03261984939317402, 0.028342442142097763, -0.006986777132106048, -0.015673625281971394,
            -0.002799261319998904, -0.002882778408021416, -0.002210690608245541, -0.0057296742979245415,
            0.06497526494175185, 0.0029412591071391004, -0.059976159142720864, -0.03072833059386624,
            -0.002819033455645603, -0.004467470545163299, 0.08032497846200923, -0.04231014386733407,
            -0.005514034191695878, 0.026836695123016015, 0.001313903072860354, -0.002200230425536273,
            -0.020436333578644217, -0.01501795497003989, 0.03266815018701318, -0.009516921763154088,
            -0.006109138060304229, -0.002024135393514979
        ],
        "float64",
    ).reshape(6, 5),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def has_history(tensor):
    return not tensor.stop_gradient


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        paddle.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def of_rows(function, x, target, **options):
    """A loss of x [rows, C] and target [rows], in the shape of `target` where it is not reduced."""
    losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
    return losses.reshape(target.shape) if losses.shape else losses


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def ignoring(function, x, target, ignore_index, **options):
    ignored = x.shape[-1]
    target = paddle.where(target == ignore_index, paddle.full_like(target, ignored), target)
    return of_rows(function, x, target, ignore_index=ignored, **options)


def cross_entropy(x, target, weight=None, **options):
    if options.get("label_smoothing"):
        if bool((target == options.pop("ignore_index")).any()):
            raise Unsupported("paddle.nn.functional.cross_entropy ignores no targets with label_smoothing")
        return of_rows(paddle.nn.functional.cross_entropy, x, target, weight=weight, **options)
    return ignoring(paddle.nn.functional.cross_entropy, x, target, weight=weight, **options)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    weight = leaf(DATA["inputs/weight"], False)
    result = cross_entropy(
        x=x, target=target, weight=weight,
        ignore_index=-100, reduction="mean", label_smoothing=0.2,
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
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def check(tensor, side, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{side}/{tensor}"]
    here, there = described(live), described(other, "float64")
    if here != there:
        print(f"{tensor}: paddle has {here}, {side} has {there}")
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
    values = {"paddle": live, side: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=8.46761896711179e-16, largest=8.46761896711179e-16, limit=8.0),
    (
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=1.2561664512841634e-17, largest=3.965130632686831e-17, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
