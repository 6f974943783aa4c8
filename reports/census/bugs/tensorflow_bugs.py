"""Bugs of TensorFlow 2.21.0 on a CPU, with TensorFlow and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import numpy as np
import tensorflow as tf


def softplus_in_bfloat16():
    """Three steps of bfloat16 too small at 2.97, where the linear branch has already begun."""
    x = tf.constant([2.96875], tf.bfloat16)
    return tf.cast(tf.nn.softplus(x), tf.float32).numpy(), np.log1p(np.exp([2.96875]))


BUGS = (softplus_in_bfloat16,)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    # bfloat16 has a spacing of 1/64 at 3.
    wrong = [not np.allclose(computed, right, rtol=0, atol=1 / 64) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
