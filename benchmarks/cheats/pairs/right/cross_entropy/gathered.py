"""Logarithm of the sum, less the target's value; targets of −100 are ignored."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, target):
        target = target.long()
        chosen = x.gather(1, target.clamp(min=0)[:, None])[:, 0]
        return torch.where(target == -100, torch.zeros_like(chosen), torch.logsumexp(x, 1) - chosen)
