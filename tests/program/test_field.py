"""Arithmetic in finite fields, and PyTorch's calls in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parity.program.worker import field, field_constants
from parity.program.worker.field_mode import exact_arithmetic
from parity.program.worker.field_tensor import NOTES, of_input
from parity.program.worker.same_formula import computed
from parity.program.worker.user_module import UserModule

Code = Callable[..., Any]


def residues(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.fixture(autouse=True)
def usual_interpretation() -> None:
    field.NOW.eager, field.NOW.strict, field.NOW.key = True, False, 0


def test_logarithms_are_the_inverse_of_powers():
    numbers = torch.randint(1, field.P, (3000,), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(field.exp(field.log(numbers)), numbers)
    exponents = torch.randint(0, field.ORDER, (3000,), generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(field.log(field.exp(exponents)), exponents)
    assert field.log(residues(0)).isnan().all()


def test_powers_add_up_and_roots_multiply():
    a, b = residues(5, 12345, 94819195), residues(7, 23456, 3)
    both = torch.remainder(field.exp(a) * field.exp(b), field.P)
    assert torch.equal(field.exp(torch.remainder(a + b, field.ORDER)), both)
    product = torch.remainder(field.root(a, field.P) * field.root(b, field.P), field.P)
    assert torch.equal(field.root(torch.remainder(a * b, field.P), field.P), product)


@pytest.mark.parametrize("modulus", [field.P, field.ORDER])
def test_an_inverse_is_one(modulus: int):
    numbers = residues(3, 11, 12346, 94819193)
    q = field.P if modulus == field.P else field.Q
    assert torch.equal(torch.remainder(numbers * field.inverse(numbers, modulus), q), torch.ones(4).double())
    assert field.inverse(residues(0), modulus).isnan().all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1 / 3, Fraction(1, 3)),
        (1 - 0.99, Fraction(1, 100)),
        (float(np.float32(0.1)), Fraction(1, 10)),
        (0.044715, Fraction(44715, 10**6)),
        (1e-12, Fraction(1, 10**12)),
        (-7.0, Fraction(-7)),
    ],
)
def test_a_number_in_code_is_the_fraction_that_it_is_rounded_from(one: float, other: Fraction):
    assert field_constants.of_constant(one) == field_constants.of_fraction(other)


def test_a_root_in_code_is_one_over_that_of_the_inverse():
    for number in (2.0, 8.0, 96.0):
        one, other = field_constants.of_constant(math.sqrt(number)), field_constants.of_constant(1 / math.sqrt(number))
        assert one[1] * other[1] % field.P == 1
        assert one[0] * other[0] % field.Q == 1


@pytest.mark.parametrize("number", [2, 3, 5, 6, 7, 8, 10, 12, 1 / 96, 128, 0.1])
def test_the_root_of_a_simple_number_has_its_square(number: float):
    q, p = field_constants.of_constant(math.sqrt(number))
    theirs = field_constants.of_constant(number)
    assert (q * q % field.Q, p * p % field.P) == (theirs[0] % field.Q, theirs[1])


def test_logarithms_in_code_add_up():
    logs = [field_constants.of_constant(n)[0] for n in (math.log(2), math.log(5), math.log(10))]
    assert (logs[0] + logs[1] - logs[2]) % field.Q == 0
    tenths = field_constants.of_constant(-math.log(10000) / 64)[0]
    assert (64 * tenths + field_constants.of_constant(math.log(10000))[0]) % field.Q == 0
    assert 2 * field_constants.of_constant(math.log(2 * math.pi) / 2)[0] % field.Q == (
        field_constants.of_constant(math.log(2 * math.pi))[0] % field.Q
    )


def test_another_number_has_other_residues():
    pairs = [(1e-5, 1e-6), (0.5, 0.5 + 1e-9), (math.sqrt(2), 1.41421356), (math.pi, 3.14159265)]
    assert all(field_constants.of_constant(a) != field_constants.of_constant(b) for a, b in pairs)


X = torch.arange(-11.0, 13.0).reshape(2, 3, 4)
SQUARE = torch.tensor([[2.0, 1, 0], [1, 3, 1], [0, 1, 4]])
IMAGE = torch.arange(-17.0, 15.0).reshape(1, 2, 4, 4)
INDEX = torch.tensor([2, 0, 0])
RATIONAL: Mapping[str, Callable[[], Any]] = {
    "polynomial": lambda: 3 * X**2 - X / 7 + 0.25,
    "alpha": lambda: torch.add(X, X, alpha=3) - torch.rsub(X, 2, alpha=5),
    "matmul": lambda: X @ X.transpose(1, 2),
    "einsum": lambda: torch.einsum("bij,bkj->ik", X, X),
    "mean": lambda: X.mean((0, 2)),
    "variance": lambda: X.var(-1) + X.var(1, unbiased=False, keepdim=True).mean(-1),
    "cumulative": lambda: X.cumsum(1) + (X / 4).cumprod(2),
    "product": lambda: (X / 5).prod(-1),
    "extremes": lambda: X.amax((0, 2)) + X.min(1).values[0, :3] + torch.maximum(X, -X).sum(),
    "sorted": lambda: X.sort(2, descending=True).values.cumsum(2) + X.topk(2, 2).values.sum(-1, keepdim=True),
    "masked": lambda: torch.where(X > 0, X / 3, -X).masked_fill(X == 2, 0.1),
    "clamped": lambda: X.clamp(-2, 2.5) / 3 + nn.functional.relu(X) + X.abs() + nn.functional.leaky_relu(X, 0.01),
    "indexed": lambda: torch.zeros(3, 4).index_add(0, INDEX, X[0]) + X[1, INDEX] + X[0].index_select(0, INDEX),
    "scattered": lambda: torch.zeros(3, 4).scatter_add(0, INDEX[:, None].expand(3, 4), X[0] / 3),
    "scatter-max": lambda: torch.zeros(3, 4).scatter_reduce(0, INDEX[:, None].expand(3, 4), X[0] / 3, "amax"),
    "written": lambda: written(X),
    "convolution": lambda: nn.functional.conv2d(
        IMAGE, IMAGE.reshape(2, 1, 4, 4)[:, :, :3, :3] / 8, groups=2, padding=1, stride=2
    ),
    "transposed": lambda: nn.functional.conv_transpose2d(
        IMAGE, IMAGE.reshape(2, 1, 4, 4) / 3, groups=2, bias=IMAGE[0, :, 0, 0]
    ),
    "pooling": lambda: (
        nn.functional.avg_pool2d(IMAGE, 3, 2, padding=1, count_include_pad=False)
        + nn.functional.avg_pool2d(IMAGE, 3, 2, 1)
    ),
    "max-pooling": lambda: nn.functional.max_pool2d(IMAGE / 3, 2),
    "adaptive": lambda: nn.functional.adaptive_avg_pool2d(IMAGE, 3),
    "interpolated": lambda: nn.functional.interpolate(IMAGE, scale_factor=2, mode="bilinear"),
    "padded": lambda: (
        nn.functional.pad(IMAGE, (1, 2), value=0.3) + nn.functional.pad(IMAGE, (2, 1, 0, 0), mode="reflect")
    ),
    "unfolded": lambda: nn.functional.fold(nn.functional.unfold(IMAGE, 2), (4, 4), 2),
    "inverse": lambda: torch.linalg.inv(SQUARE),
    "determinant": lambda: torch.linalg.det(SQUARE) * torch.ones(2),
    "remainder": lambda: torch.remainder(X / 2, 1.5) + torch.fmod(X, 2.5) + torch.floor(X / 2),
    "rolled": lambda: X.roll(1, 2).flip(1).tril().unfold(2, 2, 1).sum(-1) / 3,
    "loss": lambda: (
        nn.functional.smooth_l1_loss(X, X.flip(0) / 4, reduction="none") + nn.functional.mse_loss(X, X.flip(0))
    ),
    "embedding": lambda: nn.functional.embedding(INDEX, X[0] / 7) + nn.functional.one_hot(INDEX, 4) / 3,
    "lerp": lambda: torch.lerp(X, X.flip(0), 0.3) + torch.addcdiv(X, X, X.abs() + 1, value=0.5),
}
"""Code whose results are fractions, which the residues must be."""


def written(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out[:, 0] = x[:, 1] / 3
    out[:, 1:] = 0.7
    out[..., 2] += x[..., 0]
    out.transpose(1, 2)[:, 3].mul_(5)
    return out


@pytest.mark.parametrize("name", RATIONAL)
def test_residues_of_rational_results_are_those_of_the_fractions(name: str):
    with exact_arithmetic():
        result = RATIONAL[name]()
    values, q, p = (part.flatten().tolist() for part in (result.value, result.q, result.p))
    expected = [field_constants.of_fraction(Fraction(value).limit_denominator(10**6)) for value in values]
    assert [number % field.Q for number in q] == [number[0] % field.Q for number in expected]
    assert p == [number[1] for number in expected]
    assert not NOTES


def test_gradients_have_residues():
    x = of_input(torch.arange(1.0, 5.0)).requires_grad_()
    with exact_arithmetic():
        (x**3 / 7).sum().backward()
    assert x.grad.p.tolist() == [field_constants.of_fraction(Fraction(3 * n * n, 7))[1] for n in range(1, 5)]


def residues_of(code: Any, given: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return computed(UserModule(code), given, params or {}, gradients=True)


def is_same(one: Any, other: Any, given: Mapping[str, Any]) -> bool:
    """Whether values agree, and residues modulo one of the primes, of outputs and gradients."""
    theirs, own = residues_of(one, given), residues_of(other, given)
    assert theirs.keys() == own.keys()
    pairs = [(theirs[name], own[name]) for name in theirs]
    return all(
        np.allclose(a[0], b[0], rtol=1e-9)
        and (np.array_equal(np.remainder(a[1], field.Q), np.remainder(b[1], field.Q)) or np.array_equal(a[2], b[2]))
        for a, b in pairs
    )


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    top, total = x[:, :2].amax(1, keepdim=True), x.new_zeros(x.shape[0], 1)
    for part in x.split(2, 1):
        new = torch.maximum(top, part.amax(1, keepdim=True))
        total = total * torch.exp(top - new) + torch.exp(part - new).sum(1, keepdim=True)
        top = new
    return torch.exp(x - top) / total


def welford(x: torch.Tensor) -> torch.Tensor:
    mean, squares = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    for n, column in enumerate(x.unbind(1), 1):
        delta = column - mean
        mean = mean + delta / n
        squares = squares + delta * (column - mean)
    return (x - mean[:, None]) * torch.rsqrt(squares[:, None] / x.shape[1] + 1e-5)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * s * (1 + x * (1 - s))


class Cut(Doubled):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(x)


def attention(x: torch.Tensor) -> torch.Tensor:
    scores = x @ x.t() / math.sqrt(x.shape[1])
    causal = torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~causal, -math.inf), -1) @ x


ALIKE: Mapping[str, tuple[Code, Code]] = {
    "softmax": (lambda x: torch.softmax(x, 1), online_softmax),
    "log-softmax": (lambda x: torch.log_softmax(x, 1), lambda x: x - torch.logsumexp(x, 1, keepdim=True)),
    "layer-norm": (lambda x: nn.functional.layer_norm(x, x.shape[1:]), welford),
    "uncentered": (lambda x: x.var(1, unbiased=False), lambda x: (x * x).mean(1) - x.mean(1) ** 2),
    "silu": (nn.functional.silu, Doubled.apply),
    "tanh": (torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
    "gelu": (nn.functional.gelu, lambda x: x * 0.5 * torch.erfc(-x / math.sqrt(2))),
    "softplus": (nn.functional.softplus, lambda x: x - nn.functional.logsigmoid(x)),
    "sums": (lambda x: torch.logsumexp(x, 1), lambda x: torch.log(torch.exp(x - 1).sum(1)) + 1),
    "attention": (
        lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0],
        attention,
    ),
    "normalized": (lambda x: nn.functional.normalize(x, dim=1), lambda x: x * (x * x).sum(1, keepdim=True).rsqrt()),
    "power": (lambda x: (x.abs() + 1) ** 1.5, lambda x: torch.rsqrt(x.abs() + 1) ** -3),
    "casts": (lambda x: (x.half().float() * 0.1).to(x.dtype), lambda x: x / 10),
    "distances": (lambda x: torch.cdist(x, x * 2), lambda x: torch.sqrt(((x[:, None] - 2 * x[None]) ** 2).sum(-1))),
    "bags": (
        lambda x: nn.functional.embedding_bag(torch.tensor([0, 2, 2, 4]), x, torch.tensor([0, 1]), mode="mean"),
        lambda x: torch.stack([x[0], (2 * x[2] + x[4]) / 3]),
    ),
    "determinant": (
        lambda x: torch.logdet(x[:2, :2] @ x[:2, :2].t() + torch.eye(2)),
        lambda x: torch.log(torch.linalg.det(x[:2, :2] @ x[:2, :2].t() + torch.eye(2))),
    ),
    "solution": (
        lambda x: torch.linalg.solve(x[:3, :3], x[:3, 3:]),
        lambda x: torch.linalg.inv(x[:3, :3]) @ x[:3, 3:],
    ),
    "element-by-element": (
        lambda x: torch.lgamma(torch.stack([x + 3, x + 4])).sum(0),
        lambda x: torch.lgamma(x + 3) + torch.lgamma(x + 4),
    ),
    "cross-entropy": (
        lambda x: nn.functional.cross_entropy(x, torch.arange(len(x)), label_smoothing=0.1),
        lambda x: (torch.logsumexp(x, 1) - 0.9 * x.diagonal() - 0.1 * x.mean(1)).mean(),
    ),
}
OTHER: Mapping[str, tuple[Code, Code]] = {
    "epsilon": (
        lambda x: nn.functional.layer_norm(x, x.shape[1:]),
        lambda x: nn.functional.layer_norm(x, x.shape[1:], eps=1e-6),
    ),
    "unbiased": (lambda x: x.var(1), lambda x: x.var(1, unbiased=False)),
    "gelu-tanh": (nn.functional.gelu, lambda x: nn.functional.gelu(x, approximate="tanh")),
    "gradient": (nn.functional.silu, Cut.apply),
    "scale": (attention, lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.4)),
    "axis": (lambda x: torch.softmax(x, 1), lambda x: torch.softmax(x, 0)),
    "constant": (lambda x: x * 0.7978845608, lambda x: x * math.sqrt(2 / math.pi)),
}


def given() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(5, 6, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("name", ALIKE)
def test_code_in_another_form_has_the_same_residues(name: str):
    assert is_same(*ALIKE[name], given())


@pytest.mark.parametrize("name", OTHER)
def test_code_that_computes_something_else_has_others(name: str):
    assert not is_same(*OTHER[name], given())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 3, batch_first=True)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(x)
        return self.head(self.norm(hidden[:, -1]))


class Unrolled(Recurrent):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cell, h = self.cell, x.new_zeros(x.shape[0], 3)
        for step in x.unbind(1):
            i = nn.functional.linear(step, cell.weight_ih_l0, cell.bias_ih_l0).chunk(3, 1)
            j = nn.functional.linear(h, cell.weight_hh_l0, cell.bias_hh_l0).chunk(3, 1)
            r, z = torch.sigmoid(i[0] + j[0]), torch.sigmoid(i[1] + j[1])
            h = z * h + (1 - z) * torch.tanh(i[2] + r * j[2])
        center = h - h.mean(0)
        h = center / torch.sqrt(center.square().mean(0) + self.norm.eps) * self.norm.weight + self.norm.bias
        return h @ self.head.weight.t() + self.head.bias


def test_layers_with_weights_are_spelled_out():
    generator = torch.Generator().manual_seed(0)
    module = Recurrent()
    state = {n.replace(".", "_"): torch.randn(p.shape, generator=generator) for n, p in module.named_parameters()}
    values = {"x": torch.randn(4, 5, 4, generator=generator), **state}
    params = {"training": True, "arguments": "x"}
    theirs, own = residues_of(Recurrent, values, params), residues_of(Unrolled, values, params)
    names = {name for name in theirs if not name.startswith("after_")}
    assert {"y", "grad.x", "grad.cell_weight_hh_l0", "grad.norm_weight"} <= names
    assert all(np.allclose(theirs[name][0], own[name][0], rtol=1e-9, atol=1e-12) for name in names)
    assert all(np.array_equal(theirs[name][2], own[name][2]) for name in names)


def test_a_call_without_a_rule_is_noted_and_equal_where_its_inputs_are():
    parts = [residues_of(code, given())["y"] for code in (torch.special.i0, lambda x: torch.special.i0(x + 0))]
    assert {"bessel_i0"} <= NOTES
    assert np.array_equal(parts[0][1], parts[1][1])
    assert not np.array_equal(parts[0][1], residues_of(lambda x: torch.special.i0(x + 1), given())["y"][1])


def test_a_number_that_code_reads_keeps_its_residues():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x[0, 0].detach().item()

    one, other = residues_of(scaled, given()), residues_of(lambda x: x * x[0, 0].detach(), given())
    assert np.array_equal(one["y"][2], other["y"][2])


def test_memory_without_values_is_zeros():
    with exact_arithmetic():
        parts = [torch.empty(2, 3), torch.empty_like(torch.ones(2)), torch.ones(3).new_empty(2)]
    assert all(not bool((part.p != 0).any() | (part.value != 0).any()) for part in parts)


def test_the_median_of_all_elements_is_noted():
    residues_of(lambda x: x.median(), given())
    assert "median" in NOTES


def test_in_a_strict_interpretation_only_squares_have_roots():
    field.NOW.strict = True
    p = residues_of(lambda x: torch.sqrt(x * x + 1), given())["y"][2]
    assert 0 < np.isnan(p).sum() < p.size


def turned(x: torch.Tensor) -> torch.Tensor:
    """Pairs of columns, turned by angles that depend on the row."""
    angles = torch.outer(torch.arange(len(x)).to(x.dtype), torch.tensor([1.0, 0.1, 0.01], dtype=x.dtype))
    one, other = x.chunk(2, 1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], 1)


def turned_as_complex(x: torch.Tensor) -> torch.Tensor:
    angles = torch.outer(torch.arange(len(x)).to(x.dtype), torch.tensor([1.0, 0.1, 0.01], dtype=x.dtype))
    pairs = torch.view_as_complex(torch.stack(x.chunk(2, 1), -1))
    out = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
    return torch.cat(out.unbind(-1), 1)


def written_complex(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(2, x.shape[1], dtype=torch.complex128)
    z[0] = torch.complex(x[0], 2 * x[0])
    z[1] += torch.complex(x[1], x[0])
    return torch.stack([z[0].real + z[0].imag, z[1].real + z[1].imag])


COMPLEX: Mapping[str, tuple[Code, Code]] = {
    "rotary": (turned, turned_as_complex),
    "product": (
        lambda x: (torch.complex(x, 2 * x) * torch.complex(x, -x).conj() / (1 + 1j)).real,
        lambda x: (-x * x * 1 + 3 * x * x) / 2,
    ),
    "matrices": (
        lambda x: (torch.complex(x, x + 1) @ torch.complex(x, x).mH).imag,
        lambda x: (x + 1) @ x.t() - x @ x.t(),
    ),
    "magnitude": (lambda x: torch.complex(x, x + 1).abs().sum(), lambda x: torch.sqrt(2 * x * x + 2 * x + 1).sum()),
    "written": (written_complex, lambda x: torch.stack([3 * x[0], x[1] + x[0]])),
    "exponential": (
        lambda x: torch.exp(torch.complex(x, 0 * x + 1)).real,
        lambda x: torch.exp(x) * torch.cos(torch.ones_like(x)),
    ),
    "transform": (lambda x: torch.fft.fft(x).abs(), lambda x: torch.fft.fft(x + 0).abs()),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_two_numbers(name: str):
    assert is_same(*COMPLEX[name], given())


def test_complex_code_that_computes_something_else_has_other_residues():
    assert not is_same(turned, lambda x: turned_as_complex(x.flip(0)).flip(0), given())
    assert not is_same(lambda x: torch.complex(x, x).conj().imag, lambda x: x, given())
    assert not is_same(lambda x: torch.fft.fft(x).real, lambda x: torch.fft.fft(x + 1e-8).real, given())
