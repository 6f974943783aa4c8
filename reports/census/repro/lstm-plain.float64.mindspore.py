"""lstm of mindspore 2.10.0 computes a different formula in float64: grad.x, grad.weight_ih,
grad.weight_hh, c, y, h

case            lstm-plain (configs/census/../ops/recurrent.yaml:6)
seen with       mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
                Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.x          semantic: the error of mindspore is 1.52e+15 times that of a careful implementation
                in float64 (the largest: 1.29 in float16, 8.28e-08 in float32, 1.29 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_ih  semantic: the error of mindspore is 1.06e+15 times that of a careful implementation
                in float64 (the largest: 0.656 in float16, 1.68e-07 in float32, 0.656 in float64):
                the error is the same in every precision, so the formula differs
grad.weight_hh  semantic: the error of mindspore is 1.43e+15 times that of a careful implementation
                in float64 (the largest: 0.546 in float16, 5.73e-08 in float32, 0.546 in float64):
                the error is the same in every precision, so the formula differs
c               close: it passes only because the tolerance is loose: the error of mindspore is
                9.49e+07 times that of a careful implementation in float64
y               close: it passes only because the tolerance is loose: the error of mindspore is
                1.76e+08 times that of a careful implementation in float64
h               close: it passes only because the tolerance is loose: the error of mindspore is
                1.11e+08 times that of a careful implementation in float64
cause           nondeterministic: the same call gives different results (y, h, c, grad.x,
                grad.weight_ih and grad.weight_hh)
exact           the textbook formula in extended precision on the same inputs, rounded to float64
torch           the result of torch 2.13.0+cpu in the same run
run             python lstm-plain.float64.mindspore.py (needs mindspore and numpy)
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
            -0.93359375, -1.078125, -1.171875, 1.25, 1.0859375, 0.71875, -2.578125, 0.08740234375,
            -1.75, 0.0712890625, 0.56640625, -0.041015625, 0.2001953125, -0.2451171875, 0.244140625,
            -0.21484375, -0.6796875, 0.294921875, 0.60546875, -0.66796875, 2.15625, -1.3984375,
            -1.7109375, -0.1962890625
        ],
        "float64",
    ).reshape(3, 2, 4),
    "inputs/weight_ih": np.array(
        [
            1.171875, -1.2265625, -0.04736328125, -2.28125, -0.048828125, 1.78125, -1.453125, 1.1484375,
            2.390625, -1.203125, -0.7265625, 0.1357421875, -0.275390625, 0.0751953125, 0.37890625,
            -0.373046875, 0.1533203125, 0.72265625, -0.81640625, -0.48828125, -0.88671875,
            -0.1708984375, -0.91015625, -0.67578125, -0.66015625, 0.609375, 0.26171875, -0.61328125,
            0.88671875, -0.328125, -0.4375, -0.49609375, -0.83984375, 1.0234375, -1.1484375, 0.55078125,
            -0.06298828125, 0.042236328125, -0.16015625, -0.9140625, 0.34375, -0.734375, 0.7265625,
            1.5703125, 0.296875, 1.59375, -0.5546875, -0.70703125
        ],
        "float64",
    ).reshape(12, 4),
    "inputs/weight_hh": np.array(
        [
            0.12109375, 0.10791015625, 0.67578125, -0.3203125, 0.1083984375, 0.1767578125, 0.1298828125,
            -0.5546875, 0.062255859375, -0.244140625, 0.330078125, -0.224609375, 0.25, 0.6171875,
            0.341796875, -1.4921875, 0.10498046875, -0.05126953125, 0.94921875, 0.34375, -0.259765625,
            1.0546875, 0.2265625, -1.1484375, -0.890625, 0.5234375, 0.2080078125, 2.015625, -1.5234375,
            1.0859375, 0.77734375, 0.11083984375, -1.09375, -0.296875, 0.1865234375, 0.6015625
        ],
        "float64",
    ).reshape(12, 3),
    "inputs/grad.y": np.array(
        [
            -1.5, 1.0625, 1.515625, -0.279296875, -1.171875, 0.224609375, 1.15625, 1.53125, 1.2734375,
            0.65234375, 0.37109375, -2.078125, -0.41015625, -1.8125, -0.84375, -0.71484375, 0.3046875,
            -0.01544189453125
        ],
        "float64",
    ).reshape(3, 2, 3),
    "inputs/grad.h": np.array([[1.078125, -1.140625, 1.2890625], [0.263671875, 1.0546875, -0.25]], "float64"),
    "inputs/grad.c": np.array(
        [
            -0.2001953125, -1.3515625, -1.4296875, 1.1796875, -1.078125, -0.296875
        ],
        "float64",
    ).reshape(2, 3),
    "exact/grad.x": np.array(
        [
            0.29163475457151056, -0.03488843513627389, -0.15244651288438318, -0.38761001301502906,
            -0.4241412410531683, 0.4050240436994202, 0.041574938647336225, 0.15695394588210715,
            0.07142570828221079, 0.42346855284532176, -0.31658282856523123, -0.43607436323395654,
            0.7178884638697527, -0.6618816483286373, 1.2862429081261164, 0.07851511326670543,
            0.07732660857742456, 0.44564659262168405, -0.09278368085610073, 0.45567352089850865,
            0.22406459998377237, -0.5235693455585155, 0.5183041901252609, 0.018415828805367015
        ],
        "float64",
    ).reshape(3, 2, 4),
    "torch/grad.x": np.array(
        [
            0.29163475457151056, -0.034888435136273974, -0.15244651288438316, -0.387610013015029,
            -0.4241412410531684, 0.40502404369942013, 0.041574938647336385, 0.15695394588210693,
            0.07142570828221076, 0.4234685528453217, -0.3165828285652313, -0.4360743632339566,
            0.7178884638697525, -0.661881648328637, 1.2862429081261162, 0.07851511326670539,
            0.07732660857742443, 0.4456465926216839, -0.09278368085610068, 0.4556735208985087,
            0.22406459998377246, -0.5235693455585155, 0.5183041901252609, 0.018415828805366984
        ],
        "float64",
    ).reshape(3, 2, 4),
    "exact/grad.weight_ih": np.array(
        [
            -0.3587364804620852, -0.06235683755246809, 0.4919734777781138, -0.04133406060613247,
            -0.6023372691221534, 0.3457646675686352, 0.554261582573773, -0.2149308555114397,
            -0.005286636981003295, -0.030587185416600344, 0.10610499846388527, -0.05359501563149012,
            -0.24020400132094843, 0.17886899081851373, 0.16765549477047997, 0.03924052204746626,
            -0.3130006502788811, 0.14370330990101798, 0.1923368979533867, -0.11802035530294219,
            -0.007771153086966417, 0.08174789590817662, -0.11486477527210591, 0.1456094571168473,
            0.2672262254317391, 0.012325056845221907, -0.39356069641674474, -0.11139334344782705,
            -0.17826018354446035, -0.4704913327338884, -0.5355166216267823, 0.6562733404867922,
            -0.40665630212425313, 0.3499589960544588, 0.04691876392030431, 0.24153979731295297,
            -0.03838973289155004, -0.15825799442977828, 0.09416604505784189, -0.012876600833649594,
            0.47536446913922586, -0.241097491132102, 0.07395598744199978, -0.24289323141715397,
            -0.26226319379792834, -0.08669291644274629, -0.07556076669573714, 0.09712324163015897
        ],
        "float64",
    ).reshape(12, 4),
    "torch/grad.weight_ih": np.array(
        [
            -0.35873648046208517, -0.06235683755246809, 0.49197347777811373, -0.04133406060613246,
            -0.6023372691221534, 0.3457646675686352, 0.5542615825737731, -0.21493085551143967,
            -0.00528663698100346, -0.030587185416600438, 0.10610499846388553, -0.0535950156314901,
            -0.2402040013209485, 0.1788689908185138, 0.16765549477048, 0.03924052204746627,
            -0.3130006502788811, 0.14370330990101798, 0.19233689795338668, -0.11802035530294216,
            -0.007771153086966444, 0.08174789590817663, -0.11486477527210584, 0.14560945711684725,
            0.26722622543173885, 0.01232505684522199, -0.3935606964167446, -0.11139334344782703,
            -0.17826018354446033, -0.4704913327338884, -0.5355166216267823, 0.6562733404867923,
            -0.4066563021242532, 0.3499589960544588, 0.04691876392030456, 0.24153979731295294,
            -0.03838973289154998, -0.15825799442977823, 0.09416604505784179, -0.012876600833649592,
            0.4753644691392258, -0.24109749113210197, 0.07395598744199994, -0.24289323141715394,
            -0.2622631937979283, -0.0866929164427463, -0.07556076669573711, 0.09712324163015897
        ],
        "float64",
    ).reshape(12, 4),
    "exact/grad.weight_hh": np.array(
        [
            0.014283499340544884, -0.03774529863122619, -0.028672466432683022, 0.04026795974290254,
            -0.07615582299777347, 0.04963614983122042, -0.028439012063784838, 0.00827178162543016,
            0.08982154915396635, 0.0536716108213884, -0.01332857831962387, -0.075739798936871,
            0.042090273221243694, -0.06084990578624999, -0.04916148570750468, 0.08185981222547599,
            -0.009098967802589475, -0.24844424039056254, -0.12260225717139496, 0.03344191710648563,
            0.3616988653240602, 0.008632881604773929, 0.044243766373549036, -0.08601773302326504,
            0.21322297255884815, -0.06652067802267472, -0.5460118078006414, 0.012410313889470432,
            -0.024085810112434318, -0.08804702286912094, -0.048183304582058877, 0.032413698292680086,
            0.0467748842688907, 0.02246081238100177, -0.054199946343842634, -0.08856987611820187
        ],
        "float64",
    ).reshape(12, 3),
    "torch/grad.weight_hh": np.array(
        [
            0.014283499340544879, -0.03774529863122619, -0.028672466432683015, 0.04026795974290252,
            -0.07615582299777349, 0.049636149831220396, -0.028439012063784838, 0.008271781625430161,
            0.08982154915396631, 0.05367161082138841, -0.013328578319623875, -0.07573979893687098,
            0.0420902732212437, -0.06084990578624999, -0.04916148570750467, 0.08185981222547598,
            -0.00909896780258948, -0.24844424039056237, -0.12260225717139496, 0.03344191710648563,
            0.3616988653240601, 0.008632881604773934, 0.04424376637354904, -0.08601773302326504,
            0.21322297255884812, -0.06652067802267472, -0.5460118078006411, 0.012410313889470437,
            -0.024085810112434318, -0.08804702286912092, -0.04818330458205886, 0.032413698292680086,
            0.046774884268890676, 0.02246081238100176, -0.05419994634384263, -0.08856987611820182
        ],
        "float64",
    ).reshape(12, 3),
    "exact/c": np.array(
        [
            0.5250814956582597, -0.3711455962094788, 0.1949998095531903, -1.118454942915295,
            0.6357370217897003, -0.617571787757468
        ],
        "float64",
    ).reshape(2, 3),
    "exact/y": np.array(
        [
            -0.016082902814554087, -0.3210795776640506, 0.04404305004838066, -0.23795628815358352,
            0.09658184835202156, 0.706017734960353, 0.03614345916152431, -0.16748728097382637,
            0.11532355021824049, -0.2950392152871379, 0.07948563576006097, 0.1439974922712246,
            0.354169437775743, -0.08370790610769704, 0.11676592104121711, -0.3432697168283619,
            0.25839797347987775, -0.23223732217585505
        ],
        "float64",
    ).reshape(3, 2, 3),
    "exact/h": np.array(
        [
            0.354169437775743, -0.08370790610769704, 0.11676592104121711, -0.3432697168283619,
            0.25839797347987775, -0.23223732217585505
        ],
        "float64",
    ).reshape(2, 3),
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
    result = in_mode(lstm)(x=x, weight_ih=weight_ih, weight_hh=weight_hh)
    outputs = result if isinstance(result, dict) else {"y": result}
    returned = gradients([outputs["y"], outputs["h"], outputs["c"]], [leaf(DATA["inputs/grad.y"], False), leaf(DATA["inputs/grad.h"], False), leaf(DATA["inputs/grad.c"], False)], [x, weight_ih, weight_hh])
    outputs.update(zip(["grad.x", "grad.weight_ih", "grad.weight_hh"], returned))
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
        check("grad.x", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.x", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=4.258477343347897e-16, largest=8.863352760068999e-16, limit=8.0),
    (
        check("grad.weight_ih", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.weight_ih", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_ih", rms=3.1445678687757304e-16, largest=9.32630708772031e-16, limit=8.0),
    (
        check("grad.weight_hh", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.weight_hh", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_hh", rms=1.0021907408379352e-16, largest=4.135147085859714e-16, limit=8.0),
    check("c", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("c", rms=2.929255764174168e-16, largest=4.529796676644438e-16, limit=8.0),
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=1.1313876833033682e-16, largest=1.8504620578896347e-16, limit=8.0),
    check("h", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("h", rms=1.2953004735303447e-16, largest=1.8301332671555315e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
