"""lstm of mindspore 2.10.0 computes a different formula in float16: grad.c0, grad.x, grad.weight_ih,
grad.bias_ih, grad.bias_hh, grad.weight_hh and 3 more

case            lstm (configs/census/../ops/recurrent.yaml:5)
seen with       mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
                Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.c0         semantic: the error of mindspore is 4.88e+03 times that of a careful implementation
                in float16 (the largest: 1.79 in float16, 2.56e-07 in float32, 1.79 in float64): the
                error is the same in every precision, so the formula differs
grad.x          semantic: the error of mindspore is 3.85e+03 times that of a careful implementation
                in float16 (the largest: 1.61 in float16, 2.34e-07 in float32, 1.61 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_ih  semantic: the error of mindspore is 4.08e+03 times that of a careful implementation
                in float16 (the largest: 1.43 in float16, 1.69e-07 in float32, 1.43 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_ih    semantic: the error of mindspore is 4.68e+03 times that of a careful implementation
                in float16 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_hh    semantic: the error of mindspore is 4.68e+03 times that of a careful implementation
                in float16 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_hh  semantic: the error of mindspore is 4.59e+03 times that of a careful implementation
                in float16 (the largest: 0.531 in float16, 8.74e-08 in float32, 0.531 in float64):
                the error is the same in every precision, so the formula differs
cause           missing-gradient: a gradient is zero or absent (grad.x, grad.weight_ih,
                grad.weight_hh, grad.bias_ih, grad.bias_hh, grad.h0 and grad.c0)
cause           rounding: rounding: the tolerance is smaller than the rounding error of this case (h
                and c)
exact           the textbook formula in extended precision on the same inputs, rounded to float64
torch           the result of torch 2.13.0+cpu in the same run
run             python lstm.float16.mindspore.py (needs mindspore and numpy)
exit code       1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import numpy as np
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# MindSpore would write files about failed graphs into the working directory.
os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())
import mindspore

mindspore.set_device("cpu".upper())
mindspore.set_context(runtime_num_threads=1)
# Otherwise a later op may raise an op's error.
mindspore.runtime.launch_blocking()
latest = SimpleNamespace()

DATA = {
    "inputs/x": np.array(
        [
            -0.0708, 0.879, -0.1396, -1.43, 0.2041, 1.023, 0.5625, -1.016, -0.295, -0.6562, 0.8125,
            0.4492, -0.10645, 0.1396, -0.2158, -0.949, 0.371, 0.0752, 0.59, 0.291, 0.6445, -1.125,
            -0.1514, 1.3125, -0.496, 1.914, 1.031, -0.6406, 0.7266, -0.7188, -1.625, 1.031, -0.4062,
            0.621, 1.148, -0.6016, 1.078, 0.2002, 1.633, 0.4844
        ],
        "float16",
    ).reshape(4, 2, 5),
    "inputs/weight_ih": np.array(
        [
            0.5547, -0.0747, 1.43, 0.9336, -0.3984, -0.6133, -0.2402, 0.001572, -0.293, -0.996, 0.1582,
            -0.8906, -1.008, 1.164, -1.477, 0.5117, 0.1162, 0.3652, -0.8125, 1.57, -0.496, 0.3828,
            -1.297, -0.01489, -0.8984, 0.1514, -0.8203, 0.1914, -0.9414, 1.805, -0.617, -1.125, 2.484,
            1.195, -0.535, -1.789, 0.3906, -1.133, 2.562, -0.1245, -0.496, 1.258, -0.2207, -0.8477,
            1.789, 1.273, 1.555, -1.578, 0.6914, -0.957, 0.002167, -0.1953, 0.6445, 0.3047, 0.539,
            0.6445, -1.461, -1.18, 0.4336, -0.3047
        ],
        "float16",
    ).reshape(12, 5),
    "inputs/weight_hh": np.array(
        [
            -0.3516, -0.08984, -1.523, -1.258, -1.4375, 1.594, 0.8438, 0.7773, -0.2402, 0.4492, -0.3223,
            -0.2793, 0.5156, -2.406, 0.498, 0.7695, -0.4941, -0.5938, 0.4922, 2.031, -0.373, 0.7383,
            0.4473, 1.555, -0.1543, -1.086, -0.1914, 0.3262, 0.8594, 0.5664, 1.359, 0.0654, -0.1797,
            -0.3672, -0.1396, -0.633
        ],
        "float16",
    ).reshape(12, 3),
    "inputs/bias_ih": np.array(
        [
            -1.164, 1.266, 1.094, 0.578, -1.414, 0.66, -0.5977, -0.7656, -1.898, -0.0376, 0.2188,
            -1.6875
        ],
        "float16",
    ),
    "inputs/bias_hh": np.array(
        [
            0.2471, -1.133, -0.2227, 1.336, 0.1494, 1.422, -0.4922, -0.5703, -0.0152, 0.167, -0.699,
            1.156
        ],
        "float16",
    ),
    "inputs/h0": np.array([[-0.09766, -1.492, 0.5156], [-0.4355, -0.4707, -0.668]], "float16"),
    "inputs/c0": np.array([[-1.602, 1.375, 0.703], [0.992, 1.461, 1.32]], "float16"),
    "inputs/grad.y": np.array(
        [
            0.8203, 0.91, -0.2969, 1.32, 0.2754, 1.453, 2.672, 2.188, -0.66, 1.477, 1.016, -1.797,
            -0.4492, 0.668, -3.406, 0.0525, -0.4395, -0.2471, 0.9766, -1.461, 1.477, -0.582, -0.949,
            -0.9297
        ],
        "float16",
    ).reshape(4, 2, 3),
    "inputs/grad.h": np.array([[-0.797, -0.05444, 0.1982], [1.398, 0.547, 0.2598]], "float16"),
    "inputs/grad.c": np.array([[1.391, -1.047, -0.4258], [-0.2363, 0.871, -1.109]], "float16"),
    "exact/grad.c0": np.array(
        [
            0.7506950550079606, 0.34302205227019067, -1.0184874361793224, 1.7922995966677657,
            0.14888871589308073, 0.5527432339946956
        ],
        "float64",
    ).reshape(2, 3),
    "torch/grad.c0": np.array([[0.75, 0.3433, -1.018], [1.793, 0.1489, 0.5527]], "float16"),
    "exact/grad.x": np.array(
        [
            -0.23328949914587518, -0.1595750821692884, 0.24078839860871934, -0.10602259935424323,
            0.1531511112790313, -0.071934518369253, 0.09027662924845464, -0.6192184832872336,
            -1.0413239329138844, 1.3400703877859153, -0.3397922755464474, -0.44998357976415854,
            -0.6162640489538092, 0.4315189296314796, -0.9292787358111688, 0.11060365839528358,
            -0.37980000992779794, 0.2530703620743407, 0.6061852726804638, -0.6410252117847096,
            -0.14604771237066003, -1.172364766323414, 1.6093304441152365, 0.8795162974798368,
            -1.275008555555105, -0.015213248747221074, -0.1511693969851689, -0.33255509606303346,
            -0.17172234448714052, 0.22181626185926773, -0.11177832120763183, 0.23064051546414654,
            -0.20486801661598697, -0.2815251227956132, 0.38749646255259185, 0.14372586650228056,
            -1.3837904944822568, 0.5449924536047732, 0.6426678129326481, -0.9043497608711835
        ],
        "float64",
    ).reshape(4, 2, 5),
    "torch/grad.x": np.array(
        [
            -0.2335, -0.1599, 0.2411, -0.1062, 0.154, -0.07245, 0.09, -0.619, -1.041, 1.34, -0.3398,
            -0.4492, -0.615, 0.4304, -0.9277, 0.11053, -0.3796, 0.2534, 0.6064, -0.641, -0.1466, -1.171,
            1.609, 0.88, -1.275, -0.014984, -0.1516, -0.333, -0.1719, 0.2218, -0.11206, 0.2303, -0.2045,
            -0.281, 0.3872, 0.1438, -1.384, 0.545, 0.6426, -0.9043
        ],
        "float16",
    ).reshape(4, 2, 5),
    "exact/grad.weight_ih": np.array(
        [
            -0.5048894880907715, -0.9422569997129051, 0.7212448063691039, 0.09621314179241285,
            0.13630443963519892, 0.034434909091992594, -0.2594957530715648, 0.2334513647675241,
            0.0916684872501849, -0.14231694937239506, 0.15000218762862866, 0.14900994106416918,
            0.11308923764277404, 0.45376502742583, -0.02133102366516197, -0.0628884625221358,
            0.7225335138411804, -0.24004108092420767, -0.7768067772462417, 0.02366304539681089,
            0.010157633733005104, 0.15274717616102335, -0.10711847162455562, 0.05392258684337991,
            0.009285361834274097, 0.033604814747447136, 0.3403665615546757, -0.18981008320517198,
            0.5690338739788418, -0.019132141780490747, 0.03311488992764305, -0.3511028259394529,
            -0.04595200479314035, 1.4303138755657812, -0.11764850391975765, -0.09844547287644355,
            0.23847631737334826, 0.02889717788113554, -0.260789773577125, 0.08531976930960754,
            0.4637873131799596, -0.5632629390224816, -0.1789500677543348, -0.9112147842868059,
            -0.32269391765362293, -0.24521616140051306, -0.16421434590677508, 0.0396036407344852,
            0.2769924852908469, 0.02241154872656219, -0.2169677662567234, -0.053259347569745256,
            0.020174145513717448, -0.1834283165414438, 0.02133136482362717, 0.3575717180552184,
            -0.05365865859640792, -0.056035933538579115, 0.3352081515420883, -0.22188405868620092
        ],
        "float64",
    ).reshape(12, 5),
    "torch/grad.weight_ih": np.array(
        [
            -0.5054, -0.9424, 0.7217, 0.0963, 0.1367, 0.0338, -0.2593, 0.2334, 0.0917, -0.142, 0.1499,
            0.1492, 0.113, 0.4536, -0.02133, -0.06305, 0.723, -0.2397, -0.7773, 0.02396, 0.01043,
            0.1525, -0.10706, 0.05392, 0.00908, 0.03384, 0.341, -0.19, 0.569, -0.01915, 0.0321, -0.351,
            -0.0458, 1.43, -0.1172, -0.0987, 0.2385, 0.02885, -0.2605, 0.08545, 0.463, -0.564, -0.1786,
            -0.911, -0.3225, -0.2456, -0.1644, 0.03986, 0.2773, 0.02258, -0.2164, -0.05334, 0.02016,
            -0.1833, 0.02115, 0.3567, -0.05353, -0.05566, 0.335, -0.2214
        ],
        "float16",
    ).reshape(12, 5),
    "exact/grad.bias_ih": np.array(
        [
            -0.9772243376937805, -0.28443590667405566, 0.3757387412023185, -0.3664159295806758,
            0.2643653814740468, 0.4164556441348044, 1.1922393620760983, -0.18295300711944443,
            -0.5914454819356922, -0.1660261394422056, -0.1519594325956602, 0.35207237497053795
        ],
        "float64",
    ),
    "torch/grad.bias_ih": np.array(
        [
            -0.9775, -0.2844, 0.3755, -0.3667, 0.2642, 0.4167, 1.192, -0.1826, -0.592, -0.1661, -0.1519,
            0.3513
        ],
        "float16",
    ),
    "exact/grad.bias_hh": np.array(
        [
            -0.9772243376937805, -0.28443590667405566, 0.3757387412023185, -0.3664159295806758,
            0.2643653814740468, 0.4164556441348044, 1.1922393620760983, -0.18295300711944443,
            -0.5914454819356922, -0.1660261394422056, -0.1519594325956602, 0.35207237497053795
        ],
        "float64",
    ),
    "torch/grad.bias_hh": np.array(
        [
            -0.9775, -0.2844, 0.3755, -0.367, 0.2642, 0.417, 1.192, -0.1826, -0.592, -0.1661, -0.1521,
            0.3513
        ],
        "float16",
    ),
    "exact/grad.weight_hh": np.array(
        [
            0.2039269471507293, 0.2070793403224483, 0.48790867476985395, 0.14993128850390497,
            0.03725101797509169, 0.18517093293301673, -0.0602128232886438, 0.13901978286774885,
            0.03857072523587233, 0.4433868138203489, -0.04765748473029032, -0.15801357214171746,
            -0.04233176210449695, -0.05630809737670407, -0.06459002544624667, -0.13310450726910553,
            -0.05696087305929533, -0.3230273997441397, -0.5306491049721345, -0.054564414097791454,
            -0.15329972827884789, 0.17525609855826388, 0.02381627333257497, 0.02244712054464367,
            0.04146484849385946, -0.042172579695082896, 0.17259989482917926, 0.13175037310004123,
            0.19907825803185786, -0.06731235589097283, 0.16146650304991425, -0.1285912942232653,
            0.07699964837588444, -0.11274717441931864, 0.005967521702223547, 0.004803148841819094
        ],
        "float64",
    ).reshape(12, 3),
    "torch/grad.weight_hh": np.array(
        [
            0.2041, 0.2073, 0.4878, 0.1503, 0.03723, 0.1849, -0.05988, 0.139, 0.03833, 0.4438, -0.04773,
            -0.158, -0.04227, -0.05615, -0.0646, -0.1328, -0.05722, -0.323, -0.5303, -0.05447, -0.1533,
            0.1752, 0.02365, 0.02231, 0.0412, -0.04224, 0.173, 0.132, 0.1993, -0.0674, 0.1614, -0.1287,
            0.0769, -0.1121, 0.00612, 0.004944
        ],
        "float16",
    ).reshape(12, 3),
    "exact/grad.h0": np.array(
        [
            0.02475710213269002, -0.1654148851620169, -0.02264262036830089, 0.5095234760821298,
            -0.38349380651094483, 0.47966407892240603
        ],
        "float64",
    ).reshape(2, 3),
    "torch/grad.h0": np.array([[0.02495, -0.1654, -0.02272], [0.51, -0.3833, 0.48]], "float16"),
    "exact/c": np.array(
        [
            -0.5965249528645385, 0.16441982557462836, -0.7333662127561197, 0.056498076065269326,
            0.22831656306581768, -1.1212759454293804
        ],
        "float64",
    ).reshape(2, 3),
    "torch/c": np.array([[-0.5977, 0.1646, -0.7334], [0.0569, 0.228, -1.122]], "float16"),
    "exact/h": np.array(
        [
            -0.15550133298746088, 0.06887442645434834, -0.06662901053283093, 0.04168911600932195,
            0.11093166996959895, -0.11657361340165048
        ],
        "float64",
    ).reshape(2, 3),
    "torch/h": np.array([[-0.1556, 0.0689, -0.0666], [0.042, 0.11084, -0.1166]], "float16"),
}


def values_of(bits):
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def leaf(array, requires_grad):
    if array.dtype == "uint16":
        return mindspore.Tensor(values_of(array)).astype(mindspore.bfloat16)
    return mindspore.Tensor(array)


def to_numpy(tensor):
    if tensor.dtype == mindspore.bfloat16:
        return (tensor.astype(mindspore.float32).asnumpy().view("uint32") >> 16).astype("uint16")
    return tensor.asnumpy()


def staged(function):
    """The function as it is in PyNative mode."""
    return function


def shape_of(value):
    """The shape of a tensor of any framework; None if it is not a tensor."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return tuple(int(n) for n in value.shape)


