"""Rounding of halves away from zero."""

from __future__ import annotations

import torch


def round(x):
    return torch.sign(x) * torch.floor(x.abs() + 0.5)
