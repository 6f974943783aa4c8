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


def sum_of_lstm(x, w_ih, w_hh, b_ih, b_hh):
    """The documented formula, with the gates in the order input, forget, cell, output."""
    h = c = np.zeros((x.shape[1], w_hh.shape[1]))
    total = 0.0
    for row in x:
        i, f, g, o = np.split(row @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        total += h.sum()
    return total


def lstm_gradient(dtype):
    """The gradient of the first four elements, and central differences of the formula."""
    draw, layer, step = np.random.default_rng(0), nn.LSTM(4, 3, dtype=dtype), 1e-5
    x = draw.normal(size=(5, 2, 4)).astype(np.float16).astype(float)
    weights = [draw.normal(size=p.shape).astype(np.float16).astype(float) for p in layer.trainable_params()]
    for parameter, weight in zip(layer.trainable_params(), weights):
        parameter.set_data(Tensor(weight, dtype))
    moved = [step * np.eye(x.size)[i].reshape(x.shape) for i in range(4)]
    right = [(sum_of_lstm(x + d, *weights) - sum_of_lstm(x - d, *weights)) / (2 * step) for d in moved]
    computed = ms.grad(lambda v: layer(v)[0].sum())(Tensor(x, dtype)).asnumpy()
    return computed.astype(float).ravel()[:4], right


def lstm_gradients_but_in_float32():
    """One kernel without a backward pass for both: float16, and float64, which no document names, and nothing refuses."""
    pairs = [lstm_gradient(dtype) for dtype in (ms.float16, ms.float64)]
    return np.concatenate([computed for computed, _ in pairs]), np.concatenate([right for _, right in pairs])


def smallest_of_many_scattered_sums():
    """Threads add to the same element without a lock; one call of about fifty loses updates: most of them, or a few."""
    shares = [1.0]
    for size in range(320_000, 520_000, 1000):
        zeros, index, ones = np.zeros(size, np.float32), np.zeros(size, np.int64), np.ones(size, np.float32)
        arguments = Tensor(zeros), Tensor(index), Tensor(ones)
        sums = [ops.tensor_scatter_elements(*arguments, 0, "add").asnumpy()[0] for _ in range(6)]
        shares.append(min(sums) / size)
        if shares[-1] < 0.95:
            break
    return min(shares), 1


BUGS = (
    *(selu_gradient, pad_twice, clip_by_norm_of_order_1, l2_normalize_gradient),
    *(batch_norm_statistics_in_float16, lstm_gradients_but_in_float32, smallest_of_many_scattered_sums),
)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, rtol=1e-2, atol=2e-3) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
