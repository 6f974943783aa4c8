"""What a training needs of the machine's memory, as measured at the peaks of runs."""

from __future__ import annotations

from math import prod

from parity.config.memory import MemoryNeed
from parity.training.spec import Training

WIDE, NARROW = 16, 8
"""Bytes of a number in longdouble and float64."""

COPIES = 8
"""A worker's parameters, gradients and states, before a step and after it, and what it is about to send."""

HOST_COPIES = 40
"""Every backend's step as it is judged, with the oracle's answers and its envelope: a perceptron of 4e6 parameters took
2.8 GiB in the host, two frameworks and six runs of NumPy beside it 3.8 GiB."""

FRAMEWORK = 2**28
"""Bytes of a framework that has done nothing yet."""

RING = 3 * 2**27
"""Bytes of past steps that a backend's worker keeps at most; with more there are fewer stops to look at the curves."""


def memory_of_training(training: Training, n_computed: int) -> MemoryNeed:
    """For a training whose model computes so many numbers for an example.

    Everyone holds the data, a few copies of the model, and the values of a micro-batch twice, forward and backward; the
    runs of the ensemble and the oracle are more such workers. The host holds all curves, and the steps that it judges.
    """
    n_weights = sum(prod(parameter.shape) for parameter in training.tensors)
    n_values = 2 * n_computed * (training.batch_size // training.accumulation)
    data = NARROW * training.data.rows * (prod(training.data.x) + prod(training.data.target))
    curves = 2 * NARROW * training.steps * (len(training.tensors) + training.batch_size)
    ring = min(RING, NARROW * COPIES * n_weights * training.steps)
    worker = data + curves + NARROW * (COPIES * n_weights + n_values)
    host = data + WIDE * (HOST_COPIES * n_weights + n_values)
    return MemoryNeed(host + (training.members + 2) * worker, worker + ring + FRAMEWORK)
