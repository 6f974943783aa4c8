"""Sequences: lstm and gru with backpropagation through time, ctc_loss by the forward-backward algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms.written import written

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def log_add(*terms: Array) -> Array:
    """log(sum(exp)) of arrays, of which all may be -inf."""
    stacked = np.stack(terms)
    largest = np.max(stacked, axis=0)
    safe = np.where(np.isfinite(largest), largest, 0)
    return np.asarray(np.log(np.sum(np.exp(stacked - safe), axis=0)) + safe)


def shifted(row: Array, by: int) -> Array:
    """A row moved to the right, or to the left; -inf comes in."""
    result = np.full_like(row, -np.inf)
    if by >= 0:
        result[by:] = row[: len(row) - by]
    else:
        result[:by] = row[-by:]
    return result


TABLE: Mapping[str, Sequence[str]] = {
    "lstm": (
        """
        n = h0.shape[1]
        h, c = h0, c0
        y = np.empty_like(grad_y)
        saved = []
        for t in range(len(x)):
            gates = x[t] @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh
            i = sigmoid(gates[:, :n])
            f = sigmoid(gates[:, n : 2 * n])
            g = np.tanh(gates[:, 2 * n : 3 * n])
            o = sigmoid(gates[:, 3 * n :])
            saved.append((i, f, g, o, h, c))
            c = f * c + i * g
            h = o * np.tanh(c)
            y[t] = h
        last_c = c
        grad_x = np.empty_like(x)
        grad_weight_ih, grad_weight_hh = np.zeros_like(weight_ih), np.zeros_like(weight_hh)
        grad_bias_ih = np.zeros_like(bias_ih)
        flow_h, flow_c = grad_h, grad_c
        for t in range(len(x) - 1, -1, -1):
            i, f, g, o, before_h, before_c = saved[t]
            squashed = np.tanh(f * before_c + i * g)
            flow_h = flow_h + grad_y[t]
            flow_c = flow_c + flow_h * o * (1 - squashed * squashed)
            parts = [flow_c * g * i * (1 - i), flow_c * before_c * f * (1 - f)]
            parts += [flow_c * i * (1 - g * g), flow_h * squashed * o * (1 - o)]
            grad_gates = np.concatenate(parts, axis=1)
            grad_x[t] = grad_gates @ weight_ih
            grad_weight_ih += grad_gates.T @ x[t]
            grad_weight_hh += grad_gates.T @ before_h
            grad_bias_ih += np.sum(grad_gates, axis=0)
            flow_h = grad_gates @ weight_hh
            flow_c = flow_c * f
        grad_bias_hh = grad_bias_ih.copy()
        grad_h0 = flow_h
        grad_c0 = flow_c
        h, c = y[-1], last_c
        """,
        """
        steps, batch, n = len(x), x.shape[1], h0.shape[1]
        inputs = np.einsum("tbi,gi->tbg", x, weight_ih) + (bias_ih + bias_hh)
        hidden = np.empty((steps + 1, batch, n), x.dtype)
        cells = np.empty((steps + 1, batch, n), x.dtype)
        opened = np.empty((steps, batch, 4, n), x.dtype)
        hidden[0], cells[0] = h0, c0
        for t in range(steps):
            z = (inputs[t] + np.einsum("bh,gh->bg", hidden[t], weight_hh)).reshape(batch, 4, n)
            opened[t] = sigmoid(z)
            opened[t, :, 2] = np.tanh(z[:, 2])
            cells[t + 1] = opened[t, :, 1] * cells[t] + opened[t, :, 0] * opened[t, :, 2]
            hidden[t + 1] = opened[t, :, 3] * np.tanh(cells[t + 1])
        grad_z = np.empty_like(opened)
        grad_h0, grad_c0 = grad_h, grad_c
        for t in reversed(range(steps)):
            i, f, g, o = opened[t, :, 0], opened[t, :, 1], opened[t, :, 2], opened[t, :, 3]
            upstream = grad_h0 + grad_y[t]
            curve = np.tanh(cells[t + 1])
            cell_flow = grad_c0 + upstream * o * (1 - np.square(curve))
            grad_z[t, :, 0] = cell_flow * g * i * (1 - i)
            grad_z[t, :, 1] = cell_flow * cells[t] * f * (1 - f)
            grad_z[t, :, 2] = cell_flow * i * (1 - np.square(g))
            grad_z[t, :, 3] = upstream * curve * o * (1 - o)
            grad_h0 = grad_z[t].reshape(batch, -1) @ weight_hh
            grad_c0 = cell_flow * f
        flat = grad_z.reshape(steps, batch, 4 * n)
        y, h, c = hidden[1:], hidden[-1], cells[-1]
        grad_x = flat @ weight_ih
        grad_weight_ih = np.einsum("tbg,tbi->gi", flat, x)
        grad_weight_hh = np.einsum("tbg,tbh->gh", flat, hidden[:-1])
        grad_bias_ih = np.sum(flat, axis=(0, 1))
        grad_bias_hh = np.sum(flat, axis=(0, 1))
        """,
    ),
    "gru": (
        """
        n = h0.shape[1]
        h = h0
        y = np.empty_like(grad_y)
        saved = []
        for t in range(len(x)):
            ours = x[t] @ weight_ih.T + bias_ih
            theirs = h @ weight_hh.T + bias_hh
            r = sigmoid(ours[:, :n] + theirs[:, :n])
            z = sigmoid(ours[:, n : 2 * n] + theirs[:, n : 2 * n])
            inner = theirs[:, 2 * n :]
            candidate = np.tanh(ours[:, 2 * n :] + r * inner)
            saved.append((r, z, candidate, inner, h))
            h = (1 - z) * candidate + z * h
            y[t] = h
        grad_x = np.empty_like(x)
        grad_weight_ih, grad_weight_hh = np.zeros_like(weight_ih), np.zeros_like(weight_hh)
        grad_bias_ih, grad_bias_hh = np.zeros_like(bias_ih), np.zeros_like(bias_hh)
        flow = grad_h
        for t in range(len(x) - 1, -1, -1):
            r, z, candidate, inner, before = saved[t]
            flow = flow + grad_y[t]
            grad_z = flow * (before - candidate) * z * (1 - z)
            grad_candidate = flow * (1 - z) * (1 - candidate * candidate)
            grad_r = grad_candidate * inner * r * (1 - r)
            grad_ours = np.concatenate([grad_r, grad_z, grad_candidate], axis=1)
            grad_theirs = np.concatenate([grad_r, grad_z, grad_candidate * r], axis=1)
            grad_x[t] = grad_ours @ weight_ih
            grad_weight_ih += grad_ours.T @ x[t]
            grad_weight_hh += grad_theirs.T @ before
            grad_bias_ih += np.sum(grad_ours, axis=0)
            grad_bias_hh += np.sum(grad_theirs, axis=0)
            flow = flow * z + grad_theirs @ weight_hh
        grad_h0 = flow
        h = y[-1]
        """,
        """
        steps, batch, n = len(x), x.shape[1], h0.shape[1]
        inputs = (np.einsum("tbi,gi->tbg", x, weight_ih) + bias_ih).reshape(steps, batch, 3, n)
        hidden = np.empty((steps + 1, batch, n), x.dtype)
        products = np.empty((steps, batch, 3, n), x.dtype)
        hidden[0] = h0
        for t in range(steps):
            products[t] = (np.einsum("bh,gh->bg", hidden[t], weight_hh) + bias_hh).reshape(batch, 3, n)
            gates = sigmoid(inputs[t, :, :2] + products[t, :, :2])
            new = np.tanh(inputs[t, :, 2] + gates[:, 0] * products[t, :, 2])
            hidden[t + 1] = new + gates[:, 1] * (hidden[t] - new)
        to_inputs, to_products = np.empty_like(inputs), np.empty_like(products)
        grad_h0 = grad_h
        for t in reversed(range(steps)):
            gates = sigmoid(inputs[t, :, :2] + products[t, :, :2])
            r, z = gates[:, 0], gates[:, 1]
            new = np.tanh(inputs[t, :, 2] + r * products[t, :, 2])
            upstream = grad_h0 + grad_y[t]
            to_inputs[t, :, 2] = upstream * (1 - z) * (1 - np.square(new))
            to_inputs[t, :, 1] = upstream * (hidden[t] - new) * z * (1 - z)
            to_inputs[t, :, 0] = to_inputs[t, :, 2] * products[t, :, 2] * r * (1 - r)
            to_products[t] = to_inputs[t]
            to_products[t, :, 2] = to_inputs[t, :, 2] * r
            grad_h0 = upstream * z + to_products[t].reshape(batch, -1) @ weight_hh
        ours, theirs = to_inputs.reshape(steps, batch, -1), to_products.reshape(steps, batch, -1)
        y, h = hidden[1:], hidden[-1]
        grad_x = ours @ weight_ih
        grad_weight_ih = np.einsum("tbg,tbi->gi", ours, x)
        grad_weight_hh = np.einsum("tbg,tbh->gh", theirs, hidden[:-1])
        grad_bias_ih = np.sum(ours, axis=(0, 1))
        grad_bias_hh = np.sum(theirs, axis=(0, 1))
        """,
    ),
    "ctc_loss": (
        """
        shifted_x = x - np.max(x, axis=-1, keepdims=True)
        logs = shifted_x - np.log(np.sum(np.exp(shifted_x), axis=-1, keepdims=True))
        losses = np.empty(x.shape[1], x.dtype)
        grad_x = np.zeros_like(x)
        for n in range(x.shape[1]):
            steps, count = input_lengths[n], target_lengths[n]
            labels = np.full(2 * count + 1, blank)
            labels[1::2] = target[n, :count]
            jumps = np.full(len(labels), -np.inf, x.dtype)
            jumps[2:] = np.where((labels[2:] != blank) & (labels[2:] != labels[:-2]), 0, -np.inf)
            emitted = logs[:steps, n][:, labels]
            alpha = np.full_like(emitted, -np.inf)
            beta = np.full_like(emitted, -np.inf)
            alpha[0, :2] = emitted[0, :2]
            beta[-1, -2:] = emitted[-1, -2:]
            back = np.append(jumps, [-np.inf, -np.inf])[2:].astype(x.dtype)
            for t in range(1, steps):
                before = alpha[t - 1]
                alpha[t] = log_add(before, shifted(before, 1), shifted(before, 2) + jumps) + emitted[t]
                after = beta[steps - t]
                beta[steps - t - 1] = log_add(after, shifted(after, -1), shifted(after, -2) + back) + emitted[steps - t - 1]
            total = log_add(alpha[-1, -1], alpha[-1, -2])
            losses[n] = -total
            posterior = np.exp(alpha + beta - emitted - total)
            occupied = np.zeros((steps, x.shape[2]), x.dtype)
            np.add.at(occupied, (slice(None), labels), posterior)
            grad_x[:steps, n] = np.exp(logs[:steps, n]) - occupied
        weights = 1 / (target_lengths * len(losses)) if reduction == "mean" else np.ones(len(losses))
        y = np.sum(losses * weights.astype(x.dtype))
        grad_x = grad_x * (grad_y * weights.astype(x.dtype))[:, None]
        """,
        """
        e = np.exp(x - np.max(x, axis=-1, keepdims=True))
        probability = e / np.sum(e, axis=-1, keepdims=True)
        losses = np.empty(x.shape[1], x.dtype)
        grad_x = np.zeros_like(x)
        for n in range(x.shape[1]):
            steps, count = input_lengths[n], target_lengths[n]
            labels = np.full(2 * count + 1, blank)
            labels[1::2] = target[n, :count]
            size = len(labels)
            step = np.eye(size, dtype=x.dtype) + np.eye(size, k=1, dtype=x.dtype)
            for s in range(2, size):
                if labels[s] != blank and labels[s] != labels[s - 2]:
                    step[s - 2, s] = 1
            emitted = probability[:steps, n][:, labels]
            forward = np.zeros_like(emitted)
            scales = np.empty(steps, x.dtype)
            state = np.zeros(size, x.dtype)
            state[:2] = emitted[0, :2]
            for t in range(steps):
                if t > 0:
                    state = (state @ step) * emitted[t]
                scales[t] = np.sum(state)
                state = state / scales[t]
                forward[t] = state
            ends = forward[-1, -1] + forward[-1, -2]
            losses[n] = -np.sum(np.log(scales)) - np.log(ends)
            state = np.zeros(size, x.dtype)
            state[-2:] = 1
            for t in range(steps - 1, -1, -1):
                posterior = forward[t] * state
                posterior = posterior / np.sum(posterior)
                occupied = np.zeros(x.shape[2], x.dtype)
                np.add.at(occupied, labels, posterior)
                grad_x[t, n] = probability[t, n] - occupied
                state = step @ (emitted[t] * state)
                state = state / np.sum(state)
        scale = grad_y
        if reduction == "mean":
            losses = losses / target_lengths.astype(x.dtype)
            y = np.mean(losses)
            scale = grad_y / (target_lengths * x.shape[1]).astype(x.dtype)
        else:
            y = np.sum(losses)
        grad_x = grad_x * np.reshape(scale, (-1, 1))
        """,
    ),
}
FORMS = written(TABLE, globals())
