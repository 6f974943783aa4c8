"""Measures which common mistakes the batch of a model reveals.

A mistake in the use of a tensor is the same as another tensor: a mask that is ignored is a mask of ones. The baseline's
own model runs with that tensor instead, and the mistake is seen if an output, the loss or a gradient then exceeds the
error bound. No other port runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine import EngineOptions
from parity.engine.logs import RunLog
from parity.engine.starting import replaceable
from parity.engine.workers import Workers
from parity.judge.audit import CaseAudit, Mistake
from parity.judge.bound.envelope import ERROR_BOUND
from parity.models.decode.port import Decoder
from parity.models.decode.spec import DecodeSpec
from parity.models.decode.ways import WAYS, calls_of, full, impossible
from parity.models.measure import RUNS, TRUTH, ReferenceRuns
from parity.models.ports import ModelError, RemotePort, read_batch, write
from parity.models.spec import ModelSpec
from parity.models.worker.crossing import LOSS
from parity.models.worker.tape import Recorded
from parity.outcome import Array

Batch = Mapping[str, Array]
MOST_ROWS = 16
"""The rows of larger batches are not run alone."""
COUNTS = "sequences with different numbers of targets that count"


@dataclass(frozen=True)
class BatchMistake:
    """A mistake as another batch, with what shows it."""

    id: str
    parameters: Mapping[str, Any]
    shown_by: str
    changed: Mapping[str, Array] = field(default_factory=dict)


def audited(case: CasePlan, plan: Plan) -> CaseAudit:
    """What a model's batch, or the prompts of one that decodes, reveal."""
    by_dtype: dict[str, Sequence[tuple[BatchMistake, Mapping[str, float]]]] = {}
    own = plan.of(case)
    spec = next(spec for spec in own.backends if spec.name == own.baseline)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for dtype in case.dtypes:
                by_dtype[dtype] = in_dtype(case, dtype, spec, Path(folder) / dtype)
    except ModelError as error:
        return CaseAudit(case.id, case.op, case.dtypes, problem=f"{spec.name}: {error}")
    return CaseAudit(case.id, case.op, case.dtypes, tuple(mistakes(by_dtype)))


def mistakes(by_dtype: Mapping[str, Sequence[tuple[BatchMistake, Mapping[str, float]]]]) -> Iterator[Mistake]:
    """Every mistake with its effect by dtype; what exceeds the error bound fails."""
    effects: dict[str, dict[str, Mapping[str, float]]] = {}
    named: dict[str, BatchMistake] = {}
    for dtype, rows in by_dtype.items():
        for mistake, ratios in rows:
            key = f"{mistake.id} {dict(mistake.parameters)!r}"
            named.setdefault(key, mistake)
            effects.setdefault(key, {})[dtype] = ratios
    for key, one in named.items():
        beyond = {d: tuple(n for n, r in ratios.items() if r >= ERROR_BOUND) for d, ratios in effects[key].items()}
        yield Mistake(one.id, one.parameters, one.shown_by, False, effects[key], beyond)


def in_dtype(
    case: CasePlan, dtype: str, spec: BackendSpec, folder: Path
) -> Sequence[tuple[BatchMistake, Mapping[str, float]]]:
    """The mistakes with their error ratios by tensor; raises ModelError if the baseline's model cannot be run."""
    folder.mkdir()
    log = RunLog(folder / "log.txt")
    workers = Workers(EngineOptions(), replaceable([case]), log, lambda _event: None)
    port = (Decoder if isinstance(case.params, DecodeSpec) else RemotePort)(spec, case, dtype, workers, folder / "port")
    try:
        if isinstance(port, Decoder):
            port.build(None)
            prompts = port.prompts()
            takes = port.decode(port.state, full(prompts, 0), prompts).takes
            return list(of_prompts(prompts, case.params, takes))
        port.build(folder / "batch")
        read_batch(case.params, folder / "batch")
        return list(BatchAudit(port, case.params, folder).effects())
    finally:
        port.close()
        workers.close()
        log.close()


