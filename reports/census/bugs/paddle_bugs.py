"""Bugs of PaddlePaddle 3.3.1 on a CPU, with Paddle and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import numpy as np
import paddle
import paddle.nn.functional as F


def gradient(function, x):
    leaf = paddle.to_tensor(x, stop_gradient=False)
    function(leaf).sum().backward()
    return leaf.grad.numpy()


def prod():
    return gradient(paddle.prod, np.array([2.0, 0.0, 3.0])), [0, 6, 0]


def conv2d_same_dilation():
    x, weight = np.arange(49.0).reshape(1, 1, 7, 7), np.zeros((1, 1, 3, 3))
    weight[0, 0, 0, 0] = 1  # the output is the element two rows above and two columns to the left
    y = F.conv2d(paddle.to_tensor(x), paddle.to_tensor(weight), padding="same", dilation=2)
    return y.numpy()[0, 0, 3, 3], x[0, 0, 1, 1]


def normalize_gradient():
    x, weight, eps, step = np.array([[0.03, 0.04]]), np.array([[1.0, 2.0]]), 0.01, 1e-6

    def documented(v):
        return (v / max(np.linalg.norm(v), eps) * weight).sum()

    right = [(documented(x + d) - documented(x - d)) / (2 * step) for d in step * np.eye(2)[:, None]]
    return gradient(lambda v: F.normalize(v, epsilon=eps) * paddle.to_tensor(weight), x)[0], right


def group_norm_gradient():
    draw = np.random.default_rng(0)
    x, g = (draw.normal(size=(2, 4, 3, 3)).astype("float32") for _ in range(2))
    rows, grads = x.astype("float64").reshape(2, 2, -1), g.astype("float64").reshape(2, 2, -1)
    deviation = np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    unit = (rows - rows.mean(-1, keepdims=True)) / deviation
    means = grads.mean(-1, keepdims=True) + unit * (grads * unit).mean(-1, keepdims=True)
    right = ((grads - means) / deviation).reshape(x.shape)
    return gradient(lambda v: F.group_norm(v, 2, epsilon=1e-5) * paddle.to_tensor(g), x)[0, 0, 0], right[0, 0, 0]


def log_softmax():
    return F.log_softmax(paddle.to_tensor([[0.0, 100.0]])).numpy()[0], [-100, 0]


BUGS = (prod, conv2d_same_dilation, normalize_gradient, group_norm_gradient, log_softmax)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, rtol=1e-3, atol=1e-4) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
