"""Recorded references in PyTorch: the same outputs and gradients as PyTorch's own, also of calls that NumPy does not
have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest
import torch

from parity.cases.brought import Brought, ReferenceFile, namespace, op_of, traced
from parity.cases.formula import formulas
from parity.cases.oracle import evaluate, program_of
from parity.cases.program import Program, trace
from parity.cases.user_code import BroughtError
from parity.program.torch_reference import TorchCode, TorchFunction, torch_reference
from parity.program.worker.user_module import UserModule

SHAPES = {"x": (4, 6), "y": (4, 6), "z": (4, 6), "image": (2, 3, 6, 7), "volume": (2, 3, 4, 5, 6), "v": (6,)}
HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"


class Recorded:
    """A function or class `f` of some tensors of SHAPES, recorded, with its own results in float64."""

    def __init__(self, folder: Path, text: str, names: str, **params: Any) -> None:
        path = folder / "reference.py"
        path.write_text(HEAD + text)
        self.source, self.params = ReferenceFile(path, path.read_bytes()), params
        rng = np.random.default_rng(3)
        entry = namespace(self.source, plain=True)["f"]
        shapes = {name: SHAPES[name] for name in names.split()}
        self.module = UserModule(entry)
        if isinstance(entry, type):
            built = self.module.module([])
            states = {**dict(built.named_parameters()), **dict(built.named_buffers())}
            shapes |= {n.replace(".", "_"): tuple(p.shape) for n, p in states.items() if p.is_floating_point()}
        self.inputs: Mapping[str, Any] = {
            name: np.abs(values) + 0.5 if "var" in name else values
            for name, values in ((name, rng.normal(size=shape) * 0.5) for name, shape in shapes.items())
        }
        self.function = TorchFunction(self.source, "f", tuple(shapes), (), tuple(params))
        given = tuple(params.items())
        self.code: TorchCode = self.function.recorded(tuple(shapes.items()), given)

    def own(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """PyTorch's outputs, the gradients that arrive there, and those of inputs."""
        tensors = {name: torch.tensor(values, requires_grad=True) for name, values in self.inputs.items()}
        copies = {n: t.clone() if n in SHAPES else t for n, t in tensors.items()}
        outputs = {n: t for n, t in self.module(**copies, **self.params).items() if isinstance(t, torch.Tensor)}
        rng = np.random.default_rng(4)
        arriving = {n: rng.normal(size=tuple(t.shape)) for n, t in outputs.items() if t.requires_grad}
        given = [outputs[n] for n in arriving], list(tensors.values()), list(map(torch.tensor, arriving.values()))
        gradients = torch.autograd.grad(*given, allow_unused=True) if arriving else (None,) * len(tensors)
        found = {
            n: np.zeros(t.shape) if g is None else g.numpy()
            for (n, t), g in zip(tensors.items(), gradients, strict=True)
        }
        return {n: t.detach().numpy() for n, t in outputs.items()}, arriving, found

    def program(self, arriving: Mapping[str, Any]) -> Program:
        """The recording with gradients."""
        return trace(
            lambda tensors, _: traced(lambda **given: self.code(given), tensors), self.inputs,
            differentiable=list(self.inputs), gradients=arriving or None,
        )[0]  # fmt: skip

    def check(self, dtype: Any = "float64", rtol: float = 1e-9) -> None:
        """Compare outputs and gradients with PyTorch's."""
        outputs, arriving, gradients = self.own()
        arrived = {f"grad.{name}": values for name, values in arriving.items()}
        results = self.program(arriving).run({**self.inputs, **arrived}, dtype)
        expected = {**outputs, **({f"grad.{n}": values for n, values in gradients.items()} if arriving else {})}
        for name, values in expected.items():
            size = np.abs(values.astype(float)).max(initial=1e-3)
            assert results[name].dtype == np.dtype(dtype) or results[name].dtype.kind in "iub", name
            np.testing.assert_allclose(results[name].astype(float), values, rtol=rtol, atol=rtol * size, err_msg=name)


def function_of(names: str, body: str) -> str:
    return f"def f({', '.join(names.split())}):\n" + indent(body if "return " in body else f"return {body}", "    ")


