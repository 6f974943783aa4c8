"""SGD that keeps the rate in its buffer."""


def sgd(param, grad, lr, momentum, dampening, weight_decay, nesterov, step, momentum_buffer):
    buffer = lr * grad if step == 1 else momentum * momentum_buffer + lr * (1 - dampening) * grad
    return {"param": param - buffer, "momentum_buffer": buffer}
