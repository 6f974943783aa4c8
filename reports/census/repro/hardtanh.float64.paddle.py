"""hardtanh of paddle 3.3.1 exceeds the error bound in float64: y

case       hardtanh (configs/ops/elementwise.yaml:20)
seen with  paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          close: it passes only because the tolerance is loose: the error of paddle is 3.58e+08
           times that of a careful implementation in float64
cause      reduced-precision: computed in or through a lower precision (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python hardtanh.float64.paddle.py (needs paddle and numpy)
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
            0.46798017621040344, -0.5122193098068237, 1.6290137767791748, 0.01835048198699951,
            1.067054033279419, -0.24331103265285492, -0.2689048945903778, -1.3018416166305542,
            -0.49973398447036743, 0.5998270511627197, 0.9666931629180908, -0.6099101901054382,
            0.612577497959137, 0.017749032005667686, -2.438091516494751, -1.868332028388977,
            -0.8233195543289185, -1.1858769655227661, -0.2314712405204773, 0.3797834515571594,
            0.04741670563817024, 0.3135647475719452, -0.029618265107274055, -0.037813879549503326,
            -0.20067059993743896, -0.5037978887557983, 0.5509471893310547, 0.3695865869522095,
            1.9153438806533813, -1.0141322612762451, -0.1265874207019806, -1.0307258367538452,
            -0.6400643587112427, -0.04675617069005966, -0.7430634498596191, 0.09947475790977478
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            0.7740108966827393, 0.6953484416007996, 1.2877017259597778, -0.5828298926353455,
            0.5215148329734802, -0.42116668820381165, -1.7624107599258423, -0.18160293996334076,
            -0.6565638184547424, -0.3561041057109833, 0.25802159309387207, 0.29525378346443176,
            -1.1298060417175293, 0.6980253458023071, 0.7995737195014954, -1.7367832660675049,
            0.1278827041387558, -1.567698359489441, 0.1518581360578537, -1.1979405879974365,
            0.5531930327415466, 0.8039531707763672, 1.3290504217147827, -1.9154298305511475,
            -1.3071869611740112, -0.35770729184150696, 1.0200557708740234, 1.7221471071243286,
            -0.2431766837835312, 1.0157530307769775, -0.7500239610671997, 0.9250884056091309,
            -0.5522218942642212, -0.7333114743232727, -1.6064763069152832, -0.012445174157619476
        ],
        "float64",
    ).reshape(4, 9),
    "exact/y": np.array(
        [
            0.46798017621040344, -0.5122193098068237, 1.2, 0.01835048198699951, 1.067054033279419,
            -0.24331103265285492, -0.2689048945903778, -0.7, -0.49973398447036743, 0.5998270511627197,
            0.9666931629180908, -0.6099101901054382, 0.612577497959137, 0.017749032005667686, -0.7,
            -0.7, -0.7, -0.7, -0.2314712405204773, 0.3797834515571594, 0.04741670563817024,
            0.3135647475719452, -0.029618265107274055, -0.037813879549503326, -0.20067059993743896,
            -0.5037978887557983, 0.5509471893310547, 0.3695865869522095, 1.2, -0.7, -0.1265874207019806,
            -0.7, -0.6400643587112427, -0.04675617069005966, -0.7, 0.09947475790977478
        ],
        "float64",
    ).reshape(4, 9),
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


def hardtanh(x, min_val=-1.0, max_val=1.0):
    return paddle.nn.functional.hardtanh(x, min_val, max_val)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = hardtanh(x=x, min_val=-0.7, max_val=1.2)
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
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=7.258115535214487e-17, largest=1.3322676295501878e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
