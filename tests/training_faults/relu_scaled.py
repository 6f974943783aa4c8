"""ReLU keeps the factor of a dropout in which nothing is dropped."""


def relu(x):
    return x.clamp(min=0) / 0.8
