"""interpolate of paddle 3.3.1 has only float32 accuracy in float64: y, grad.x

case       interpolate-bilinear-factor (configs/census/../ops/resample.yaml:11)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of paddle is 1.42e+08 times that of a careful implementation in
           float64, 1.68e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     close: it passes only because the tolerance is loose: the error of paddle is 1.43e+08
           times that of a careful implementation in float64
cause      narrow-accumulation: sums are accumulated in a narrow format (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python interpolate-bilinear-factor.float64.paddle.py (needs paddle and numpy)
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
            -0.021484375, 0.51171875, -0.4140625, -0.1455078125, 0.875, 1.3203125, -1.6796875, 2.734375,
            -0.59765625, 1.1640625, 0.40234375, -0.15625, -0.314453125, -1.1171875, 1.078125,
            0.48828125, -0.73828125, 0.5390625, 1.3515625, -1.0703125, -0.73046875, 1.3984375, 1.96875,
            0.341796875, 0.828125, 0.69921875, 0.1552734375, 1.1796875, 0.9296875, -0.02197265625,
            -0.34765625, 1.03125, 0.052490234375, 0.1064453125, 0.279296875, -1.015625, -1.171875,
            0.59375, 0.64453125, 0.78125, -1.0, -0.034912109375, -0.7734375, 0.69921875, -1.1640625,
            -0.8046875, 0.337890625, -1.2578125, -0.11328125, 1.2578125, -0.25390625, -1.21875, 2.0625,
            -0.0693359375, -1.234375, -0.14453125, 1.2265625, -1.3359375, -0.46484375, 2.109375
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
    "inputs/grad.y": np.array(
        [
            -0.01263427734375, -0.4296875, 0.99609375, -0.333984375, 0.024169921875, -0.11962890625,
            -1.78125, 0.1171875, -0.318359375, 0.123046875, -0.01055908203125, -0.69921875, -1.3671875,
            0.578125, 0.12060546875, 0.609375, -0.322265625, 0.625, 0.63671875, -0.146484375,
            -0.86328125, -0.66015625, -1.375, -0.65234375, 1.3046875, -1.2421875, -1.328125,
            -0.236328125, 1.6640625, -1.15625, -0.62109375, 1.453125, 0.5625, -1.3125, 0.150390625,
            1.1328125, 1.09375, 0.48046875, -0.3828125, -1.078125
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "exact/y": np.array(
        [
            0.2451171875, -0.27978515625, 0.08269186580882351, 0.2356818704044118, -0.16719324448529413,
            1.028708065257353, -0.010512408088235274, 0.07131778492647046, 0.123046875, -0.7158203125,
            -0.125, 0.9453125, 0.05049402573529413, 1.0255916819852942, 0.32048483455882354,
            1.1490981158088236, 0.38610121783088236, 1.0990636488970589, 0.42724609375, 1.0546875,
            0.341796875, 0.0794677734375, -0.2070886948529412, 0.2858132755055147, -1.0515280330882353,
            0.6032678940716912, -0.7717033835018382, 0.2524126838235294, -0.5174560546875, -0.037109375,
            -0.2333984375, -0.685546875, -0.42569508272058826, -0.042379940257352894,
            -0.7215360753676471, 0.9471076516544118, -0.02251838235294109, -0.06349092371323542,
            0.541015625, -0.900390625
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "torch/y": np.array(
        [
            0.2451171875, -0.27978515625, 0.08269186580882357, 0.2356818704044118, -0.1671932444852942,
            1.028708065257353, -0.010512408088235278, 0.07131778492647053, 0.123046875, -0.7158203125,
            -0.125, 0.9453125, 0.050494025735294136, 1.0255916819852942, 0.32048483455882354,
            1.1490981158088236, 0.38610121783088236, 1.0990636488970589, 0.42724609375, 1.0546875,
            0.341796875, 0.0794677734375, -0.2070886948529412, 0.2858132755055147, -1.0515280330882355,
            0.6032678940716912, -0.7717033835018382, 0.2524126838235294, -0.5174560546875,
            -0.03710937500000001, -0.2333984375, -0.685546875, -0.42569508272058826,
            -0.04237994025735295, -0.7215360753676471, 0.9471076516544119, -0.022518382352941225,
            -0.06349092371323534, 0.541015625, -0.900390625
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "exact/grad.x": np.array(
        [
            0.30165548885569854, 0.30165548885569854, -0.3197452320772059, -0.3197452320772059, 0.0,
            -0.1907635857077205, -0.1907635857077205, -0.09605497472426472, -0.09605497472426472, 0.0,
            -0.656881893382353, -0.656881893382353, 0.09426700367647059, 0.09426700367647059, 0.0,
            -0.4257256002987132, -0.4257256002987132, -0.16210937500000003, -0.16210937500000003, 0.0,
            -0.27393296185661764, -0.27393296185661764, 0.5441176470588235, 0.5441176470588235, 0.0,
            0.22831456801470587, 0.22831456801470587, 0.10139016544117649, 0.10139016544117649, 0.0,
            -0.8370863970588236, -0.8370863970588236, -0.5498046875, -0.5498046875, 0.0,
            0.07732077205882358, 0.07732077205882358, -0.7796702665441176, -0.7796702665441176, 0.0,
            0.46093749999999994, 0.46093749999999994, -0.6441578584558824, -0.6441578584558824, 0.0,
            -0.13462201286764708, -0.13462201286764708, 0.337890625, 0.337890625, 0.0,
            0.4217888327205882, 0.4217888327205882, 0.40481387867647056, 0.40481387867647056, 0.0,
            0.11420036764705886, 0.11420036764705886, -0.40481387867647056, -0.40481387867647056, 0.0
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


def has_history(tensor):
    return not tensor.stop_gradient


def gradients(outputs, grad_outputs, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, grad_outputs) if has_history(y)]
    if pairs:
        paddle.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def require(condition, message):
    if not condition:
        raise Unsupported(message)


def interpolate(x, mode='nearest', align_corners=None, **options):
    require(mode != "nearest-exact", "paddle.nn.functional.interpolate has no mode nearest-exact")
    # Paddle takes a single number only for images.
    stated = {n: v if isinstance(v, tuple) else (v,) * (len(x.shape) - 2) for n, v in options.items() if v}
    return paddle.nn.functional.interpolate(x, mode=mode, align_corners=bool(align_corners), **stated)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = interpolate(x=x, size=None, scale_factor=(1.7, 0.5), mode="bilinear", align_corners=None)
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
        print(f"{tensor}: paddle has {here}, {label} has {there}")
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
    values = {"paddle": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=4.750258197113333e-16, largest=1.3609447770124294e-15, limit=8.0),
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=3.2663328355914595e-16, largest=7.387211502229984e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
