"""cosine_similarity of paddle 3.3.1 follows a different convention: epsilon is outside the square root
instead of inside, or the reverse (float64: grad.x, y, grad.other)

case        cosine_similarity-eps (configs/ops/loss.yaml:57)
seen with   paddle 3.3.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
            Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, Intel(R) Xeon(R) Processor
grad.x      semantic: the error of paddle is 3.88e+15 times and the error of torch is 3.18e+14 times
            that of a careful implementation in float64 (the largest: 0.659 in float32, 0.659 in
            float64): the error is the same in every precision, so the formula differs
y           semantic: the error of paddle is 2.94e+15 times that of a careful implementation in
            float64 (the largest: 0.321 in float32, 0.321 in float64): the error is the same in
            every precision, so the formula differs
grad.other  semantic: the error of paddle is 2.54e+15 times that of a careful implementation in
            float64 (the largest: 0.236 in float32, 0.236 in float64): the error is the same in
            every precision, so the formula differs
cause       eps-placement: epsilon is outside the square root instead of inside, or the reverse (y,
            grad.x and grad.other)
exact       the textbook formula in extended precision on the same inputs, rounded to float64
torch       the result of torch 2.13.0+cpu in the same run
run         python cosine_similarity-eps.float64.paddle.py (needs paddle and numpy)
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

import paddle

paddle.set_device("cpu")

DATA = {
    "inputs/x": np.array(
        [
            -0.9589910507202148, 2.083604574203491, -0.44252410531044006, -1.0467841625213623,
            1.8575360774993896, -0.02788090892136097, 0.15300172567367554, -1.010840892791748,
            -0.8816472887992859, -0.8002424836158752, 1.7637580633163452, 0.07182567566633224,
            0.24789653718471527, -0.2195766121149063, 0.36405885219573975, -0.10263044387102127,
            -2.2399206161499023, -1.0149474143981934, 0.7157130241394043, 1.5760502815246582,
            -0.84220290184021, -0.8015274405479431, -1.6855990886688232, 0.37245574593544006
        ],
        "float64",
    ).reshape(6, 4),
    "inputs/other": np.array(
        [
            -1.1900510787963867, 0.42285284399986267, -0.09845209121704102, 2.5531153678894043,
            -2.1508944034576416, 0.7124794125556946, 1.5547711849212646, -0.04561924934387207,
            -1.5123679637908936, -0.6349636912345886, -0.5140207409858704, 0.3172665536403656,
            0.04268522560596466, 0.9989563822746277, -2.439772605895996, -0.9565419554710388,
            -0.708825945854187, 0.6934145092964172, -0.5273458361625671, 0.5677301287651062,
            1.0326955318450928, -0.487629234790802, 0.9167569875717163, 0.8614184856414795
        ],
        "float64",
    ).reshape(6, 4),
    "inputs/grad.y": np.array(
        [
            1.6606700420379639, 2.0849192142486572, 0.869740903377533, 0.8394473195075989,
            -0.9028722643852234, -0.05160237476229668
        ],
        "float64",
    ),
    "exact/grad.x": np.array(
        [
            -0.291091626159319, 0.14016164957594598, -0.0317358563135385, 0.5590833535563691,
            -0.21804092591258947, 0.24661567182669575, 0.6016484530396812, -0.31641132254896964,
            -0.2708449395754458, -0.0951587119416245, -0.18107432852153738, 0.061698777001275275,
            0.0063875008484806425, 0.14948579160098677, -0.3650923561730654, -0.14313881361622272,
            0.05430522487281784, -0.1277004586114613, 0.0958106524728914, -0.04856621026074164,
            -0.008696617457386903, 0.009952260361739738, -0.0031480332630397416, -0.012494447282547899
        ],
        "float64",
    ).reshape(6, 4),
    "torch/grad.x": np.array(
        [
            -0.291091626159319, 0.14016164957594598, -0.03173585631353851, 0.5590833535563691,
            -0.2180409259125896, 0.24661567182669575, 0.601648453039681, -0.31641132254896953,
            -0.2708449395754458, -0.09515871194162448, -0.18107432852153738, 0.061698777001275275,
            0.043238043080734534, 0.11684508870998045, -0.31097394750054536, -0.1583951280009854,
            0.05430522487281783, -0.1277004586114613, 0.0958106524728914, -0.048566210260741635,
            -0.008696617457386903, 0.009952260361739736, -0.0031480332630397408, -0.012494447282547897
        ],
        "float64",
    ).reshape(6, 4),
    "exact/y": np.array(
        [
            -0.08315617961904619, -0.6402479311839164, 0.22488697643432032, -0.1780514929541137,
            0.23298334551887584, -0.4092041427243818
        ],
        "float64",
    ),
    "torch/y": np.array(
        [
            -0.0831561796190462, -0.6402479311839163, 0.22488697643432026, -0.1780514929541137,
            0.23298334551887587, -0.40920414272438177
        ],
        "float64",
    ),
    "exact/grad.other": np.array(
        [
            -0.23851814810392885, 0.48146181593414905, -0.10240171357618316, -0.19486700315691544,
            0.2844262323633171, 0.11593804565571475, 0.3295032215303121, -0.3696949597740529,
            -0.18006478957991479, -0.16343893556508796, 0.36022423998315933, 0.014669443596777947,
            0.037906678419623994, -0.013879218063521525, 0.008126500014393337, -0.03353066771269615,
            0.33624795952171677, 0.15235986251148273, -0.10743998793298593, -0.23659038960817713,
            0.010440619328260403, 0.009936373847241482, 0.020896031569590596, -0.0046172586812969615
        ],
        "float64",
    ).reshape(6, 4),
    "torch/grad.other": np.array(
        [
            -0.2385181481039289, 0.4814618159341491, -0.10240171357618318, -0.1948670031569155,
            0.2844262323633171, 0.11593804565571471, 0.32950322153031203, -0.36969495977405287,
            -0.09544850484908919, -0.12791301212740355, 0.3889834615602861, -0.0030814726360078176,
            0.03790667841962399, -0.013879218063521527, 0.00812650001439335, -0.03353066771269615,
            0.27700611291723876, 0.2103136609486355, -0.15151419446588216, -0.18914096793031757,
            0.004023366991062278, 0.012966540774618873, 0.015199230586413898, -0.009970181803189251
        ],
        "float64",
    ).reshape(6, 4),
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


def cosine_similarity(x, other, dim=1, eps=1e-08):
    return paddle.nn.functional.cosine_similarity(x, other, dim, eps)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    other = leaf(DATA["inputs/other"], True)
    result = cosine_similarity(x=x, other=other, dim=1, eps=2.0)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, other])
    outputs.update(zip(["grad.x", "grad.other"], returned))
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
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=8.435554553463092e-17, largest=1.6994869053710282e-16, limit=8.0),
    (
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=1.0551189036778778e-16, largest=1.7722639761991177e-16, limit=8.0),
    (
        check("grad.other", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.other", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.other", rms=8.138874700158368e-17, largest=1.9079247730313664e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
