"""Cross entropy of each example, in rows."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, target):
        return nn.functional.cross_entropy(x, target.long(), reduction="none")


def get_inputs():
    return [2 * torch.randn(14, 9), torch.randint(0, 9, (14,))]


def get_init_inputs():
    return []
