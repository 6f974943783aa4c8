"""Bugs of OneFlow 0.9.0 on a CPU, with OneFlow and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import numpy as np
import oneflow as flow


def gradient(function, x):
    leaf = flow.tensor(x, requires_grad=True)
    function(leaf).sum().backward()
    return leaf.grad.numpy()


def prod():
    return gradient(lambda x: flow.prod(x, 1), np.array([[2.0, 0.0, 3.0]]))[0], [0, 6, 0]


def hardtanh_gradient_in_float64():
    return gradient(flow.nn.Hardtanh(-0.7, 0.3), np.array([-2.0, -0.1, 2.0])), [0, 1, 0]


def normalize_as_documented():
    y = flow.nn.functional.normalize(flow.tensor(np.array([[0.03, 0.04]])), 2.0, 1, 0.1)
    return y.numpy()[0], [0.3, 0.4]


BUGS = (prod, hardtanh_gradient_in_float64, normalize_as_documented)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, atol=1e-6) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
