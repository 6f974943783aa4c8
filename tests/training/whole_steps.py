"""A whole step of a training by the references of its ops, changed or not: what tests compare trainers and judge with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from parity.cases.oracle import IN_PAIRS, Functions
from parity.training.model import Batch, Variants, gradients, unprefixed
from parity.training.spec import Training
from parity.training.steps import Array, Arrays, Clipping, Update, clipped, rates, updated


@dataclass(frozen=True)
class StepChanges:
    """What is changed of a whole step: variants of the model, arguments of `ScheduleKind.rate`, clipping and update;
    `kept` gradients are never cleared: all, or those of some parameters."""

    model: Variants = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    clipping: Clipping | None = None
    update: Update = field(default_factory=Update)
    kept: bool | frozenset[str] = False


NO_CHANGES = StepChanges()


def stepped(
    training: Training,
    step: int,
    before: Arrays,
    batches: Sequence[Batch],
    *,
    dtype: DTypeLike = np.float64,
    changes: StepChanges = NO_CHANGES,
    functions: Functions = IN_PAIRS,
    factor: float = 1.0,
) -> dict[str, Array]:
    """All tensors of step `step` (from 1) by their names in a record, in `dtype`.

    `before` has `param.<name>`, `buffer.<name>` and `state.<state>.<name>` before the step (a missing state is 0), and
    with `kept` gradients `clipped.<name>` of the step before. `batches` are the micro-batches' (x, target). The result
    goes back in as `before` of the next step. Gradients are multiplied by `factor`.
    """
    cast = {name: np.asarray(values, dtype) for name, values in before.items()}
    own = {kind: unprefixed(kind, cast) for kind in ("param", "buffer", "state")}
    left = unprefixed("clipped", cast) if changes.kept else {}
    left = {n: v for n, v in left.items() if changes.kept is True or n in changes.kept}
    lr = rates(training, step, **changes.schedule)
    step_gradients = gradients(
        training,
        {**own["param"], **own["buffer"]},
        batches,
        dtype=dtype,
        variants=changes.model,
        functions=functions,
    )
    with np.errstate(all="ignore"):
        kept = {name: grad * grad.dtype.type(factor) + left.get(name, 0) for name, grad in step_gradients.grads.items()}
        grads, norm = clipped(training, kept, changes.clipping, functions)
        after = updated(training, step, own, grads, lr, changes.update, functions)
    named = {"grad": kept, "clipped": grads, "buffer": step_gradients.buffers}
    tensors = {f"{kind}.{name}": values for kind, some in named.items() for name, values in some.items()}
    return {
        "output": step_gradients.output,
        "loss": step_gradients.loss,
        "lr": np.array(lr),
        "norm": norm,
        **tensors,
        **after,
    }
