"""A bug of PyTorch 2.13.0 on a CPU, with PyTorch and NumPy only.

Exit code: 1 while it is there, 0 once it is fixed.
"""

import sys

import torch
import torch.nn.functional as F


def grid_sample_at_256():
    """The smallest and largest value of a sampled image of ones; positions beyond the last pixel are read, too."""
    torch.manual_seed(0)
    image = torch.ones(1, 1, 256, 256, dtype=torch.bfloat16)
    grid = ((torch.rand(1, 64, 64, 2) * 2 - 1) * 0.99).bfloat16()
    y = F.grid_sample(image, grid, mode="nearest", padding_mode="border", align_corners=False).double()
    return [y.nan_to_num(nan=float("inf")).min().item(), y.nan_to_num(nan=float("inf")).max().item()], [1.0, 1.0]


if __name__ == "__main__":
    computed, right = grid_sample_at_256()
    is_wrong = computed != right
    print(f"grid_sample_at_256: {'wrong' if is_wrong else 'right'}: computed {computed}, right is {right}")
    sys.exit(is_wrong)
