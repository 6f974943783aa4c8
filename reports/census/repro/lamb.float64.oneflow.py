"""lamb of oneflow 0.9.0 computes a different formula in float64: param, exp_avg, exp_avg_sq

case        lamb (configs/census/../ops/optimizer.yaml:12)
seen with   oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
            Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
param       semantic: the error of oneflow is 4.27e+14 times that of a careful implementation in
            float64 (the largest: 0.532 in float32, 0.532 in float64): the error is the same in
            every precision, so the formula differs
exp_avg     close: it passes only because the tolerance is loose: the error of oneflow is 3.44e+08
            times that of a careful implementation in float64
exp_avg_sq  close: it passes only because the tolerance is loose: the error of oneflow is 9.02e+07
            times that of a careful implementation in float64
cause       trust-ratio: LAMB's trust ratio is left out or computed from other tensors (param)
cause       attribute-precision: an attribute of a float64 computation is stored in float32 (param,
            exp_avg and exp_avg_sq)
exact       the textbook formula in extended precision on the same inputs, rounded to float64
run         python lamb.float64.oneflow.py (needs oneflow and numpy)
exit code   1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import numpy as np

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# OneFlow 0.9.0 would write a folder `log` into the working directory.
os.environ.setdefault("GLOG_logtostderr", "1")
# By default OneFlow's scheduler spins while kernels run in another thread; now it runs them itself.
os.environ.setdefault("ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD", "0")
import oneflow

DATA = {
    "inputs/param": np.array(
        [
            1.484375, 1.4921875, -0.0986328125, 1.8515625, 1.7890625, -0.4453125, 1.390625, 0.072265625,
            0.0439453125, -1.8515625, -0.05859375, 1.0078125, 0.0157470703125, -0.4765625,
            0.10400390625, 1.171875, -0.51953125, 0.2080078125, 0.10693359375, -0.8984375, -0.65625,
            -1.0546875, 1.6171875, -0.138671875, -0.71484375, 1.4375, -1.1171875, -0.365234375,
            -0.14453125, -1.234375
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            -0.51953125, -0.69140625, -1.125, 0.2109375, -0.451171875, -0.18359375, 0.051513671875,
            -1.03125, -0.65625, 0.408203125, 1.1015625, -0.5078125, 0.83984375, -1.015625, 0.9296875,
            -0.640625, -0.80078125, 1.4296875, 0.50390625, -1.34375, 1.6015625, -0.25390625, 1.2109375,
            -0.05322265625, -0.51171875, -1.515625, 0.79296875, 1.1015625, -0.62890625, 1.078125
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/exp_avg": np.array(
        [
            0.01806640625, 0.1767578125, -0.0595703125, 0.23828125, -0.03125, -0.05859375,
            -0.023681640625, -0.036865234375, -0.11669921875, 0.02294921875, 0.064453125, -0.232421875,
            0.03515625, 0.07275390625, -0.0048828125, 0.00604248046875, -0.1201171875, -0.2333984375,
            0.109375, 0.017333984375, -0.142578125, 0.060302734375, -0.02734375, -0.0615234375,
            -0.11865234375, 0.11376953125, 0.078125, -0.02001953125, 0.051025390625, 0.15625
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/exp_avg_sq": np.array(
        [
            0.6953125, 0.58203125, 0.1943359375, 0.35546875, 0.66015625, 0.494140625, 0.58203125,
            0.8203125, 0.48046875, 0.515625, 0.69140625, 0.296875, 0.859375, 0.375, 0.984375, 0.6640625,
            0.74609375, 0.0712890625, 0.9296875, 0.7109375, 0.7265625, 0.32421875, 0.73046875, 0.5,
            0.60546875, 0.62109375, 0.41015625, 0.7890625, 0.076171875, 0.97265625
        ],
        "float64",
    ).reshape(5, 6),
    "exact/param": np.array(
        [
            1.348829066244008, 1.3292486558940662, -0.0268629317253208, 1.608114968604944,
            1.6320872404099644, -0.38574663580186586, 1.2605037874555234, 0.0902641426814198,
            0.08053567821886982, -1.6878293411499903, -0.08647489146893118, 0.9900591776490917,
            -0.006443512016503429, -0.42100714137131023, 0.07920989662804849, 1.0711890516145997,
            -0.43348899704214927, 0.22910675465679037, 0.07106175155393057, -0.788767602510193,
            -0.5993698464112595, -0.9617468832388981, 1.4430769441468174, -0.11111061532857479,
            -0.612489288314552, 1.3096891287232075, -1.0485429134023043, -0.34732606346593003,
            -0.12047240793655299, -1.1575087133654054
        ],
        "float64",
    ).reshape(5, 6),
    "exact/exp_avg": np.array(
        [
            -0.03569335937499999, 0.08994140625000002, -0.16611328124999997, 0.235546875,
            -0.07324218749999999, -0.07109375, -0.016162109375, -0.1363037109375, -0.170654296875,
            0.06147460937499999, 0.1681640625, -0.2599609375, 0.11562499999999998,
            -0.036083984374999975, 0.08857421874999998, -0.058624267578124986, -0.18818359375,
            -0.06708984375000003, 0.14882812499999998, -0.11877441406249997, 0.03183593749999996,
            0.028881835937500006, 0.09648437499999997, -0.060693359375, -0.157958984375,
            -0.04916992187499997, 0.149609375, 0.09213867187499998, -0.016967773437499986,
            0.24843749999999998
        ],
        "float64",
    ).reshape(5, 6),
    "exact/exp_avg_sq": np.array(
        [
            0.6948871002197266, 0.581927261352539, 0.1954072265625, 0.35515777587890623,
            0.659699649810791, 0.4936801910400391, 0.58145187240839, 0.8205556640625, 0.4804189453125,
            0.5152760047912598, 0.6919282836914062, 0.29683599853515624, 0.859220962524414,
            0.375656494140625, 0.9842549438476562, 0.663808837890625, 0.7459889068603516,
            0.07326177978515626, 0.9290117340087891, 0.7120322265625, 0.7284009399414062,
            0.32395899963378905, 0.7312046508789063, 0.4995028326511383, 0.6051251373291016,
            0.622769775390625, 0.4103748931884766, 0.7894868774414062, 0.07649122619628906,
            0.972845947265625
        ],
        "float64",
    ).reshape(5, 6),
}


def values_of(bits):
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        tensor = oneflow.tensor(values_of(array)).to(oneflow.bfloat16)
    else:
        tensor = oneflow.tensor(array)
    return oneflow.nn.Parameter(tensor) if requires_grad else tensor


def to_numpy(tensor):
    values = tensor.detach()
    if values.dtype == oneflow.bfloat16:
        return (values.to(oneflow.float32).numpy().view("uint32") >> 16).astype("uint16")
    return values.numpy()


STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "sum")


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


RENAMED = {"momentum_buffer": "momentum_buf"}


def stepped(kind, param, grad, state, step, **options):
    leaf = oneflow.nn.Parameter(param)
    leaf.grad = grad
    try:
        optimizer = getattr(oneflow.optim, kind)([leaf], **options)
    except AssertionError as error:
        raise Unsupported(f"oneflow.optim.{kind}: {error}") from error
    names = {name: RENAMED.get(name, name) for name in state}
    first = kind == "SGD" and step == 1
    before = {
        ours: oneflow.zeros_like(value) if first else value
        for (_, ours), value in zip(names.items(), state.values())
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {"step": step - 1, 0: before}, "param_groups": groups})
    optimizer.step()
    after = optimizer.state_dict()["state"][0]
    return {"param": leaf, **{name: after[ours] for name, ours in names.items()}}


OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "lamb": "LAMB",
}


def updated(op, param, grad, step=2, **given):
    state = {name: given.pop(name) for name in STATES if name in given}
    return stepped(OPTIMIZERS[op], param, grad, state, step, **given)


def lamb(**given):
    return updated("lamb", **given)


def compute():
    """The outputs, by name."""
    param = leaf(DATA["inputs/param"], False)
    grad = leaf(DATA["inputs/grad"], False)
    exp_avg = leaf(DATA["inputs/exp_avg"], False)
    exp_avg_sq = leaf(DATA["inputs/exp_avg_sq"], False)
    result = lamb(
        param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq,
        lr=0.1, betas=(0.9, 0.999), eps=1e-06, weight_decay=0.1, step=5,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
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
        print(f"{tensor}: oneflow has {here}, {label} has {there}")
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
    values = {"oneflow": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    check("param", "exact", rtol=1e-07, atol=1e-07)
    and inaccurate("param", rms=5.968031509903249e-16, largest=1.4799901755513378e-15, limit=8.0),
    check("exp_avg", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("exp_avg", rms=6.64129688795717e-17, largest=1.2083433212350947e-16, limit=8.0),
    check("exp_avg_sq", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("exp_avg_sq", rms=1.504406722465787e-16, largest=2.8167572441173405e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
