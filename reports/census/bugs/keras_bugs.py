"""A bug of Keras 3.15.1 on TensorFlow 2.21.0 on a CPU, with Keras and NumPy only.

Exit code: 1 while it is there, 0 once it is fixed.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np


def cosine_similarity_with_a_zero_vector_in_float16():
    """Documented: 0 if either is a zero vector. 1 / epsilon, which limits 1 / norm, is infinite in float16."""
    zeros, ones = (keras.ops.full((1, 3), value, dtype="float16") for value in (0, 1))
    return keras.ops.convert_to_numpy(keras.losses.cosine_similarity(zeros, ones)), [0.0]


BUGS = (cosine_similarity_with_a_zero_vector_in_float16,)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, atol=1e-6) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
