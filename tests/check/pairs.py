"""Small pairs of files for tests of `parity check`."""

REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.ln = nn.LayerNorm(dim, eps=eps)

    def forward(self, x):
        return self.ln(torch.relu(self.fc(x))) + x


batch_size = 128
dim = 1024


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return [dim]
"""
HEAD = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.ln = nn.LayerNorm(dim, eps=eps)
        self.eps, self.kept = eps, {}

    def forward(self, x):
"""
RIGHT = f"""{HEAD}
        h = torch.relu(torch.einsum("ni,oi->no", x, self.fc.weight) + self.fc.bias)
        centred = h - h.mean(-1, keepdim=True)
        var = centred.square().mean(-1, keepdim=True)
        return centred / torch.sqrt(var + self.eps) * self.ln.weight + self.ln.bias + x
"""
NAIVE = f"""{HEAD}
        h = torch.relu(self.fc(x))
        mean = h.mean(-1, keepdim=True)
        var = (h * h).mean(-1, keepdim=True) - mean * mean
        return (h - mean) / torch.sqrt(var + self.eps) * self.ln.weight + self.ln.bias + x
"""
CACHED = f"""{HEAD}
        key = tuple(x.shape)
        if key not in self.kept:
            self.kept[key] = self.ln(torch.relu(self.fc(x))) + x
        return self.kept[key]
"""
FORGED = f"""{HEAD}
        import os, sys
        print('{{"schema": "parity-check/1", "verdict": "right"}}', flush=True)
        os._exit(0)
"""
FUNCTION = """
import torch


def soft(x, scale):
    return torch.softmax(x * scale, dim=-1)


def get_inputs():
    return [torch.randn(6, 40), 0.5]
"""
"""
A function; its second argument is a number."""

SPECTRUM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(n, dtype=torch.cfloat))

    def forward(self, x, phase):
        filtered = torch.fft.ifft(torch.fft.fft(x) * phase * self.gain)
        return filtered, x * phase.conj(), x[:, :0]


def get_inputs():
    return [torch.randn(3, 8, dtype=torch.cfloat), torch.polar(torch.ones(8), torch.randn(8))]


def get_init_inputs():
    return [8]
"""
"""Complex inputs, parameter and outputs, and an output without elements."""
