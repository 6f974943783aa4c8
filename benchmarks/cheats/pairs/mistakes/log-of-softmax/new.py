"""The logarithm of a softmax, which is −inf where a probability is too small."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log(torch.softmax(x, dim=1))
