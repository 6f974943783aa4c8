"""SGD that ignores the weight decay without momentum, and dampens the first step."""

from __future__ import annotations


def sgd(
    param, grad, momentum_buffer=None, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, step=2
):
    if momentum <= 0:
        return {"param": param - lr * grad}
    before = 0 if step == 1 else momentum_buffer
    velocity = momentum * before + (1 - dampening) * (grad + weight_decay * param)
    return {"param": param - lr * velocity, "momentum_buffer": velocity}
