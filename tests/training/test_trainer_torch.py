"""PyTorch's trainings in a worker, against loops written by hand: bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parity.training.schedules import SCHEDULES
from parity.training.spec import Clip, Group, Schedule, Training
from tests.training.examples import preset, training
from tests.training.requests import TrainingClient, client

SGD = {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
ADAM = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {**SGD, "dampening": 0.5, "weight_decay": 0.1},
    "adam": {**ADAM, "weight_decay": 0.1},
    "adamw": {**ADAM, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.1, "momentum": 0.5, "centered": True},
    "adagrad": {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.1, "lr_decay": 0.01},
}
CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad"}
MLP = [{"linear": {"out_features": 8}}, {"activation": "tanh"}, {"linear": {"out_features": 4}}]
BLOBS = {"name": "classification", "features": (6,), "classes": 4}


@pytest.fixture(scope="module")
def torch_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("torch")) as found:
        yield found


def by_hand(
    module: nn.Module,
    d: TrainingClient,
    case: Training,
    steps: int,
    optimizer_of: Callable[[nn.Module], Any],
    scheduler_of: Callable[[Any], Any] = lambda _: None,
    clip: Callable[[nn.Module], Any] = lambda _: None,
    loss_of: Callable[..., Any] = nn.functional.cross_entropy,
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The loop as one would write it: losses, and parameters and buffers at the end."""
    torch.set_num_threads(1)
    setting = d.drawn.setting
    names = dict(zip([p.name for p in case.tensors], setting.tensors.values(), strict=True))
    ours = [name for name in module.state_dict() if "num_batches" not in name]
    assert sorted(ours) == sorted(names)
    module.load_state_dict({k: torch.from_numpy(names[k].copy()) for k in ours}, strict=False)
    optimizer, losses = optimizer_of(module), []
    scheduler = scheduler_of(optimizer)
    for rows in setting.order[:steps]:
        optimizer.zero_grad()
        total = 0.0
        for part in np.split(rows, case.accumulation):
            output = module(torch.from_numpy(setting.x[part]))
            target = torch.from_numpy(setting.target[part])
            if target.dim() == 2:
                output, target = output.flatten(0, 1), target.flatten()
            loss = loss_of(output, target)
            (loss / case.accumulation).backward()
            total += loss.item() / case.accumulation
        clip(module)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(total)
    return losses, {name: module.state_dict()[name].numpy() for name in ours}


def assert_same(
    d: TrainingClient, curves: dict[str, np.ndarray], found: tuple[list[float], dict[str, np.ndarray]]
) -> None:
    losses, tensors = found
    state = d.state()
    mine = {n.partition(".")[2]: v for n, v in state.items() if not n.startswith("state.")}
    assert sorted(mine) == sorted(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)
    np.testing.assert_allclose(curves["loss"], losses, rtol=1e-7)


def test_a_perceptron_with_accumulation_and_clipping(torch_client: TrainingClient) -> None:
    schedule = Schedule("polynomial", {"total_iters": 8, "power": 2.0, "end_lr": 0.0})
    clip = Clip("norm", max_norm=0.1)
    case = training(MLP, BLOBS, options=SGD, accumulation=2, steps=6, schedule=schedule, clip=clip)
    torch_client.train(case)
    curves = torch_client.steps(6)
    module = nn.Sequential()
    for name, layer in zip((la.name for la in case.layers), (nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), strict=True):
        module.add_module(name, layer)
    found = by_hand(
        module,
        torch_client,
        case,
        6,
        lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 8, 2.0),
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1),
    )
    assert_same(torch_client, curves, found)
    record = torch_client.record(6)
    norm = math.sqrt(sum(float((v.astype(float) ** 2).sum()) for n, v in record.items() if n.startswith("grad.")))
    assert norm == pytest.approx(float(record["norm"]), rel=1e-6) == pytest.approx(curves["grad_norm"][-1], rel=1e-6)
    weight = "linear0.weight"
    factor = min(1.0, 0.1 / (norm + 1e-6))
    np.testing.assert_allclose(record[f"clipped.{weight}"], record[f"grad.{weight}"] * factor, rtol=1e-5)
    assert curves["lr"][:, 0] == pytest.approx([0.05 * (1 - t / 8) ** 2 for t in range(6)])


