"""Logarithms of softmax and sums that lose what a shift by the maximum would keep."""

from __future__ import annotations

import torch


def log_softmax(x, dim=-1):
    top = x.detach().amax(dim, keepdim=True)
    return x - (top + torch.log(torch.exp(x - top).sum(dim, keepdim=True)))


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return (torch.logsumexp(x, 1) - x.gather(1, target[:, None].long())[:, 0]).mean()


def logsumexp(x, dim=None, keepdim=False):
    top = x.detach().amax(dim, keepdim=True)
    y = torch.log(torch.exp(x - top).sum(dim, keepdim=True)) + top
    return y if keepdim else y.squeeze(dim)
