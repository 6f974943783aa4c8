"""A paddle linear with a PyLayer whose gradient of the weight is doubled."""

import paddle


class Doubled(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return paddle.matmul(x, weight, transpose_y=True) + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensor()
        return paddle.matmul(dy, weight), 2 * paddle.matmul(dy, x, transpose_x=True), dy.sum(0)


def linear(x, weight, bias):
    return Doubled.apply(x, weight, bias)