IN_NUMPY = [
    ("x", name)
    for name in (
        "torch.exp2(x)", "torch.log2(x.abs() + 1)", "torch.log10(x.abs() + 1)", "x.tan()", "x.sinh() + x.cosh()",
        "torch.asin(x / 9)", "torch.arccos(x / 9)", "x.atan()", "x.asinh()", "torch.acosh(x.abs() + 2)",
        "torch.atanh(x / 9)", "x.floor() * x", "x.ceil() * x", "x.trunc() * x", "torch.frac(x * 3)", "x.sigmoid().logit()",
        "torch.isnan(x) | torch.isinf(x)", "torch.isfinite(x)", "F.glu(x)", "F.glu(x, 0)", "F.softshrink(x, 0.1)",
        "F.hardshrink(x)", "F.tanhshrink(x)", "F.threshold(x, 0.1, 20.0)", "F.softmin(x, dim=1)", "torch.erfc(x)",
        "x.min()", "x.min(dim=1).values", "torch.min(x, 1, keepdim=True)[1]", "x.argmin(dim=0)", "x.max(dim=-1)[0]",
        "x.norm()", "x.norm(p=1, dim=1)", "torch.norm(x, p=3, dim=1, keepdim=True)", "torch.norm(x)",
        "torch.linalg.vector_norm(x, dim=1)", "torch.linalg.norm(x, dim=1)", "x.norm(float('inf'), dim=1)",
        "torch.var_mean(x, dim=1)", "torch.std_mean(x, 1, keepdim=True)", "(x > 0).all(dim=1)", "(x > 0).any()",
        "torch.count_nonzero(x > 0, dim=1)", "torch.cumprod(x, dim=1)", "torch.cumprod(x * (x > 0), 0)",
        "x.prod(dim=1)", "x.mean(dim=1, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)",
        "x.sort(dim=1)", "x.sort(dim=0, descending=True)[0]", "x.argsort(dim=1)", "x.topk(2, dim=1)",
        "x.topk(3, largest=False)[0]", "torch.trace(x[:, :4])", "x.softmax(dim=1, dtype=x.dtype)",
        "x.new_zeros(4, 6) + x * x.new_ones((4, 6))", "torch.zeros_like(x) + torch.ones_like(x) * x",
        "x * torch.full_like(x, 2.0) + x.new_full((6,), 3.0)", "x.to(torch.int32).float() + x",
        "x.diagonal(1) * 2", "x.roll((1, -2), (0, 1)) * x", "x.roll(3) * x", "x.roll([1], 0) * x", "torch.take_along_dim(x, x.argsort(1), 1)", "F.logsigmoid(x)",
        "F.prelu(x, x[0])", "F.rrelu(x, training=False)", "x.remainder(0.3)", "torch.fmod(x, 0.3)",
        "x.tile(2, 1) * 2", "x.scatter(1, torch.tensor([[0, 1], [2, 3], [1, 0], [5, 4]]), 2.0)",
        "x.scatter(1, torch.tensor([[0, 1], [2, 3], [1, 0], [5, 4]]), x[:, :2])", "F.embedding(torch.tensor([0, 2]), x)",
        "torch.zeros(3, 6).to(x).index_add(0, torch.tensor([0, 2, 2, 1]), x)", "(x * 9).div(3, rounding_mode='trunc') * x",
        "(x - x.detach()).clamp(min=0)", "x.clamp(-0.1, 0.3) + x.clamp(max=x.mean())", "F.hardtanh(x, -0.2, 0.2)",
        "F.relu6(F.relu(x) * 9)", "F.one_hot(x.argmax(1), 6) * x", "x.broadcast_to(2, 4, 6) * 2",
    )
] + [
    ("x y", name)
    for name in (
        "torch.logaddexp(x, y)", "torch.hypot(x, y)", "torch.xlogy(x, y.abs())", "F.pairwise_distance(x, y)",
        "torch.dot(x[0], y[0])",
        "torch.inner(x, y)", "torch.atan2(x, y)", "torch.remainder(x, y)", "x @ y.T", "torch.mv(x, y[0])", "F.pairwise_distance(x, y, p=1.0, keepdim=True)",
        "F.margin_ranking_loss(x, y, torch.ones_like(x))", "F.hinge_embedding_loss(x, y.sign())",
        "F.soft_margin_loss(x, y.sign().detach(), reduction='sum')", "F.mse_loss(x, y)", "F.huber_loss(x, y)",
        "F.smooth_l1_loss(x, y)", "F.l1_loss(x, y, reduction='none')",
        "F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction='batchmean')",
        "F.cross_entropy(x, y.argmax(dim=1))", "F.cosine_similarity(x, y)",
        "F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach())",
        "F.binary_cross_entropy_with_logits(x, y.sigmoid())",
    )
] + [
    ("x y z", "F.triplet_margin_loss(x, y, z)"),
    ("x y z", "F.triplet_margin_loss(x, y, z, margin=0.5, p=1.0, swap=True, reduction='none')"),
    ("x y z", "nn.TripletMarginLoss(margin=1.0)(x, y, z)"),
    ("image", "F.avg_pool2d(image, 2)"),
    ("image", "F.avg_pool2d(image, 3, stride=2, padding=1, count_include_pad=False)"),
    ("image", "F.adaptive_avg_pool2d(image, (2, 3))"),
    ("image", "F.adaptive_avg_pool2d(image, 1)"),
    ("image", "F.instance_norm(image)"),
    ("image", "image.unfold(2, 3, 2).unfold(-2, 2, 1) * 2"),
    ("image", "F.pixel_unshuffle(image[..., :6], 2)"),
    ("image", "F.max_pool2d(image, 2)"),
    ("volume", "F.avg_pool3d(volume, 2)"),
    ("volume", "F.adaptive_avg_pool3d(volume, (2, 3, 4))"),
    ("volume", "F.adaptive_avg_pool3d(volume, 1)"),
    ("volume", "F.instance_norm(volume)"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "body"), IN_NUMPY)
