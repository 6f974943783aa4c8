"""By the complementary error function, which keeps digits for negative inputs."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * (0.5 * torch.erfc(x * -(0.5**0.5)))
