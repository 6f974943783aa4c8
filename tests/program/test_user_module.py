"""Weights of a candidate that have other names than the reference's."""

from __future__ import annotations

import pytest
import torch

from parity.program.worker.user_module import UserModule, UserModuleError, renamed

SQUARE, ROW = (8, 8), (8,)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        # Of one shape each.
        ({"fc_weight": (8, 4), "fc_bias": ROW}, {"w_w": (8, 4), "w_b": ROW}),
        # A bias goes where its weight goes, however similar another name is.
        (
            {"fc_weight": (8, 4), "fc_bias": ROW, "norm_weight": ROW, "norm_bias": ROW},
            {"proj_weight": (8, 4), "proj_bias": ROW, "ln_weight": ROW, "ln_bias": ROW},
        ),
        # By name, whatever the order is.
        (
            {f"{n}_proj_weight": SQUARE for n in "qkvo"},
            {"wq_weight": SQUARE, "wk_weight": SQUARE, "wv_weight": SQUARE, "wo_weight": SQUARE},
        ),
        ({"query_weight": SQUARE, "key_weight": SQUARE}, {"q_weight": SQUARE, "k_weight": SQUARE}),
    ],
)
def test_the_names_of_weights(given, own):
    names = renamed(given, dict(reversed(own.items())))
    assert [names[name] for name in given] == list(own)


def test_a_weight_that_none_fits():
    with pytest.raises(UserModuleError, match=r"has no parameter or running statistic fc_weight of shape \[8, 8\]"):
        renamed({"fc_weight": SQUARE}, {"fc_w": ROW})


def test_a_weight_of_another_shape_is_refused():
    """PyTorch's recurrent layers read beyond a smaller one."""
    call = UserModule(torch.nn.GRU)
    x, weights = torch.ones(2, 3, 4), dict(torch.nn.GRU(4, 5).named_parameters())
    given = {"init_input_size": 4, "init_hidden_size": 5, "arguments": "x"}
    assert call(x=x, **weights, **given)["y0"].shape == (2, 3, 5)
    with pytest.raises(UserModuleError, match=r"weight_ih_l0 has shape \[15, 4\], and \[2, 4\] is given"):
        call(x=x, **{**weights, "weight_ih_l0": torch.ones(2, 4)}, **given)


class Running(torch.nn.Module):
    """A norm of somebody's own, with running statistics."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("scale", torch.ones(n))

    def forward(self, x):
        self.running_mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.running_mean


def test_running_statistics_of_any_layer_are_state():
    call, x = UserModule(Running), torch.arange(6.0).reshape(2, 3)
    given = {"running_mean": torch.ones(3), "init_n": 3, "arguments": "x"}
    first, second = call(x=x, **given), call(x=x, **given)
    assert first.keys() == {"y", "after_running_mean"}
    assert torch.equal(first["after_running_mean"], 0.9 + 0.1 * x.mean(0))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_call_in_another_mode_changes_no_later_one():
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x * (2 if self.training else 1)

    module = UserModule(Doubled)
    x = torch.ones(2)
    assert [float(module(x=x, **how)["y"][0]) for how in ({}, {"training": False}, {}, {"training": True})] == [
        2,
        1,
        2,
        2,
    ]


class Smoothed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(3))
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x):
        if self.training:
            self.level.lerp_(x.mean(0), 0.5)
        return (x - self.level) * self.mask


def test_a_buffer_that_is_said_to_be_state_is_given_and_left():
    call, x = UserModule(Smoothed), torch.arange(6.0).reshape(2, 3)
    given = {"level": torch.ones(3), "state_buffers": "level", "arguments": "x"}
    first, second = call(x=x, **given), call(x=x, **given)
    assert torch.equal(first["after_level"], 0.5 + 0.5 * x.mean(0))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(call(x=x, training=False, **given)["after_level"], torch.ones(3))


def test_state_that_a_class_does_not_have_is_left_out():
    call = UserModule(Running)
    x = torch.ones(2, 3)
    given = {
        "running_mean": torch.ones(3),
        "level": torch.ones(3),
        "state_buffers": "level",
        "init_n": 3,
        "arguments": "x",
    }
    assert call(x=x, **given).keys() == {"y", "after_running_mean"}
