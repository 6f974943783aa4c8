"""The ops in plain tensor operations, forward and hand-written backward, with every fault as a switch.

One body of arithmetic serves all frameworks: `lib` is a framework's tensor operations (see `NumpyLib`), so a fault in a
torch kernel is computed by torch, in the dtype under test, as a real kernel would. Runs in workers, on Python 3.10 and
later, so it knows nothing of the rest of the benchmark.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

from fault_base import (
    LANES,
    NORMS,
    NumpyLib,
    attribute,
    entered,
    entered_one,
    finished,
    finished_list,
    rows_first,
    shape_of,
    switches,
    total,
)

__all__ = [
    "NORMS",
    "NumpyLib",
    "clip_grad_norm",
    "clip_grad_value",
    "linear_backward",
    "linear_forward",
    "norm_backward",
    "norm_forward",
    "switches",
]

# Normalisations


class Frame:
    """Where a normalisation takes its means: `x` reshaped to `view`, over `axes`; weight as `affine` broadcasts."""

    def __init__(self, op: str, shape: tuple[int, ...], params: dict[str, Any], wrong: bool) -> None:
        rank = len(shape)
        self.shape = self.view = shape
        spatial = tuple(range(2, rank))
        if op == "layer_norm":
            k = len(params["normalized_shape"])
            self.reduce = tuple(range(rank - k))
            self.affine = (1,) * (rank - k) + shape[rank - k :]
            self.axes = tuple(range(rank - k, rank)) if not wrong or rank == k else (rank - k - 1,)
        else:
            self.reduce = (0, *spatial)
            self.affine = (1, shape[1]) + (1,) * (rank - 2)
            self.axes = channel_axes(op, spatial, wrong)
        if op == "group_norm":
            groups, size = params["num_groups"], prod(shape[2:])
            per_group = shape[1] // groups
            self.view = (shape[0], per_group, groups, size) if wrong else (shape[0], groups, per_group * size)
            self.axes = (1, 3) if wrong else (2,)
        self.n = prod(self.view[i] for i in self.axes)
        self.rows = prod(shape[i] for i in self.reduce)


def channel_axes(op: str, spatial: tuple[int, ...], wrong: bool) -> tuple[int, ...]:
    if op == "instance_norm":
        return (1, *spatial) if wrong else spatial
    return spatial if wrong and spatial else (0, *spatial)


class Statistics:
    """Mean, variance and reciprocal deviation in the frame's view, from the batch or from the running ones."""

    def __init__(
        self, lib: Any, s: Any, op: str, frame: Frame, tensors: dict[str, Any], params: dict[str, Any]
    ) -> None:
        self.x = lib.reshape(tensors["x"], frame.view)
        self.from_batch = op != "batch_norm" or bool(params["training"]) != s.swapped_source
        self.divisor = {"n": frame.n, "n-1": max(1, frame.n - 1), "1": 1}[s.divisor]
        if self.from_batch:
            self.mean, self.var = moments(lib, s, self.x, frame, self.divisor)
        else:
            self.mean, self.var = (lib.reshape(tensors[name], frame.affine) for name in ("running_mean", "running_var"))
        eps = lib.array(eps_value(s, params["eps"]), self.x)
        one = lib.array(1.0, self.x)
        self.deviation = lib.sqrt(self.var)
        self.outside = s.eps_placement == "outside"
        self.rstd = one / (self.deviation + eps if self.outside else lib.sqrt(self.var + eps))
        centred = self.x - self.mean
        self.slope = centred / self.deviation if self.outside else centred * self.rstd
        self.xhat = (centred if s.centred else self.x) * self.rstd


def eps_value(s: Any, eps: float) -> float:
    if isinstance(s.eps, tuple):
        return eps * s.eps[1]
    return attribute(s, eps if s.eps is None else s.eps)


