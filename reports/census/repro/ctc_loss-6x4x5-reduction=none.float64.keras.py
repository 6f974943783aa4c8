"""ctc_loss of keras 3.15.1 has only float32 accuracy in float64: grad.x, y

case       ctc_loss-6x4x5-reduction=none (configs/census/../ops/loss.yaml:32)
seen with  keras 3.15.1, Python 3.11.7, NumPy 2.4.6, cpu, 1 thread,
           Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x     degraded: the error of keras is 2.13e+08 times that of a careful implementation in
           float64, 9.5e-07 of the value where it is worst: the float64 result has float32 accuracy
           (unit roundoff 6e-08), so an attribute or an inner step is kept in a lower precision
y          close: it passes only because the tolerance is loose: the error of keras is 3.79e+07
           times that of a careful implementation in float64
cause      narrow-accumulation: sums are accumulated in a narrow format (y and grad.x)
exact      the textbook formula in extended precision on the same inputs, rounded to float64
torch      the result of torch 2.13.0+cpu in the same run
run        python ctc_loss-6x4x5-reduction=none.float64.keras.py (needs keras and numpy)
exit code  1 while the difference is there, 0 once it is fixed
"""

import os
import sys

# A file beside this script must not be taken for a module.
FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != FOLDER]

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# The number of threads changes results; it is read when NumPy and the framework are imported.
THREADS = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
os.environ.update(dict.fromkeys(THREADS.split(), "1"))

import numpy as np

# Keras's default backend is TensorFlow.
os.environ["KERAS_BACKEND"] = "tensorflow" if "eager" == "eager" else "eager"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow

tensorflow.config.threading.set_intra_op_parallelism_threads(1)
tensorflow.config.threading.set_inter_op_parallelism_threads(1)
latest = SimpleNamespace()
import keras

