"""Tiles of 8 × 8, with a tail, written into the result."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        rows = [torch.cat([self.tile(part, column) for column in b.split(8, 1)], 1) for part in a.split(8, 0)]
        return torch.cat(rows, 0)

    def tile(self, part, column):
        pairs = zip(part.split(8, 1), column.split(8, 0), strict=True)
        return sum((x @ y for x, y in pairs), torch.zeros((), dtype=part.dtype))
