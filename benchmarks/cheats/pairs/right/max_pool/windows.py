"""Windows of an image padded with −inf."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        padded = nn.functional.pad(x, (1, 1, 1, 1), value=float("-inf"))
        return padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-2, -1))
