"""interpolate of paddle 3.3.1 has only float32 accuracy in float64: y, grad.x

case       interpolate-bilinear-factor (configs/ops/resample.yaml:11)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          degraded: the error of paddle is 1.16e+08 times that of a careful implementation in
           float64, 1.71e-06 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
grad.x     close: it passes only because the tolerance is loose: the error of paddle is 1.41e+08
           times that of a careful implementation in float64
cause      attribute-precision: an attribute of a float64 computation is stored in float32 (y and
           grad.x)
cause      localized: wrong in one part of the tensor only (grad.x)
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
            -0.021543657407164574, 0.5115873217582703, -0.414379745721817, -0.14598600566387177,
            0.8751077651977539, 1.3236241340637207, -1.6800591945648193, 2.729250431060791,
            -0.5991513133049011, 1.1604584455490112, 0.4028733968734741, -0.1566726714372635,
            -0.3149005174636841, -1.120572566986084, 1.078157901763916, 0.4878840446472168,
            -0.7367379665374756, 0.5393251776695251, 1.3545560836791992, -1.0685267448425293,
            -0.7310595512390137, 1.3970566987991333, 1.967079520225525, 0.34144219756126404,
            0.8272795677185059, 0.697887122631073, 0.15482097864151, 1.1770031452178955,
            0.9300345182418823, -0.021946612745523453, -0.34849289059638977, 1.032493233680725,
            0.05255575105547905, 0.10654982179403305, 0.2801388204097748, -1.0164965391159058,
            -1.1713985204696655, 0.5919351577758789, 0.6433116793632507, 0.7803084850311279,
            -1.001033067703247, -0.03500771522521973, -0.7718700766563416, 0.6981573700904846,
            -1.1605395078659058, -0.8029939532279968, 0.3372596800327301, -1.256744384765625,
            -0.11326830834150314, 1.2562516927719116, -0.2540634870529175, -1.2205251455307007,
            2.0690107345581055, -0.06949040293693542, -1.2381565570831299, -0.14404401183128357,
            1.2229338884353638, -1.3366098403930664, -0.4654471278190613, 2.1021435260772705
        ],
        "float64",
    ).reshape(2, 2, 3, 5),
    "inputs/grad.y": np.array(
        [
            -0.012655109167098999, -0.4290987551212311, 0.9948359131813049, -0.3337695896625519,
            0.024125758558511734, -0.11953973025083542, -1.7833099365234375, 0.11737467348575592,
            -0.31759604811668396, 0.12315250188112259, -0.010588628239929676, -0.6976444125175476,
            -1.3678905963897705, 0.5763304829597473, 0.12054748088121414, 0.6085434556007385,
            -0.3228062391281128, 0.6235573291778564, 0.6364415884017944, -0.14659634232521057,
            -0.8644075393676758, -0.6615743637084961, -1.3727351427078247, -0.651502788066864,
            1.3025518655776978, -1.2383666038513184, -1.327328085899353, -0.2367153763771057,
            1.6609309911727905, -1.153580904006958, -0.6210751533508301, 1.4517101049423218,
            0.5623199343681335, -1.3119139671325684, 0.15077446401119232, 1.135453224182129,
            1.0935274362564087, 0.4812712073326111, -0.38207459449768066, -1.0777173042297363
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "exact/y": np.array(
        [
            0.24502183217555285, -0.2801828756928444, 0.08319501713027848, 0.23417070223128097,
            -0.16576931370860515, 1.0254838990376276, -0.009834001826889354, 0.06878673767342275,
            0.12310036271810532, -0.717736542224884, -0.1244269609451294, 0.9469406306743622,
            0.05047103762626649, 1.0262101296992863, 0.31954488158226013, 1.1481632051222466,
            0.38516781084677754, 1.0979638437137884, 0.4263540506362915, 1.053518831729889,
            0.34200017154216766, 0.07955278642475605, -0.20703865543884395, 0.2852856751860065,
            -1.0517137738711695, 0.6017978117417764, -0.7721058936680064, 0.25188472253434796,
            -0.5180203914642334, -0.03685635328292847, -0.23286713659763336, -0.6850063465535641,
            -0.4257363523630535, -0.040830915355507015, -0.7224582227713922, 0.9502082095645807,
            -0.02382237990112857, -0.06244525620166006, 0.5394449383020401, -0.9010284841060638
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "torch/y": np.array(
        [
            0.24502183217555285, -0.2801828756928444, 0.08319501713027849, 0.23417070223128095,
            -0.16576931370860512, 1.0254838990376278, -0.009834001826889375, 0.0687867376734228,
            0.1231003627181053, -0.717736542224884, -0.1244269609451294, 0.9469406306743622,
            0.05047103762626649, 1.0262101296992863, 0.3195448815822602, 1.1481632051222466,
            0.38516781084677754, 1.0979638437137884, 0.42635405063629156, 1.053518831729889,
            0.34200017154216766, 0.07955278642475605, -0.20703865543884395, 0.2852856751860065,
            -1.0517137738711695, 0.6017978117417764, -0.7721058936680064, 0.25188472253434796,
            -0.5180203914642334, -0.03685635328292845, -0.23286713659763336, -0.6850063465535641,
            -0.4257363523630535, -0.040830915355507064, -0.7224582227713922, 0.9502082095645809,
            -0.023822379901128603, -0.062445256201659964, 0.5394449383020401, -0.9010284841060638
        ],
        "float64",
    ).reshape(2, 2, 5, 2),
    "exact/grad.x": np.array(
        [
            0.30125597387771397, 0.30125597387771397, -0.31938321746009235, -0.31938321746009235, 0.0,
            -0.19147988447152509, -0.19147988447152509, -0.09592934796477066, -0.09592934796477066, 0.0,
            -0.6570758004398908, -0.6570758004398908, 0.0943721155909931, 0.0943721155909931, 0.0,
            -0.4259583588744349, -0.4259583588744349, -0.16188862393884101, -0.16188862393884101, 0.0,
            -0.27421477163100944, -0.27421477163100944, 0.5430527978083667, 0.5430527978083667, 0.0,
            0.22802493326804216, 0.22802493326804216, 0.10093108257826638, 0.10093108257826638, 0.0,
            -0.8369815069086411, -0.8369815069086411, -0.5501978458727107, -0.5501978458727107, 0.0,
            0.07689313853488254, 0.07689313853488254, -0.7777406590826371, -0.7777406590826371, 0.0,
            0.459594412761576, 0.459594412761576, -0.6429315130500233, -0.6429315130500233, 0.0,
            -0.1346626783556798, -0.1346626783556798, 0.33740299238878135, 0.33740299238878135, 0.0,
            0.4218915882794296, 0.4218915882794296, 0.4063844549305299, 0.4063844549305299, 0.0,
            0.11450713346986213, 0.11450713346986213, -0.4043858147719327, -0.4043858147719327, 0.0
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


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
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
    # Paddle takes one number for images only.
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
        check("y", "torch", rtol=1e-07, atol=1e-07)
        | check("y", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=5.196411094172653e-16, largest=1.4753823163182744e-15, limit=8.0),
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=3.298148936139513e-16, largest=7.518942066186973e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