def moments(lib: Any, s: Any, x: Any, frame: Frame, divisor: int) -> tuple[Any, Any]:
    """Mean and variance over the frame's axes."""
    n, d = lib.array(float(frame.n), x), lib.array(float(divisor), x)
    if s.variance == "welford":
        mean, squares = welford(lib, rows_first(lib, x, frame.axes))
        kept = tuple(1 if i in frame.axes else m for i, m in enumerate(frame.view))
        return lib.reshape(mean, kept), lib.reshape(squares, kept) / d
    mean = total(lib, s, x, frame.axes) / n
    if s.variance == "rms":
        return mean - mean, total(lib, s, x * x, frame.axes) / d
    if s.variance == "naive":
        var = total(lib, s, x * x, frame.axes) / n - mean * mean
        var = lib.maximum(var, lib.array(0.0, x)) if s.clamp else var
        return mean, var * (n / d)
    centred = x - mean
    return mean, total(lib, s, centred * centred, frame.axes) / d


def welford(lib: Any, rows: Any) -> tuple[Any, Any]:
    mean, squares = rows[0], rows[0] - rows[0]
    for i in range(1, shape_of(rows)[0]):
        delta = rows[i] - mean
        mean = mean + delta / lib.array(float(i + 1), rows)
        squares = squares + delta * (rows[i] - mean)
    return mean, squares