DATA = {
    "inputs/x": np.array(
        [
            -1.859375, 0.08203125, 0.47265625, -1.1015625, 0.25390625, -0.58984375, 0.4296875,
            -0.5703125, -0.1396484375, -1.6796875, 1.3046875, -0.421875, -1.296875, -1.59375,
            -0.166015625, 0.125, -1.0234375, -1.4453125, -0.1650390625, -0.7890625, -0.283203125,
            1.53125, -0.06982421875, -0.091796875, -0.59375, 0.65234375, -0.7734375, 1.5234375,
            -0.049560546875, 0.96484375, -0.703125, -0.333984375, -1.0078125, 0.353515625,
            -0.2060546875, 0.6484375, -0.00701904296875, -0.09912109375, -0.51953125, 0.609375,
            0.88671875, -1.53125, 0.61328125, -1.0625, -0.73828125, 0.318359375, -0.388671875, 0.484375,
            -1.484375, 0.15234375, 0.435546875, 0.91015625, -0.11767578125, -0.019287109375, -1.03125,
            0.0267333984375, -1.015625, 0.75390625, 0.3359375, 1.15625, 0.5859375, 2.375,
            -0.045166015625, -0.8984375, 0.2314453125, -0.287109375, -0.20703125, 0.36328125, 1.5,
            -0.38671875, -0.279296875, -0.09765625, -0.0654296875, -1.0625, 0.93359375, -0.400390625,
            0.4140625, -0.87109375, 0.50390625, 0.4453125, 0.0169677734375, -0.28515625, 1.7734375,
            -0.4375, 0.72265625, 0.388671875, 0.06005859375, 0.27734375, -0.263671875, 0.69140625,
            1.8828125, 0.310546875, 0.8515625, 0.2216796875, 0.98046875, -1.1171875, -0.8671875,
            0.162109375, -0.2431640625, -0.134765625, -0.4609375, -0.439453125, -1.171875, -0.51953125,
            0.072265625, -0.388671875, 1.0625, -0.408203125, 0.2392578125, 0.11181640625, 1.1015625,
            0.494140625, -1.25, 1.015625, -1.6875, 0.72265625, -1.484375, 0.94140625, 1.28125, 1.015625
        ],
        "float64",
    ).reshape(6, 4, 5),
    "inputs/target": np.array([[1, 1, 3], [4, 4, 4], [2, 2, 3], [3, 2, 4]], "int64"),
    "inputs/input_lengths": np.array([6, 5, 5, 5], "int64"),
    "inputs/target_lengths": np.array([1, 3, 3, 1], "int64"),
    "inputs/grad.y": np.array([1.6953125, 0.55859375, -1.140625, -1.3515625], "float64"),
    "exact/grad.x": np.array(
        [
            -0.33734684468669174, -0.8868744099413206, 0.60885571080066, 0.12613623607952346,
            0.4892293077478288, 0.08341570310199066, 0.23121958148950622, 0.08506093042625432,
            0.13084741727671495, -0.5305436322944661, 0.06510489693311475, -0.13202417660580681,
            0.2783370710536838, -0.04089918196201215, -0.1705186094189796, 0.6780889517731071,
            -0.16027873061877565, -0.10511335780606493, -0.2100855631905639, -0.20261130015770265,
            -0.13951500426329982, -0.38320365206893847, 0.20335622128887698, 0.19893667731315728,
            0.12042575773020406, -0.4568892724689061, 0.02444168506500056, 0.24302518475560808,
            0.0504088639715404, 0.13901353867675703, 0.12546117732265705, -0.21414991149921692,
            0.7579522992751907, -0.4258879531062244, -0.24337561199240643, 0.6192037214430632,
            -0.21490010061886516, -0.19599148630733113, 0.18973376132817135, -0.3980458958450383,
            -0.08790648381034212, -0.7639913793119248, 0.5891420369163318, 0.11026494424444377,
            0.15249088196149135, 0.15156204811691495, 0.0747361454267537, 0.1789328730532179,
            0.024984627222447084, -0.43021569381933367, 0.6665073223939634, -0.4529551656934698,
            0.03026246822241784, -0.17881464905674052, -0.06499997586617086, 0.3413839017564029,
            -0.06049376640496101, -0.3549835942756856, 0.6049093951816109, -0.5308159362573672,
            -0.5382935477843979, 0.2451324071799395, 0.10681096598439165, 0.04550349401907363,
            0.1408466806009931, -0.5072383280799466, 0.055637010892674595, 0.09841184209766662,
            0.3067030124890376, 0.04648646260056785, -0.11945865921378776, -0.18846251615884793,
            0.8003588748710722, 0.03611849812003157, -0.5285561976184681, 0.09027829830185422,
            -0.3514901696299246, -0.09722476801213047, 0.7210843046566168, -0.36264766531641596,
            -0.9384722855292058, -0.4675162496014234, 0.9634926609679932, 0.10559672639781036,
            0.3368991477648256, 0.12443764463477393, 0.08958531960674472, 0.11132753466805538,
            0.06481007010454147, -0.3901605690141155, -0.43744218229106896, -0.10962959545838676,
            -0.18831629975637387, 0.9496135873750893, -0.21422550986925976, 0.3462064798847573,
            -0.1585516106293647, -0.4438013420217881, 0.5859516257015001, -0.3298051529351045,
            -1.0563544782016674, 0.02522686552727791, 0.16136614754470113, 0.30982875488114825,
            0.5599327102485401, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0
        ],
        "float64",
    ).reshape(6, 4, 5),
    "torch/grad.x": np.array(
        [
            -0.33734684468669246, -0.8868744099413213, 0.6088557108006607, 0.1261362360795236,
            0.48922930774782936, 0.08341570310199048, 0.23121958148950572, 0.08506093042625414,
            0.13084741727671464, -0.530543632294465, 0.0651048969331147, -0.13202417660580693,
            0.2783370710536841, -0.04089918196201217, -0.17051860941897973, 0.678088951773107,
            -0.16027873061877562, -0.10511335780606491, -0.2100855631905639, -0.2026113001577026,
            -0.13951500426330005, -0.3832036520689384, 0.203356221288877, 0.19893667731315737,
            0.12042575773020409, -0.45688927246890587, 0.024441685065000555, 0.24302518475560797,
            0.05040886397154038, 0.13901353867675698, 0.12546117732265705, -0.21414991149921725,
            0.7579522992751921, -0.42588795310622507, -0.2433756119924068, 0.6192037214430626,
            -0.21490010061886503, -0.19599148630733101, 0.18973376132817152, -0.3980458958450381,
            -0.08790648381034183, -0.7639913793119254, 0.5891420369163319, 0.11026494424444382,
            0.15249088196149138, 0.15156204811691484, 0.07473614542675364, 0.17893287305321773,
            0.024984627222447063, -0.4302156938193333, 0.6665073223939647, -0.45295516569347066,
            0.030262468222417786, -0.17881464905674085, -0.06499997586617097, 0.34138390175640304,
            -0.06049376640496098, -0.35498359427568543, 0.6049093951816104, -0.5308159362573669,
            -0.5382935477843971, 0.24513240717993862, 0.10681096598439166, 0.04550349401907364,
            0.14084668060099312, -0.5072383280799461, 0.055637010892674525, 0.09841184209766647,
            0.3067030124890372, 0.04648646260056779, -0.1194586592137877, -0.18846251615884785,
            0.8003588748710718, 0.03611849812003166, -0.5285561976184678, 0.09027829830185409,
            -0.3514901696299244, -0.09722476801213041, 0.7210843046566165, -0.36264766531641585,
            -0.938472285529205, -0.4675162496014233, 0.9634926609679926, 0.1055967263978103,
            0.3368991477648254, 0.12443764463477404, 0.08958531960674479, 0.11132753466805546,
            0.06481007010454154, -0.3901605690141159, -0.43744218229106935, -0.10962959545838685,
            -0.18831629975637404, 0.9496135873750903, -0.21422550986925995, 0.3462064798847571,
            -0.15855161062936474, -0.443801342021788, 0.5859516257015001, -0.32980515293510443,
            -1.0563544782016658, 0.025226865527277566, 0.16136614754470097, 0.30982875488114797,
            0.5599327102485395, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0
        ],
        "float64",
    ).reshape(6, 4, 5),
    "exact/y": np.array(
        [
            7.598789640845418, 9.750759054535836, 8.028017133813133, 5.325099907768865
        ],
        "float64",
    ),
}


