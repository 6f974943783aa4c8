"""lstm of mindspore 2.10.0 computes a different formula in float64: grad.c0, grad.x, grad.weight_ih,
grad.bias_hh, grad.bias_ih, grad.weight_hh and 4 more

case            lstm (configs/census/../ops/recurrent.yaml:5)
seen with       mindspore 2.10.0, Python 3.11.7, NumPy 1.26.4, cpu, 1 thread,
                Linux-6.18.44-fc-v669-x86_64-with-glibc2.36, AMD EPYC
grad.c0         semantic: the error of mindspore is 2.13e+15 times that of a careful implementation
                in float64 (the largest: 1.79 in float16, 2.56e-07 in float32, 1.79 in float64): the
                error is the same in every precision, so the formula differs
grad.x          semantic: the error of mindspore is 1.08e+15 times that of a careful implementation
                in float64 (the largest: 1.61 in float16, 2.34e-07 in float32, 1.61 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_ih  semantic: the error of mindspore is 1.02e+15 times that of a careful implementation
                in float64 (the largest: 1.43 in float16, 1.69e-07 in float32, 1.43 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_hh    semantic: the error of mindspore is 1.03e+15 times that of a careful implementation
                in float64 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.bias_ih    semantic: the error of mindspore is 9.43e+14 times that of a careful implementation
                in float64 (the largest: 1.19 in float16, 1.97e-07 in float32, 1.19 in float64): the
                error is the same in every precision, so the formula differs
grad.weight_hh  semantic: the error of mindspore is 8.55e+14 times that of a careful implementation
                in float64 (the largest: 0.531 in float16, 8.74e-08 in float32, 0.531 in float64):
                the error is the same in every precision, so the formula differs
cause           missing-gradient: a gradient is zero or absent (grad.x, grad.weight_ih,
                grad.weight_hh, grad.bias_ih, grad.bias_hh, grad.h0 and grad.c0)
cause           reduced-precision: computed in or through a lower precision (y, h and c)
exact           the textbook formula in extended precision on the same inputs, rounded to float64
torch           the result of torch 2.13.0+cpu in the same run
run             python lstm.float64.mindspore.py (needs mindspore and numpy)
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
            -0.07080078125, 0.87890625, -0.1396484375, -1.4296875, 0.2041015625, 1.0234375, 0.5625,
            -1.015625, -0.294921875, -0.65625, 0.8125, 0.44921875, -0.1064453125, 0.1396484375,
            -0.2158203125, -0.94921875, 0.37109375, 0.0751953125, 0.58984375, 0.291015625, 0.64453125,
            -1.125, -0.1513671875, 1.3125, -0.49609375, 1.9140625, 1.03125, -0.640625, 0.7265625,
            -0.71875, -1.625, 1.03125, -0.40625, 0.62109375, 1.1484375, -0.6015625, 1.078125,
            0.2001953125, 1.6328125, 0.484375
        ],
        "float64",
    ).reshape(4, 2, 5),
    "inputs/weight_ih": np.array(
        [
            0.5546875, -0.07470703125, 1.4296875, 0.93359375, -0.3984375, -0.61328125, -0.240234375,
            0.0015716552734375, -0.29296875, -0.99609375, 0.158203125, -0.890625, -1.0078125, 1.1640625,
            -1.4765625, 0.51171875, 0.1162109375, 0.365234375, -0.8125, 1.5703125, -0.49609375,
            0.3828125, -1.296875, -0.014892578125, -0.8984375, 0.1513671875, -0.8203125, 0.19140625,
            -0.94140625, 1.8046875, -0.6171875, -1.125, 2.484375, 1.1953125, -0.53515625, -1.7890625,
            0.390625, -1.1328125, 2.5625, -0.12451171875, -0.49609375, 1.2578125, -0.220703125,
            -0.84765625, 1.7890625, 1.2734375, 1.5546875, -1.578125, 0.69140625, -0.95703125,
            0.002166748046875, -0.1953125, 0.64453125, 0.3046875, 0.5390625, 0.64453125, -1.4609375,
            -1.1796875, 0.43359375, -0.3046875
        ],
        "float64",
    ).reshape(12, 5),
    "inputs/weight_hh": np.array(
        [
            -0.3515625, -0.08984375, -1.5234375, -1.2578125, -1.4375, 1.59375, 0.84375, 0.77734375,
            -0.240234375, 0.44921875, -0.322265625, -0.279296875, 0.515625, -2.40625, 0.498046875,
            0.76953125, -0.494140625, -0.59375, 0.4921875, 2.03125, -0.373046875, 0.73828125,
            0.447265625, 1.5546875, -0.154296875, -1.0859375, -0.19140625, 0.326171875, 0.859375,
            0.56640625, 1.359375, 0.0654296875, -0.1796875, -0.3671875, -0.1396484375, -0.6328125
        ],
        "float64",
    ).reshape(12, 3),
    "inputs/bias_ih": np.array(
        [
            -1.1640625, 1.265625, 1.09375, 0.578125, -1.4140625, 0.66015625, -0.59765625, -0.765625,
            -1.8984375, -0.03759765625, 0.21875, -1.6875
        ],
        "float64",
    ),
    "inputs/bias_hh": np.array(
        [
            0.2470703125, -1.1328125, -0.22265625, 1.3359375, 0.1494140625, 1.421875, -0.4921875,
            -0.5703125, -0.01519775390625, 0.1669921875, -0.69921875, 1.15625
        ],
        "float64",
    ),
    "inputs/h0": np.array(
        [
            -0.09765625, -1.4921875, 0.515625, -0.435546875, -0.470703125, -0.66796875
        ],
        "float64",
    ).reshape(2, 3),
    "inputs/c0": np.array([[-1.6015625, 1.375, 0.703125], [0.9921875, 1.4609375, 1.3203125]], "float64"),
    "inputs/grad.y": np.array(
        [
            0.8203125, 0.91015625, -0.296875, 1.3203125, 0.275390625, 1.453125, 2.671875, 2.1875,
            -0.66015625, 1.4765625, 1.015625, -1.796875, -0.44921875, 0.66796875, -3.40625,
            0.052490234375, -0.439453125, -0.2470703125, 0.9765625, -1.4609375, 1.4765625, -0.58203125,
            -0.94921875, -0.9296875
        ],
        "float64",
    ).reshape(4, 2, 3),
    "inputs/grad.h": np.array(
        [
            -0.796875, -0.054443359375, 0.1982421875, 1.3984375, 0.546875, 0.259765625
        ],
        "float64",
    ).reshape(2, 3),
    "inputs/grad.c": np.array(
        [
            1.390625, -1.046875, -0.42578125, -0.236328125, 0.87109375, -1.109375
        ],
        "float64",
    ).reshape(2, 3),
    "exact/grad.c0": np.array(
        [
            0.7506950550079606, 0.34302205227019067, -1.0184874361793224, 1.7922995966677657,
            0.14888871589308073, 0.5527432339946956
        ],
        "float64",
    ).reshape(2, 3),
    "torch/grad.c0": np.array(
        [
            0.7506950550079605, 0.34302205227019067, -1.0184874361793224, 1.792299596667766,
            0.14888871589308075, 0.5527432339946955
        ],
        "float64",
    ).reshape(2, 3),
    "exact/grad.x": np.array(
        [
            -0.23328949914587518, -0.1595750821692884, 0.24078839860871934, -0.10602259935424323,
            0.1531511112790313, -0.071934518369253, 0.09027662924845464, -0.6192184832872336,
            -1.0413239329138844, 1.3400703877859153, -0.3397922755464474, -0.44998357976415854,
            -0.6162640489538092, 0.4315189296314796, -0.9292787358111688, 0.11060365839528358,
            -0.37980000992779794, 0.2530703620743407, 0.6061852726804638, -0.6410252117847096,
            -0.14604771237066003, -1.172364766323414, 1.6093304441152365, 0.8795162974798368,
            -1.275008555555105, -0.015213248747221074, -0.1511693969851689, -0.33255509606303346,
            -0.17172234448714052, 0.22181626185926773, -0.11177832120763183, 0.23064051546414654,
            -0.20486801661598697, -0.2815251227956132, 0.38749646255259185, 0.14372586650228056,
            -1.3837904944822568, 0.5449924536047732, 0.6426678129326481, -0.9043497608711835
        ],
        "float64",
    ).reshape(4, 2, 5),
    "torch/grad.x": np.array(
        [
            -0.2332894991458753, -0.1595750821692885, 0.24078839860871942, -0.10602259935424314,
            0.1531511112790314, -0.07193451836925309, 0.09027662924845462, -0.619218483287234,
            -1.0413239329138841, 1.3400703877859153, -0.33979227554644725, -0.44998357976415837,
            -0.6162640489538089, 0.43151892963147975, -0.9292787358111685, 0.11060365839528355,
            -0.37980000992779805, 0.25307036207434097, 0.606185272680464, -0.6410252117847096,
            -0.14604771237065994, -1.172364766323414, 1.609330444115236, 0.8795162974798367,
            -1.2750085555551047, -0.015213248747221061, -0.1511693969851689, -0.33255509606303335,
            -0.17172234448714047, 0.22181626185926764, -0.11177832120763181, 0.23064051546414654,
            -0.20486801661598697, -0.2815251227956132, 0.3874964625525919, 0.14372586650228045,
            -1.3837904944822563, 0.5449924536047732, 0.642667812932648, -0.9043497608711834
        ],
        "float64",
    ).reshape(4, 2, 5),
    "exact/grad.weight_ih": np.array(
        [
            -0.5048894880907715, -0.9422569997129051, 0.7212448063691039, 0.09621314179241285,
            0.13630443963519892, 0.034434909091992594, -0.2594957530715648, 0.2334513647675241,
            0.0916684872501849, -0.14231694937239506, 0.15000218762862866, 0.14900994106416918,
            0.11308923764277404, 0.45376502742583, -0.02133102366516197, -0.0628884625221358,
            0.7225335138411804, -0.24004108092420767, -0.7768067772462417, 0.02366304539681089,
            0.010157633733005104, 0.15274717616102335, -0.10711847162455562, 0.05392258684337991,
            0.009285361834274097, 0.033604814747447136, 0.3403665615546757, -0.18981008320517198,
            0.5690338739788418, -0.019132141780490747, 0.03311488992764305, -0.3511028259394529,
            -0.04595200479314035, 1.4303138755657812, -0.11764850391975765, -0.09844547287644355,
            0.23847631737334826, 0.02889717788113554, -0.260789773577125, 0.08531976930960754,
            0.4637873131799596, -0.5632629390224816, -0.1789500677543348, -0.9112147842868059,
            -0.32269391765362293, -0.24521616140051306, -0.16421434590677508, 0.0396036407344852,
            0.2769924852908469, 0.02241154872656219, -0.2169677662567234, -0.053259347569745256,
            0.020174145513717448, -0.1834283165414438, 0.02133136482362717, 0.3575717180552184,
            -0.05365865859640792, -0.056035933538579115, 0.3352081515420883, -0.22188405868620092
        ],
        "float64",
    ).reshape(12, 5),
    "torch/grad.weight_ih": np.array(
        [
            -0.5048894880907713, -0.9422569997129049, 0.7212448063691038, 0.09621314179241294,
            0.1363044396351989, 0.03443490909199265, -0.2594957530715648, 0.2334513647675241,
            0.09166848725018485, -0.14231694937239509, 0.15000218762862866, 0.14900994106416912,
            0.11308923764277405, 0.4537650274258299, -0.021331023665161986, -0.06288846252213579,
            0.7225335138411801, -0.24004108092420773, -0.7768067772462414, 0.023663045396810824,
            0.010157633733005109, 0.15274717616102326, -0.1071184716245556, 0.05392258684337995,
            0.009285361834274081, 0.033604814747447, 0.34036656155467565, -0.18981008320517187,
            0.5690338739788416, -0.01913214178049069, 0.03311488992764294, -0.3511028259394528,
            -0.04595200479314027, 1.4303138755657816, -0.11764850391975752, -0.09844547287644356,
            0.23847631737334832, 0.028897177881135536, -0.2607897735771251, 0.08531976930960755,
            0.4637873131799596, -0.5632629390224816, -0.1789500677543347, -0.9112147842868056,
            -0.3226939176536229, -0.24521616140051297, -0.16421434590677514, 0.03960364073448523,
            0.27699248529084697, 0.022411548726562175, -0.21696776625672334, -0.05325934756974521,
            0.020174145513717424, -0.18342831654144381, 0.021331364823627134, 0.35757171805521853,
            -0.0536586585964081, -0.05603593353857914, 0.3352081515420884, -0.221884058686201
        ],
        "float64",
    ).reshape(12, 5),
    "exact/grad.bias_hh": np.array(
        [
            -0.9772243376937805, -0.28443590667405566, 0.3757387412023185, -0.3664159295806758,
            0.2643653814740468, 0.4164556441348044, 1.1922393620760983, -0.18295300711944443,
            -0.5914454819356922, -0.1660261394422056, -0.1519594325956602, 0.35207237497053795
        ],
        "float64",
    ),
    "torch/grad.bias_hh": np.array(
        [
            -0.9772243376937804, -0.2844359066740557, 0.3757387412023184, -0.3664159295806755,
            0.26436538147404676, 0.41645564413480424, 1.1922393620760985, -0.18295300711944443,
            -0.591445481935692, -0.16602613944220565, -0.15195943259566, 0.352072374970538
        ],
        "float64",
    ),
    "exact/grad.bias_ih": np.array(
        [
            -0.9772243376937805, -0.28443590667405566, 0.3757387412023185, -0.3664159295806758,
            0.2643653814740468, 0.4164556441348044, 1.1922393620760983, -0.18295300711944443,
            -0.5914454819356922, -0.1660261394422056, -0.1519594325956602, 0.35207237497053795
        ],
        "float64",
    ),
    "torch/grad.bias_ih": np.array(
        [
            -0.9772243376937804, -0.28443590667405577, 0.3757387412023184, -0.3664159295806755,
            0.26436538147404676, 0.4164556441348043, 1.1922393620760983, -0.18295300711944437,
            -0.5914454819356921, -0.1660261394422057, -0.15195943259566003, 0.35207237497053806
        ],
        "float64",
    ),
    "exact/grad.weight_hh": np.array(
        [
            0.2039269471507293, 0.2070793403224483, 0.48790867476985395, 0.14993128850390497,
            0.03725101797509169, 0.18517093293301673, -0.0602128232886438, 0.13901978286774885,
            0.03857072523587233, 0.4433868138203489, -0.04765748473029032, -0.15801357214171746,
            -0.04233176210449695, -0.05630809737670407, -0.06459002544624667, -0.13310450726910553,
            -0.05696087305929533, -0.3230273997441397, -0.5306491049721345, -0.054564414097791454,
            -0.15329972827884789, 0.17525609855826388, 0.02381627333257497, 0.02244712054464367,
            0.04146484849385946, -0.042172579695082896, 0.17259989482917926, 0.13175037310004123,
            0.19907825803185786, -0.06731235589097283, 0.16146650304991425, -0.1285912942232653,
            0.07699964837588444, -0.11274717441931864, 0.005967521702223547, 0.004803148841819094
        ],
        "float64",
    ).reshape(12, 3),
    "torch/grad.weight_hh": np.array(
        [
            0.2039269471507293, 0.20707934032244835, 0.487908674769854, 0.14993128850390494,
            0.03725101797509166, 0.18517093293301673, -0.06021282328864381, 0.1390197828677488,
            0.038570725235872336, 0.4433868138203487, -0.04765748473029033, -0.15801357214171752,
            -0.04233176210449692, -0.056308097376704, -0.06459002544624667, -0.13310450726910544,
            -0.05696087305929534, -0.3230273997441395, -0.5306491049721346, -0.05456441409779138,
            -0.15329972827884783, 0.1752560985582639, 0.023816273332574908, 0.022447120544643682,
            0.041464848493859355, -0.042172579695082875, 0.17259989482917915, 0.1317503731000412,
            0.19907825803185797, -0.06731235589097281, 0.1614665030499142, -0.12859129422326535,
            0.07699964837588447, -0.11274717441931877, 0.005967521702223545, 0.004803148841819101
        ],
        "float64",
    ).reshape(12, 3),
    "exact/grad.h0": np.array(
        [
            0.02475710213269002, -0.1654148851620169, -0.02264262036830089, 0.5095234760821298,
            -0.38349380651094483, 0.47966407892240603
        ],
        "float64",
    ).reshape(2, 3),
    "torch/grad.h0": np.array(
        [
            0.02475710213269008, -0.1654148851620168, -0.02264262036830087, 0.5095234760821297,
            -0.38349380651094483, 0.4796640789224061
        ],
        "float64",
    ).reshape(2, 3),
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
    "exact/c": np.array(
        [
            -0.5965249528645385, 0.16441982557462836, -0.7333662127561197, 0.056498076065269326,
            0.22831656306581768, -1.1212759454293804
        ],
        "float64",
    ).reshape(2, 3),
    "exact/h": np.array(
        [
            -0.15550133298746088, 0.06887442645434834, -0.06662901053283093, 0.04168911600932195,
            0.11093166996959895, -0.11657361340165048
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
    bias_ih = leaf(DATA["inputs/bias_ih"], True)
    bias_hh = leaf(DATA["inputs/bias_hh"], True)
    h0 = leaf(DATA["inputs/h0"], True)
    c0 = leaf(DATA["inputs/c0"], True)
    result = in_mode(lstm)(
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
        check("grad.c0", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.c0", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.c0", rms=5.680613597962013e-16, largest=8.402566836762659e-16, limit=8.0),
    (
        check("grad.x", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.x", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.x", rms=6.873885467814132e-16, largest=1.813870234568249e-15, limit=8.0),
    (
        check("grad.weight_ih", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.weight_ih", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_ih", rms=4.3284861403096334e-16, largest=1.4049091751067166e-15, limit=8.0),
    (
        check("grad.bias_hh", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.bias_hh", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.bias_hh", rms=5.462868169538432e-16, largest=1.1532116407642068e-15, limit=8.0),
    (
        check("grad.bias_ih", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.bias_ih", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.bias_ih", rms=5.80206514346694e-16, largest=1.2642339432267224e-15, limit=8.0),
    (
        check("grad.weight_hh", "torch", rtol=1e-07, atol=1e-07)
        | check("grad.weight_hh", "exact", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.weight_hh", rms=2.494805725568151e-16, largest=6.20651533639327e-16, limit=8.0),
    (
        check("grad.h0", "exact", rtol=1e-07, atol=1e-07)
        | check("grad.h0", "torch", rtol=1e-07, atol=1e-07)
    )
    and inaccurate("grad.h0", rms=3.32829797477208e-16, largest=4.927969924489739e-16, limit=8.0),
    check("y", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("y", rms=2.017243772281879e-16, largest=6.19865487064275e-16, limit=8.0),
    check("c", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("c", rms=5.09143513271771e-16, largest=8.429265315260115e-16, limit=8.0),
    check("h", "exact", rtol=1e-07, atol=1e-07),
    inaccurate("h", rms=2.696353226311055e-16, largest=6.19865487064275e-16, limit=8.0),
]
if any(DIFFERS):
    print("the difference is there")
    sys.exit(1)
print("the difference is gone")
