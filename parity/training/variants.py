"""The variants of a model: those of its ops, of its loss, and of its matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.op import Variant
from parity.training.spec import RESIDUAL, Layer, Training, walk
from parity.training.steps import narrowed_options

FORMATS = ("bfloat16", "tf32", "float16")
RENAMED = {"statistics-source": "batch-norm-statistics"}
"""Variants whose diagnosis has another name in a training."""


def model_variants(training: Training) -> tuple[tuple[str, Variant], ...]:
    """The variants of forward pass, loss and gradients, each with the key of `model.Variants` that it changes.

    A variant's `arguments`, `params` and `absent` together are the options under that key; `on(key, layer)` is the key
    for one layer.
    """
    layers = [layer for layer in walk(training.layers) if layer.op != RESIDUAL]
    variants = [(layer.op, variant) for layer in layers for variant in layer_variants(training, layer)]
    loss = OPS[training.loss.name]
    target = training.data.target
    shapes = {"x": (2, *target), "target": (2, *target)}
    variants += [("loss", variant) for variant in loss.variants(loss.params(), shapes)]
    variants += [("matmul", variant) for variant in precisions()]
    return tuple({(key, repr(variant)): (key, variant) for key, variant in variants}.values())


def on(kind: str, layer: Layer) -> str:
    """The key under which a variant changes one layer only."""
    return f"{kind}@{layer.name}"


def layer_variants(training: Training, layer: Layer) -> Iterator[Variant]:
    """The variants of a layer's op, and its options rounded to float32."""
    op, names = OPS[layer.op], {p.name.removeprefix(f"{layer.name}."): p.shape for p in layer.parameters}
    shapes = {op.inputs[0].name: (training.batch_size // training.accumulation, *layer.x), **names}
    for variant in op.variants(layer.params, shapes):
        # Statistics over other axes are no variants of a layer, whose few axes have different meanings. A variant that
        # is right in exact arithmetic has no error that an oracle in a wide dtype could predict.
        if not variant.unstable and not (variant.id == "wrong-axis" and op.statistics):
            yield replace(variant, id=RENAMED.get(variant.id, variant.id))
    yield from attributes(layer.params)


def precisions() -> Iterator[Variant]:
    """Matrix products in a lower precision, with or without rounded results."""
    shown_by = "operands that the lower precision cannot represent"
    for name in FORMATS:
        yield Variant("reduced-precision", {"operands": name}, shown_by=shown_by)
        if name != "tf32":
            yield Variant("reduced-precision", {"operands": name, "result": name}, shown_by=shown_by)


def attributes(params: Any) -> Iterator[Variant]:
    """Params stored as float32, in every combination; `momentum` v also as 1 - float32(1 - v)."""
    forms = {}
    for name, value in asdict(params).items():
        if isinstance(value, float) and np.isfinite(value):
            narrow = [float(np.float32(value))]
            narrow += [1.0 - float(np.float32(1.0 - value))] if name == "momentum" else []
            forms[name] = [value, *(v for v in dict.fromkeys(narrow) if v != value)]
    for values in product(*forms.values()):
        changed = {name: v for name, v in zip(forms, values, strict=True) if v != forms[name][0]}
        if changed:
            yield Variant(
                "attribute-precision", params=changed, shown_by="float64, with a value that float32 cannot represent"
            )


def terms(training: Training) -> Mapping[str, Mapping[str, Any]]:
    """Options under which no terms of a gradient cancel. They give a scale to gradients that are exactly zero, such as
    that of the bias of an attention's keys, or of a bias before a batch normalisation."""
    ops = {layer.op for layer in walk(training.layers) if layer.op != RESIDUAL}
    return {name: OPS[name].terms for name in sorted(ops) if OPS[name].terms}


def narrow_options(training: Training) -> tuple[frozenset[str], ...]:
    """The sets of optimizer options that a kernel may keep in float32: values of `steps.Update.narrowed`."""
    op = OPS[training.optimizer]
    changed = set()
    for group in training.groups:
        params = op.params(**group.options)
        changed |= {name for name, value in narrowed_options(params, "float32") if value != getattr(params, name)}
    names = sorted(changed | {"lr"})
    return tuple(frozenset(chosen) for n in range(1, len(names) + 1) for chosen in combinations(names, n))