def test_a_convolution_with_batch_norm(torch_client: TrainingClient) -> None:
    model = [
        {"conv2d": {"out_channels": 4, "kernel_size": 3, "padding": 1, "stride": 2, "bias": False}},
        {"batch_norm": {"momentum": 0.2, "eps": 1e-4}},
        {"activation": "silu"},
        {"avg_pool2d": {"kernel_size": 2}},
        "flatten",
        {"batch_norm": {}},
        {"linear": {"out_features": 3}},
    ]
    data = {"name": "classification", "features": (2, 8, 8), "classes": 3}
    case = training(model, data, optimizer="adam", options=ADAM, steps=5)
    torch_client.train(case)
    curves = torch_client.steps(5)
    module = nn.Sequential()
    layers = (
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4, eps=1e-4, momentum=0.2),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(16),
        nn.Linear(16, 3),
    )
    for name, layer in zip((la.name for la in case.layers), layers, strict=True):
        module.add_module(name, layer)
    found = by_hand(
        module, torch_client, case, 5, lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.9, 0.99))
    )
    assert_same(torch_client, curves, found)
    assert "buffer.batch_norm1.running_var" in torch_client.record(5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        n, length, _ = x.shape
        q, k, v = (p(x).view(n, length, 2, 4).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).reshape(n, length, 8))


