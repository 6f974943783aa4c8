"""adam of oneflow 0.9.0 exceeds the error bound in float64: exp_avg, exp_avg_sq, param

case        adam (configs/ops/optimizer.yaml:10)
seen with   oneflow 0.9.0, Python 3.10.13, NumPy 1.26.4, cpu, 1 thread,
            Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
exp_avg     close: it passes only because the tolerance is loose: the error of oneflow is 5.05e+08
            times that of a careful implementation in float64
exp_avg_sq  close: it passes only because the tolerance is loose: the error of oneflow is 2.85e+08
            times that of a careful implementation in float64
param       close: it passes only because the tolerance is loose: the error of oneflow is 9.21e+07
            times that of a careful implementation in float64
cause       attribute-precision: an attribute of a float64 computation is stored in float32 (param,
            exp_avg and exp_avg_sq)
cause       attribute-precision: an attribute of a float64 computation is stored in float32 (param,
            exp_avg and exp_avg_sq)
exact       the textbook formula in extended precision on the same inputs, rounded to float64
run         python adam.float64.oneflow.py (needs oneflow and numpy)
exit code   1 while the difference is there, 0 once it is fixed
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
    "inputs/param": np.array(
        [
            -0.4558078944683075, 0.7179346680641174, -1.2574409246444702, 0.11103910952806473,
            -0.4888066053390503, -1.5187175273895264, 2.245915412902832, 0.17942287027835846,
            -0.29298144578933716, 1.1944113969802856, -0.19174955785274506, 0.7281504273414612,
            0.7777018547058105, -0.182593435049057, 0.0374310128390789, -1.0314810276031494,
            -1.1501796245574951, -0.7240826487541199, -0.030513687059283257, 0.19516710937023163,
            1.3206157684326172, -0.8762503266334534, 0.023087646812200546, 0.2289355844259262,
            0.8824612498283386, 0.6607458591461182, -0.8299289345741272, 0.6839696168899536,
            0.1401330530643463, -0.45838692784309387
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            0.800540030002594, -1.765000820159912, -0.9784523248672485, 0.599092960357666,
            1.0182814598083496, -2.2434792518615723, -0.2583118677139282, -0.7653064131736755,
            0.2730620503425598, -0.5224595665931702, -0.703174352645874, -0.6400038599967957,
            0.021236130967736244, 0.38076645135879517, 1.3752756118774414, 1.9220778942108154,
            -1.0620222091674805, 1.585072636604309, 1.5532673597335815, 0.15884438157081604,
            0.350367933511734, 0.6374529004096985, 1.7627376317977905, -0.6638523936271667,
            -1.8667060136795044, -1.8562747240066528, -1.739901065826416, 0.09131766855716705,
            -0.9345786571502686, -0.12143415957689285
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/exp_avg": np.array(
        [
            -0.08633597940206528, -0.12935011088848114, 0.05395567789673805, 0.08698078244924545,
            -0.036969542503356934, 0.09781169146299362, 0.04984009638428688, -0.025615975260734558,
            -0.0757894515991211, 0.1014339029788971, -0.022370334714651108, 0.02843550406396389,
            -0.12819506227970123, -0.013384127989411354, -0.051803138107061386, 0.030714470893144608,
            0.07856303453445435, -0.04333585128188133, -0.010855586268007755, 0.06753874570131302,
            -0.007927076891064644, 0.06960872560739517, -0.06995904445648193, -0.21481060981750488,
            0.1271820068359375, 0.10640440136194229, 0.10544580221176147, -0.19264477491378784,
            -0.10704054683446884, -0.18183612823486328
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/exp_avg_sq": np.array(
        [
            0.6057004928588867, 0.02839602902531624, 0.6182186603546143, 0.7851290702819824,
            0.06643778085708618, 0.3686162233352661, 0.22764086723327637, 0.4799036681652069,
            0.36800241470336914, 0.15858671069145203, 0.501225471496582, 0.6260468363761902,
            0.004033777862787247, 0.2870100140571594, 0.7249324321746826, 0.4001791477203369,
            0.34258171916007996, 0.9886974692344666, 0.36810415983200073, 0.45657119154930115,
            0.4100666642189026, 0.12044917792081833, 0.14039131999015808, 0.5815001726150513,
            0.10774479806423187, 0.5478379726409912, 0.4457845985889435, 0.7451900839805603,
            0.08761037886142731, 0.2278025895357132
        ],
        "float64",
    ).reshape(5, 6),
    "exact/exp_avg": np.array(
        [
            -0.0022064574062824437, -0.285735835134983, -0.06185953162610528, 0.13930239133536815,
            0.06366749167442319, -0.1515045781433582, 0.04148405410349369, -0.09779079034924505,
            -0.043834115862846385, 0.050988669991493235, -0.09236823208630084, -0.031126928068697438,
            -0.10547492440789938, 0.02420499559491872, 0.09127904701977965, 0.20953600294888017,
            -0.04699728608131406, 0.11226417101919647, 0.14525157146155832, 0.07862098038196563,
            0.04110858183354138, 0.11763063982129096, 0.11354149963706728, -0.2574254323542118,
            -0.06338218271732327, -0.083256052583456, -0.0873881739377975, -0.15740883439779282,
            -0.18839302733540533, -0.18037980064749717
        ],
        "float64",
    ).reshape(5, 6),
    "exact/exp_avg_sq": np.array(
        [
            0.6056647558209284, 0.03123458413774129, 0.6188196914223077, 0.7847162814334575,
            0.06731108098586303, 0.37398531354717157, 0.2274143634264572, 0.47998231763409144,
            0.3676938331304189, 0.1585905478331776, 0.5012460345484764, 0.6257424926942418,
            0.004039546335619143, 0.2868544154463469, 0.7261091923537571, 0.4030874741588427,
            0.3436245610065347, 0.9899969252667301, 0.37013922529100657, 0.4561464330370724,
            0.40988933578714504, 0.12063103942704802, 0.14336631745189146, 0.5813295006708373,
            0.11079997284187061, 0.550494951202775, 0.448661756377148, 0.7444704026596944,
            0.08837020904958125, 0.22760276715331454
        ],
        "float64",
    ).reshape(5, 6),
    "exact/param": np.array(
        [
            -0.4557589880798704, 0.7458236743860595, -1.2560844528716117, 0.10832649279755249,
            -0.49303972604802726, -1.5144440178433378, 2.2444148353619093, 0.18185771647331547,
            -0.29173447788880374, 1.1922027758151479, -0.18949903538856078, 0.7288292004591082,
            0.8063284117031013, -0.183373014591749, 0.035583207039789046, -1.0371740802449887,
            -1.1487966414464734, -0.7260289517310344, -0.03463204869550368, 0.1931590686782012,
            1.319508162225498, -0.8820925360406757, 0.01791494722816279, 0.23475965280684088,
            0.8857458579280373, 0.6626815025039914, -0.8276784329317799, 0.6871165794835836,
            0.1510650142000481, -0.45186485974009105
        ],
        "float64",
    ).reshape(5, 6),
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
    before = {ours: value * 0 if first else value for (_, ours), value in zip(names.items(), state.values())}
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


def adam(**given):
    return updated("adam", **given)


def compute():
    """The outputs, by name."""
    param = leaf(DATA["inputs/param"], False)
    grad = leaf(DATA["inputs/grad"], False)
    exp_avg = leaf(DATA["inputs/exp_avg"], False)
    exp_avg_sq = leaf(DATA["inputs/exp_avg_sq"], False)
    result = adam(
        param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq,
        lr=0.1, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1, step=5,
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
    check("exp_avg", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("exp_avg", rms=5.539739237605871e-17, largest=1.4998581803621347e-16, limit=8.0),
    check("exp_avg_sq", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("exp_avg_sq", rms=8.936293813738358e-17, largest=2.42861286636753e-16, limit=8.0),
    check("param", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("param", rms=1.053134893027709e-16, largest=2.4918010270290717e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
