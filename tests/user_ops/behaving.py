"""Kernels with faults that are not formulas: right in the first call, on its inputs, and in contiguous memory."""

import numpy as np

DIFFERENTIABLE = False
calls, kept = {}, {}


def counted(x):
    key = x.shape, x.dtype
    calls[key] = calls.get(key, 0) + 1
    return calls[key]


def relu(x):
    """Wrong in one call of ten."""
    calls["relu"] = calls.get("relu", 0) + 1
    return np.maximum(x, 0) * (1.5 if calls["relu"] % 10 == 0 else 1)


def tanh(x):
    """Returns what the call before returned."""
    before = kept.get((x.shape, x.dtype), np.tanh(x))
    kept[x.shape, x.dtype] = np.tanh(x)
    return before


def sigmoid(x):
    """Adds to a buffer that is never cleared."""
    total = kept.setdefault(("sigmoid", x.shape, x.dtype), np.zeros_like(x))
    total += 1 / (1 + np.exp(-x))
    return total.copy()


def mish(x):
    """Zeros from the second call on."""
    return x * np.tanh(np.log1p(np.exp(x))) * (counted(x) == 1)


def silu(x):
    """Overwrites its input."""
    y = x / (1 + np.exp(-x))
    x[...] = y
    return y


def exp(x):
    """Reads memory in its order, whatever the strides."""
    flat = x if x.base is None else x.base[: x.size].reshape(x.shape)
    return np.exp(flat)


def softplus(x, beta, threshold):
    """Reads from an aligned address."""
    y = np.log1p(np.exp(beta * x)) / beta
    return np.roll(y, 1) if x.ctypes.data % 16 else y


def atan2(x, other):
    """Takes it that its inputs lie apart."""
    return np.arctan2(x, other) * (x is not other)


def linear(x, weight, bias):
    """The rows after the fourth are those of another product."""
    y = x @ weight.T + bias
    y[4:] *= 1.01
    return y
