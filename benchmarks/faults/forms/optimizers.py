"""One step of each optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Any]


def sgd_single_tensor(
    param: Array,
    grad: Array,
    momentum_buffer: Array,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    step: int,
) -> Tensors:
    """torch/optim/sgd.py: _single_tensor_sgd."""
    d_p = grad
    if weight_decay != 0:
        d_p = d_p + weight_decay * param
    buf = momentum_buffer
    if momentum != 0:
        buf = d_p if step == 1 else buf * momentum + (1 - dampening) * d_p
        d_p = d_p + momentum * buf if nesterov else buf
    new_param = param - lr * d_p
    return {"param": new_param, "momentum_buffer": buf}


def sgd_trace(
    param: Array,
    grad: Array,
    momentum_buffer: Array,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    step: int,
) -> Tensors:
    """Optax: add_decayed_weights, trace, scale_by_learning_rate; a trace that starts with the gradient."""
    decayed = grad + weight_decay * param
    if momentum == 0:
        return {"param": param + -lr * decayed, "momentum_buffer": momentum_buffer}
    keep = 0.0 if step == 1 else momentum
    take = 1.0 if step == 1 else 1.0 - dampening
    trace = take * decayed + keep * momentum_buffer
    updates = decayed + momentum * trace if nesterov else trace
    return {"param": param + -lr * updates, "momentum_buffer": trace}


def sgd_lerp(
    param: Array,
    grad: Array,
    momentum_buffer: Array,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    step: int,
) -> Tensors:
    """The weight decay applied as a factor, the step written as two subtractions (a fused kernel's form)."""
    buf = momentum_buffer
    g = grad + param * weight_decay
    update = g
    if momentum > 0:
        buf = momentum * momentum_buffer + g - dampening * g if step > 1 else g.copy()
        update = buf
        if nesterov:
            update = g + momentum * buf
    new_param = param - update * lr
    return {"param": new_param, "momentum_buffer": buf}


def adam_textbook(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """Kingma and Ba 2015, algorithm 1; weight decay added to the gradient."""
    beta1, beta2 = betas
    g = grad + weight_decay * param
    m = beta1 * exp_avg + (1.0 - beta1) * g
    v = beta2 * exp_avg_sq + (1.0 - beta2) * g * g
    m_hat = m / (1.0 - beta1**step)
    v_hat = v / (1.0 - beta2**step)
    new_param = param - lr * m_hat / (np.sqrt(v_hat) + eps)
    return {"param": new_param, "exp_avg": m, "exp_avg_sq": v}


def adam_step_size(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """torch/optim/adam.py: _single_tensor_adam, with lerp, addcmul, step_size and denom."""
    beta1, beta2 = betas
    if weight_decay != 0:
        grad = grad + param * weight_decay
    new_avg = exp_avg + (grad - exp_avg) * (1 - beta1)
    new_avg_sq = exp_avg_sq * beta2 + (1 - beta2) * (grad * grad)
    bias_correction1 = 1 - beta1**step
    bias_correction2 = 1 - beta2**step
    step_size = lr / bias_correction1
    bias_correction2_sqrt = math.sqrt(bias_correction2)
    denom = np.sqrt(new_avg_sq) / bias_correction2_sqrt + eps
    new_param = param - step_size * (new_avg / denom)
    return {"param": new_param, "exp_avg": new_avg, "exp_avg_sq": new_avg_sq}


def adam_corrected_rate(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """Kingma and Ba 2015, end of section 2: both corrections in the rate, epsilon scaled with them (Keras's Adam)."""
    beta_1, beta_2 = betas
    gradient = grad + weight_decay * param
    m = exp_avg + (gradient - exp_avg) * (1 - beta_1)
    v = exp_avg_sq + (np.square(gradient) - exp_avg_sq) * (1 - beta_2)
    root = math.sqrt(1 - beta_2**step)
    alpha = lr * root / (1 - beta_1**step)
    new_param = param - m * alpha / (np.sqrt(v) + eps * root)
    return {"param": new_param, "exp_avg": m, "exp_avg_sq": v}


def adamw_textbook(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """Loshchilov and Hutter 2019, algorithm 2, with the rate multiplying the decay as in torch.optim.AdamW's docs."""
    beta1, beta2 = betas
    decayed = param - lr * weight_decay * param
    m = beta1 * exp_avg + (1.0 - beta1) * grad
    v = beta2 * exp_avg_sq + (1.0 - beta2) * grad**2
    m_hat = m / (1.0 - beta1**step)
    v_hat = v / (1.0 - beta2**step)
    new_param = decayed - lr * m_hat / (np.sqrt(v_hat) + eps)
    return {"param": new_param, "exp_avg": m, "exp_avg_sq": v}


def adamw_step_size(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """torch/optim/adamw.py: the parameter shrinks first; lerp, addcmul and addcdiv."""
    beta1, beta2 = betas
    shrunk = param * (1 - lr * weight_decay)
    new_avg = exp_avg + (grad - exp_avg) * (1 - beta1)
    new_avg_sq = exp_avg_sq * beta2 + grad * grad * (1 - beta2)
    bias_correction1 = 1 - beta1**step
    bias_correction2 = 1 - beta2**step
    step_size = lr / bias_correction1
    denom = (np.sqrt(new_avg_sq) / math.sqrt(bias_correction2)) + eps
    new_param = shrunk - step_size * new_avg / denom
    return {"param": new_param, "exp_avg": new_avg, "exp_avg_sq": new_avg_sq}


def adamw_chained(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """optax.adamw: scale_by_adam, add_decayed_weights, scale_by_learning_rate, apply_updates."""
    b1, b2 = betas
    mu = (1 - b1) * grad + b1 * exp_avg
    nu = (1 - b2) * np.square(grad) + b2 * exp_avg_sq
    mu_hat = mu / (1 - b1**step)
    nu_hat = nu / (1 - b2**step)
    updates = mu_hat / (np.sqrt(nu_hat) + eps)
    updates = updates + weight_decay * param
    new_param = param + updates * -lr
    return {"param": new_param, "exp_avg": mu, "exp_avg_sq": nu}


def lamb_paper(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """You et al. 2020, algorithm 2, with the identity for phi."""
    beta1, beta2 = betas
    m = beta1 * exp_avg + (1.0 - beta1) * grad
    v = beta2 * exp_avg_sq + (1.0 - beta2) * grad**2
    m_hat = m / (1.0 - beta1**step)
    v_hat = v / (1.0 - beta2**step)
    r = m_hat / (np.sqrt(v_hat) + eps)
    direction = r + weight_decay * param
    weight_norm = np.sqrt(np.sum(param**2))
    update_norm = np.sqrt(np.sum(direction**2))
    ratio = np.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
    new_param = param - lr * ratio * direction
    return {"param": new_param, "exp_avg": m, "exp_avg_sq": v}


def lamb_two_stages(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> Tensors:
    """Apex's multi_tensor_lamb without the global clip: stage 1 makes the update, stage 2 scales it by the norms."""
    beta1, beta2 = betas
    beta3 = 1 - beta1
    correction1 = 1 - beta1**step
    correction2 = 1 - beta2**step
    new_m = exp_avg * beta1 + beta3 * grad
    new_v = exp_avg_sq * beta2 + (1 - beta2) * grad * grad
    next_m_unbiased = new_m / correction1
    next_v_unbiased = new_v / correction2
    denom = np.sqrt(next_v_unbiased) + eps
    update = next_m_unbiased / denom + weight_decay * param
    param_norm = np.linalg.norm(param.reshape(-1))
    update_norm = np.linalg.norm(update.reshape(-1))
    ratio = lr
    if update_norm != 0 and param_norm != 0:
        ratio = lr * (param_norm / update_norm)
    new_param = param - ratio * update
    return {"param": new_param, "exp_avg": new_m, "exp_avg_sq": new_v}


def rmsprop_single_tensor(
    param: Array,
    grad: Array,
    square_avg: Array,
    grad_avg: Array,
    momentum_buffer: Array,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> Tensors:
    """torch/optim/rmsprop.py: _single_tensor_rmsprop."""
    if weight_decay != 0:
        grad = grad + weight_decay * param
    new_square_avg = square_avg * alpha + (1 - alpha) * grad * grad
    new_grad_avg = grad_avg
    if centered:
        new_grad_avg = grad_avg + (grad - grad_avg) * (1 - alpha)
        avg = np.sqrt(new_square_avg - new_grad_avg * new_grad_avg)
    else:
        avg = np.sqrt(new_square_avg)
    avg = avg + eps
    buf = momentum_buffer
    if momentum > 0:
        buf = buf * momentum + grad / avg
        new_param = param - lr * buf
    else:
        new_param = param - lr * (grad / avg)
    return {"param": new_param, "square_avg": new_square_avg, "grad_avg": new_grad_avg, "momentum_buffer": buf}


def rmsprop_chained(
    param: Array,
    grad: Array,
    square_avg: Array,
    grad_avg: Array,
    momentum_buffer: Array,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> Tensors:
    """Optax's chain: decayed weights, scale_by_rms (or by the standard deviation), trace, rate; epsilon after the root."""
    g = grad + weight_decay * param
    nu = (1.0 - alpha) * np.square(g) + alpha * square_avg
    mu = (1.0 - alpha) * g + alpha * grad_avg if centered else grad_avg
    variance = nu - np.square(mu) if centered else nu
    updates = g / (np.sqrt(variance) + eps)
    trace = updates + momentum * momentum_buffer if momentum > 0 else momentum_buffer
    updates = trace if momentum > 0 else updates
    new_param = param + -lr * updates
    return {"param": new_param, "square_avg": nu, "grad_avg": mu, "momentum_buffer": trace}


def rmsprop_reciprocal(
    param: Array,
    grad: Array,
    square_avg: Array,
    grad_avg: Array,
    momentum_buffer: Array,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> Tensors:
    """Averages moved towards the new value, a reciprocal of the denominator (a fused kernel's form)."""
    g = param * weight_decay + grad
    rho = 1.0 - alpha
    sq = square_avg + rho * (g * g - square_avg)
    mean = grad_avg
    spread = sq
    if centered:
        mean = alpha * grad_avg + rho * g
        spread = sq - mean**2
    inverse = 1.0 / (np.sqrt(spread) + eps)
    step = g * inverse
    buf = momentum_buffer
    if momentum > 0:
        buf = momentum * momentum_buffer + step
        step = buf
    new_param = param - step * lr
    return {"param": new_param, "square_avg": sq, "grad_avg": mean, "momentum_buffer": buf}


def adagrad_single_tensor(
    param: Array,
    grad: Array,
    sum: Array,  # noqa: A002 - parity's name of the state
    lr: float,
    eps: float,
    weight_decay: float,
    lr_decay: float,
    step: int,
) -> Tensors:
    """torch/optim/adagrad.py: _single_tensor_adagrad."""
    if weight_decay != 0:
        grad = grad + weight_decay * param
    clr = lr / (1 + (step - 1) * lr_decay)
    state_sum = sum + grad * grad
    std = np.sqrt(state_sum) + eps
    new_param = param - clr * (grad / std)
    return {"param": new_param, "sum": state_sum}


def adagrad_chained(
    param: Array,
    grad: Array,
    sum: Array,  # noqa: A002 - parity's name of the state
    lr: float,
    eps: float,
    weight_decay: float,
    lr_decay: float,
    step: int,
) -> Tensors:
    """Duchi, Hazan and Singer 2011: the rate over the root of the summed squares, times the gradient."""
    g = grad + weight_decay * param
    accumulator = sum + np.square(g)
    rate = lr / (1.0 + lr_decay * (step - 1.0))
    new_param = param - rate * g / (np.sqrt(accumulator) + eps)
    return {"param": new_param, "sum": accumulator}
