"""rmsprop of paddle 3.3.1 follows a different convention: the learning rate is inside the momentum
buffer (float64: param, momentum_buffer, grad_avg, square_avg)

case             rmsprop-momentum (configs/ops/optimizer.yaml:14)
seen with        paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
                 Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
param            semantic: the error of paddle is 3.54e+15 times that of a careful implementation in
                 float64 (the largest: 1.58 in float32, 1.58 in float64): the error is the same in
                 every precision, so the formula differs
momentum_buffer  semantic: the error of paddle is 2.95e+15 times that of a careful implementation in
                 float64 (the largest: 1.46 in float32, 1.46 in float64): the error is the same in
                 every precision, so the formula differs
grad_avg         close: it passes only because the tolerance is loose: the error of paddle is
                 1.13e+08 times that of a careful implementation in float64
square_avg       close: it passes only because the tolerance is loose: the error of paddle is
                 3.19e+07 times that of a careful implementation in float64
cause            lr-in-momentum: the learning rate is inside the momentum buffer (param and
                 momentum_buffer)
cause            attribute-precision: an attribute of a float64 computation is stored in float32
                 (param, square_avg, grad_avg and momentum_buffer)
cause            eps-placement: epsilon is outside the square root instead of inside, or the reverse
                 (param and momentum_buffer)
exact            the textbook formula in extended precision on the same inputs, rounded to float64
torch            the result of torch 2.13.0+cpu in the same run
run              python rmsprop-momentum.float64.paddle.py (needs paddle and numpy)
exit code        1 while the difference is there, 0 once it is fixed
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
    "inputs/param": np.array(
        [
            1.5764340162277222, 0.5740988254547119, 0.27868029475212097, -0.40177106857299805,
            -0.6340661644935608, -1.2652559280395508, 0.9019449949264526, -0.30432119965553284,
            -0.7774736881256104, -0.23602497577667236, -2.0720536708831787, 0.0941401943564415,
            -0.7120910882949829, 2.0057199001312256, 0.4071236550807953, -0.34777209162712097,
            0.27399250864982605, 0.22373570501804352, 0.007619290612637997, -0.6845739483833313,
            0.5400328636169434, 2.0173110961914062, 0.10346579551696777, -1.3966134786605835,
            -0.7430040836334229, -2.0013678073883057, -1.7080857753753662, -0.7360222339630127,
            -1.0726958513259888, -0.777608335018158
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad": np.array(
        [
            -0.6821070313453674, 0.5881642699241638, 0.3668912351131439, -0.852069616317749,
            0.637444019317627, -1.5204037427902222, 1.5149065256118774, -0.510360062122345,
            -0.9492328763008118, 0.8396313786506653, 0.9569092988967896, 1.027366280555725,
            -0.2542077600955963, -0.8245759606361389, 0.7416629791259766, -0.4434974789619446,
            0.05168307200074196, -0.9041961431503296, 1.4697386026382446, 0.7798628807067871,
            1.6375432014465332, -1.9049899578094482, 0.3527463376522064, -1.909497857093811,
            1.2075634002685547, 1.7446955442428589, 0.9684478640556335, -0.6437287330627441,
            1.3924651145935059, 0.6986886858940125
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/square_avg": np.array(
        [
            1.081723690032959, 1.4821231365203857, 1.179935336112976, 1.1852549314498901,
            1.724430799484253, 1.3446606397628784, 1.226759910583496, 1.5942072868347168,
            1.5911747217178345, 1.5090880393981934, 1.8855317831039429, 1.154612421989441,
            1.5410244464874268, 1.2939343452453613, 1.983735203742981, 1.7644290924072266,
            1.4441901445388794, 1.38368821144104, 1.2381229400634766, 1.22245454788208,
            1.9864041805267334, 1.5749446153640747, 1.5515620708465576, 1.853248119354248,
            1.653448224067688, 1.1492458581924438, 1.1198476552963257, 1.140410304069519,
            1.697597622871399, 1.0661004781723022
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/grad_avg": np.array(
        [
            0.1212596520781517, 0.17784728109836578, 0.005113223567605019, 0.09860081970691681,
            -0.04078171029686928, 0.0667511448264122, 0.04598134756088257, -0.09326497465372086,
            -0.0412694551050663, 0.026954246684908867, 0.0982738509774208, -0.10083798319101334,
            0.040790002793073654, 0.013038392178714275, 0.10974739491939545, -0.0006469994550570846,
            0.02744903787970543, 0.009432199411094189, 0.1323360651731491, -0.14369748532772064,
            0.15873941779136658, -0.044927965849637985, 0.0252800565212965, -0.022733217105269432,
            -0.07250893861055374, 0.0757078304886818, 0.06759662181138992, 0.07862626016139984,
            -0.17344340682029724, 0.028055833652615547
        ],
        "float64",
    ).reshape(5, 6),
    "inputs/momentum_buffer": np.array(
        [
            -0.4086529612541199, -0.877854585647583, -0.44127756357192993, 0.22031202912330627,
            -0.7110229730606079, 0.9339080452919006, 0.8665109872817993, 0.9727934002876282,
            0.22094497084617615, 0.3986985683441162, -1.019461750984192, 0.2883385419845581,
            -0.04956436902284622, -1.4775973558425903, -0.05125871300697327, 1.0156617164611816,
            -1.0597355365753174, -0.850966215133667, -0.13575336337089539, 0.0845426395535469,
            0.3625735640525818, -0.6906408667564392, 0.023094387724995613, -1.9501755237579346,
            0.32591935992240906, -0.4013296961784363, -0.4418453276157379, -1.8749127388000488,
            -0.016564512625336647, 0.0013432721607387066
        ],
        "float64",
    ).reshape(5, 6),
    "exact/param": np.array(
        [
            1.6793794418736996, 0.6040520971865466, 0.28446755332617263, -0.34291685748504613,
            -0.618819321026933, -1.2185364576792772, 0.6875728317613271, -0.35115927782278117,
            -0.7218833321863107, -0.3404676598684649, -2.0503829987720437, -0.027796439482174123,
            -0.6870439952922531, 2.211366288119136, 0.35870588364389977, -0.40564417775099165,
            0.36504525172706104, 0.3773480340304003, -0.1128947413084522, -0.763426706897496,
            0.39053054381653446, 2.2304755041937483, 0.07292960647592976, -1.0814407120587604,
            -0.8664045113108502, -2.1272630942146873, -1.760151402584636, -0.5066709108441694,
            -1.178792581285741, -0.8456202932764295
        ],
        "float64",
    ).reshape(5, 6),
    "torch/param": np.array(
        [
            1.6793794418736996, 0.6040520971865466, 0.28446755332617263, -0.34291685748504613,
            -0.618819321026933, -1.2185364576792772, 0.6875728317613271, -0.35115927782278117,
            -0.7218833321863107, -0.3404676598684649, -2.0503829987720437, -0.027796439482174126,
            -0.6870439952922531, 2.2113662881191365, 0.35870588364389977, -0.40564417775099165,
            0.36504525172706104, 0.3773480340304003, -0.11289474130845219, -0.763426706897496,
            0.39053054381653446, 2.2304755041937483, 0.07292960647592976, -1.0814407120587604,
            -0.8664045113108502, -2.1272630942146873, -1.760151402584636, -0.5066709108441694,
            -1.178792581285741, -0.8456202932764296
        ],
        "float64",
    ).reshape(5, 6),
    "exact/momentum_buffer": np.array(
        [
            -1.0294542564597737, -0.29953271731834674, -0.0578725857405164, -0.588542110879519,
            -0.15246843466627727, -0.46719470360273546, 2.1437216316512555, 0.4683807816724834,
            -0.5559035593929958, 1.0444268409179251, -0.21670672111135164, 1.2193663383861562,
            -0.25047093002729787, -2.056463879879107, 0.48417771436895535, 0.5787208612387069,
            -0.9105274307723497, -1.5361232901235675, 1.2051403192109018, 0.788527585141647,
            1.4950231980040891, -2.1316440800234187, 0.30536189041038003, -3.1517276660182305,
            1.2340042767742734, 1.258952868263818, 0.5206562720926978, -2.2935132311884328,
            1.060967299597522, 0.680119582582716
        ],
        "float64",
    ).reshape(5, 6),
    "torch/momentum_buffer": np.array(
        [
            -1.029454256459774, -0.29953271731834674, -0.05787258574051635, -0.588542110879519,
            -0.1524684346662773, -0.4671947036027355, 2.1437216316512555, 0.46838078167248337,
            -0.555903559392996, 1.0444268409179254, -0.21670672111135159, 1.2193663383861562,
            -0.25047093002729787, -2.056463879879107, 0.4841777143689553, 0.5787208612387069,
            -0.9105274307723497, -1.5361232901235675, 1.2051403192109018, 0.7885275851416471,
            1.4950231980040891, -2.1316440800234187, 0.30536189041038003, -3.151727666018231,
            1.2340042767742734, 1.2589528682638182, 0.5206562720926979, -2.2935132311884328,
            1.060967299597522, 0.6801195825827161
        ],
        "float64",
    ).reshape(5, 6),
    "exact/grad_avg": np.array(
        [
            0.1132259852439165, 0.18195045098662377, 0.008731003683060411, 0.08909411534667014,
            -0.03399945300072431, 0.05087959595024584, 0.06067059934139253, -0.0974359255284071,
            -0.05034908931702376, 0.035081018004566436, 0.1068602054566145, -0.08955594055354595,
            0.037840025164186955, 0.004662248650565736, 0.11606655076146126, -0.005075504250125963,
            0.027691378220915795, 0.00029591598547994277, 0.14571009054780007, -0.13446188166737555,
            0.17352745562791827, -0.0635285857692361, 0.028554719332605602, -0.041600863505154864,
            -0.059708215221762645, 0.09239770762622358, 0.07660513423383236, 0.0714027102291584,
            -0.15778432160615918, 0.034762162175029525
        ],
        "float64",
    ).reshape(5, 6),
    "exact/square_avg": np.array(
        [
            1.0755591531547373, 1.4707612772393361, 1.1694820745358747, 1.18066260844591,
            1.7112498402670484, 1.354330308776155, 1.2374417292910755, 1.5808698878964649,
            1.5842734050351592, 1.5010469675243596, 1.875833219336055, 1.1536211125137756,
            1.5262604178754806, 1.2877942569414977, 1.9693984914516114, 1.7487517016216103,
            1.429774954492805, 1.378027035979509, 1.247343026263692, 1.216311863530302,
            1.9933556160875037, 1.5954850366039823, 1.5372907499253625, 1.8711774588231642,
            1.6514958354836926, 1.1681930250315282, 1.1180280913973015, 1.1331500678465296,
            1.700011237596284, 1.0603211321885422
        ],
        "float64",
    ).reshape(5, 6),
}


def leaf(array, requires_grad):
    return paddle.to_tensor(array, stop_gradient=not requires_grad)


def to_numpy(tensor):
    return tensor.numpy()


CLASSES = {"adam": "Adam", "adamw": "AdamW", "lamb": "Lamb", "rmsprop": "RMSProp", "adagrad": "Adagrad"}


def optimizer_class(op, has_momentum):
    """The class in paddle.optimizer."""
    return CLASSES.get(op) or ("Momentum" if has_momentum else "SGD")


MOMENTS = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}

STATES = {
    "SGD": {},
    "Momentum": {"momentum_buffer": "velocity"},
    "Adam": MOMENTS,
    "AdamW": MOMENTS,
    "Lamb": MOMENTS,
    "RMSProp": {"square_avg": "mean_square", "grad_avg": "mean_grad", "momentum_buffer": "momentum"},
    "Adagrad": {"sum": "moment"},
}


def stepped(kind, param, grad, state, lr, **options):
    """One step of the optimizer `kind` from a state under Paddle's names; what it has after that."""
    leaf_ = leaf(to_numpy(param), True)
    leaf_.grad = grad
    if kind == "SGD":
        options = {"weight_decay": options["weight_decay"]}
    with paddle.utils.unique_name.guard():
        optimizer = getattr(paddle.optimizer, kind)(lr, parameters=[leaf_], **options)
        optimizer.set_state_dict({f"{leaf_.name}_{name}_0": value for name, value in state.items()})
        optimizer.step()
    after = optimizer.state_dict()
    return {"param": leaf_, **{name: after[f"{leaf_.name}_{name}_0"] for name in state}}


