"""torch's own RMSNorm."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)
