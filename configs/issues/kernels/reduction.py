"""Reductions: the population variance, and float16 and bfloat16 kept narrow."""

from __future__ import annotations

import torch


def var(x, dim=None, correction=1, keepdim=False):
    return torch.var(x, dim=dim, correction=0, keepdim=keepdim)


def mean(x, dim=None, keepdim=False):
    return x.sum() / torch.tensor(x.numel(), dtype=x.dtype)


def sum(x, dim=None, keepdim=False):
    total = torch.zeros((), dtype=x.dtype)
    for value in x:
        total = total + value
    return total


def cumsum(x, dim=-1):
    totals = [x[0]]
    for value in x[1:]:
        totals.append(totals[-1] + value)
    return torch.stack(totals)
