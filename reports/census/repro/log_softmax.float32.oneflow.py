"""log_softmax of oneflow 0.9.0 exceeds the error bound in float32: y, grad.x

case       log_softmax (configs/ops/softmax.yaml:7)
seen with  oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
y          close: it passes only because the tolerance is loose: the error of oneflow is 11.3 times
           that of a careful implementation in float32
grad.x     close: it passes only because the tolerance is loose: the error of oneflow is 9.79 times
           that of a careful implementation in float32
cause      unexplained: no known cause explains the error (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python log_softmax.float32.oneflow.py (needs oneflow and numpy)
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
            2.354888, -0.57164705, -0.51443547, 0.71020675, -1.3282889, -0.7196294, 0.08278889,
            -1.3463576, -0.6485931, -1.8473784, 0.42767763, 0.010794767, 1.2454991, 0.23405537,
            0.39901268, -0.49517244, -0.28806782, 0.8658989, -0.8592725, -1.1324265, -0.54419965,
            -0.56296235, -1.6245714, -0.032082316, -0.5063309, -1.3137093, 0.63811827, 0.27178848,
            1.1785856, 0.17861125, 0.7489744, -0.19292748, -0.93780565, -0.34777844, -0.8265869
        ],
        "float32",
    ).reshape(5, 7),
    "inputs/grad.y": np.array(
        [
            0.07576374, 2.0876477, 0.0595896, -0.9004167, -0.69686294, -0.79263115, 1.542381,
            -1.2722615, -1.0353553, -1.3769987, 0.8773264, 1.0429688, -1.3593665, -1.0282868,
            0.41740248, 1.9805295, 0.5419734, -0.49617514, -0.72076386, -1.6528037, 0.6532568,
            0.3906414, -0.897807, -1.20947, -0.3956655, -0.5930498, -0.29373795, 0.96820724, 0.24828538,
            -0.1544338, 0.442777, -0.15326613, -0.9745435, 1.531264, -1.1283206
        ],
        "float32",
    ).reshape(5, 7),
    "exact/y": np.array(
        [
            -0.3905844228966495, -3.317119433234479, -3.2599078553421754, -2.035265638182904,
            -4.073761298011091, -3.465101792166974, -2.6626834931476373, -3.4533589525911395,
            -2.755594496319014, -3.954379741737563, -1.679323737213332, -2.0962066014129106,
            -0.8615022345277851, -1.872945998499114, -1.4808641113459036, -2.375049237173693,
            -2.1679446138559744, -1.0139778889833853, -2.7391492761789724, -3.0123032964884207,
            -2.4240764416872427, -2.3228339866259233, -3.3844430760004656, -1.7919539489307539,
            -2.2662025407412187, -3.0735808924296038, -1.1217533663370745, -1.4880831554987566,
            -1.0097084559342522, -2.0096828557393214, -1.4393197215935845, -2.381221584214892,
            -3.1260997570893427, -2.536072543992724, -3.0148810066125056
        ],
        "float64",
    ).reshape(5, 7),
    "exact/grad.x": np.array(
        [
            -0.8549644652992034, 2.0377770448142734, 0.006782592746609231, -1.0801161846583136,
            -0.7202642089757141, -0.8356418925006215, 1.4464271138729703, -1.1408964450363952,
            -0.7714093165925904, -1.297403021131986, 1.651669751750101, 1.5533369778733896,
            0.39495390434302424, -0.39025185120554334, 0.2528671609217572, 1.9132443600949054,
            0.4592051460896705, -0.7586122446097949, -0.7675150686895713, -1.6883801856326512,
            0.5891908318256842, 0.5896586031570958, -0.8289671912310478, -0.8710555759393825,
            -0.18505240548973875, -0.49911093963343156, 0.3677368821827812, 1.4267906269537236,
            0.31686511053383093, -0.1292040840468253, 0.4874060897868309, -0.13586589454444695,
            -0.9662820159652453, 1.5461679959682364, -1.1190872017323805
        ],
        "float64",
    ).reshape(5, 7),
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


def log_softmax(x, dim):
    return oneflow.nn.functional.log_softmax(x, dim)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = log_softmax(x=x, dim=-1)
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


def inaccurate(tensor, rms, largest, limit):
    """Whether an error is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float32"):
        return True
    live = live.astype("float64")
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
    check("y", "exact", rtol=1.3e-06, atol=1e-05),
    inaccurate("y", rms=2.0656845156437805e-07, largest=4.2159290947196837e-07, limit=8.0),
    check("grad.x", "exact", rtol=0.0001, atol=1e-05),
    inaccurate("grad.x", rms=1.1115670321768765e-07, largest=2.406116571540551e-07, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