def norm_forward(lib: Any, s: Any, op: str, tensors: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """`y`, and for batch_norm the running statistics."""
    dtype = lib.dtype(tensors["x"])
    given, tensors = tensors, entered(lib, s, tensors)
    frame = Frame(op, shape_of(tensors["x"]), params, s.wrong_axis)
    stats = Statistics(lib, s, op, frame, tensors, params)
    skipped = (*s.skip_forward, *s.skip)
    weight, bias = (
        None if name in skipped else affine_tensor(lib, tensors, name, frame) for name in ("weight", "bias")
    )
    outputs = {"y": affine(lib, s, tensors["x"], stats, frame, weight, bias)}
    if op == "batch_norm":
        outputs.update(running(lib, s, stats, frame, tensors, params))
    outputs = {name: lib.cast(x, dtype) for name, x in outputs.items()}
    return finished(lib, s, outputs, given, context(frame, params))


def affine_tensor(lib: Any, tensors: dict[str, Any], name: str, frame: Frame) -> Any:
    values = tensors.get(name)
    return None if values is None else lib.reshape(values, frame.affine)


def affine(lib: Any, s: Any, x: Any, stats: Any, frame: Frame, weight: Any, bias: Any) -> Any:
    if s.folded:
        mean, rstd = (lib.reshape(lib.expand(v, frame.view), frame.shape) for v in (stats.mean, stats.rstd))
        scale = rstd if weight is None else rstd * weight
        return x * scale + (-mean * scale if bias is None else bias - mean * scale)
    xhat = lib.reshape(stats.xhat, frame.shape)
    if s.affine_order == "bias-first" and bias is not None:
        xhat, bias = xhat + bias, None
    scaled = xhat if weight is None else xhat * weight
    return scaled if bias is None else scaled + bias


def running(
    lib: Any, s: Any, stats: Any, frame: Frame, tensors: dict[str, Any], params: dict[str, Any]
) -> dict[str, Any]:
    old = {name: tensors[name] for name in ("running_mean", "running_var")}
    if not params["training"]:
        return old
    mean, var, n = stats.mean, stats.var, frame.n
    if not stats.from_batch or s.variance == "rms":
        usual = SimpleNamespace(**{**vars(s), "variance": "two-pass" if s.variance == "rms" else s.variance})
        mean, var = moments(lib, usual, stats.x, frame, stats.divisor)
    if frame.view[0] == shape_of(mean)[0] and frame.axes[0] != 0:
        mean, var = (lib.sum(v, (0,)) / lib.array(float(frame.view[0]), v) for v in (mean, var))
    # A kernel that divides by n - 1 throughout has the unbiased variance already.
    unbiased = var * lib.array(1.0 if s.running_biased else stats.divisor / max(1, n - 1), var)
    m = attribute(s, params["momentum"])
    m = 1.0 - m if s.momentum_complement else m
    weight = lib.array(m, mean)
    keep = lib.array(1.0, mean) - weight
    new = {"running_mean": mean, "running_var": unbiased}
    return {name: keep * old[name] + weight * lib.reshape(value, shape_of(old[name])) for name, value in new.items()}


def norm_backward(
    lib: Any, s: Any, op: str, dy: Any, tensors: dict[str, Any], params: dict[str, Any]
) -> dict[str, Any]:
    """Gradients of x, and of weight and bias where they are given."""
    dtype, given = lib.dtype(tensors["x"]), {**tensors, "grad.y": dy}
    tensors = entered(lib, s, given)
    dy = tensors.pop("grad.y")
    frame = Frame(op, shape_of(tensors["x"]), params, s.wrong_axis)
    stats = Statistics(lib, s, op, frame, tensors, params)
    weight = None if "weight" in s.skip else affine_tensor(lib, tensors, "weight", frame)
    outputs = {"grad.x": grad_x(lib, s, dy if weight is None else dy * weight, stats, frame)}
    outputs.update(affine_gradients(lib, s, dy, tensors, stats, frame))
    outputs = {name: lib.cast(x, dtype) for name, x in outputs.items()}
    return finished(lib, s, outputs, given, context(frame, params))


def grad_x(lib: Any, s: Any, g: Any, stats: Any, frame: Frame) -> Any:
    g = lib.reshape(g, frame.view)
    dx = stats.rstd * g
    if stats.from_batch:
        n, d = (lib.array(float(v), g) for v in (frame.n, stats.divisor))
        if "mean" not in s.detached and s.centred and s.variance != "rms":
            dx = dx - stats.rstd * (total(lib, s, g, frame.axes) / n)
        if "variance" not in s.detached:
            dx = dx - stats.rstd * (stats.slope * (total(lib, s, g * stats.xhat, frame.axes) / d))
    return lib.reshape(dx, frame.shape)


def affine_gradients(lib: Any, s: Any, dy: Any, tensors: dict[str, Any], stats: Any, frame: Frame) -> dict[str, Any]:
    weight, bias = (affine_tensor(lib, tensors, name, frame) for name in ("weight", "bias"))
    xhat, dbias, found = lib.reshape(stats.xhat, frame.shape), dy, {}
    if s.affine_order == "bias-first" and bias is not None:
        xhat, dbias = xhat + bias, dy if weight is None else dy * weight
    if weight is not None:
        dweight = total(lib, s, dy * xhat, frame.reduce)
        found["grad.weight"] = lib.reshape(
            dweight - dweight if "weight" in s.skip else dweight, shape_of(tensors["weight"])
        )
    if bias is not None:
        found["grad.bias"] = lib.reshape(total(lib, s, dbias, frame.reduce), shape_of(tensors["bias"]))
    return found


def context(frame: Frame, params: dict[str, Any]) -> dict[str, float]:
    """The numbers by which a scaled tensor may be off."""
    return {"n": frame.n, "rows": frame.rows, "momentum": params.get("momentum", 0.1)}


# Linear


def linear_forward(lib: Any, s: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    dtype, given = lib.dtype(tensors["x"]), tensors
    tensors = entered(lib, s, tensors)
    x, weight, bias = (tensors.get(name) for name in ("x", "weight", "bias"))
    rows = lib.reshape(x, (-1, shape_of(x)[-1]))
    y = product(lib, s, rows, weight if used_as_stored(s, weight) else lib.permute(weight, (1, 0)))
    if bias is not None and "bias" not in s.skip_forward:
        y = y + bias
    outputs = {"y": lib.cast(lib.reshape(y, (*shape_of(x)[:-1], shape_of(y)[-1])), dtype)}
    return finished(lib, s, outputs, given, linear_context(rows))


def used_as_stored(s: Any, weight: Any) -> bool:
    rows, columns = shape_of(weight)
    return bool(s.transposed) and rows == columns


def linear_backward(lib: Any, s: Any, dy: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    dtype, given = lib.dtype(tensors["x"]), {**tensors, "grad.y": dy}
    tensors = entered(lib, s, given)
    x, weight, dy = tensors["x"], tensors["weight"], tensors["grad.y"]
    rows, dy = (lib.reshape(v, (-1, shape_of(v)[-1])) for v in (x, dy))
    stored = used_as_stored(s, weight)
    dx = product(lib, s, dy, lib.permute(weight, (1, 0)) if stored else weight)
    left, right = (rows, dy) if stored else (dy, rows)
    found = {"grad.x": lib.reshape(dx, shape_of(x)), "grad.weight": product(lib, s, lib.permute(left, (1, 0)), right)}
    if tensors.get("bias") is not None:
        found["grad.bias"] = lib.reshape(total(lib, s, dy, (0,)), shape_of(tensors["bias"]))
    found = {name: lib.cast(v, dtype) for name, v in found.items()}
    return finished(lib, s, found, given, linear_context(rows))


def linear_context(rows: Any) -> dict[str, float]:
    n_rows, width = shape_of(rows)
    return {"n": width, "rows": n_rows, "momentum": 0.1}


def product(lib: Any, s: Any, a: Any, b: Any) -> Any:
    """a @ b, summed as the switch says."""
    if s.summation == "double":
        return lib.cast(lib.matmul(lib.cast(a, "float64"), lib.cast(b, "float64")), lib.dtype(a))
    width = {"sequential": 1, "blocked": LANES}.get(s.summation)
    if width is None:
        return lib.matmul(a, b)
    k = shape_of(b)[0]
    acc = lib.matmul(a[:, :width], b[:width])
    for start in range(width, k, width):
        acc = acc + lib.matmul(a[:, start : start + width], b[start : start + width])
    return acc


# Clipping


def clip_grad_norm(lib: Any, s: Any, grads: list[Any], params: dict[str, Any]) -> dict[str, Any]:
    dtypes = [lib.dtype(g) for g in grads]
    entered_grads = [entered_one(lib, s, g) for g in grads]
    kind = s.norm_type or params["norm_type"]
    whole = vector_norm(lib, s, entered_grads, kind)
    per_tensor = s.per_tensor or params["scope"] == "per_tensor"
    norms = [vector_norm(lib, s, [g], kind) if per_tensor else whole for g in entered_grads]
    limit = attribute(s, params["max_norm"])
    if s.by_value:
        bound = lib.array(limit, entered_grads[0])
        clipped = [lib.minimum(lib.maximum(g, -bound), bound) for g in entered_grads]
    else:
        factors = [coefficient(lib, s, norm, limit) for norm in norms]
        clipped = [
            g * lib.expand(lib.reshape(f, (1,) * len(shape_of(g))), shape_of(g))
            for g, f in zip(entered_grads, factors, strict=True)
        ]
    clipped = [lib.cast(g, dtype) for g, dtype in zip(clipped, dtypes, strict=True)]
    outputs = {"grads": clipped, "total_norm": lib.cast(lib.reshape(whole, ()), dtypes[0])}
    return finished_list(lib, s, outputs, grads)


def coefficient(lib: Any, s: Any, norm: Any, limit: float) -> Any:
    factor = lib.array(limit, norm) / (norm + lib.array(s.denominator_eps, norm))
    return lib.minimum(factor, lib.array(1.0, norm)) if s.clamped else factor


def vector_norm(lib: Any, s: Any, tensors: list[Any], kind: float) -> Any:
    """The norm of all elements of all tensors, as a tensor of shape (1,)."""
    if s.two_level and len(tensors) > 1:
        return one_norm(lib, s, lib.concat([vector_norm(lib, s, [t], kind) for t in tensors]), kind)
    return one_norm(lib, s, lib.concat([lib.reshape(t, (-1,)) for t in tensors]), kind)


def one_norm(lib: Any, s: Any, flat: Any, kind: float) -> Any:
    size = lib.abs(flat)
    if kind == float("inf"):
        return lib.reshape(lib.largest(size), (1,))
    if kind == 1.0:
        return lib.reshape(total(lib, s, size, (0,)), (1,))
    return lib.sqrt(lib.reshape(total(lib, s, size * size, (0,)), (1,)))


def clip_grad_value(lib: Any, s: Any, grads: list[Any], params: dict[str, Any]) -> dict[str, Any]:
    dtypes = [lib.dtype(g) for g in grads]
    inside = [entered_one(lib, s, g) for g in grads]
    bound = lib.array(attribute(s, params["clip_value"]), inside[0])
    clipped = [lib.minimum(lib.maximum(g, -bound), bound) for g in inside]
    return finished_list(lib, s, {"grads": [lib.cast(g, d) for g, d in zip(clipped, dtypes, strict=True)]}, grads)
