"""grid_sample of torch 2.13.0+cpu is less accurate than a careful implementation in bfloat16: y,
grad.x, grad.grid

case       grid_sample-bicubic (configs/census/../ops/resample.yaml:20)
seen with  torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          unstable: the error of torch is 101 times that of a careful implementation in bfloat16
           (the largest: 0.0747 in bfloat16, 0.0109 in float16, 5.94e-07 in float32, 2.22e-16 in
           float64): the error changes with the precision, so the algorithm loses digits
grad.x     unstable: the error of torch is 445 times that of a careful implementation in bfloat16
           (the largest: 0.162 in bfloat16, 0.00665 in float16, 5.79e-07 in float32, 2.22e-16 in
           float64): the error changes with the precision, so the algorithm loses digits
grad.grid  unstable: the error of torch is 1.24e+03 times that of a careful implementation in
           bfloat16 (the largest: 0.58 in bfloat16, 0.0563 in float16, 4.87e-06 in float32, 3.55e-15
           in float64): the error changes with the precision, so the algorithm loses digits
cause      narrow-accumulation: sums are accumulated in a narrow format (grad.grid)
cause      unexplained: no known cause explains the error (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
run        python grid_sample-bicubic.bfloat16.torch.py (needs torch and numpy)
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
            0.14453125, 1.0390625, 0.022216797, -0.0019836426, -0.6875, -0.94921875, -1.796875,
            0.32617188, 1.3984375, -0.40039062, 1.40625, 0.08984375, 0.875, -1.453125, -0.71875,
            0.51953125, 0.23925781, 1.5390625, -0.53515625, -0.3671875, 1.3828125, 1.6015625,
            -0.67578125, 1.0625, -0.9140625, -0.68359375, 0.29101562, 1.1953125, 1.46875, -0.78125,
            -0.984375, -0.7734375, -0.29296875, -1.3828125, -0.26757812, -0.18261719, -1.5859375,
            -0.030273438, 0.07470703, 0.47070312, 2.578125, 0.20019531, 2.21875, 0.18359375, 0.7890625,
            -0.74609375, 0.9140625, -0.06225586, 0.98828125, 0.107421875, 0.14453125, 0.7578125,
            0.359375, -0.15625, -2.359375, -0.53515625, 1.21875, 0.5546875, -1.6015625, 0.6328125,
            0.57421875, -0.87890625, 0.953125, 0.2890625, 0.07714844, -1.2265625, 0.22265625,
            -0.97265625, -0.075683594, 0.104003906, -0.28125, 1.6796875, -0.73828125, -1.8828125,
            1.390625, 0.71484375, 0.640625, -1.9453125, -1.3046875, 1.078125
        ],
        "float32",
    ).reshape(2, 2, 4, 5),
    "inputs/grid": np.array(
        [
            -0.80859375, -0.9765625, 0.12011719, -1.1171875, 0.14257812, 0.93359375, 0.44726562,
            -0.27539062, 0.18164062, 0.328125, 0.036865234, -1.0078125, -0.37890625, 0.4765625, 1.15625,
            1.1640625, 1.03125, -0.7421875, -0.7734375, -0.93359375, -0.16601562, 1.0078125, 1.046875,
            -0.35546875, 0.99609375, -0.7578125, -0.18359375, -1.0078125, 0.41992188, -0.984375,
            -0.14257812, -0.34570312, 0.49023438, -0.8515625, 0.90625, 0.18945312, -0.59375, -0.5390625,
            -0.8046875, 0.640625, -0.78515625, 0.62890625, -0.4140625, -0.9921875, -0.22949219,
            0.16015625, 0.98828125, -0.23339844
        ],
        "float32",
    ).reshape(2, 3, 4, 2),
    "inputs/grad.y": np.array(
        [
            0.65234375, 0.43554688, 0.44140625, -0.40429688, -1.84375, 0.33007812, 1.1640625, 1.4921875,
            0.60546875, -0.75, -0.7734375, -0.37890625, 0.35546875, 0.46484375, -0.51171875, 0.9921875,
            1.9296875, -0.43945312, 1.1484375, 0.7421875, -1.40625, 0.22460938, 1.4921875, 0.38867188,
            -0.9453125, 0.23828125, -0.35742188, -1.2421875, 1.7421875, 0.73046875, -0.0107421875,
            -2.015625, -1.2421875, 0.3203125, 1.46875, -1.140625, 0.23632812, 0.45898438, -1.8046875,
            0.5546875, -0.21972656, -1.2734375, 0.66796875, 2.4375, 0.84375, 0.87109375, 1.8125,
            -1.0078125
        ],
        "float32",
    ).reshape(2, 2, 3, 4),
    "exact/y": np.array(
        [
            0.17754317486870647, -0.054807220272493046, 0.7200311665673746, 1.334470904116063,
            -0.13334928773983776, -0.06805565709894801, 0.38229471900847173, -0.00422818265809255,
            -0.3398356433562476, 0.2676080161587952, 0.6310627154556997, -0.28869772063469545,
            0.9575705195631937, -0.1553915872715664, 0.19118566978123167, 1.3394641336247364,
            -0.8979742043528669, -0.49648176926293724, -1.3587509101514599, 0.007904727740330575,
            -0.5351401545112164, 1.1818247646547948, -0.4131672941910728, -0.5001413729442895,
            0.46113036015727543, 0.7097566718850753, -0.009322817750856546, 0.48689983732461306,
            0.02335697386345359, -2.019374241963738, 0.9900680419929395, -0.4419954062719671,
            -0.37509348055818487, 0.04760593011271606, 0.6199914689308428, -0.08053563392512161,
            0.018365647707205154, 0.07282555779783549, 0.16777791348599952, -0.5055649185071556,
            0.161026414182061, 1.2967632609747382, -0.5137963298714929, 0.6106456273652574,
            0.6326144206318786, -0.563169402361095, 0.918617842617398, 0.10013517080088312
        ],
        "float64",
    ).reshape(2, 2, 3, 4),
    "exact/grad.x": np.array(
        [
            -0.13705215911705715, -0.06277673370597836, 0.2906025946317974, -0.002250555098151346,
            0.25222303069645374, 0.019884172053184705, -0.12397424876667579, 0.07928532169837436,
            -0.2931059507474571, -0.2025303824778331, -0.03233456263478291, 0.9738803040172298,
            -1.0997795724615835, -0.9504929854023342, 0.16588641726017778, 0.011542899998455208,
            0.39288021922022337, -0.20556869897488486, 0.031948275916440484, 0.027154365265806286,
            0.40109528138239237, 0.005875209388699263, -0.14190917621353524, 0.16547470113772378,
            -0.6520930566448989, -0.05648287429496025, -0.1007870513966538, -0.1539981137167551,
            0.8466826450885732, 0.2667320798702073, -0.016436673299009094, 0.48958109841240216,
            1.1805684710543118, 0.9818550248783269, -0.1798032309735177, -0.08629793461075413,
            1.031287072211108, 0.5154488352606964, -0.09581324799597872, 0.011701269351386483,
            0.007121872935511503, 0.15061696154473947, -0.26644861564761335, 1.3161086172653207,
            -0.2020791830454579, 0.13911448121263967, -0.32897889006760384, -0.755697309576161,
            0.0958182270423492, -0.6800930566485979, -0.9119002637535156, 0.9862111354728192,
            0.7701851198610049, -0.19331285969990777, 0.593074514251792, -2.907377231544819,
            -0.10879549327637227, -0.06489568970154685, 0.01582995542912071, -0.043735992649199314,
            0.25538609781485444, 0.977354870403866, 0.2346525164949607, -1.381602500712687,
            0.07526985110040466, 0.027167961877535982, 0.5197985379499435, 0.48939948447156156,
            0.23440905943618937, -0.7463999168798221, 0.5500491758121208, 1.1145490209947042,
            0.8039039251508286, 0.008566962526234472, -1.0841051460123463, 2.9686889737280664,
            -0.10972972813471488, -0.08217767572583932, 0.0031731295494140817, 0.07775902219388295
        ],
        "float64",
    ).reshape(2, 2, 4, 5),
    "exact/grad.grid": np.array(
        [
            1.6989153464879003, 1.6856547169161167, 0.6429860205165617, -1.0130022222703725,
            -1.8105107520095214, -0.7606182756226394, -3.9353755377649406, -2.335069079485383,
            7.442757748609398, -1.414785196181504, -0.6781127392452941, 0.895416464282415,
            2.7599584788980933, -2.481524308790181, 0.002927781504387661, -0.006681645834036853,
            -3.8395907432463963, 0.7469526565083, -1.1409632580803324, 0.34560824719309075,
            2.5093184209507116, 5.123928843792794, 0.6671110593469556, 0.09229514368950772,
            2.327118260094111, 0.002464083476308908, 2.9517326400353037, 0.9334967338354807,
            2.3269933315024143, -1.235873158907483, 1.3551554065676874, 3.133144339615026,
            2.0924813056730165, 1.0067556647162192, 7.121083441528914, -3.4910939447017797,
            -1.000716395786143, -0.609986421138666, -0.050956822033891847, 6.35271176976457,
            -1.6312726964979667, 3.096171607447128, -0.5172337651125758, -1.9846070588271902,
            -14.082003492639307, 3.544576181096352, 0.13939769193016965, 1.9218943344799206
        ],
        "float64",
    ).reshape(2, 3, 4, 2),
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
    result = grid_sample(x=x, grid=grid, mode="bicubic", padding_mode="zeros", align_corners=False)
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
    and inaccurate("y", rms=0.001284995402368187, largest=0.003749241963737937, limit=8.0),
    check("grad.x", "exact", rtol=0.05, atol=0.001)
    and inaccurate("grad.x", rms=0.0012468654222399843, largest=0.004870505347522609, limit=8.0),
    check("grad.grid", "exact", rtol=0.05, atol=0.001)
    and inaccurate("grad.grid", rms=0.005691398841469989, largest=0.023103286980111364, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
