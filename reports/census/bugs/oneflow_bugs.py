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


def length_of_a_step_of_lamb():
    """Documented: param - r * u with r = lr * norm(param) / norm(u), whose length is lr * norm(param) for every u."""
    param = flow.nn.Parameter(flow.tensor(np.array([3.0, 4.0])))
    param.grad = flow.tensor(np.array([1.0, -2.0]))
    flow.optim.LAMB([param], lr=0.1, weight_decay=0.5).step()
    return np.linalg.norm(param.numpy() - [3, 4]), 0.1 * 5


BUGS = (prod, hardtanh_gradient_in_float64, normalize_as_documented, length_of_a_step_of_lamb)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, atol=1e-6) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
