"""Doubling steps, as a parallel scan does."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        step = 1
        while step < x.shape[1]:
            x = x + nn.functional.pad(x[:, :-step], (step, 0))
            step *= 2
        return x