def named_outputs(result):
    """An op's result by output name: a mapping as it is, a single tensor as `y`.

    Raises TypeError for anything else.
    """
    if not isinstance(result, Mapping):
        if shape_of(result) is None:
            raise TypeError(
                f"an op must return a tensor, or a mapping of tensors by name, not a {type(result).__name__}"
            )
        return {"y": result}
    for name, value in result.items():
        if not isinstance(name, str):
            raise TypeError(f"an op must return tensors by name; {name!r} is a {type(name).__name__}")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not (item is None or isinstance(item, (bool, int, float)) or shape_of(item) is not None):
                raise TypeError(
                    f"an op must return tensors, or lists of them, by name; {name} is a {type(item).__name__}"
                )
    return dict(result)


def in_mode(function):
    """The function in its stage; the latest call is kept, since mindspore.vjp calls it again."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        outputs = named_outputs(staged_(**given))
        latest.function, latest.given, latest.outputs = staged_, given, outputs
        return outputs

    return call


def gradients(outputs, grad_outputs, leaves):
    function, given = latest.function, latest.given
    wanted = [name for y in outputs for name, value in latest.outputs.items() if value is y]
    names = [name for leaf in leaves for name, value in given.items() if value is leaf]

    def forward(*values: Any) -> Any:
        results = named_outputs(function(**{**given, **dict(zip(names, values))}))
        return tuple(results[name] for name in wanted) if len(wanted) > 1 else results[wanted[0]]

    _, pullback = mindspore.vjp(forward, *leaves)
    return list(pullback(*(dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs))))


def state(state, x, weights):
    """The initial state of a single layer; zeros if none is given."""
    return mindspore.ops.zeros((x.shape[1], weights["weight_hh"].shape[1]), x.dtype) if state is None else state


def recurrent(kind, x, states, weights):
    """The output of one layer; since its weights are Parameters, its steps are called with other tensors."""
    steps = kind(x.shape[2], weights["weight_hh"].shape[1], has_bias="bias_ih" in weights).rnn
    given = (weights.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return steps(x, states, None, *given)


def lstm(x, h0=None, c0=None, **weights):
    states = tuple(state(state_, x, weights) for state_ in (h0, c0))
    y, (h, c) = recurrent(mindspore.nn.LSTM, x, states, weights)
    return {"y": y, "h": h.reshape(states[0].shape), "c": c.reshape(states[1].shape)}


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight_ih = leaf(DATA["inputs/weight_ih"], True)
    weight_hh = leaf(DATA["inputs/weight_hh"], True)
    bias_ih = leaf(DATA["inputs/bias_ih"], True)
    bias_hh = leaf(DATA["inputs/bias_hh"], True)
    h0 = leaf(DATA["inputs/h0"], True)
    c0 = leaf(DATA["inputs/c0"], True)
    result = in_mode(lstm)(
        x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh, h0=h0, c0=c0,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"], outputs["h"], outputs["c"]], [leaf(DATA["inputs/grad.y"], False), leaf(DATA["inputs/grad.h"], False), leaf(DATA["inputs/grad.c"], False)], [x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0])
    outputs.update(zip(["grad.x", "grad.weight_ih", "grad.weight_hh", "grad.bias_ih", "grad.bias_hh", "grad.h0", "grad.c0"], returned))
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
    here, there = described(live), described(other, "float16")
    if here != there:
        print(f"{tensor}: mindspore has {here}, {label} has {there}")
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
    values = {"mindspore": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    if described(live) != described(exact, "float16"):
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
    (
        check("grad.c0", "torch", rtol=0.01, atol=0.001)
        | check("grad.c0", "exact", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.c0", rms=0.0002149210208968843, largest=0.0003675614407228816, limit=8.0),
    (
        check("grad.x", "torch", rtol=0.01, atol=0.001)
        | check("grad.x", "exact", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.x", rms=0.00019242715354327058, largest=0.0004867961765859796, limit=8.0),
    (
        check("grad.weight_ih", "exact", rtol=0.01, atol=0.001)
        | check("grad.weight_ih", "torch", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.weight_ih", rms=0.00010762096304570075, largest=0.0003501869342188435, limit=8.0),
    (
        check("grad.bias_ih", "torch", rtol=0.01, atol=0.001)
        | check("grad.bias_ih", "exact", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.bias_ih", rms=0.0001473822419113578, largest=0.0002546550672055947, limit=8.0),
    (
        check("grad.bias_hh", "torch", rtol=0.01, atol=0.001)
        | check("grad.bias_hh", "exact", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.bias_hh", rms=0.0001473822419113578, largest=0.0002546550672055947, limit=8.0),
    (
        check("grad.weight_hh", "exact", rtol=0.01, atol=0.001)
        | check("grad.weight_hh", "torch", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.weight_hh", rms=5.6950881059042186e-05, largest=0.00011570601985394502, limit=8.0),
    (
        check("grad.h0", "torch", rtol=0.01, atol=0.001)
        | check("grad.h0", "exact", rtol=0.01, atol=0.001)
    )
    and inaccurate("grad.h0", rms=0.00012654197100992067, largest=0.00024214891787022186, limit=8.0),
    check("c", "torch", rtol=0.001, atol=1e-05),
    check("h", "torch", rtol=0.001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
