"""`view` refuses an image in another memory layout."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], x.shape[1], -1).mean(-1)
