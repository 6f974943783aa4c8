"""Estimates the memory that a training needs; the constants are measured at the peaks of runs."""

from __future__ import annotations

from math import prod

from parity.config.memory import MemoryNeed
from parity.training.spec import Training

WIDE, NARROW = 16, 8
"""Bytes of a number in longdouble and float64."""

COPIES = 8
"""Copies of the weights in a worker: parameters, gradients and states, before and after a step, and a reply."""

HOST_COPIES = 40
"""Copies of the weights in the host: every backend's step as it is judged, with the oracle's results and envelope. A
perceptron of 4e6 parameters took 2.8 GiB in the host; two frameworks and six runs of NumPy took 3.8 GiB."""

FRAMEWORK = 2**28
"""Bytes of a framework that has just been imported."""

RING = 3 * 2**27
"""Limit in bytes on the past steps that a worker keeps; with more, the curves need to be judged less often."""


def memory_of_training(training: Training, n_computed: int) -> MemoryNeed:
    """The need of a training whose model computes `n_computed` numbers for an example.

    Every worker holds the data, a few copies of the model, and the values of a micro-batch twice, forward and backward;
    the oracle and the runs of the ensemble are workers too. The host holds all curves, and the steps that it judges.
    """
    n_weights = sum(prod(parameter.shape) for parameter in training.tensors)
    n_values = 2 * n_computed * (training.batch_size // training.accumulation)
    data = NARROW * training.data.rows * (prod(training.data.x) + prod(training.data.target))
    curves = 2 * NARROW * training.steps * (len(training.tensors) + training.batch_size)
    ring = min(RING, NARROW * COPIES * n_weights * training.steps)
    worker = data + curves + NARROW * (COPIES * n_weights + n_values)
    host = data + WIDE * (HOST_COPIES * n_weights + n_values)
    return MemoryNeed(host + (training.members + 2) * worker, worker + ring + FRAMEWORK)
