"""A torch layer_norm that breaks the graph."""

import torch


def layer_norm(x, weight, bias, normalized_shape, eps):
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps).detach()
