"""celu of torch 2.13.0+cpu exceeds the error bound in float64: grad.x

case       celu (configs/ops/elementwise.yaml:9)
seen with  torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
grad.x     close: it passes only because the tolerance is loose: the error of torch is 9.89e+07
           times that of a careful implementation in float64
cause      reduced-precision: computed in or through a lower precision (grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python celu.float64.torch.py (needs torch and numpy)
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

import torch

torch.set_num_threads(1)
# TF32 keeps 10 bits of the operands: a mode, not a default, when precision is compared.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

DATA = {
    "inputs/x": np.array(
        [
            -1.0539038181304932, -0.5371392369270325, -1.3826930522918701, 0.3694579601287842,
            -0.4875471293926239, -0.1885114163160324, 1.2196621894836426, 0.5326213836669922,
            1.1396516561508179, -0.407427579164505, 0.2064289003610611, -0.45116671919822693,
            1.997185230255127, 1.8671029806137085, 0.6945933103561401, -1.0183963775634766,
            -0.9317632913589478, 0.14789071679115295, -0.04426516592502594, -0.10241124778985977,
            1.8929589986801147, 1.4390419721603394, 0.4216649830341339, 1.590494155883789,
            0.6052913069725037, -1.325363039970398, -0.13687245547771454, -0.3934731185436249,
            -0.2374846339225769, 0.2747088074684143, -1.2735466957092285, -0.07084251940250397,
            2.0677738189697266, 0.8268624544143677, -0.9532413482666016, 0.38694629073143005
        ],
        "float64",
    ).reshape(4, 9),
    "inputs/grad.y": np.array(
        [
            -0.9280158877372742, -0.9811764359474182, -0.18783661723136902, -0.538525402545929,
            0.2970239520072937, 1.5157755613327026, 0.4203648567199707, -0.3683861792087555,
            0.6416972279548645, -0.029051605612039566, -0.7989180684089661, 0.8814511895179749,
            -0.5734238624572754, -0.10076930373907089, -0.17437784373760223, -2.2779955863952637,
            -2.3416709899902344, 0.19576643407344818, 0.17763882875442505, -0.1323072910308838,
            -1.4199352264404297, -1.0415844917297363, 1.2208948135375977, 0.03752385824918747,
            -1.5359264612197876, -1.1538292169570923, 1.9614319801330566, 0.6259095072746277,
            0.715798556804657, 0.42622917890548706, 0.5938368439674377, -2.3086495399475098,
            -1.214552879333496, -0.2544614374637604, -1.7410459518432617, -1.1238058805465698
        ],
        "float64",
    ).reshape(4, 9),
    "exact/grad.x": np.array(
        [
            -0.20591675187541733, -0.45550674728606727, -0.02605726819562333, -0.538525402545929,
            0.14801548296308556, 1.1579199006523067, 0.4203648567199707, -0.3683861792087555,
            0.6416972279548645, -0.0162328075795999, -0.7989180684089661, 0.462684660708356,
            -0.5734238624572754, -0.10076930373907089, -0.17437784373760223, -0.5317637110771832,
            -0.6186437831581537, 0.19576643407344818, 0.16675346858927612, -0.11429986582074207,
            -1.4199352264404297, -1.0415844917297363, 1.2208948135375977, 0.03752385824918747,
            -1.5359264612197876, -0.1737236246752108, 1.6130757001798333, 0.35677357915804303,
            0.5098594091513652, 0.42622917890548706, 0.09627918863461155, -2.0864397399180494,
            -1.214552879333496, -0.2544614374637604, -0.44606647084749707, -1.1238058805465698
        ],
        "float64",
    ).reshape(4, 9),
}


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        tensor = torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.to("cpu").requires_grad_(requires_grad)


def to_numpy(tensor):
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view("uint16")
    return values.numpy()


def has_history(tensor):
    """Whether a gradient can go through a tensor."""
    return tensor.requires_grad


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        torch.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def celu(x, alpha=1.0):
    return torch.nn.functional.celu(x, alpha=alpha)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = celu(x=x, alpha=0.7)
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
        print(f"{tensor}: torch has {here}, {side} has {there}")
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
    values = {"torch": live, side: other, "exact": DATA[f"exact/{tensor}"]}
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
    check("grad.x", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad.x", rms=1.282180500484957e-16, largest=3.228754069661832e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
