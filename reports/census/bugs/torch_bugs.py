"""Bugs of PyTorch 2.13.0 on a CPU, with PyTorch and NumPy only.

Exit code: 1 while any of them is there, 0 once all are fixed.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F


def grid_sample_at_256():
    """The smallest and largest value of a sampled image of ones; positions beyond the last pixel are read, too."""
    torch.manual_seed(0)
    image = torch.ones(1, 1, 256, 256, dtype=torch.bfloat16)
    grid = ((torch.rand(1, 64, 64, 2) * 2 - 1) * 0.99).bfloat16()
    y = F.grid_sample(image, grid, mode="nearest", padding_mode="border", align_corners=False).double()
    return [y.nan_to_num(nan=float("inf")).min().item(), y.nan_to_num(nan=float("inf")).max().item()], [1.0, 1.0]


def cosine_similarity_gradient():
    """Documented: x . y / (max(|x|, eps) * max(|y|, eps)), so y / (eps * |y|) where x is shorter than eps."""
    x = torch.tensor([[0.03, 0.04]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    F.cosine_similarity(x, y, eps=0.1).sum().backward()
    return x.grad[0].tolist(), (y[0] / (0.1 * y.norm())).tolist()


BUGS = (grid_sample_at_256, cosine_similarity_gradient)

if __name__ == "__main__":
    results = [(bug.__name__, *map(np.asarray, bug())) for bug in BUGS]
    wrong = [not np.allclose(computed, right, atol=1e-6) for _, computed, right in results]
    for (name, computed, right), is_wrong in zip(results, wrong):
        print(f"{name}: {'wrong' if is_wrong else 'right'}: computed {computed.tolist()}, right is {right.tolist()}")
    sys.exit(any(wrong))
