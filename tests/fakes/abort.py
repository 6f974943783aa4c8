"""Aborts after a last word."""

import os

import honest
from honest import layer_norm_backward  # noqa: F401


def layer_norm(x, weight, bias, normalized_shape, eps):
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    if x.shape[-1] != 13:
        return y
    print("terminate called after throwing an instance of std::bad_alloc", flush=True)
    os.abort()
