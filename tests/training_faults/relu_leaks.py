"""ReLU has a term of another row that no known cause gives."""

import torch


def relu(x):
    return x.clamp(min=0) + 0.01 * torch.sin(37 * x.roll(1, 0)) * x.roll(3, 0).abs().sqrt()
