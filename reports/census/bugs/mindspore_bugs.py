"""Bugs of MindSpore 2.10.0 on a CPU, with MindSpore and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def selu_gradient():
    x = Tensor(np.array([-3.0], np.float32))
    return ms.grad(lambda v: ops.selu(v).sum())(x).asnumpy(), 1.0507009873554805 * 1.6732632423543772 * np.exp([-3.0])


def pad_twice():
    x = Tensor(np.arange(1, 7, dtype=np.float32).reshape(1, 6))
    for _ in range(2):
        y = ops.pad(x, [-1, 0])
    return y.asnumpy()[0], [2, 3, 4, 5, 6]


def clip_by_norm_of_order_1():
    [clipped] = ops.clip_by_norm([Tensor(np.array([3, -4], np.float32))], 1.0, norm_type=1.0)
    return clipped.asnumpy(), [3 / 7, -4 / 7]


def l2_normalize_gradient():
    x, weight = Tensor(np.array([[3e-3, 4e-3]], np.float32)), Tensor(np.array([[1, 2]], np.float32))
    normalize = ops.L2Normalize(axis=1, epsilon=0.1)
    return ms.grad(lambda v: (normalize(v) * weight).sum())(x).asnumpy()[0], np.array([1, 2]) / np.sqrt(0.1)


def batch_norm_statistics_in_float16():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float16)
    mean, var, zero, one = (Tensor(np.full(3, value, np.float16)) for value in (0, 1, 0, 1))
    ops.batch_norm(Tensor(x), mean, var, one, zero, True, 0.1, 1e-5)
    return mean.asnumpy(), 0.1 * x.astype(float).mean(0)


def lstm_gradient_in_float16():
    x, layer = np.random.default_rng(0).normal(size=(5, 2, 4)), nn.LSTM(4, 3)
    narrow, wide = (
        ms.grad(lambda v: layer(v)[0].sum())(Tensor(x, dtype)).asnumpy().astype(float).ravel()[:4]
        for dtype in (ms.float16, ms.float32)
    )
    return narrow, wide


BUGS = (
    *(selu_gradient, pad_twice, clip_by_norm_of_order_1, l2_normalize_gradient),
    *(batch_norm_statistics_in_float16, lstm_gradient_in_float16),
)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, rtol=1e-2, atol=2e-3) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
