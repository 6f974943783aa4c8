"""multi_head_attention of torch 2.13.0+cpu exceeds the error bound in float32: grad.v_proj.weight

case                multi_head_attention-1 (torch-paddle.yaml:196)
seen with           torch 2.13.0+cpu, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
                    Linux-6.18.44-fc-v657-x86_64-with-glibc2.36, AMD EPYC
grad.v_proj.weight  close: it passes only because the tolerance is loose: the error of torch is 489
                    times that of a careful implementation in float32
cause               reference-edit: one step differs from the reference (grad.v_proj.weight)
exact               the textbook formula in extended precision on the same inputs, rounded to
                    float64
run                 python multi_head_attention-1.float32.torch.py (needs torch and numpy)
exit code           1 while the difference is there, 0 once it is fixed
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
    "inputs/x": np.array([[[-30.0], [-30.0]]], "float32"),
    "inputs/q_proj.weight": np.array([[1.0]], "float32"),
    "inputs/k_proj.weight": np.array([[1.0]], "float32"),
    "inputs/v_proj.weight": np.array([[0.0]], "float32"),
    "inputs/out_proj.weight": np.array([[1.0]], "float32"),
    "inputs/grad.y": np.array([[[1.0], [0.0]]], "float32"),
    "exact/grad.v_proj.weight": np.array([[-30.0]], "float64"),
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
    """Whether a gradient can go through a tensor."""
    return tensor.requires_grad


def gradients(outputs, upstream, leaves):
    pairs = [(y, dy) for y, dy in zip(outputs, upstream) if has_history(y)]
    if pairs:
        torch.autograd.backward(*map(list, zip(*pairs)))
    return [leaf.grad for leaf in leaves]


def heads_first(x):
    """[N, L, heads, d] to [N, heads, L, d], or back."""
    return x.transpose(1, 2)


def linear(x, weight, bias=None):
    return torch.nn.functional.linear(x, weight, bias)


def projected(x, name, tensors):
    return linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))


def scaled_dot_product_attention(query, key, value, attn_mask=None, keep_mask=None, **options):
    mask = attn_mask if keep_mask is None else keep_mask.bool()
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)


def multi_head_attention(x, num_heads, **tensors):
    n, length, _ = x.shape
    query, key, value = (
        heads_first(projected(x, name, tensors).reshape((n, length, num_heads, -1)))
        for name in ("q_proj", "k_proj", "v_proj")
    )
    mixed = heads_first(scaled_dot_product_attention(query=query, key=key, value=value))
    return projected(mixed.reshape((n, length, -1)), "out_proj", tensors)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    q_proj_weight = leaf(DATA["inputs/q_proj.weight"], True)
    k_proj_weight = leaf(DATA["inputs/k_proj.weight"], True)
    v_proj_weight = leaf(DATA["inputs/v_proj.weight"], True)
    out_proj_weight = leaf(DATA["inputs/out_proj.weight"], True)
    result = multi_head_attention(
        x=x, **{"q_proj.weight": q_proj_weight, "k_proj.weight": k_proj_weight, "v_proj.weight": v_proj_weight, "out_proj.weight": out_proj_weight},
        num_heads=1,
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x, q_proj_weight, k_proj_weight, v_proj_weight, out_proj_weight])
    outputs.update(zip(["grad.x", "grad.q_proj.weight", "grad.k_proj.weight", "grad.v_proj.weight", "grad.out_proj.weight"], returned))
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
    here, there = described(live), described(other, "float32")
    if here != there:
        print(f"{tensor}: torch has {here}, {side} has {there}")
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
    values = {"torch": live, side: other, "exact": DATA[f"exact/{tensor}"]}
    print(f"{tensor} {list(live.shape)} against {side}: {int((outside | strange).sum())} of {a.size} elements", end=" ")
    print(f"exceed rtol={rtol} atol={atol}; largest difference {float(diff.max())}")
    print(f"    worst at {index}:", ", ".join(f"{name} {float(v.ravel()[worst])}" for name, v in values.items()))
    return bool((outside | strange).any())


def inaccurate(tensor, rms, largest, limit):
    """Whether an error is `limit` times that of a careful implementation (root mean square, largest)."""
    live, exact = RESULT.get(tensor), DATA[f"exact/{tensor}"]
    if described(live) != described(exact, "float32"):
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
    check("grad.v_proj.weight", "exact", rtol=0.0001, atol=1e-05),
    inaccurate("grad.v_proj.weight", rms=1.7881393432617188e-06, largest=1.7881393432617188e-06, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
