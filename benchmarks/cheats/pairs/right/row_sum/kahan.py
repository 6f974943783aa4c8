"""With Kahan's compensation."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        lost = torch.zeros_like(total)
        for column in x.unbind(1):
            term = column - lost
            new = total + term
            lost = ((new - total) - term).detach()
            total = new
        return total