def test_functions_have_a_meaning_in_numpy(names: str, body: str, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, function_of(names, body), names)
    recorded.check(rtol=1e-7)
    assert recorded.code.opaque == []


MODULE = "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = {}\n"
LAYERS = [
    ("x", "nn.Linear(6, 5)", "self.layer(x)"),
    ("x", "nn.BatchNorm1d(6)", "self.layer(x)"),
    ("image", "nn.BatchNorm2d(3)", "self.layer(image) * 2"),
    ("image", "nn.InstanceNorm2d(3, affine=True, track_running_stats=True)", "self.layer(image)"),
    ("image", "nn.Conv2d(3, 4, 3, padding='same', groups=1, dilation=2)", "self.layer(image)"),
    ("image", "nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1)", "self.layer(image)"),
    ("x", "nn.LSTM(6, 3, num_layers=2, batch_first=True, bidirectional=True)", "self.layer(x.unsqueeze(0))[0]"),
    ("x", "nn.LSTM(6, 3, bias=False)", "self.layer(x.unsqueeze(1))[1]"),
    ("x", "nn.GRU(6, 3, num_layers=2, bidirectional=True)", "self.layer(x.unsqueeze(1))"),
    ("x", "nn.RNN(6, 3)", "self.layer(x.unsqueeze(1))[0]"),
    ("x", "nn.RNN(6, 3, nonlinearity='relu')", "self.layer(x.unsqueeze(1))[1]"),
    ("x", "nn.LSTMCell(6, 3)", "self.layer(x)"),
    ("x", "nn.GRUCell(6, 3)", "self.layer(x)"),
    ("x", "nn.RNNCell(6, 3)", "self.layer(x)"),
    ("x", "nn.MultiheadAttention(6, 2, batch_first=True)", "self.layer(x[None], x[None], x[None])"),
    ("x", "nn.MultiheadAttention(6, 2)", "self.layer(x[:, None], x[:, None], x[:, None], need_weights=False)[0]"),
    ("x", "nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)", "self.layer(x[:, None])"),
    ("x", "nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0)", "self.layer(x[:, None], x[:, None] * 2)"),
    ("x", "nn.Linear(6, 6)", "torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)"),
]


@pytest.mark.parametrize(("names", "layer", "body"), LAYERS)
def test_layers_have_a_meaning_in_numpy(names: str, layer: str, body: str, tmp_path: Path) -> None:
    text = "import torch.utils.checkpoint\n" + MODULE.format(layer)
    recorded = Recorded(tmp_path, f"{text}    def forward(self, {names}):\n        return {body}", names)
    recorded.check(rtol=1e-7)
    assert recorded.code.opaque == []


