"""Gradients of the micro-batches are summed."""


def scale_loss(loss, accumulation, ranks):
    return loss