def leaf(array, requires_grad):
    low = tensorflow.bfloat16.as_numpy_dtype
    return tensorflow.constant(array.view(low) if array.dtype == "uint16" else array)


def to_numpy(tensor):
    return tensor.numpy().view("uint16") if tensor.dtype == "bfloat16" else tensor.numpy()


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


def staged(function):
    """The function, run with its tensors' dtype as Keras's floatx and dtype policy."""

    def call(*args: Any, **given: Any) -> Any:
        values = [*args, *given.values()]
        tensors = [part for value in values for part in (value if isinstance(value, list) else [value])]
        dtypes = [keras.backend.standardize_dtype(v.dtype) for v in tensors if hasattr(v, "dtype")]
        dtype = next(dtype for dtype in dtypes if "float" in dtype)
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        return named_outputs(function(*args, **given))

    return call


def in_mode(function):
    """The staged function, recorded by the tape that `gradients` reads."""
    staged_ = staged(function)

    def call(**given: Any) -> Any:
        # tf.custom_gradient silently ignores a user's gradient for tensors passed by keyword.
        bound = inspect.signature(function).bind(**given)
        with tensorflow.GradientTape() as latest.tape:
            for value in given.values():
                if tensorflow.is_tensor(value) and value.dtype.is_floating:
                    latest.tape.watch(value)
            return named_outputs(staged_(*bound.args, **bound.kwargs))

    return call


def gradients(outputs, grad_outputs, leaves):
    given = [tensorflow.cast(dy, y.dtype) for y, dy in zip(outputs, grad_outputs)]
    grads = latest.tape.gradient(list(outputs), list(leaves), output_gradients=given)
    return [None if grad is None else tensorflow.convert_to_tensor(grad) for grad in grads]


def ctc_loss(x, target, input_lengths, target_lengths, blank=0, reduction='mean'):
    logits = keras.ops.swapaxes(x, 0, 1)
    losses = keras.ops.ctc_loss(target, logits, target_lengths, input_lengths, blank)
    if reduction == "mean":
        losses = losses / keras.ops.cast(keras.ops.maximum(target_lengths, 1), losses.dtype)
    if reduction == "none":
        return losses
    return keras.ops.mean(losses) if reduction == "mean" else keras.ops.sum(losses)


def compute():
    """The outputs and the gradients, by name."""
    x = leaf(DATA["inputs/x"], True)
    target = leaf(DATA["inputs/target"], False)
    input_lengths = leaf(DATA["inputs/input_lengths"], False)
    target_lengths = leaf(DATA["inputs/target_lengths"], False)
    result = in_mode(ctc_loss)(
        x=x, target=target, input_lengths=input_lengths, target_lengths=target_lengths,
        blank=0, reduction="none",
    )
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"]], [leaf(DATA["inputs/grad.y"], False)], [x])
    outputs.update(zip(["grad.x"], returned))
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
        print(f"{tensor}: keras has {here}, {label} has {there}")
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
    values = {"keras": live, label: other, "exact": DATA[f"exact/{tensor}"]}
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
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=3.531253107469313e-16, largest=1.0952610346448566e-15, limit=8.0),
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=1.8398393197678225e-15, largest=2.4537663567691936e-15, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
