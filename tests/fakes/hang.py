"""Never returns; makes the file that the variable HANGS names, once it hangs."""

import os
import time
from pathlib import Path

import honest
from honest import layer_norm_backward  # noqa: F401


def layer_norm(x, weight, bias, normalized_shape, eps):
    y = honest.layer_norm(x, weight, bias, normalized_shape, eps)
    if x.shape[-1] != 13:
        return y
    if "HANGS" in os.environ:
        Path(os.environ["HANGS"]).touch()
    while True:
        time.sleep(1)