class BatchAudit:
    """Runs of the baseline's model with other batches; `folder` has their files."""

    def __init__(self, port: RemotePort, model: ModelSpec, folder: Path) -> None:
        self._port, self._model, self._folder = port, model, folder
        recorded = Recorded(str(folder / "batch"))
        self._batch: Batch = {name: recorded.load(name) for name in recorded}
        plain, wide = self._run(), TRUTH.get(port.dtype, "")
        perturbed = [self._run(seed=seed) for seed in range(1, RUNS + 1)]
        self._reference = ReferenceRuns(plain, self._run(dtype=wide) if wide else plain, perturbed, port.dtype)

    def effects(self) -> Iterator[tuple[BatchMistake, Mapping[str, float]]]:
        """Every mistake that the model can be run with, with the error ratios of all tensors."""
        for mistake in batch_mistakes(self._batch, self._model.targets):
            try:
                other = self._run({**self._batch, **mistake.changed})
            except ModelError:
                continue
            yield mistake, {name: self._reference.distance(name, other, name).ratio for name in self._names(other)}
        yield from self._of_rows()

    def _of_rows(self) -> Iterator[tuple[BatchMistake, Mapping[str, float]]]:
        """A loss that is the mean of the rows' own means, which have several targets each."""
        n_rows = {len(values) if values.ndim else 0 for values in self._batch.values()}
        several = any(self._batch[name].ndim > 1 for name in self._model.targets if name in self._batch)
        if len(n_rows) != 1 or LOSS not in self._reference.plain or not several or not 1 < max(n_rows) <= MOST_ROWS:
            return
        rows = [{name: values[i : i + 1] for name, values in self._batch.items()} for i in range(max(n_rows))]
        losses = [self._run(row).load(LOSS) for row in rows]
        exact, envelope = self._reference.envelope(LOSS)
        ratio = float(np.abs(np.mean(losses, axis=0) - exact).max()) / max(envelope.max, np.finfo(np.float64).tiny)
        yield BatchMistake("mean-vs-sum", {"loss": "the mean of the sequences' means"}, COUNTS), {LOSS: ratio}

    def _names(self, other: Recorded) -> Iterator[str]:
        """The tensors of both runs that are compared."""
        prefixes = ("output", LOSS, "grad.")
        return (name for name in self._reference.plain if name in other and name.startswith(prefixes))

    def _run(self, batch: Batch | None = None, **how: Any) -> Recorded:
        at = self._folder / "batch"
        if batch is not None:
            at = self._folder / "changed"
            write(batch, at)
        return self._port.run(self._port.state, at, gradients=bool(self._model.loss), **how)


def batch_mistakes(batch: Batch, targets: Sequence[str]) -> Iterator[BatchMistake]:
    """The mistakes in the use of each tensor."""
    for name, values in batch.items():
        kinds = OF_MASKS if is_mask(values) else () if name in targets else OF_INPUTS
        for one, change in kinds:
            if values.ndim and values.size > 1 and (changed := change(values)) is not None:
                yield replace(one, parameters={"of": name, **one.parameters}, changed={name: changed})


def is_mask(values: Array) -> bool:
    """Whether a tensor of several axes has only zeros and ones."""
    return values.ndim > 1 and bool(np.isin(values, (0, 1)).all())


def same_rows(values: Array) -> Array:
    """The first row, in every row."""
    return np.repeat(values[:1], len(values), axis=0)


Change = Callable[[Array], Array | None]
OF_MASKS: Sequence[tuple[BatchMistake, Change]] = (
    (BatchMistake("mask-ignored", {}, "a mask with zeros"), np.ones_like),
    (
        BatchMistake("mask-complement", {}, "a mask that the model reads"),
        lambda v: (1 - v.astype(np.int8)).astype(v.dtype),
    ),
    (BatchMistake("mask-alignment", {"from": "the other side"}, "padding on one side"), lambda v: v[..., ::-1]),
    (BatchMistake("lengths-ignored", {"length": "of the first row"}, "rows of different lengths"), same_rows),
)
OF_INPUTS: Sequence[tuple[BatchMistake, Change]] = (
    (BatchMistake("repeated-rows", {"row": "the first"}, "rows that differ"), same_rows),
    (
        BatchMistake(
            "position-offset", {"positions": "in reverse"}, "sequences whose elements differ, in an order that counts"
        ),
        lambda v: v[:, ::-1] if v.ndim == 2 else None,
    ),
)


def of_prompts(
    prompts: Sequence[Sequence[int]], spec: DecodeSpec, takes: Collection[str]
) -> Iterator[tuple[BatchMistake, Mapping[str, float]]]:
    """The mistakes that these prompts can show in a function that `takes` these arguments; nothing runs."""
    ways = [name for name in spec.ways or WAYS if not impossible(name, prompts, takes, spec.forward)]
    calls = {name: calls_of(name, prompts, spec.chunk, spec.pad) for name in ways}
    cached = any(not call.fresh for of_way in calls.values() for call in of_way)
    padded = {name for name, of_way in calls.items() if any(0 in row for call in of_way for row in call.mask)}
    batched = any(len(call.rows) > 1 for of_way in calls.values() for call in of_way)
    kinds = (
        (BatchMistake("decode-mask", {"ignored": "padding"}, PADDED), bool(padded)),
        (
            BatchMistake("decode-mask", {"read": "another row"}, DIFFERENT),
            batched and len(set(map(tuple, prompts))) > 1,
        ),
        (BatchMistake("decode-position", {"start": "of the padding"}, PADDED), bool(padded - {"right"})),
        (BatchMistake("decode-position", {"start": "of the call"}, CACHED), cached),
        (BatchMistake("decode-cache", {}, CACHED), cached),
    )
    for mistake, is_seen in kinds:
        yield mistake, {"tokens": float("inf") if is_seen else 0.0}


PADDED = "prompts of different lengths, which are padded"
DIFFERENT = "prompts that differ, in a batch"
CACHED = "prompts of several tokens, which are decoded with a cache"
