"""grid_sample of torch 2.13.0+cpu is less accurate than a careful implementation in bfloat16: y,
grad.x

case       grid_sample-nearest (configs/census/../ops/resample.yaml:19)
seen with  torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          unstable: the error of torch is 425 times that of a careful implementation in bfloat16
           (the largest: 1.03 in bfloat16, 0 in float16, 0 in float32, 0 in float64): the error
           changes with the precision, so the algorithm loses digits
grad.x     unstable: the error of torch is 505 times that of a careful implementation in bfloat16
           (the largest: 0.879 in bfloat16, 0 in float16, 0 in float32, 0 in float64): the error
           changes with the precision, so the algorithm loses digits
cause      reduced-precision: computed in or through a lower precision (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python grid_sample-nearest.bfloat16.torch.py (needs torch and numpy)
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
            -0.29296875, -0.84765625, 1.8359375, 0.3046875, 1.4375, -0.016845703, -0.083496094,
            -0.9140625, -0.46289062, -0.22851562, -0.20117188, 0.80859375, -0.88671875, 0.58984375,
            1.046875, -0.24902344, -1.5390625, 2.1875, 0.74609375, 0.017578125, 0.796875, -2.0,
            1.5703125, -0.58984375, -0.5, 0.2109375, 2.46875, 0.18847656, 0.53125, -1.0703125, 1.15625,
            -0.032714844, -0.32421875, -1.4453125, -0.8515625, -0.3203125, -1.46875, 0.31640625,
            1.2421875, -0.23535156, -1.1328125, -0.4921875, -0.80078125, 0.81640625, 0.051757812,
            0.19238281, -0.19921875, 0.012268066, -0.05078125, 1.203125, 0.6875, -0.20117188,
            0.69140625, -0.36914062, -1.6796875, 1.4609375, -1.1484375, -0.60546875, -2.03125,
            0.2578125, -0.16210938, -0.20214844, 0.1328125, -0.0703125, -0.73046875, 0.54296875,
            0.029052734, -1.671875, -0.29296875, 1.328125, 0.390625, 0.65234375, 1.4765625, -1.09375,
            1.3046875, 0.62890625, -0.19824219, 0.107421875, -2.359375, -1.09375
        ],
        "float32",
    ).reshape(2, 2, 4, 5),
    "inputs/grid": np.array(
        [
            -0.625, -0.12158203, 0.828125, 1.0390625, 0.953125, 0.50390625, 0.31835938, -0.14648438,
            0.47460938, -0.47070312, -0.040039062, 0.17871094, -0.6640625, 0.859375, 0.57421875,
            -0.68359375, 0.21191406, 1.1796875, -0.94921875, 0.36132812, 0.41796875, -0.59765625,
            0.10888672, -0.390625, -1.1875, 0.7734375, 0.78125, 0.5625, -0.69140625, 0.546875, -0.6875,
            0.98046875, 0.84765625, 0.94140625, -1.15625, 0.01586914, 0.24804688, -0.97265625,
            -0.95703125, -0.07324219, -0.734375, 0.94921875, 0.94140625, 0.65625, -0.067871094,
            0.13378906, 0.37109375, 1.03125
        ],
        "float32",
    ).reshape(2, 3, 4, 2),
    "inputs/grad.y": np.array(
        [
            -0.859375, 0.94921875, -0.87890625, 0.53125, 0.48046875, -0.38476562, 0.24511719, 2.03125,
            -1.0078125, 1.2109375, -1.3125, -0.703125, 0.15722656, 1.0703125, -0.072753906, -1.0078125,
            0.6953125, 2.265625, -1.4765625, 1.6484375, -1.3984375, -0.875, -0.34570312, -0.20214844,
            -2.890625, 1.34375, 1.109375, -1.765625, -0.34765625, -0.828125, 0.984375, -1.2734375,
            0.625, -1.46875, -0.41992188, -0.23339844, 0.46289062, -0.30078125, -1.0625, -0.85546875,
            -0.25976562, 0.06591797, 1.4609375, 0.14453125, -1.0078125, 0.21582031, 1.109375, 1.296875
        ],
        "float32",
    ).reshape(2, 2, 3, 4),
    "exact/y": np.array(
        [
            -0.016845703125, 0.0, 0.017578125, -0.462890625, -0.462890625, -0.88671875, -0.2490234375,
            0.3046875, 0.0, -0.201171875, 0.3046875, -0.9140625, 0.2109375, 0.0, -0.2353515625, 0.53125,
            0.53125, -0.32421875, -0.3203125, -0.58984375, 0.0, 1.15625, -0.58984375, 0.1884765625, 0.0,
            0.2578125, 1.4609375, 1.4609375, 0.2578125, 0.0, 0.81640625, 0.1923828125, 1.4609375,
            0.2578125, 0.69140625, 0.0, 0.0, -1.09375, 0.62890625, 0.62890625, -1.09375, 0.0,
            -0.0703125, 0.54296875, 0.62890625, -1.09375, 1.4765625, 0.0
        ],
        "float64",
    ).reshape(2, 2, 3, 4),
    "exact/grad.x": np.array(
        [
            0.0, 0.0, 0.0, 0.71875, 0.0, -0.859375, 0.0, -0.703125, 1.01171875, 0.0, 1.2109375, 0.0,
            -0.384765625, 0.0, 0.0, 0.2451171875, 0.0, 0.0, 0.0, -0.87890625, 0.0, 0.0, 0.0,
            1.302734375, 0.0, 0.1572265625, 0.0, -0.2021484375, -0.3125, 0.0, -0.875, 0.0, 2.265625,
            0.0, 0.0, -1.4765625, 0.0, 0.0, 0.0, -0.07275390625, 0.0, 0.0, 0.0, 0.984375, 0.0,
            -1.2734375, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.419921875, 0.0, 0.0, -0.03125, 0.0, 0.0, 0.0,
            -0.47265625, 0.0, 0.0, 0.0, 1.4609375, 0.0, 0.14453125, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            1.109375, 0.0, 0.0, -2.92578125, 0.0, 0.0, 0.0, -0.3447265625
        ],
        "float64",
    ).reshape(2, 2, 4, 5),
}

# NumPy has no bfloat16: float32 holds its numbers, and uint16 the bits that a framework's tensors are made of.
DATA = dict(DATA)
for name, values in DATA.items():
    if name.startswith("inputs/") and values.dtype == "float32":
        DATA[name] = np.asarray(values.view("uint32") >> 16, "uint16")


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


def grid_sample(x, grid, **options):
    return torch.nn.functional.grid_sample(x, grid, **options)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    grid = leaf(DATA["inputs/grid"], True)
    result = grid_sample(x=x, grid=grid, mode="nearest", padding_mode="zeros", align_corners=False)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, grid])
    outputs.update(zip(["grad.x", "grad.grid"], returned))
    return {name: to_numpy(value) for name, value in outputs.items() if value is not None}


def described(values, dtype=""):
    """Shape and dtype; integers of any size are the same."""
    if values is None:
        return "no such tensor"
    own = str(values.dtype).rpartition(".")[2]
    own = "bfloat16" if own == "uint16" else own
    kind = "integers" if own.lstrip("u").startswith("int") else dtype or own
    return f"shape {[int(n) for n in values.shape]} {kind}"


def numbers(values):
    """The numbers of a bfloat16 tensor."""
    return (values.view("uint16").astype("uint32") << 16).view("float32")


def check(tensor, label, rtol, atol):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element."""
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "bfloat16")
    if here != there:
        print(f"{tensor}: torch has {here}, {label} has {there}")
        return here != there
    live = numbers(live)
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
    values = {"torch": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
    if described(live) != described(exact, "bfloat16"):
        return True
    live = numbers(live).astype("float64")
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
    check("y", "exact", rtol=0.016, atol=1e-05)
    and inaccurate("y", rms=0.0010674260834647362, largest=0.0024224853515625, limit=8.0),
    check("grad.x", "exact", rtol=0.05, atol=0.001)
    and inaccurate("grad.x", rms=0.0010867482016094915, largest=0.00480010986328125, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
