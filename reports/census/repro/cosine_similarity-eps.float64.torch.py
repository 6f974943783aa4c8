"""cosine_similarity of torch 2.13.0+cpu follows a different convention: epsilon is outside the square
root instead of inside, or the reverse (float64: grad.x, grad.other)

case        cosine_similarity-eps (configs/census/../ops/loss.yaml:57)
seen with   torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
            Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x      semantic: the error of keras is 4.35e+15 times and the error of torch is 3.51e+14 times
            that of a careful implementation in float64 (the largest: 0.677 in bfloat16, 0.67 in
            float16, 0.669 in float32, 0.669 in float64): the error is the same in every precision,
            so the formula differs
grad.other  semantic: the error of keras is 2.08e+15 times and the error of torch is 6.43e+14 times
            that of a careful implementation in float64 (the largest: 0.24 in bfloat16, 0.236 in
            float16, 0.236 in float32, 0.236 in float64): the error is the same in every precision,
            so the formula differs
cause       eps-placement: epsilon is outside the square root instead of inside, or the reverse
            (grad.x and grad.other)
exact       the textbook formula in extended precision on the same inputs, rounded to float64
keras       the result of keras 3.15.1 in the same run
paddle      the result of paddle 3.3.1 in the same run
oneflow     the result of oneflow 0.9.0 in the same run
mlx         the result of mlx 0.32.4 in the same run
jax         the result of jax 0.10.2 in the same run
run         python cosine_similarity-eps.float64.torch.py (needs torch and numpy)
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

import torch

torch.set_num_threads(1)
# TF32 keeps 10 bits of the operands: a mode, not a default, when precision is compared.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

DATA = {
    "inputs/x": np.array(
        [
            -0.9609375, 2.078125, -0.443359375, -1.046875, 1.859375, -0.02783203125, 0.1533203125,
            -1.0078125, -0.8828125, -0.80078125, 1.765625, 0.07177734375, 0.248046875, -0.2197265625,
            0.36328125, -0.1025390625, -2.234375, -1.015625, 0.71484375, 1.578125, -0.84375,
            -0.80078125, -1.6875, 0.373046875
        ],
        "float64",
    ).reshape(6, 4),
    "inputs/other": np.array(
        [
            -1.1875, 0.423828125, -0.0986328125, 2.546875, -2.15625, 0.7109375, 1.5546875,
            -0.045654296875, -1.515625, -0.63671875, -0.515625, 0.31640625, 0.042724609375, 1.0,
            -2.4375, -0.95703125, -0.70703125, 0.6953125, -0.52734375, 0.56640625, 1.03125, -0.48828125,
            0.91796875, 0.86328125
        ],
        "float64",
    ).reshape(6, 4),
    "inputs/grad.y": np.array(
        [
            1.6640625, 2.078125, 0.87109375, 0.83984375, -0.90234375, -0.051513671875
        ],
        "float64",
    ),
    "exact/grad.x": np.array(
        [
            -0.29206935702375997, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177882, 0.24489221413106246, 0.5990362127837535, -0.3150594055722799,
            -0.27157748340954513, -0.09552406581356651, -0.18161507356268045, 0.061554748734325246,
            0.00639969202064158, 0.14978936295170237, -0.3651115721947745, -0.14335310126237139,
            0.054484136449027096, -0.12791982521371587, 0.09573527097871579, -0.04854896805897924,
            -0.008649078029713606, 0.009929101564501391, -0.003147516862325242, -0.012486516421150347
        ],
        "float64",
    ).reshape(6, 4),
    "keras/grad.x": np.array(
        [
            -0.29206935702376, 0.14075421636629432, -0.031908996978866545, 0.5610148361634884,
            -0.21649714488177885, 0.24489221413106244, 0.5990362127837534, -0.3150594055722799,
            -0.3100700682595339, -0.10906336282148404, -0.20735665398157732, 0.0702793357613088,
            0.6098112543992779, 0.07881224115332486, -0.5980008060129941, -0.8123523378944325,
            0.08662856590270718, -0.20338967873991232, 0.15221695289145587, -0.07719178008704233,
            -0.010175709354767241, 0.011681667262941366, -0.0037030787177799503, -0.014690486259766303
        ],
        "float64",
    ).reshape(6, 4),
    "paddle/grad.x": np.array(
        [
            -0.29206935702376, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177885, 0.2448922141310625, 0.5990362127837535, -0.3150594055722799,
            -0.310070068259534, -0.10906336282148403, -0.20735665398157732, 0.0702793357613088,
            0.017940998077392578, 0.419921875, -1.0235595703125, -0.40187835693359375,
            0.0866285659027072, -0.20338967873991232, 0.15221695289145587, -0.07719178008704236,
            -0.010175709354767241, 0.011681667262941368, -0.003703078717779952, -0.014690486259766308
        ],
        "float64",
    ).reshape(6, 4),
    "oneflow/grad.x": np.array(
        [
            -0.29206935702376, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177874, 0.2448922141310625, 0.5990362127837535, -0.31505940557227996,
            -0.310070068259534, -0.10906336282148403, -0.20735665398157732, 0.0702793357613088,
            0.017940998077392578, 0.419921875, -1.0235595703125, -0.40187835693359375,
            0.0866285659027072, -0.20338967873991232, 0.15221695289145587, -0.07719178008704236,
            -0.01017570935476724, 0.011681667262941368, -0.0037030787177799495, -0.014690486259766308
        ],
        "float64",
    ).reshape(6, 4),
    "mlx/grad.x": np.array(
        [
            -0.29206935702375997, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177885, 0.2448922141310625, 0.5990362127837535, -0.3150594055722799,
            -0.3100700682595339, -0.10906336282148402, -0.20735665398157727, 0.07027933576130879,
            0.017940998077392578, 0.419921875, -1.0235595703125, -0.40187835693359375,
            0.08662856590270719, -0.20338967873991232, 0.15221695289145587, -0.07719178008704237,
            -0.010175709354767241, 0.011681667262941366, -0.003703078717779952, -0.014690486259766307
        ],
        "float64",
    ).reshape(6, 4),
    "jax/grad.x": np.array(
        [
            -0.29206935702375997, 0.1407542163662943, -0.03190899697886654, 0.5610148361634884,
            -0.21649714488177885, 0.24489221413106244, 0.5990362127837534, -0.3150594055722799,
            -0.2715774834095451, -0.09552406581356651, -0.18161507356268045, 0.06155474873432525,
            0.00639969202064158, 0.14978936295170237, -0.3651115721947745, -0.14335310126237139,
            0.0544841364490271, -0.12791982521371587, 0.09573527097871579, -0.04854896805897924,
            -0.008649078029713604, 0.00992910156450139, -0.003147516862325242, -0.012486516421150347
        ],
        "float64",
    ).reshape(6, 4),
    "exact/grad.other": np.array(
        [
            -0.24017621125989963, 0.4829423672112863, -0.1031733819069344, -0.19634653828003704,
            0.28246862752506446, 0.11524793760786471, 0.32829028345416816, -0.36688983396323366,
            -0.18039430520515437, -0.1636320025091002, 0.36078861041030874, 0.014667014859047397,
            0.03796622753566901, -0.013920271950895855, 0.008121619202778386, -0.033535609748129275,
            0.33555577034192025, 0.1525253501554183, -0.10735438107092904, -0.2370009287030346,
            0.010431870534382338, 0.009900617868279534, 0.020863741068764676, -0.00461223905571071
        ],
        "float64",
    ).reshape(6, 4),
    "keras/grad.other": np.array(
        [
            -0.24017621125989966, 0.48294236721128625, -0.1031733819069344, -0.196346538280037,
            0.28246862752506446, 0.11524793760786473, 0.3282902834541681, -0.36688983396323366,
            -0.09531473244657573, -0.1403410963513941, 0.4495688916757676, -0.006353348066016024,
            0.15117275073340633, -0.0554273083834039, 0.03233841218856373, -0.13353105383946345,
            0.3851625462491297, 0.38841652011927413, -0.2813490655827384, -0.2579713349228137,
            0.0034168993448183416, 0.01584147018341033, 0.016662927213073064, -0.012840115607139924
        ],
        "float64",
    ).reshape(6, 4),
    "paddle/grad.other": np.array(
        [
            -0.24017621125989963, 0.4829423672112863, -0.1031733819069344, -0.196346538280037,
            0.2824686275250645, 0.11524793760786473, 0.3282902834541681, -0.36688983396323377,
            -0.09531473244657573, -0.14034109635139408, 0.44956889167576763, -0.006353348066016028,
            0.10416030883789062, -0.09226799011230469, 0.15254974365234375, -0.04305839538574219,
            0.3851625462491297, 0.3884165201192741, -0.28134906558273837, -0.25797133492281366,
            0.003416899344818346, 0.01584147018341033, 0.016662927213073074, -0.01284011560713992
        ],
        "float64",
    ).reshape(6, 4),
    "oneflow/grad.other": np.array(
        [
            -0.24017621125989963, 0.4829423672112863, -0.1031733819069344, -0.196346538280037,
            0.2824686275250645, 0.11524793760786473, 0.3282902834541682, -0.36688983396323377,
            -0.09531473244657573, -0.14034109635139408, 0.44956889167576763, -0.006353348066016028,
            0.10416030883789062, -0.09226799011230469, 0.15254974365234375, -0.04305839538574219,
            0.3851625462491297, 0.3884165201192741, -0.28134906558273837, -0.25797133492281366,
            0.003416899344818345, 0.01584147018341033, 0.016662927213073067, -0.012840115607139923
        ],
        "float64",
    ).reshape(6, 4),
    "mlx/grad.other": np.array(
        [
            -0.24017621125989963, 0.48294236721128625, -0.10317338190693438, -0.196346538280037,
            0.2824686275250646, 0.11524793760786473, 0.3282902834541681, -0.3668898339632337,
            -0.09531473244657573, -0.14034109635139408, 0.4495688916757675, -0.006353348066016021,
            0.10416030883789062, -0.09226799011230469, 0.15254974365234375, -0.04305839538574219,
            0.38516254624912977, 0.3884165201192741, -0.28134906558273837, -0.2579713349228137,
            0.0034168993448183468, 0.01584147018341033, 0.01666292721307307, -0.01284011560713992
        ],
        "float64",
    ).reshape(6, 4),
    "jax/grad.other": np.array(
        [
            -0.24017621125989966, 0.48294236721128625, -0.1031733819069344, -0.196346538280037,
            0.28246862752506446, 0.11524793760786473, 0.3282902834541681, -0.36688983396323366,
            -0.18039430520515437, -0.1636320025091002, 0.36078861041030874, 0.014667014859047397,
            0.037966227535669, -0.01392027195089585, 0.008121619202778381, -0.033535609748129275,
            0.33555577034192025, 0.15252535015541832, -0.10735438107092904, -0.2370009287030346,
            0.010431870534382338, 0.009900617868279534, 0.020863741068764676, -0.00461223905571071
        ],
        "float64",
    ).reshape(6, 4),
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


def cosine_similarity(x, other, dim=1, eps=1e-08):
    return torch.nn.functional.cosine_similarity(x, other, dim, eps)


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


def check(tensor, label, rtol, atol, swapped=False):
    """Whether a tensor violates |actual - expected| <= atol + rtol * |expected|; prints the worst element.

    `swapped`: the tensor computed here is `expected`.
    """
    live, other = RESULT.get(tensor), DATA[f"{label}/{tensor}"]
    here, there = described(live), described(other, "float64")
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
        check("grad.x", "keras", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.x", "paddle", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.x", "oneflow", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.x", "mlx", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.x", "jax", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=6.920667126419788e-17, largest=1.5390249838431735e-16, limit=8.0),
    (
        check("grad.other", "keras", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.other", "paddle", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.other", "oneflow", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.other", "mlx", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.other", "jax", rtol=1e-07, atol=1e-07, swapped=True)
        | check("grad.other", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.other", rms=7.349598029234784e-17, largest=2.0458894994801469e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
