"""A model in a worker: the replies to requests such as model.build and model.run.

Tensors travel through folders (`tape.py`); a reply has only names and descriptions.
"""

from __future__ import annotations

import time
import traceback
from difflib import get_close_matches
from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np

from parity.adapters.base import Unsupported
from parity.models.worker import decode
from parity.models.worker.crossing import Crossing, perturbed
from parity.models.worker.ports import port_class
from parity.models.worker.ports.base import ClosedCall, Port, PortError, same
from parity.models.worker.ports.layered import LayeredPort
from parity.models.worker.returns import batch_of, metrics_of
from parity.models.worker.tape import Recorded, TensorTape, regrouped
from parity.models.worker.traced import calls_of, traced
from parity.program.worker.recording import UntracedError
from parity.worker.cell import Backend, explain

Message = Dict[str, Any]

FUNCTIONS = ("forward", "loss", "metric")


class ModelRequests:
    """Answers the requests about one model; building another replaces it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.port: Optional[Port] = None
        self.functions: Dict[str, Optional[Callable[..., Any]]] = {}

    def answer(self, request: Message) -> Message:
        """The reply to one of REQUESTS; every exception becomes a reply."""
        reply: Message = {"outcome": "ok", "message": "", "seconds": 0.0}
        started = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                reply.update(REQUESTS[request["do"]](self, request))
        except (PortError, Unsupported) as error:
            outcome = "unsupported" if isinstance(error, Unsupported) else "error"
            key = getattr(error, "key", "")
            placed = key or str(error).startswith(f"{self.backend.user_ops.name}:")
            message = str(error) if placed else f"{self.backend.user_ops.name}: {error}"
            reply.update(outcome=outcome, message=message, key=key)
        except BaseException as error:
            traceback.print_exc()
            unsupported = not self.backend.user_ops.raised(error) and self.backend.adapter.lacks_kernel(error)
            reply.update(outcome="unsupported" if unsupported else "error", message=explain(self.backend, error))
        return {**reply, "seconds": time.perf_counter() - started}

    def function(self, name: str) -> Callable[..., Any]:
        """The user's function of this name; raises PortError."""
        function = self.backend.user_ops.function(name)
        if function is None:
            near = get_close_matches(name, list(self.backend.user_ops.namespace), 1)
            raise PortError(f"it has no function {name}{f'; did you mean {near[0]}?' if near else ''}")
        return function

    def builder(self, name: str) -> Callable[[], Any]:
        """The user's function that builds the model; for an ONNX file, one that returns its path."""
        path = self.backend.user_ops.path or ""
        return (lambda: path) if path.endswith(".onnx") else self.function(name)

    def current(self) -> Port:
        """The model; raises PortError where there is none."""
        if self.port is None:
            raise PortError("there is no model")
        return self.port

    def build(self, request: Message) -> Message:
        """Build the model; its state goes to a tape, and so does the batch if this backend draws it."""
        made = port_class(request["adapter"])
        self.port = None
        wanted = [name for name in FUNCTIONS if request[name] and (made.called_by_user or name == "metric")]
        self.functions = {name: self.function(request[name]) if name in wanted else None for name in FUNCTIONS}
        port = made(self.backend.adapter, self.builder(request["build"]), request["mode"])
        port.named_like(request["layers"])
        tape, tensors = TensorTape(request["state"]), []
        for own in port.tensors():
            array = port.to_array(own.tensor)
            if not own.tied:
                tape.put(own.name, array)
            row = {"name": own.name, "shape": list(array.shape), "dtype": str(array.dtype), "trained": own.trained}
            tensors.append({**row, "tied": own.tied})
        tape.close()
        self.port = port
        batch = self.batch(request) if request.get("batch") else []
        properties = {"differentiable": port.differentiable, "loss": port.called_by_user, "converted": port.converted}
        return {"layers": port.described(), "parameters": tensors, "batch": batch, **properties}

    def batch(self, request: Message) -> Any:
        """Draw the batch and store it; the names of its arrays."""
        tape = TensorTape(request["batch_at"])
        for name, array in batch_of(self.function(request["batch"])).items():
            tape.put(name, array)
        tape.close()
        return list(tape.entries)

    def run(self, request: Message) -> Message:
        """Run the model; see `parity.models.ports.RemotePort.run`."""
        port = self.current()
        port.load(request["state"], request["dtype"], request["seed"])
        tape, batch = TensorTape(request["record"]), Recorded(request["batch"])
        source = None if request["partner"] is None else PartnerValues(request)
        crossing = Crossing(tape, request["layers"], source)
        arrays = {name: batch.load(name) for name in batch}
        seed = 0 if source is not None else request["seed"]
        port.outputs = request["outputs"]
        kept, port.kept = port.kept, {}
        port.keeps_outputs = request["repeated"]
        gradients = request["gradients"] and port.differentiable
        port.run(arrays, self.functions, request["targets"], crossing, seed, gradients)
        for name, (tensor, before) in kept.items():
            if not same(port.to_array(tensor), before):
                tape.put(f"earlier.{name}", before)
        tape.close()
        return {}

    def layer(self, request: Message) -> Message:
        """Call one layer alone."""
        port = self.current()
        port.load(request["state"], request["dtype"], 0)
        given, tape = Recorded(request["given"]), TensorTape(request["record"])
        parts: Dict[str, Dict[Any, Any]] = {"in": {}, "grad": {}, "param": {}, "child": {}}
        for name in given:
            part, _, rest = name.partition(":")
            parts[part][int(rest) if part in ("in", "grad") else rest] = given.load(name)
        crossing = Crossing(tape, request["children"], lambda name, _: parts["child"].get(name))
        port.alone(request["layer"], request["call"], parts["in"], parts["grad"], parts["param"], crossing)
        tape.close()
        return {}

    def extract(self, request: Message) -> Message:
        """Write the graph of one layer to a file."""
        port = self.current()
        port.load(request["state"], request["dtype"], 0)
        return port.extracted(request["layer"], request["call"], request["path"])

    def calls(self, request: Message) -> Message:
        """The calls of a layer's code between its children; the values go to a tape."""
        port = self.current()
        port.load(request["state"], request["dtype"], 0)
        given, tape = Recorded(request["given"]), TensorTape(request["record"])
        others = {int(name[5:]): given.load(name) for name in given if name.startswith("step:")}
        try:
            message = calls_of(port, closed_call(request, given), tape, others, gradients=request["gradients"])
        except UntracedError as error:
            raise PortError(str(error)) from error
        tape.close()
        return message

    def trace(self, request: Message) -> Message:
        """The recorded code of a layer between its children; its constants and its `value:<mark>` go to a tape."""
        port = self.current()
        port.load(request["state"], request["dtype"], 0)
        given, tape = Recorded(request["given"]), TensorTape(request["record"])
        try:
            message = traced(port, closed_call(request, given), tape)
        except UntracedError as error:
            raise PortError(str(error)) from error
        tape.close()
        return message

    def metric(self, request: Message) -> Message:
        """The user's metric of the outputs of a run."""
        stored, batch = Recorded(request["record"]), Recorded(request["batch"])
        outputs = {name.partition(".")[2]: stored.load(name) for name in stored if name.partition(".")[0] == "output"}
        whole = outputs[""] if list(outputs) == [""] else outputs
        metric = self.functions["metric"]
        if metric is None:
            raise PortError("there is no metric")
        return {"metrics": metrics_of(metric, whole, {name: batch.load(name) for name in batch})}

    def decode(self, request: Message) -> Message:
        """Run the model in one way; see `parity.models.decode.port.Decoder.decode`."""
        port = self.current()
        if not isinstance(port, LayeredPort):
            raise Unsupported("its models have no layers that are called, so they cannot decode")
        port.load(request["state"], request["dtype"], request["seed"])
        return decode.decode(port, self.functions["forward"], request)

    def prompts(self, request: Message) -> Message:
        """The prompts of the user's function."""
        return decode.prompts(self.function(request["prompts"]))


