"""Weights of a candidate that have other names than the reference's."""

from __future__ import annotations

import pytest

from parity.program.worker.user_module import UserModuleError, renamed

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
