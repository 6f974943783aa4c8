"""Leaves a child in another session behind, which holds all its pipes."""

import os
import time

import honest
from honest import layer_norm_backward  # noqa: F401


def layer_norm(x, weight, bias, normalized_shape, eps):
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    if x.shape[-1] != 13:
        return y
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    os._exit(3)