def closed_call(request: Message, given: Recorded) -> ClosedCall:
    """The layer's call that a request is about, with its inputs and its children's outputs."""
    inputs = {int(name[3:]): given.load(name) for name in given if name.startswith("in:")}
    values = {name.partition(":")[2]: given.load(name) for name in given if name.startswith("child:")}
    return ClosedCall(request["layer"], request["call"], inputs, values, request["children"])


class PartnerValues:
    """Replaces tensors at the boundaries of layers by those of a partner's run, perturbed by an ulp if there is a seed.

    `keys` of the request are the partner's names of tensors, None if they are the same; `replace` the names of those
    that are replaced, None for all; `axes` the orders of the partner's axes that give this model's tensors, by name;
    `resized`: a tensor is replaced by one of another size, too.
    """

    def __init__(self, request: Message) -> None:
        self._stored = Recorded(request["partner"])
        self._keys: Optional[Mapping[str, str]] = request["keys"]
        self._only = None if request["replace"] is None else set(request["replace"])
        self._axes: Mapping[str, Any] = request["axes"]
        self._resized = bool(request["resized"])
        self._dtype, self._seed = request["dtype"], request["seed"]

    def __call__(self, name: str, array: Any) -> Any:
        """The replacement of a tensor with the values `array`; None to keep it."""
        theirs = name if self._keys is None else self._keys.get(name, "")
        if (self._only is not None and name not in self._only) or theirs not in self._stored:
            return None
        shape, axes = self._stored.shape(theirs), self._axes.get(name)
        shape = tuple(shape[i] for i in axes) if axes else shape
        repeated = len(shape) == array.ndim and all(n in (1, m) for n, m in zip(shape, array.shape))
        same = repeated or regrouped(shape, array.shape)
        if not same and not self._resized:
            return None
        values = perturbed(self._stored.load(theirs), self._dtype, theirs, self._seed)
        values = values.transpose(axes) if axes else values
        if not same:
            return values
        return np.array(np.broadcast_to(values, array.shape)) if repeated else values.reshape(array.shape)


REQUESTS = {
    "model.build": ModelRequests.build,
    "model.run": ModelRequests.run,
    "model.layer": ModelRequests.layer,
    "model.extract": ModelRequests.extract,
    "model.trace": ModelRequests.trace,
    "model.calls": ModelRequests.calls,
    "model.metric": ModelRequests.metric,
    "model.decode": ModelRequests.decode,
    "model.prompts": ModelRequests.prompts,
}
"""The requests about models, and the methods that answer them."""