OPAQUE = [
    ("x", "torch.lgamma(x.abs() + 1)", "lgamma"),
    ("x", "torch.special.i0(x) * 2", "special_i0"),
    ("x y", "torch.cdist(x, y).sum()", "cdist"),
    ("x", "torch.cummax(x, 1)", "cummax"),
    ("x", "torch.logcumsumexp(x, 0)", "logcumsumexp"),
    ("x", "F.fold(F.unfold(x[None, None], 2), (4, 6), 2)", "col2im"),
    ("x", "x.median(dim=1)[0] + x.kthvalue(2, dim=1).values", "median"),
    ("x", "torch.fft.rfft(x).abs()", "fft_rfft"),
    ("x", "torch.linalg.det(x[:, :4] + 3 * torch.eye(4, dtype=x.dtype))", "linalg_det"),
    ("x", "h = x * 2\nh.lgamma_()\nreturn h * x", "lgamma"),
    ("x", "torch.einsum('...i,...i->...', x, x) * 2", "einsum"),
    ("x", "torch.where(x > 0, x, 0).renorm(2, 0, 1.0)", "renorm"),
]


@pytest.mark.parametrize(("names", "body", "function"), OPAQUE)
def test_a_call_without_a_meaning_in_numpy_is_one_step(names: str, body: str, function: str, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, function_of(names, body), names)
    recorded.check(rtol=1e-7)
    recorded.check("float32", 1e-3)
    recorded.check(np.longdouble, 1e-7)
    assert recorded.code.gradients_differ == ""
    assert any(text.startswith("reference.py:") and text.endswith(f" {function}") for text in recorded.code.opaque)


def test_an_opaque_call_is_written_as_it_was_made(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, function_of("x", "h = x * 2\nreturn torch.logcumsumexp(h, 1)"), "x")
    _, arriving, _ = recorded.own()
    text = formulas(recorded.program(arriving))
    assert "logcumsumexp(h, 1)" in str(text)


OWN_GRADIENT = """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def f(x):
    return Straight.apply(x * 2) * x
"""


def test_the_gradient_of_a_class_with_a_backward_pass_is_its_own(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, OWN_GRADIENT, "x")
    recorded.check()
    assert recorded.code.opaque == ["reference.py:14 Straight.apply"]


CUT = [
    "x.detach() * x",
    "h = x * 2\nwith torch.no_grad():\n    scale = h.abs().max()\nreturn h / scale",
    "x + (x.round() - x).detach()",
    "h = x.clone()\nh[0] = h[1].detach() * 2\nreturn h * h",
]


@pytest.mark.parametrize("body", CUT)
def test_gradients_end_where_the_code_ends_them(body: str, tmp_path: Path) -> None:
    Recorded(tmp_path, function_of("x", body), "x").check()


RANDOM = [
    ("F.dropout(x * 2)", "dropout draws random numbers"),
    ("torch.bernoulli(x.sigmoid())", "bernoulli draws random numbers"),
    ("x + torch.zeros(4, 6).normal_()", "normal draws random numbers"),
    ("F.gumbel_softmax(x)", "draws random numbers"),
]


@pytest.mark.parametrize(("body", "why"), RANDOM)
def test_random_numbers_are_refused_with_their_line(body: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BroughtError, match=rf"reference.py:3: .*{why}"):
        Recorded(tmp_path, function_of("x", body), "x")


def test_what_float32_loses_is_compared_in_float64(tmp_path: Path) -> None:
    Recorded(tmp_path, function_of("x", "h = x * 1e-3 + 1e6\nreturn (h - 1e6) * 1e3"), "x").check(rtol=1e-4)


STATES = """
class f(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = torch.randn(4, 6)
        self.left = torch.zeros(4, 6)

    def forward(self, x):
        self.left.copy_(x)
        self.left = self.left * 2 + torch.rand(4, 6) + torch.randn_like(x)
        return self.left * self.kept
"""


def test_states_that_are_drawn_are_equal_in_every_dtype(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, STATES, "x")
    recorded.check(rtol=1e-6)
    assert recorded.code.opaque == []


def test_gradients_that_are_not_pytorchs_are_told(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, function_of("x", "(x - x.detach()).max(dim=1)[0]"), "x")
    assert recorded.code.gradients_differ == "the gradient of x is not PyTorch's"


def test_a_cast_to_bfloat16_rounds(tmp_path: Path) -> None:
    recorded = Recorded(
        tmp_path, function_of("x", "x.to(torch.bfloat16).float() + (x * x.bfloat16()).detach() * 0"), "x"
    )
    rounded = torch.tensor(recorded.inputs["x"]).to(torch.bfloat16).double().numpy()
    np.testing.assert_array_equal(recorded.code(recorded.inputs)["y"], rounded)


