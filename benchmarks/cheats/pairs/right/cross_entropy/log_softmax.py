"""Log-softmax and the negative log-likelihood."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, target):
        return nn.functional.nll_loss(torch.log_softmax(x, 1), target.long(), reduction="none")
