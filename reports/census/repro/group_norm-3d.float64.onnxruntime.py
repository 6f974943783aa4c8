"""group_norm of onnxruntime 1.31.1 has only float32 accuracy in float64: y

case       group_norm-3d (configs/census/../ops/norm.yaml:8)
seen with  onnxruntime 1.31.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
y          degraded: the error of onnxruntime is 1.87e+08 times that of a careful implementation in
           float64, 6.16e-07 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
cause      reduced-precision: computed in or through a lower precision (y)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python group_norm-3d.float64.onnxruntime.py (needs onnxruntime and numpy;
           group_norm-3d.float64.onnxruntime.npz must be beside it)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import ctypes

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

import ml_dtypes
import numpy
import onnx
import onnxruntime

bfloat16 = numpy.dtype(ml_dtypes.bfloat16)

DATA = np.load(os.path.splitext(os.path.abspath(__file__))[0] + ".npz", allow_pickle=False)


def leaf(array, requires_grad):
    return array.view(bfloat16) if array.dtype == "uint16" else array


def to_numpy(tensor):
    return tensor.view("uint16") if tensor.dtype == bfloat16 else tensor


def scale(x, weight, shape):
    """The weight, or ones, since some operators need one."""
    return numpy.ones(shape, x.dtype) if weight is None else weight


def shift(x, bias, shape):
    """The bias, or zeros, since some operators need one."""
    return numpy.zeros(shape, x.dtype) if bias is None else bias


IR_VERSION = 10

OPSET = 24


def value(x):
    """A tensor for ONNX Runtime, which takes the bits of bfloat16."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    bits = x.view("uint16") if x.dtype == bfloat16 else x
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)


def array(value):
    """A result as an array; for bfloat16 ONNX Runtime exposes only the memory."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    memory = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return numpy.frombuffer(memory, bfloat16).reshape(value.shape()).copy()


def node(kind, *tensors, n_outputs=1, **attributes):
    """The outputs of one ONNX operator for these tensors; None is an input that is left out."""
    helper = onnx.helper
    # An empty name after the last input crashes ONNX Runtime 1.31.1 with a segmentation fault.
    while tensors[-1] is None:
        tensors = tensors[:-1]
    given = {f"x{i}": numpy.asarray(x, order="C") for i, x in enumerate(tensors) if x is not None}
    names = [f"x{i}" if f"x{i}" in given else "" for i in range(len(tensors))]
    results = [f"y{i}" for i in range(n_outputs)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
    ]
    # ONNX Runtime infers the types of the results.
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([helper.make_node(kind, names, results, **attributes)], kind, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    values = session.run_with_ort_values(results, {name: value(x) for name, x in given.items()})
    returned = [array(value_) for value_ in values]
    return returned if n_outputs > 1 else returned[0]


def group_norm(x, num_groups, eps, weight=None, bias=None):
    weight, bias = scale(x, weight, x.shape[1:2]), shift(x, bias, x.shape[1:2])
    return node("GroupNormalization", x, weight, bias, num_groups=num_groups, epsilon=eps)


def compute():
    """The outputs, by name."""
    x = leaf(DATA["inputs/x"], False)
    weight = leaf(DATA["inputs/weight"], False)
    bias = leaf(DATA["inputs/bias"], False)
    result = group_norm(x=x, weight=weight, bias=bias, num_groups=2, eps=1e-05)
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
        print(f"{tensor}: onnxruntime has {here}, {label} has {there}")
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
    values = {"onnxruntime": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("y", "exact", rtol=1e-07, atol=1e-07)
        | check("y", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("y", rms=4.453570454797698e-16, largest=1.3220761291288241e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
