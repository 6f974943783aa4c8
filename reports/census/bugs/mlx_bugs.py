"""Bugs of MLX 0.32.4 on a CPU, with MLX and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np


def shape_of_conv_transpose2d_gradient():
    x, weight = mx.ones((2, 3, 2, 3)), mx.ones((2, 2, 2, 3))
    gradient = mx.grad(lambda v: mx.conv_transpose2d(v, weight, 2, 0, 1, (1, 0)).sum())(x)
    return gradient.shape, x.shape


def cubic_upsampling_of_ones():
    y = nn.Upsample(scale_factor=7 / 5, mode="cubic", align_corners=False)(mx.ones((1, 5, 5, 1)))
    return np.array(y)[0, 0, :, 0], np.ones(7)


def bytes_of_upsampled_bfloat16():
    """Bytes of a number: linear and cubic return float32 for two bytes, nearest returns what it was given."""
    x = mx.ones((1, 4, 1), mx.bfloat16)
    return [nn.Upsample(2.0, mode)(x).dtype.size for mode in ("nearest", "linear", "cubic")], [2, 2, 2]


BUGS = (shape_of_conv_transpose2d_gradient, cubic_upsampling_of_ones, bytes_of_upsampled_bfloat16)

if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, atol=1e-3) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
