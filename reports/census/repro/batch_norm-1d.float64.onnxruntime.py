"""batch_norm of onnxruntime 1.31.1 follows a different convention: running_var is updated with the
biased variance (float64: running_var, running_mean, y)

case          batch_norm-1d (configs/census/../ops/norm.yaml:12)
seen with     onnxruntime 1.31.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
              Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
running_var   semantic: the error of onnxruntime is 2.89e+13 times that of a careful implementation
              in float64 (the largest: 0.00961 in float16, 0.00947 in float32, 0.00947 in float64):
              the error is the same in every precision, so the formula differs
running_mean  close: it passes only because the tolerance is loose: the error of onnxruntime is
              7.47e+07 times that of a careful implementation in float64
y             close: it passes only because the tolerance is loose: the error of onnxruntime is 452
              times that of a careful implementation in float64
cause         running-var-ddof: running_var is updated with the biased variance (running_var)
cause         attribute-precision: an attribute of a float64 computation is stored in float32 (y,
              running_mean and running_var)
exact         the textbook formula in extended precision on the same inputs, rounded to float64
torch         the result of torch 2.13.0+cpu in the same run
run           python batch_norm-1d.float64.onnxruntime.py (needs onnxruntime and numpy)
exit code     1 while the difference is there, 0 once it is fixed
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

DATA = {
    "inputs/x": np.array(
        [
            1.5859375, 0.033935546875, -0.21484375, -1.1796875, 0.81640625, 0.50390625, -0.318359375,
            -0.4765625, 1.3203125, 1.4140625, 1.3203125, -1.15625, 0.86328125, -1.1328125, 0.08984375,
            0.64453125, -0.70703125, 0.6328125, -1.0625, 0.330078125, 1.65625, -0.19140625, -1.5,
            -0.9296875, -0.796875, -1.5546875, -3.0, 0.333984375, 0.1826171875, 1.40625, 1.2890625,
            0.67578125, -1.5625, -0.337890625, -0.9921875, 0.16796875, 0.10107421875, 0.76953125,
            1.765625, -1.8984375, 1.0078125, -0.2421875, 0.5625, 1.8984375, -0.09814453125, -1.0,
            -0.470703125, -0.9453125, -0.56640625, -0.0908203125, -0.984375, 0.01287841796875,
            -0.259765625, -0.828125, -0.78125, -0.953125, 0.2431640625, 0.06884765625, -1.40625,
            0.63671875, 1.2734375, -0.32421875, 0.52734375, 0.88671875
        ],
        "float64",
    ).reshape(16, 4),
    "inputs/weight": np.array([1.390625, 0.59375, 1.2421875, 1.046875], "float64"),
    "inputs/bias": np.array([-0.140625, -0.00174713134765625, 0.306640625, -0.333984375], "float64"),
    "inputs/running_mean": np.array([0.490234375, 0.365234375, -0.462890625, -0.2236328125], "float64"),
    "inputs/running_var": np.array([1.390625, 1.40625, 0.53125, 1.1328125], "float64"),
    "inputs/grad.y": np.array(
        [
            -1.890625, -1.8125, 1.5390625, 0.0211181640625, -1.25, -0.96484375, -0.7421875, -0.63671875,
            1.265625, 1.5390625, 0.71484375, -0.98046875, 0.34375, -0.1982421875, 1.03125, -0.71875,
            -1.1015625, 0.6953125, 1.0234375, 0.80078125, 0.1435546875, 0.47265625, -1.265625,
            -0.95703125, -0.984375, 0.322265625, 1.375, -0.0311279296875, 0.138671875, -0.4453125,
            -1.1328125, 0.07666015625, 0.16796875, 1.125, -0.82421875, 0.76171875, 0.458984375, 1.25,
            -0.0026397705078125, -0.859375, -0.349609375, -0.390625, -0.388671875, -0.75, 0.71484375,
            0.0537109375, 0.76953125, -0.71875, -0.91796875, 0.5859375, 1.921875, 0.72265625, -2.3125,
            -1.9375, 1.7578125, -0.69140625, -0.255859375, -0.796875, -0.44921875, 0.77734375, 2.1875,
            -0.7890625, 0.0263671875, -1.3125
        ],
        "float64",
    ).reshape(16, 4),
    "exact/running_var": np.array(
        [
            1.3417469402154287, 1.3382308610032, 0.6297244199117025, 1.118896069189844
        ],
        "float64",
    ),
    "torch/running_var": np.array(
        [
            1.3417469402154287, 1.3382308610032, 0.6297244199117025, 1.118896069189844
        ],
        "float64",
    ),
    "exact/running_mean": np.array(
        [
            0.472833251953125, 0.32325592041015627, -0.4489501953125, -0.2134693145751953
        ],
        "float64",
    ),
    "exact/y": np.array(
        [
            1.7796439029755933, 0.061932733423469034, 0.4198418904825419, -1.4812098906494762,
            0.6158333790744117, 0.40015308778640385, 0.311982707191311, -0.7185637515686932,
            1.3779225038624952, 1.0551585324955055, 2.0194139294807965, -1.4557883526801167,
            0.6867253906826055, -0.7777322398235259, 0.737314203566165, 0.49743314796566623,
            -1.688156998191887, 0.4929220992688088, -0.4633823651475377, 0.15636084687676055,
            1.885981920387884, -0.10023733778535632, -0.9192400454727401, -1.210046818976309,
            -1.8240333537742583, -1.0813399137659423, -2.4821806637305768, 0.16059776987165378,
            -0.34268569454470865, 1.0495361681632387, 1.9868526666004251, 0.5313285319248121,
            -2.981936210041424, -0.20565666901536198, -0.3901195236667016, -0.01947145741130885,
            -0.46600825640479576, 0.5913134750834808, 2.483411925526092, -2.260803721709832,
            0.9053090931412031, -0.13678270594509162, 1.2298033046317853, 1.8574854293263958,
            -0.7672993057396195, -0.6821520461749875, 0.1532465506494994, -1.2269945109558817,
            -1.4754809633673054, -0.02784939700741911, -0.3819792079466087, -0.18769054069292945,
            -1.0117290540970376, -0.5584600308651142, -0.17033099922419334, -1.2354683569456684,
            -0.25111684621745833, 0.08705767403328706, -0.8215562568316254, 0.4889593019758798,
            1.3070304922543012, -0.19581753143389477, 1.1931718838913674, 0.760122373649047
        ],
        "float64",
    ).reshape(16, 4),
}


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


def batch_norm(x, running_mean, running_var, training, momentum, eps, weight=None, bias=None):
    weight, bias = scale(x, weight, x.shape[1:2]), shift(x, bias, x.shape[1:2])
    returned = node(
        "BatchNormalization",
        x,
        weight,
        bias,
        running_mean,
        running_var,
        n_outputs=3 if training else 1,
        epsilon=eps,
        momentum=1.0 - momentum,
        training_mode=int(training),
    )
    y, mean, var = returned if training else (returned, running_mean, running_var)
    return {"y": y, "running_mean": mean, "running_var": var}


def compute():
    """The outputs, by name."""
    x = leaf(DATA["inputs/x"], False)
    weight = leaf(DATA["inputs/weight"], False)
    bias = leaf(DATA["inputs/bias"], False)
    running_mean = leaf(DATA["inputs/running_mean"], False)
    running_var = leaf(DATA["inputs/running_var"], False)
    result = batch_norm(
        x=x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var,
        training=True, momentum=0.1, eps=1e-05,
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
        check("running_var", "exact", rtol=1e-07, atol=1e-07)
        | check("running_var", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("running_var", rms=2.964466196668389e-16, largest=3.7968760080442365e-16, limit=8.0),
    check("running_mean", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("running_mean", rms=9.27976775819582e-17, largest=1.3400738851920835e-16, limit=8.0),
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=3.3751387681543546e-16, largest=1.036063596027148e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
