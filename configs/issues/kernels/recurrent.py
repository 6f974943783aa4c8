"""A GRU that resets before the product, and an LSTM that reads gates in ONNX's order."""

from __future__ import annotations

import torch


def gru(x, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h0=None):
    h = h0 if h0 is not None else x.new_zeros(x.shape[1], weight_hh.shape[1])
    w_r, w_z, w_n = weight_hh.chunk(3)
    b_r, b_z, b_n = bias_hh.chunk(3)
    steps = []
    for step in x:
        i_r, i_z, i_n = (step @ weight_ih.T + bias_ih).chunk(3, -1)
        r, z = torch.sigmoid(i_r + h @ w_r.T + b_r), torch.sigmoid(i_z + h @ w_z.T + b_z)
        n = torch.tanh(i_n + (r * h) @ w_n.T + b_n)
        h = (1 - z) * n + z * h
        steps.append(h)
    return {"y": torch.stack(steps), "h": h}


def lstm(x, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h0=None, c0=None):
    zeros = x.new_zeros(x.shape[1], weight_hh.shape[1])
    h, c = (zeros if state is None else state for state in (h0, c0))
    steps = []
    for step in x:
        i, o, f, g = (step @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        steps.append(h)
    return {"y": torch.stack(steps), "h": h, "c": c}
