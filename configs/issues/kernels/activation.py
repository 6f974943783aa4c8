"""Activations and elementwise functions as other libraries had or have them."""

from __future__ import annotations

import math

import torch


def gelu(x, approximate="none"):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def hardsigmoid(x):
    return torch.clamp(0.2 * x + 0.5, 0, 1)


def softplus(x, beta=1.0, threshold=20.0):
    return torch.log(torch.exp(x * beta) + 1) / beta


def remainder(x, other):
    return torch.fmod(x, other)


def round(x):
    return torch.floor(x + 0.5)


def log1p(x):
    return torch.log(1 + x)


def silu(x):
    return x * torch.sigmoid(x)
