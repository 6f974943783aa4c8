"""lstm of torch 2.13.0+cpu is less accurate than a careful implementation in float16: y, h, c

case         lstm (configs/census/../ops/recurrent.yaml:5)
seen with    torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
             Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y            unstable: the error of torch is 10.2 times that of a careful implementation in float16
             (the largest: 0.00214 in bfloat16, 0.000881 in float16, 5.21e-08 in float32, 9.02e-17
             in float64): the error changes with the precision, so the algorithm loses digits
h            rounding: rounding alone: the tolerance is tighter than float16 allows: the error is
             torch's 1.63 times that of a careful implementation, the error bound is 8
c            rounding: rounding alone: the tolerance is tighter than float16 allows: the error is
             torch's 3.8 times that of a careful implementation, the error bound is 8
cause        reduced-precision: computed in or through a lower precision (y)
cause        rounding: rounding: the tolerance is smaller than the rounding error of this case (h
             and c)
exact        the textbook formula in extended precision on the same inputs, rounded to float64
tensorflow   the result of tensorflow 2.21.0 in the same run
onnxruntime  the result of onnxruntime 1.31.1 in the same run
mindspore    the result of mindspore 2.10.0 in the same run
keras        the result of keras 3.15.1 in the same run
mlx          the result of mlx 0.32.4 in the same run
run          python lstm.float16.torch.py (needs torch and numpy)
exit code    1 while the difference is there, 0 once it is fixed
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
    "exact/y": np.array(
        [
            -0.330843547584117, 0.06557019456424383, 0.0486445119570597, 0.41986161859151533,
            0.04503635085610185, 0.13528056699628627, -0.8557948368005445, -0.10036028880069152,
            -0.07460622662616567, 0.16762393523540758, 0.31230683184137903, -0.05426542032000165,
            -0.2244632710706221, -0.03370449534460958, -0.747999004954733, -0.22446992687480538,
            -0.002353569261505768, -0.4848513171280651, -0.15550133298746088, 0.06887442645434834,
            -0.06662901053283093, 0.04168911600932195, 0.11093166996959895, -0.11657361340165048
        ],
        "float64",
    ).reshape(4, 2, 3),
    "tensorflow/y": np.array(
        [
            -0.3308, 0.06555, 0.04865, 0.42, 0.04504, 0.1353, -0.856, -0.10034, -0.0746, 0.1676, 0.3123,
            -0.05426, -0.2245, -0.0337, -0.748, -0.2245, -0.002354, -0.4849, -0.1555, 0.06885, -0.06665,
            0.0417, 0.11096, -0.1166
        ],
        "float16",
    ).reshape(4, 2, 3),
    "onnxruntime/y": np.array(
        [
            -0.3308, 0.06555, 0.04865, 0.42, 0.04504, 0.1353, -0.856, -0.10034, -0.0746, 0.1676, 0.3123,
            -0.05426, -0.2245, -0.0337, -0.748, -0.2245, -0.002354, -0.4849, -0.1555, 0.06885, -0.06665,
            0.0417, 0.11096, -0.1166
        ],
        "float16",
    ).reshape(4, 2, 3),
    "mindspore/y": np.array(
        [
            -0.3308, 0.06555, 0.04865, 0.42, 0.04504, 0.1353, -0.856, -0.10034, -0.0746, 0.1676, 0.3123,
            -0.0543, -0.2245, -0.0337, -0.748, -0.2245, -0.002354, -0.4849, -0.1555, 0.06885, -0.06665,
            0.0417, 0.1109, -0.1166
        ],
        "float16",
    ).reshape(4, 2, 3),
    "keras/y": np.array(
        [
            -0.3308, 0.06555, 0.04865, 0.42, 0.04504, 0.1353, -0.856, -0.10034, -0.0746, 0.1676, 0.3123,
            -0.05426, -0.2245, -0.0337, -0.748, -0.2245, -0.002354, -0.4849, -0.1555, 0.06885, -0.06665,
            0.0417, 0.11096, -0.1166
        ],
        "float16",
    ).reshape(4, 2, 3),
    "mlx/y": np.array(
        [
            -0.3308, 0.06555, 0.04865, 0.42, 0.04504, 0.1353, -0.856, -0.10034, -0.0746, 0.1676, 0.3123,
            -0.05426, -0.2245, -0.0337, -0.748, -0.2245, -0.002354, -0.4849, -0.1555, 0.06885, -0.06665,
            0.0417, 0.11096, -0.1166
        ],
        "float16",
    ).reshape(4, 2, 3),
    "exact/h": np.array(
        [
            -0.15550133298746088, 0.06887442645434834, -0.06662901053283093, 0.04168911600932195,
            0.11093166996959895, -0.11657361340165048
        ],
        "float64",
    ).reshape(2, 3),
    "exact/c": np.array(
        [
            -0.5965249528645385, 0.16441982557462836, -0.7333662127561197, 0.056498076065269326,
            0.22831656306581768, -1.1212759454293804
        ],
        "float64",
    ).reshape(2, 3),
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
    """Whether a tensor can be differentiated."""
    return tensor.requires_grad


def gradients(outputs, grad_outputs, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, grad_outputs) if has_history(y)]
    if pairs:
        torch.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def states(x, weights, *given):
    """The initial states of a single layer, zeros if none are given."""
    zeros = x.new_zeros((x.shape[1], weights["weight_hh"].shape[1]))
    return [(zeros if state is None else state).unsqueeze(0) for state in given]


def recurrent(weights):
    """The weights, and the options of a single layer in one direction, without dropout, steps first."""
    flat = [weights[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if name in weights]
    return flat, "bias_ih" in weights, 1, 0.0, False, False, False


def lstm(x, h0=None, c0=None, **weights):
    y, h, c = torch.lstm(x, states(x, weights, h0, c0), *recurrent(weights))
    return {"y": y, "h": h[0], "c": c[0]}


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    weight_ih = leaf(DATA["inputs/weight_ih"], True)
    weight_hh = leaf(DATA["inputs/weight_hh"], True)
    bias_ih = leaf(DATA["inputs/bias_ih"], True)
    bias_hh = leaf(DATA["inputs/bias_hh"], True)
    h0 = leaf(DATA["inputs/h0"], True)
    c0 = leaf(DATA["inputs/c0"], True)
    result = lstm(
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


def check(tensor, label, rtol, atol, swapped=False):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element.

    `swapped`: the tensor computed here is `expected`.
    """
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "float16")
    if here != there:
        print(f"{tensor}: torch has {here}, {label} has {there}")
        return here != there
    a, e = (np.asarray(values, "float64").ravel() for values in ((other, live) if swapped else (live, other)))
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(e)
        strange = ~finite & (a != e) & ~(np.isnan(a) & np.isnan(e))
        diff = np.where(finite, np.abs(a - e), 0.0)
        allowed = np.where(finite, atol + rtol * np.abs(e), np.inf)
        outside = diff > allowed
        excess = np.where(diff > 0, diff / allowed, 0.0)
    worst = int((strange if strange.any() else excess).argmax())
    index = [int(i) for i in np.unravel_index(worst, live.shape)]
    values = {"torch": live, label: other, "exact": DATA[f"exact/{tensor}"]}
    n_wrong = int((outside | strange).sum())
    print(f"{tensor} {list(live.shape)} against {label}: {n_wrong} of {a.size} elements", end=" ")
    got, wanted = ("a number" if np.isfinite(v[worst]) else str(v[worst]).replace("nan", "NaN") for v in (a, e))
    odd = f"{got} where {wanted} is expected"
    print(f"exceed rtol={rtol} atol={atol};", odd if strange.any() else f"largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit, part=(), where=""):
    """Whether an error, of a part, is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float16"):
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
    (
        check("y", "exact", rtol=0.001, atol=1e-05)
        | check("y", "tensorflow", rtol=0.001, atol=1e-05, swapped=True)
        | check("y", "onnxruntime", rtol=0.001, atol=1e-05, swapped=True)
        | check("y", "mindspore", rtol=0.001, atol=1e-05, swapped=True)
        | check("y", "keras", rtol=0.001, atol=1e-05, swapped=True)
        | check("y", "mlx", rtol=0.001, atol=1e-05, swapped=True)
    )
    and inaccurate(
        "y", rms=8.606361194973026e-05, largest=8.606361194973026e-05, limit=8.0,
        part=np.s_[0, 1, 2], where=" in [0, 1, 2]",
    ),
    check("h", "exact", rtol=0.001, atol=1e-05),
    check("c", "exact", rtol=0.001, atol=1e-05),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