RENAMED = {"alpha": "rho", "eps": "epsilon", "nesterov": "use_nesterov"}


class Unsupported(Exception):
    """The framework cannot do this; the message says why."""


def translated(kind, options):
    """A group's options under Paddle's names; raises Unsupported for those that Paddle does not have."""
    renamed = {RENAMED.get(name, name): value for name, value in options.items()}
    for name in ("dampening", "lr_decay"):
        if renamed.pop(name, 0):
            raise Unsupported(f"paddle.optimizer.{kind} has no {name}")
    if "betas" in renamed:
        renamed["beta1"], renamed["beta2"] = renamed.pop("betas")
    if kind == "Lamb":
        renamed["lamb_weight_decay"] = renamed.pop("weight_decay")
    return renamed


ALWAYS = {"Lamb": {"always_adapt": True}}


def updated(op, param, grad, step=2, **given):
    kind = optimizer_class(op, "momentum_buffer" in given)
    kept = {name: own for name, own in STATES[kind].items() if name in given}
    state = {own: given.pop(name, paddle.zeros_like(param)) for name, own in STATES[kind].items()}
    if step == 1:
        state.update({"velocity": state["velocity"] * 0} if kind == "Momentum" else {})
        given.pop("lr_decay", None)
    for i, beta in enumerate(given.get("betas", ()), 1):
        state[f"beta{i}_pow_acc"] = paddle.full([1], beta**step, dtype=param.dtype)
    after = stepped(kind, param, grad, state, **translated(kind, given), **ALWAYS.get(kind, {}))
    return {"param": after["param"], **{name: after[own] for name, own in kept.items()}}


