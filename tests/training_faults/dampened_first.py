"""SGD whose first step is dampened as well."""


def sgd(param, grad, lr, momentum, dampening, weight_decay, nesterov, step, momentum_buffer):
    buffer = momentum * momentum_buffer + (1 - dampening) * grad
    return {"param": param - lr * buffer, "momentum_buffer": buffer}
