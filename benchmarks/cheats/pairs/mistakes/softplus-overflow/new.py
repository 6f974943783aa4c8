"""log(1 + exp(x)), which is infinite for large inputs."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log1p(torch.exp(x))
