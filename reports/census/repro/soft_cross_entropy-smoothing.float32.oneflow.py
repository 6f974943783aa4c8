"""soft_cross_entropy of oneflow 0.9.0 exceeds the error bound in float32: y, grad.x

case       soft_cross_entropy-smoothing (configs/ops/loss.yaml:21)
seen with  oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          close: it passes only because the tolerance is loose: the error of oneflow is 11.2 times
           that of a careful implementation in float32
grad.x     close: it passes only because the tolerance is loose: the error of oneflow is 8.26 times
           that of a careful implementation in float32
cause      unexplained: no known cause explains the error (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python soft_cross_entropy-smoothing.float32.oneflow.py (needs oneflow and numpy)
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

# OneFlow 0.9.0 would write a folder `log` into the working directory.
os.environ.setdefault("GLOG_logtostderr", "1")
# Its virtual machine's scheduler spins while kernels run in a thread beside it; here it runs them itself.
os.environ.setdefault("ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD", "0")
import oneflow

DATA = {
    "inputs/x": np.array(
        [
            0.62024903, 1.4263546, 0.07813198, 1.3625555, -0.41948876, -0.27062446, 0.14149307,
            -0.93421096, -1.335858, -0.4784476, 0.98623186, -0.7682152, 1.1908112, 1.875698, 0.11404181,
            -1.1305286, 0.94960266, 1.517586, -0.48982248, 0.6830472, 0.3284386, -0.5716219, 0.14995944,
            1.4768527, -1.3125482, -0.38840157, 0.13891812, -0.124105416, -2.1675262, 0.6828696
        ],
        "float32",
    ).reshape(2, 3, 5),
    "inputs/target": np.array(
        [
            0.046875, 0.17578125, 0.32421875, 0.1484375, 0.3046875, 0.35546875, 0.203125, 0.01171875,
            0.24609375, 0.18359375, 0.28515625, 0.2109375, 0.234375, 0.04296875, 0.2265625, 0.1953125,
            0.07421875, 0.671875, 0.015625, 0.04296875, 0.2421875, 0.125, 0.0234375, 0.125, 0.484375,
            0.25390625, 0.21875, 0.32421875, 0.09375, 0.109375
        ],
        "float32",
    ).reshape(2, 3, 5),
    "inputs/grad.y": np.array(
        [
            0.4230978, 0.6305877, -0.18827148, -0.009896673, 1.0450778, -2.0469532
        ],
        "float32",
    ).reshape(2, 3),
    "exact/y": np.array(
        [
            2.0538515519323703, 1.6632133619520404, 2.1226023266491167, 1.47621029901099,
            2.4436055683523605, 1.819996016795788
        ],
        "float64",
    ).reshape(2, 3),
    "exact/grad.x": np.array(
        [
            0.04111444861078604, 0.07558062843273344, -0.09271137253246796, 0.07666136872281284,
            -0.10064507323386436, -0.06356479207055675, 0.09979722374500476, 0.05839232904336638,
            -0.10030916164958902, 0.005684400931774627, 0.016235119031342317, 0.033305713010152754,
            -0.0005073807861824597, -0.0762027164654465, 0.02716926521013389, 0.0016200059219911923,
            -0.0016833696541199148, 0.0016957960218720316, -0.00026559895553875546,
            -0.0013668333342045536, -0.061743094388086416, -0.062468085932084555, 0.11344757675554551,
            0.4510244260541593, -0.44026082248953385, 0.21977691865982832, -0.045613634947835824,
            0.26190747743289766, 0.16488464443804088, -0.600955405582931
        ],
        "float64",
    ).reshape(2, 3, 5),
}


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        values = (array.astype("uint32") << 16).view("float32")
        tensor = oneflow.tensor(values).to(oneflow.bfloat16)
    else:
        tensor = oneflow.tensor(array)
    return oneflow.nn.Parameter(tensor) if requires_grad else tensor


def to_numpy(tensor):
    values = tensor.detach()
    if values.dtype == oneflow.bfloat16:
        return (values.to(oneflow.float32).numpy().view("uint32") >> 16).astype("uint16")
    return values.numpy()


def has_history(tensor):
    """Whether a gradient can go through a tensor."""
    return tensor.requires_grad


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        oneflow.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def soft_cross_entropy(x, target, **options):
    rows = target.reshape((-1, target.shape[-1]))
    losses = oneflow.nn.functional.cross_entropy(x.reshape((-1, x.shape[-1])), rows, **options)
    return losses.reshape(x.shape[:-1]) if losses.shape else losses


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    result = soft_cross_entropy(x=x, target=target, reduction="none", label_smoothing=0.1)
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
    here, there = described(live), described(other, "float32")
    if here != there:
        print(f"{tensor}: oneflow has {here}, {side} has {there}")
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
    values = {"oneflow": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit, part=(), where=""):
    """Whether an error, of a part, is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float32"):
        return True
    live = live.astype("float64")
    if (np.isfinite(live) != np.isfinite(exact)).any():
        print("    NaN or infinity where the exact answer is finite, or the reverse")
        return True
    with np.errstate(all="ignore"):
        error = np.abs(live - exact)[part]
        error = error[np.isfinite(error)]
        peak = error.max() if error.size else 0.0
        ratio = max(peak * np.sqrt(np.mean((error / peak) ** 2)) / rms, peak / largest) if peak else 0.0
    print(f"    its error{where} is {float(ratio):.3g} times that of a careful implementation;", end=" ")
    print(f"the error bound is {limit:g}")
    return bool(ratio >= limit)


RESULT = compute()
DIFFERS = [
    check("y", "exact", rtol=1.3e-06, atol=1e-05),
    inaccurate("y", rms=2.578077707245791e-07, largest=3.407177202596756e-07, limit=8.0),
    check("grad.x", "exact", rtol=0.0001, atol=1e-05),
    inaccurate(
        "grad.x", rms=5.2315195120806256e-08, largest=8.844717984586429e-08, limit=8.0,
        part=np.s_[:, :, 1], where=" in [:, :, 1]",
    ),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
