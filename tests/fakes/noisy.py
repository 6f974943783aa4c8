"""Prints on stdout what looks like a reply, and much else, then answers rightly."""

import os

import honest
from honest import layer_norm_backward  # noqa: F401


def layer_norm(x, weight, bias, normalized_shape, eps):
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    if x.shape[-1] != 13:
        return y
    print('{"cell": 0, "outcome": "ok", "tensors": []}', flush=True)
    os.write(1, b"\\x00\\xff noise without an end of line")
    return y