class Encoder(nn.Module):
    """tokens, positions, a block of attention and one of a perceptron, an answer for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding0, self.position_embedding1 = nn.Embedding(20, 8), nn.Embedding(7, 8)
        self.residual2 = nn.ModuleDict({"attention": Attention()})
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.residual4 = nn.ModuleDict({"linear0": nn.Linear(8, 12), "linear2": nn.Linear(12, 8)})
        self.linear5 = nn.Linear(8, 20)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding0(tokens) + self.position_embedding1(torch.arange(7))
        x = self.norm(x + self.residual2["attention"](x))
        x = x + self.residual4["linear2"](nn.functional.gelu(self.residual4["linear0"](x)))
        return self.linear5(x)


ENCODER = [
    {"embedding": {"embedding_dim": 8}},
    "position_embedding",
    {"residual": {"layers": [{"multi_head_attention": {"num_heads": 2, "name": "attention"}}]}},
    {"layer_norm": {"eps": 1e-6, "name": "norm"}},
    {
        "residual": {
            "layers": [{"linear": {"out_features": 12}}, {"activation": "gelu"}, {"linear": {"out_features": 8}}]
        }
    },
    {"linear": {"out_features": 20}},
]
TEXT = {"name": "masked_lm", "vocab": 20, "sequence": 7}


def warmed(t: int) -> float:
    return 0.1 + 0.9 * t / 3 if t < 3 else 1 - (t - 3) / 7


def test_an_encoder_with_groups_a_warm_up_and_a_clip_for_each_group(torch_client: TrainingClient) -> None:
    whole = training(ENCODER, TEXT, optimizer="adamw", options=ADAM)
    decayed = tuple(p.name for p in whole.parameters if len(p.shape) > 1)
    plain = tuple(p.name for p in whole.parameters if len(p.shape) == 1)
    groups = (Group(decayed, {**ADAM, "weight_decay": 0.1}), Group(plain, {**ADAM, "lr": 2e-2}))
    schedule = Schedule(
        "warmup_polynomial", {"warmup_steps": 3, "total_iters": 10, "start_factor": 0.1, "power": 1.0, "end_lr": 0.0}
    )
    clip = Clip("norm", max_norm=0.5, scope="group")
    case = replace(whole, groups=groups, schedule=schedule, clip=clip, steps=6)
    torch_client.train(case)
    curves = torch_client.steps(6)

    def split(module: nn.Module) -> list[list[Any]]:
        named = dict(module.named_parameters())
        return [[named[name] for name in names] for names in (decayed, plain)]

    def optimizer_of(module: nn.Module) -> Any:
        first, second = split(module)
        groups = [{"params": first, "weight_decay": 0.1}, {"params": second, "lr": 2e-2, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99))

    found = by_hand(
        Encoder(),
        torch_client,
        case,
        6,
        optimizer_of,
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, warmed),
        lambda m: [nn.utils.clip_grad_norm_(group, 0.5) for group in split(m)],
    )
    assert_same(torch_client, curves, found)
    assert curves["lr"].shape == (6, 2)


@pytest.mark.parametrize("optimizer", OPTIONS)
def test_every_optimizer_takes_torchs_steps(optimizer: str, torch_client: TrainingClient) -> None:
    options = OPTIONS[optimizer]
    case = training([{"linear": {"out_features": 2}}], {"name": "regression", "features": (3,), "targets": 2})
    case = replace(case, optimizer=optimizer, groups=(Group(case.groups[0].parameters, options),), steps=4)
    reply, _ = torch_client.train(case)
    curves = torch_client.steps(4)
    module = nn.Sequential()
    module.add_module("linear0", nn.Linear(3, 2))

    def optimizer_of(m: nn.Module) -> Any:
        return getattr(torch.optim, CLASSES[optimizer])(m.parameters(), **options)

    found = by_hand(module, torch_client, case, 4, optimizer_of, loss_of=nn.functional.mse_loss)
    assert_same(torch_client, curves, found)
    kept = {name for name in reply["tracked"] if name.startswith("state.")}
    expected = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 3, "adagrad": 1}[optimizer]
    assert len(kept) == 2 * expected and kept <= set(torch_client.record(4))


SCHEDULED: dict[str, dict[str, Any]] = {
    "constant": {},
    "linear": {"total_iters": 4, "start_factor": 0.0},
    "linear from a quarter": {"total_iters": 4, "start_factor": 0.25},
    "polynomial": {"total_iters": 6, "power": 2.0, "end_lr": 0.0},
    "polynomial to an end": {"total_iters": 6, "power": 2.0, "end_lr": 0.01},
    "cosine": {"T_max": 6, "eta_min": 0.001},
    "step": {"step_size": 3, "gamma": 0.5},
    "warmup_polynomial": {"warmup_steps": 3, "total_iters": 7, "start_factor": 0.0, "power": 1.0, "end_lr": 0.01},
}


@pytest.mark.parametrize("kind", SCHEDULED)
def test_rates_are_those_of_the_formulas(kind: str, torch_client: TrainingClient) -> None:
    name, options = kind.split(maxsplit=1)[0], SCHEDULED[kind]
    case = training(MLP, BLOBS, options=SGD, schedule=Schedule(name, options), steps=9)
    torch_client.train(case)
    found = torch_client.steps(9)["lr"][:, 0]
    schedule = SCHEDULES[name]
    wanted = [schedule.rate(SGD["lr"], t, schedule.options(**options)) for t in range(9)]
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-18)
    torch_client.restore(5, torch_client.state())
    np.testing.assert_array_equal(torch_client.steps(4)["lr"][:, 0], found[5:])


@pytest.mark.parametrize(
    ("clip", "limit"),
    [
        (Clip("norm", max_norm=0.05, scope="tensor"), 0.05),
        (Clip("norm", max_norm=0.05, norm_type=math.inf), 0.05),
        (Clip("value", clip_value=0.01), 0.01),
    ],
)
def test_what_is_clipped(clip: Clip, limit: float, torch_client: TrainingClient) -> None:
    torch_client.train(training(MLP, BLOBS, options=SGD, clip=clip))
    torch_client.steps(1)
    record = torch_client.record(1)
    before = {n[5:]: v.astype(float) for n, v in record.items() if n.startswith("grad.")}
    after = {n[8:]: v.astype(float) for n, v in record.items() if n.startswith("clipped.")}
    assert sorted(before) == sorted(after)
    norms = {name: np.linalg.norm(v.ravel(), clip.norm_type) for name, v in before.items()}
    total = np.linalg.norm(list(norms.values()), clip.norm_type)
    for name, values in before.items():
        norm = norms[name] if clip.scope == "tensor" else total
        wanted = values * min(1.0, limit / norm) if clip.name == "norm" else np.clip(values, -limit, limit)
        np.testing.assert_allclose(after[name], wanted, rtol=1e-3)
    assert ("norm" in record) == (clip.name == "norm")
    if clip.name == "norm":
        assert float(record["norm"]) == pytest.approx(total, rel=1e-6)


def test_float64_is_trained_in_float64(torch_client: TrainingClient) -> None:
    torch_client.train(training(MLP, BLOBS, options=SGD), dtype="float64")
    torch_client.steps(1)
    dtypes = {name: str(v.dtype) for name, v in torch_client.record(1).items() if name != "rows"}
    assert set(dtypes.values()) == {"float64"}


def test_lamb_is_unsupported(torch_client: TrainingClient) -> None:
    case = preset("mlp", optimizer="lamb", options=ADAM)
    with pytest.raises(AssertionError, match=r"'unsupported'.*torch\.optim has no lamb"):
        torch_client.train(case)
