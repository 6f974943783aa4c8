"""normalize of oneflow 0.9.0 follows a different convention: epsilon is outside the square root
instead of inside, or the reverse (float64: grad.x, y)

case       normalize-small (configs/ops/norm.yaml:18)
seen with  oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
grad.x     semantic: the error of oneflow is 5.49e+14 times that of a careful implementation in
           float64 (the largest: 0.139 in float32, 0.139 in float64): the error is the same in every
           precision, so the formula differs
y          semantic: the error of oneflow is 1.08e+15 times that of a careful implementation in
           float64 (the largest: 0.121 in float32, 0.121 in float64): the error is the same in every
           precision, so the formula differs
cause      eps-placement: epsilon is outside the square root instead of inside, or the reverse (y
           and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python normalize-small.float64.oneflow.py (needs oneflow and numpy)
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
            -0.30343344807624817, 0.32642778754234314, 1.3546494245529175, -0.04886786267161369,
            -1.043532371520996, -0.26938870549201965, 1.9120291471481323, 0.007418232038617134,
            -0.06076240539550781, 0.4786115288734436, -0.5009741187095642, 0.4683452844619751,
            0.806022584438324, 1.7820314168930054, 0.3167647123336792, -0.1580343246459961,
            2.767479658126831, -0.49540799856185913, 1.0697736740112305, -0.5729319453239441,
            0.4934861660003662, 0.10741977393627167, 0.41203048825263977, 1.3326162099838257,
            0.8131267428398132, 0.28376176953315735, 0.05224112421274185, -0.1223217248916626,
            -1.7991129159927368, 0.6025714874267578
        ],
        "float64",
    ).reshape(6, 5),
    "inputs/grad.y": np.array(
        [
            -0.7532187700271606, -0.8920718431472778, 0.9945837259292603, -0.5506335496902466,
            1.4214422702789307, 1.6547682285308838, -0.16067999601364136, 1.1526418924331665,
            0.5561535954475403, 1.225175380706787, -0.2970718443393707, -1.6224398612976074,
            0.13401567935943604, 0.7628833651542664, 2.152341365814209, -0.4431314170360565,
            1.3247355222702026, 0.5449623465538025, 0.3350546061992645, 0.17487013339996338,
            -0.635508120059967, -0.09211686253547668, -1.0894179344177246, 0.3005114495754242,
            1.0245416164398193, 0.5201625227928162, 0.6055392026901245, -0.6759955883026123,
            -0.0874125212430954, -0.4790518879890442
        ],
        "float64",
    ).reshape(6, 5),
    "exact/grad.x": np.array(
        [
            -0.3766093850135803, -0.4460359215736389, 0.4972918629646301, -0.2753167748451233,
            0.7107211351394653, 0.8273841142654419, -0.08033999800682068, 0.5763209462165833,
            0.27807679772377014, 0.6125876903533936, -0.0580779416576593, -0.8519870410781926,
            -0.0706029105340899, 0.06644374740644535, 0.9736919882399547, -0.12410137463492862,
            0.07450026267158971, 0.24173052347298823, -0.028934488835136572, 0.13104811096278468,
            -0.3177540600299835, -0.04605843126773834, -0.5447089672088623, 0.1502557247877121,
            0.5122708082199097, 0.2600812613964081, 0.30276960134506226, -0.33799779415130615,
            -0.0437062606215477, -0.2395259439945221
        ],
        "float64",
    ).reshape(6, 5),
    "torch/grad.x": np.array(
        [
            -0.3766093850135803, -0.4460359215736389, 0.4972918629646301, -0.2753167748451233,
            0.7107211351394653, 0.8273841142654419, -0.08033999800682068, 0.5763209462165833,
            0.27807679772377014, 0.6125876903533936, -0.058077941657659296, -0.8519870410781927,
            -0.0706029105340899, 0.06644374740644537, 0.9736919882399547, -0.12410137463492862,
            0.07450026267158966, 0.24173052347298823, -0.028934488835136593, 0.1310481109627847,
            -0.3177540600299835, -0.04605843126773834, -0.5447089672088623, 0.1502557247877121,
            0.5122708082199097, 0.2600812613964081, 0.30276960134506226, -0.33799779415130615,
            -0.0437062606215477, -0.2395259439945221
        ],
        "float64",
    ).reshape(6, 5),
    "exact/y": np.array(
        [
            -0.15171672403812408, 0.16321389377117157, 0.6773247122764587, -0.024433931335806847,
            -0.521766185760498, -0.13469435274600983, 0.9560145735740662, 0.003709116019308567,
            -0.030381202697753906, 0.2393057644367218, -0.23893947146031305, 0.22337715772329353,
            0.38443225531660963, 0.8499394060014113, 0.15108084452994808, -0.05153959134307766,
            0.9025556375151118, -0.16156696243784735, 0.3488843206159675, -0.1868497770692294,
            0.2467430830001831, 0.053709886968135834, 0.20601524412631989, 0.6663081049919128,
            0.4065633714199066, 0.14188088476657867, 0.026120562106370926, -0.0611608624458313,
            -0.8995564579963684, 0.3012857437133789
        ],
        "float64",
    ).reshape(6, 5),
    "torch/y": np.array(
        [
            -0.15171672403812408, 0.16321389377117157, 0.6773247122764587, -0.024433931335806847,
            -0.521766185760498, -0.13469435274600983, 0.9560145735740662, 0.003709116019308567,
            -0.030381202697753906, 0.2393057644367218, -0.23893947146031308, 0.22337715772329353,
            0.38443225531660963, 0.8499394060014113, 0.15108084452994808, -0.05153959134307766,
            0.9025556375151118, -0.16156696243784735, 0.3488843206159675, -0.1868497770692294,
            0.2467430830001831, 0.053709886968135834, 0.20601524412631989, 0.6663081049919128,
            0.4065633714199066, 0.14188088476657867, 0.026120562106370926, -0.0611608624458313,
            -0.8995564579963684, 0.3012857437133789
        ],
        "float64",
    ).reshape(6, 5),
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


def normalize(x, p, dim, eps):
    return oneflow.nn.functional.normalize(x, p, dim, eps)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    result = normalize(x=x, p=2.0, dim=1, eps=2.0)
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
    and inaccurate("grad.x", rms=1.0287572077378762e-16, largest=2.7750154604766486e-16, limit=8.0),
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=5.906510442910709e-17, largest=1.122149248522497e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