def rmsprop(**given):
    return updated("rmsprop", **given)


def compute():
    """The outputs, by name."""
    param = leaf(DATA["inputs/param"], False)
    grad = leaf(DATA["inputs/grad"], False)
    square_avg = leaf(DATA["inputs/square_avg"], False)
    grad_avg = leaf(DATA["inputs/grad_avg"], False)
    momentum_buffer = leaf(DATA["inputs/momentum_buffer"], False)
    result = rmsprop(
        param=param, grad=grad, square_avg=square_avg, grad_avg=grad_avg, momentum_buffer=momentum_buffer,
        lr=0.1, alpha=0.99, eps=1e-08, weight_decay=0.0, momentum=0.9, centered=True,
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
        check("param", "exact", rtol=1e-07, atol=1e-07)
        | check("param", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("param", rms=1.8738202976470545e-16, largest=5.409084638530182e-16, limit=8.0),
    (
        check("momentum_buffer", "exact", rtol=1e-07, atol=1e-07)
        | check("momentum_buffer", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("momentum_buffer", rms=2.7680698631815867e-16, largest=6.324151272107947e-16, limit=8.0),
    check("grad_avg", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("grad_avg", rms=9.118552279111913e-17, largest=1.6611332535193535e-16, limit=8.0),
    check("square_avg", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("square_avg", rms=3.5005348564406174e-16, largest=6.432571489356498e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
