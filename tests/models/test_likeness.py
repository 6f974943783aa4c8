"""What one port's tensor is of the other's."""

from __future__ import annotations

import numpy as np
import pytest

from parity.models.likeness import likeness

VALUES = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (VALUES[:, ::-1], "paddle is torch in reverse along axis 1"),
        (VALUES.swapaxes(2, 3), "paddle is torch with its axes in the order [0, 1, 3, 2]"),
        (VALUES / 255, "paddle is 1/255 of torch"),
        (-VALUES, "paddle is torch with the opposite sign"),
    ],
)
def test_a_tensor_that_follows_from_the_other_is_told(theirs, words):
    assert likeness(theirs.astype(np.float32), VALUES, ("paddle", "torch")).startswith(words)


@pytest.mark.parametrize("theirs", [VALUES + 0.1, np.sort(VALUES, axis=None).reshape(VALUES.shape), VALUES[:1]])
def test_nothing_is_said_of_others(theirs):
    assert likeness(theirs, VALUES, ("paddle", "torch")) == ""
