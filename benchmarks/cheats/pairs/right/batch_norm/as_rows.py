"""torch's BatchNorm of the pixels as rows."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        n = self.norm
        if self.training:
            n.num_batches_tracked += 1
        rows = x.movedim(1, -1).reshape(-1, x.shape[1])
        y = nn.functional.batch_norm(
            rows, n.running_mean, n.running_var, n.weight, n.bias, self.training, n.momentum, n.eps
        )
        return y.reshape(*x.movedim(1, -1).shape).movedim(-1, 1)