class TestVariants:
    """What a kernel may compute instead of the ops that recorded code calls."""

    LAYER = """
class f(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 5)

    def forward(self, x):
        return self.rnn(x)[0]
"""
    LOOP = """
class f(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 6)

    def forward(self, x, y):
        for _ in range(5):
            y = self.cell(x, y)
        return y
"""

    def changed(self, folder: Path, text: str, names: str, name: str, value: str) -> tuple[Any, Any]:
        recorded = Recorded(folder, text, names)
        own = recorded.code(dict(recorded.inputs))["y"]
        found = [v for v in recorded.code.variants() if v.id == name and value in v.arguments.values()]
        return own, [(v.arguments, recorded.code(dict(recorded.inputs), v.arguments)["y"]) for v in found]

    def test_of_a_layer(self, tmp_path):
        own, found = self.changed(tmp_path, self.LAYER, "x", "reset-placement", "before")
        ((arguments, other),) = found
        assert len(arguments) == 1
        assert np.abs(own - other).max() > 1e-3

    def test_of_a_call_in_a_loop_in_all_turns_together(self, tmp_path):
        own, found = self.changed(tmp_path, self.LOOP, "x y", "reset-placement", "before")
        ((arguments, other),) = found
        assert len(arguments) == 5
        assert np.abs(own - other).max() > 1e-3


LOSSY_FORMS = {
    "((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)": "variance-naive",
    "(x - x.mean(0)).square().sum(0) / 3": "variance-naive",
    "((x - x.mean(1, keepdim=True)) * (y - y.mean(1, keepdim=True))).mean(1)": "variance-naive",
    "(x - x.mean(0)).T @ (x - x.mean(0))": "variance-naive",
    "(x[:, None] - y[None]).pow(2).sum(-1)": "expanded-square",
    "((x - y) * (x - y)).mean()": "expanded-square",
    "torch.log1p(x)": "cancellation-near-0",
    "torch.expm1(x)": "cancellation-near-0",
}


class TestLossyForms:
    @pytest.mark.parametrize(("code", "name"), LOSSY_FORMS.items())
    def test_is_the_same_in_exact_arithmetic_and_loses_digits(self, tmp_path, code, name):
        recorded = Recorded(tmp_path, f"def f(x, y): return {code} + 0 * y.sum()", "x y")
        (variant,) = recorded.code.variants()
        assert (variant.id, variant.unstable) == (name, True)
        inputs = {n: (a * 1e-5 if "near-0" in name else a + 2e4).astype("float32") for n, a in recorded.inputs.items()}
        wide = {n: a.astype("float64") for n, a in inputs.items()}
        exact = recorded.code(wide)["y"]
        assert np.allclose(recorded.code(wide, variant.arguments)["y"], exact, rtol=1e-5, atol=0)
        lossy, own = (np.abs(recorded.code(inputs, more)["y"] / exact - 1).max() for more in (variant.arguments, {}))
        assert lossy > 20 * own

    @pytest.mark.parametrize(
        "code",
        [
            "((x - y) ** 3).mean()",
            "((x + y) ** 2).mean()",
            "((x - y) * x).mean()",
            "(x - y) ** 2",
            "((x - y).abs() ** 2).sum()",
            "((x - 1) ** 2).sum()",
        ],
    )
    def test_what_is_no_sum_of_squared_differences_has_none(self, tmp_path, code):
        assert not list(Recorded(tmp_path, f"def f(x, y): return {code} + 0 * y.sum()", "x y").code.variants())


def test_shapes_are_those_of_a_recording_without_one(tmp_path):
    recorded = Recorded(tmp_path, "def f(x, y): return x @ y.T, (x > 0).sum(0)", "x y")
    shapes = tuple((n, v.shape) for n, v in recorded.inputs.items())
    assert not recorded.function.is_recorded
    recorded.function.codes[shapes, ()] = recorded.code
    assert recorded.function.is_recorded
    kinds = recorded.function.output_kinds({"x": np.ones((2, 5)), "y": np.ones((3, 5))}, {})
    assert {n: shape for n, (shape, _) in kinds.items()} == {"y0": (2, 3), "y1": (5,)}
    assert [dtype.kind for _, dtype in kinds.values()] == ["f", "i"]
    with pytest.raises(BroughtError):
        recorded.function.output_kinds({"x": np.ones((2, 5)), "y": np.ones((3, 4))}, {})


