"""Small pairs for tests of candidates with Triton kernels."""

SOFTMAX = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


rows, cols = 4, 20


def get_inputs():
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
"""
HEAD = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

"""
RIGHT = f"""{HEAD}
@triton.jit
def forward_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def backward_kernel(y_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + row * n + at, mask=at < n, other=0.0)
    dy = tl.load(dy_ptr + row * n + at, mask=at < n, other=0.0)
    tl.store(dx_ptr + row * n + at, y * (dy - tl.sum(y * dy, axis=0)), mask=at < n)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        x = x.contiguous()
        y = torch.empty_like(x)
        forward_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        backward_kernel[(y.shape[0],)](y, dy.contiguous(), dx, y.shape[1], BLOCK=triton.next_power_of_2(y.shape[1]))
        return dx


class ModelNew(nn.Module):
    def forward(self, x):
        return Softmax.apply(x)
"""
UNMASKED = RIGHT.replace('mask=at < n, other=-float("inf")', "mask=at < n, other=0.0")
"""Lanes beyond a row count as zeros in its sum."""
REFUSED = RIGHT.replace("    e = tl.exp(", "    x = x.to(tl.bfloat16).to(tl.float32)\n    e = tl.exp(")
"""bfloat16, with whose bits the interpreter computes."""
ON_DEVICE = RIGHT.replace("torch.empty_like(x)", 'torch.empty(x.shape, device="cuda")')
NORM = SOFTMAX.replace("torch.softmax(x, dim=-1)", "nn.functional.layer_norm(x, (x.shape[-1],))")
NAIVE = f"""{HEAD}
@triton.jit
def norm_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    mean = tl.sum(x, axis=0) / n
    var = tl.sum(x * x, axis=0) / n - mean * mean
    tl.store(y_ptr + row * n + at, (x - mean) / tl.sqrt(var + 1e-5), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        norm_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
