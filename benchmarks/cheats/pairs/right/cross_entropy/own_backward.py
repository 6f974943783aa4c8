"""A backward pass by hand: softmax less one at the target."""

import torch
from torch import nn


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        counted = target != -100
        index = target.clamp(min=0)[:, None]
        logs = x - torch.logsumexp(x, 1, keepdim=True)
        ctx.save_for_backward(logs, index, counted)
        return torch.where(counted, -logs.gather(1, index)[:, 0], torch.zeros_like(logs[:, 0]))

    @staticmethod
    def backward(ctx, grad):
        logs, index, counted = ctx.saved_tensors
        dx = torch.exp(logs)
        dx.scatter_add_(1, index, -torch.ones_like(logs[:, :1]))
        return dx * (grad * counted)[:, None], None


class ModelNew(nn.Module):
    def forward(self, x, target):
        return Loss.apply(x, target.long())
