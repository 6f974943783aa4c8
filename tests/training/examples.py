"""Small trainings, put together from the tables of layers, models and data as a config does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.cases.draw import generator
from parity.training.data import GENERATORS, generate, order
from parity.training.layers import KINDS, Signal, named
from parity.training.presets import PRESETS
from parity.training.spec import DataSpec, Group, Layer, Loss, Training

DATA = {
    "mlp": {"name": "classification", "features": (6,), "classes": 4},
    "cnn": {"name": "classification", "features": (2, 8, 8), "classes": 3},
    "bert": {"name": "masked_lm", "vocab": 20, "sequence": 7},
}
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (8, 5), "activation": "tanh"},
    "cnn": {"channels": (3, 4)},
    "bert": {"layers": 1, "hidden": 8, "heads": 2, "ffn": 12, "vocab": 20, "sequence": 7},
}


def layers_of(written: Sequence[Any], signal: Signal, prefix: str = "") -> tuple[tuple[Layer, ...], Signal]:
    """The layers that a config's list stands for, and what goes out of the last."""
    found = []
    for i, item in enumerate(written):
        [(kind, entry)] = ({item: {}} if isinstance(item, str) else item).items()
        options = dict(entry) if isinstance(entry, Mapping) else {KINDS[kind].short: entry}
        name = prefix + options.pop("name", f"{kind}{i}")
        inner = layers_of(options.get("layers", ()), signal, f"{name}.")[0]
        resolved = KINDS[kind].resolve(KINDS[kind].options(**options), signal)
        found.append(named(name, resolved, inner))
        signal = Signal(resolved.shape, signal.rows)
    return tuple(found), signal


def training(model: Any, data: Mapping[str, Any], **more: Any) -> Training:
    """A training of a list of layers on generated data; `more` are fields of Training, `rows` those of the data."""
    values = dict(data)
    kind = GENERATORS[values.pop("name")]
    options = kind.options(**values)
    rows, batch = more.pop("rows", 32), more.pop("batch_size", 8)
    signal = Signal(kind.x(options), batch, kind.tokens and kind.tokens(options))
    layers, _ = layers_of(model, signal)
    names = tuple(p.name for layer in every(layers) for p in layer.parameters if p.trained)
    groups = more.pop("groups", None) or (Group(names, more.pop("options", {"lr": 0.1})),)
    return Training(
        layers,
        DataSpec(kind.name, rows, kind.x(options), kind.target(options), values),
        groups=groups,
        steps=more.pop("steps", 3),
        batch_size=batch,
        loss=Loss(kind.loss),
        optimizer=more.pop("optimizer", "sgd"),
        **more,
    )


def every(layers: Sequence[Layer]) -> list[Layer]:
    """All layers, those inside of residuals included."""
    return [item for layer in layers for item in (layer, *every(layer.layers))]


def preset(
    name: str, sizes: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, **more: Any
) -> Training:
    """A training of a model by name, very small by default."""
    written = {**DATA[name], **(data or {})}
    kind = GENERATORS[written["name"]]
    options = kind.options(**{key: value for key, value in written.items() if key != "name"})
    model = PRESETS[name].layers(
        PRESETS[name].options(**{**SIZES[name], **(sizes or {})}), kind.x(options), kind.output(options)[-1]
    )
    return training(model, written, **more)


def drawn(case: Training, seed: int = 0) -> dict[str, np.ndarray]:
    """First values of all parameters and buffers in float64, none of which is 0 or 1 everywhere."""
    found = {}
    for p in case.tensors:
        rng = generator(seed, p.name)
        found[p.name] = p.draw.sample(rng, p.shape) + 0.1 * rng.uniform(0.1, 1.0, p.shape)
    return found


def batches(
    case: Training, step: int = 1, seed: int = 0, dtype: str = "float32"
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The micro-batches of a step."""
    x, target = generate(case.data, seed, "case", dtype)
    parts = np.split(order(case, seed, "case")[step - 1], case.accumulation)
    return [(x[rows], target[rows]) for rows in parts]
