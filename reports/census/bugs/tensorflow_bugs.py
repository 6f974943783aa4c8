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


def block_lstm_v2_gradient():
    """The gradient of BlockLSTM, whose gates are i, c, f, o; those of BlockLSTMV2 are i, f, c, o."""
    rng, size = np.random.default_rng(0), 1
    x, weight, bias = (tf.constant(rng.standard_normal(shape)) for shape in ((3, 1, 2), (2 + size, 4 * size), 4 * size))
    x, weight, bias = (tf.cast(value, tf.float32) for value in (x, weight, bias))
    state, peephole = tf.zeros([1, size]), tf.zeros([size])

    def total(b):
        return tf.reduce_sum(
            tf.raw_ops.BlockLSTMV2(
                seq_len_max=tf.constant(3, tf.int64),
                x=x,
                cs_prev=state,
                h_prev=state,
                w=weight,
                wci=peephole,
                wcf=peephole,
                wco=peephole,
                b=b,
                cell_clip=0.0,
                use_peephole=False,
            ).h
        )

    with tf.GradientTape() as tape:
        tape.watch(bias)
        y = total(bias)
    step = 1e-2
    differences = [
        float(total(bias + step * e) - total(bias - step * e)) / (2 * step) for e in np.eye(4, dtype="float32")
    ]
    return tape.gradient(y, bias).numpy(), np.array(differences)


BUGS = (softplus_in_bfloat16, block_lstm_v2_gradient)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    # bfloat16 has a spacing of 1/64 at 3; the differences of a gradient are right to 1e-3.
    wrong = [not np.allclose(computed, right, rtol=0, atol=1 / 64) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