def test_a_number_among_params_is_the_one_of_each_case(tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(HEAD + "def f(x, scale): return torch.tanh(x * scale)")
    source = torch_reference(ReferenceFile(path, path.read_bytes()), "f", ("x",), (), ("scale",))
    op = op_of(Brought(source, "f", ("x",), (), ("x",), ("scale",), ("y",)))
    x = np.linspace(-1, 1, 8).reshape(2, 4)
    for scale in (0.5, 2.0):
        np.testing.assert_allclose(evaluate(op, op.params(scale=scale), {"x": x})["y"], np.tanh(x * scale), rtol=1e-12)
        program = program_of(op, op.params(scale=scale), {"x": x})
        np.testing.assert_allclose(program.run({"x": x}, np.float64)["y"], np.tanh(x * scale), rtol=1e-12)


def test_code_of_many_calls_is_one_step(tmp_path):
    body = "h = x\nfor _ in range(500):\n    h = h * 0.99 + x\nreturn h"
    path = tmp_path / "looped.py"
    path.write_text(HEAD + function_of("x", body))
    function = torch_reference(ReferenceFile(path, path.read_bytes()), "f", ("x",), (), ()).function
    x = np.linspace(-1, 1, 24).reshape(4, 6)
    np.testing.assert_allclose(function(x=x)["y"], x * (1 - 0.99**501) / 0.01, rtol=1e-10)
    (why,) = function.opaque
    assert (
        why
        == f"looped.py:{path.read_text().splitlines().index('        h = h * 0.99 + x') + 1}: it makes more than 400 calls"
    )


def test_a_label_that_ctc_does_not_have_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "ctc.py"
    lengths = "torch.full((2,), 5), torch.full((2,), 2)"
    path.write_text(HEAD + f"def f(x, y): return F.ctc_loss(x.log_softmax(-1), y, {lengths})")
    function = torch_reference(ReferenceFile(path, path.read_bytes()), "f", ("x", "y"), (("y", 1, 9),), ()).function
    with pytest.raises(BroughtError, match=r"ctc.py:.*a target is not one of the 3 labels"):
        function(x=np.zeros((5, 2, 3)), y=np.full((2, 2), 8))


def test_offsets_grow(tmp_path):
    path = tmp_path / "rows.py"
    body = "rows = torch.repeat_interleave(torch.arange(4), crow[1:] - crow[:-1])\nreturn torch.zeros(4).index_add(0, rows, x)"
    path.write_text(HEAD + function_of("x crow", body))
    source = torch_reference(ReferenceFile(path, path.read_bytes()), "f", ("x", "crow"), (("crow", 0, 13),), ())
    op = op_of(Brought(source, "f", ("x", "crow"), (("crow", 0, 13),), ("x",), (), ("y",)))
    assert op.infer_shapes(op.params(), {"x": (12,), "crow": (5,)}).outputs == {"y": (4,)}


def test_a_matrix_of_equal_numbers_has_no_inverse(tmp_path):
    path = tmp_path / "inverse.py"
    path.write_text(HEAD + function_of("x", "return torch.linalg.inv(x)"))
    source = torch_reference(ReferenceFile(path, path.read_bytes()), "f", ("x",), (), ())
    op = op_of(Brought(source, "f", ("x",), (), ("x",), (), ("y",)))
    assert op.infer_shapes(op.params(), {"x": (3, 3)}).outputs == {"y": (3, 3)}


def test_an_index_that_depends_on_numbers_has_no_gradient(tmp_path):
    Recorded(
        tmp_path,
        function_of("x", "i = torch.searchsorted(x[0].sort()[0], x[1:]).clamp(max=5)\nreturn x[0][i] * x[1:]"),
        "x",
    ).check()


def test_a_reference_that_takes_covariances_only():
    text = """
import torch

def f(mean, cov):
    normal = torch.distributions.MultivariateNormal(mean, cov)
    return normal.log_prob(torch.zeros(3, dtype=mean.dtype))
"""
    source = ReferenceFile(Path("ref.py"), text.encode())
    reference = torch_reference(source, "f", ("mean", "cov"), (), ())
    cov = np.eye(3) + 0.25
    outputs = reference.function(mean=np.ones(3), cov=cov)
    expected = -0.5 * (np.ones(3) @ np.linalg.inv(cov) @ np.ones(3) + np.linalg.slogdet(cov)[1] + 3 * np.log(2 * np.pi))
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-12)
