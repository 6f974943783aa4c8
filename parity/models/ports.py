"""The host's view of the models of a case, which live in workers; tensors travel through folders."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.config.plan import BackendSpec, CasePlan
from parity.engine.process import Message, WorkerError
from parity.engine.starting import BackendError
from parity.engine.workers import Worker, Workers
from parity.models.spec import ModelSpec
from parity.models.worker.crossing import LOSS
from parity.models.worker.tape import Recorded, TensorTape
from parity.outcome import Outcome

Array = NDArray[Any]

LONGER = 10.0
"""The time limit of a request about a model, in units of --timeout."""


class ModelError(Exception):
    """A backend's model cannot be built or run; `outcome` is that of its cell."""

    def __init__(self, message: str, outcome: Outcome = Outcome.ERROR) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class LayerInfo:
    """A layer of a port: its dotted name, the name of its class, and its plain attributes.

    `own`: its class is the user's, not the framework's; `extends` is the framework's class that it extends.
    """

    name: str
    kind: str
    own: bool
    options: Mapping[str, Any]
    extends: str = ""


@dataclass(frozen=True)
class TensorInfo:
    """A parameter, or a buffer if it is not `trained`; `tied` is the name of the parameter whose memory it shares."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    tied: str


class RemotePort:
    """A backend's model in its worker: `layers` and `tensors` by name, `state` the folder of its initial tensors.

    `outputs` are the baseline's names of outputs, for a port that has no names of its own; `guessed` are the layers
    whose class is assumed to be their partner's.
    """

    def __init__(self, spec: BackendSpec, case: CasePlan, dtype: str, workers: Workers, folder: Path) -> None:
        self.spec, self.name, self.model, self.dtype = spec, spec.name, self._model(case), dtype
        self._workers, self._case = workers, case
        self._worker: Worker | None = None
        self._numbers = count()
        self.folder = folder
        self.state = folder / "state"
        self.layers: dict[str, LayerInfo] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.differentiable = self.has_loss = True
        self.converted = False
        self.guessed: Sequence[str] = ()
        self.outputs: Sequence[str] = ()
        self.seconds = 0.0

    @staticmethod
    def _model(case: CasePlan) -> ModelSpec:
        assert isinstance(case.params, ModelSpec)  # noqa: S101 - for the type checker
        return case.params

    def build(self, batch_at: Path | None, known: Collection[str] = ()) -> None:
        """Build the model and, for the baseline, draw the batch into `batch_at`. `known` are the baseline's layers.

        Raises ModelError.
        """
        try:
            self._worker = self._worker or self._workers.take(self.spec)
        except BackendError as error:
            raise ModelError(str(error), error.outcome) from error
        model = self.model
        reply = self._ask(
            "model.build",
            adapter=self.spec.adapter,
            build=model.build,
            mode=model.mode,
            layers=list(known),
            state=str(self.state),
            forward=model.forward,
            loss=model.loss,
            metric="" if batch_at is None else model.metric,
            batch="" if batch_at is None or model.batch_file else model.batch,
            batch_at=str(batch_at),
        )
        self.differentiable, self.has_loss = bool(reply["differentiable"]), bool(reply["loss"])
        self.converted = bool(reply["converted"])
        self.layers = {row["name"]: LayerInfo(**row) for row in reply["layers"]}
        self.layers |= {LOSS: LayerInfo(LOSS, "loss", own=True, options={})} if model.loss and self.has_loss else {}
        self.tensors = {row["name"]: TensorInfo(**{**row, "shape": tuple(row["shape"])}) for row in reply["parameters"]}

    def run(
        self,
        state: Path,
        batch: Path,
        *,
        layers: Collection[str] = (),
        dtype: str = "",
        seed: int = 0,
        partner: Recorded | None = None,
        keys: Mapping[str, str] | None = None,
        axes: Mapping[str, tuple[int, ...]] | None = None,
        resized: bool = False,
        replace: Collection[str] | None = None,
        gradients: bool = False,
        repeated: bool = False,
    ) -> Recorded:
        """Run a state: the outputs, `loss`, `grad.<parameter>`, and the tensors at the boundaries of `layers`.

        `seed` perturbs all parameters and the batch by an ulp. With a `partner`, the tensors at the boundaries are
        replaced by those of its run (only those in `replace`, if given), and the seed perturbs these instead of the
        batch. `keys` maps tensors to the partner's names, `axes` to the order of its axes; with `resized`, they may
        have other sizes. A `repeated` run also stores what it has changed of the last one's results, as
        `earlier.<output>`; what any run has changed of its batch is `changed.<name>`. Raises ModelError.
        """
        record = self.folder / f"run-{next(self._numbers)}"
        self._ask(
            "model.run",
            state=str(state),
            batch=str(batch),
            record=str(record),
            layers=list(layers),
            keys=None if keys is None else dict(keys),
            axes=dict(axes or {}),
            resized=resized,
            dtype=dtype or self.dtype,
            seed=seed,
            partner=None if partner is None else partner.folder,
            replace=None if replace is None else list(replace),
            gradients=gradients,
            repeated=repeated,
            targets=list(self.model.targets),
            outputs=list(self.outputs),
        )
        return Recorded(str(record))

    def alone(
        self,
        state: Path,
        layer: str,
        call: int,
        given: Mapping[str, Array],
        children: Sequence[str] = (),
        dtype: str = "",
    ) -> dict[str, Array]:
        """Call one layer as in the last run, with the tensors `given`.

        These are `in:0`, `param:weight`, `grad:0` for the gradient of output 0, and `child:<tensor>`, which replaces a
        tensor at a child's boundary. Raises ModelError.
        """
        how = {"state": str(state), "layer": layer, "call": call, "children": list(children)}
        return self._recorded("model.layer", "alone", given, dtype=dtype or self.dtype, **how)[1]

    def extracted(self, state: Path, layer: str, call: int, path: Path) -> Message:
        """Write the graph of one call of a layer, and the names of its `inputs` and `outputs`. Raises ModelError."""
        return self._ask("model.extract", state=str(state), dtype=self.dtype, layer=layer, call=call, path=str(path))

    def traced(
        self, state: Path, layer: str, call: int, given: Mapping[str, Array], children: Sequence[str]
    ) -> tuple[Message, dict[str, Array]]:
        """The code of a layer between its children (`parity.models.worker.traced.TracedProgram`), and its constants.

        Raises ModelError.
        """
        how = {"state": str(state), "layer": layer, "call": call, "children": list(children)}
        return self._recorded("model.trace", "traced", given, dtype=self.dtype, **how)

    def calls(
        self,
        state: Path,
        layer: str,
        call: int,
        given: Mapping[str, Array],
        children: Sequence[str],
        dtype: str,
        *,
        gradients: bool = False,
    ) -> tuple[Message, dict[str, Array]]:
        """The calls of a layer's code between its children (`parity.models.worker.traced.calls_of`), and their values
        by mark.

        `step:3` of `given` replaces the result of step 3. With `gradients`, gradients are recorded. Raises ModelError.
        """
        how = {"state": str(state), "layer": layer, "call": call, "children": list(children), "gradients": gradients}
        return self._recorded("model.calls", "calls", given, dtype=dtype, **how)

    def _recorded(
        self, request: str, kind: str, given: Mapping[str, Array], **how: Any
    ) -> tuple[Message, dict[str, Array]]:
        """The reply to a request about `given` tensors, and what was recorded. Raises ModelError."""
        folder = self.folder / kind
        shutil.rmtree(folder, ignore_errors=True)
        write(given, folder / "given")
        reply = self._ask(request, given=str(folder / "given"), record=str(folder / "record"), **how)
        recorded = Recorded(str(folder / "record"))
        return reply, {name: recorded.load(name) for name in recorded}

    def metric(self, record: Recorded, batch: Path) -> dict[str, float]:
        """The user's metric of the outputs of a run. Raises ModelError."""
        return dict(self._ask("model.metric", record=record.folder, batch=str(batch))["metrics"])

    def _ask(self, do: str, **request: Any) -> Message:
        if self._worker is None:
            raise ModelError("its worker has ended", Outcome.CRASH)
        timeout_s = self._workers.options.timeout_s
        try:
            reply, _ = self._worker.ask({"do": do, **request}, LONGER * timeout_s)
        except WorkerError as error:
            self._worker = None
            times = (
                f" (a model may take {LONGER:g} times its {timeout_s:g} s)" if error.outcome is Outcome.TIMEOUT else ""
            )
            raise ModelError(f"{error}{times}", error.outcome) from error
        if reply["outcome"] != Outcome.OK.value:
            at, key = self._case.source, reply.get("key")
            location = f"{Path(at.file).name}:{at.line}, {key}: " if key else ""
            raise ModelError(f"{location}{reply['message']}", Outcome(reply["outcome"]))
        self.seconds += float(reply["seconds"])
        return reply

    def close(self) -> None:
        """Free the worker for another case."""
        if self._worker is not None:
            self._workers.give_back(self._worker)
            self._worker = None


def write(tensors: Mapping[str, Array], folder: Path) -> None:
    """Store tensors as a tape; raises OSError."""
    tape = TensorTape(str(folder))
    for name, array in tensors.items():
        tape.put(name, np.asarray(array))
    tape.close()


def read_batch(model: ModelSpec, folder: Path) -> None:
    """Store the batch file of a model, if it has one, as a tape; raises ModelError."""
    if model.batch_file is None:
        return
    try:
        with np.load(model.batch_file, allow_pickle=False) as stored:
            write({name: stored[name] for name in stored.files}, folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"{model.batch_file} cannot be read: {error}") from error
