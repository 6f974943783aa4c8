"""Decoding in a worker: consecutive calls of the user's function, each with the cache of the one before.

A row of a call has a part of the full pass over its prompt: the same tensors with other numbers of tokens. So values
of the full pass can replace those of a call.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from parity.models.worker.calls import CallRecorder
from parity.models.worker.crossing import IN, OUT, Crossing, key, perturbed
from parity.models.worker.ports.base import PortError
from parity.models.worker.ports.layered import LayeredPort, Watch
from parity.models.worker.tape import Recorded, TensorTape
from parity.models.worker.traced import word_of, words_of

Message = Dict[str, Any]
Shape = Sequence[int]
GIVEN = ("cache", "mask", "positions")
"""The optional arguments of the user's function."""


def aligned(full: Shape, shape: Shape, rows: int, n: int, length: int) -> Optional[Tuple[bool, int]]:
    """Whether a tensor of a call has a batch axis, and which axis has its `n` tokens.

    None if it cannot be a part of the tensor of shape `full` in a pass over `length` tokens.
    """
    if len(full) != len(shape):
        return None
    for batched in (True, False):
        if batched and (not shape or shape[0] != rows or full[0] != 1):
            continue
        for axis in range(int(batched), len(shape)):
            rest = [i for i in range(int(batched), len(shape)) if i != axis]
            if shape[axis] == n and full[axis] == length and all(shape[i] == full[i] for i in rest):
                return batched, axis
    return None


def cut(axis: int, start: int, count: int) -> Tuple[Any, ...]:
    """The index of some tokens."""
    return (slice(None),) * axis + (slice(start, start + count),)


def log_probabilities(logits: Any) -> Any:
    """log softmax over the last axis, in float64."""
    exact = logits.astype(np.float64)
    exact = exact - exact.max(-1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(-1, keepdims=True))


class FullPass:
    """Replaces a call's values by those of the full passes, perturbed by an ulp if there is a seed."""

    def __init__(self, request: Message, call: Message) -> None:
        self.full = {int(i): Recorded(folder) for i, folder in request["partner"].items()}
        self.lengths: Sequence[int] = request["lengths"]
        self.only = None if request["replace"] is None else set(request["replace"])
        self.keys: Optional[Mapping[str, str]] = request["keys"]
        self.call, self.dtype, self.seed = call, request["dtype"], request["seed"]

    def __call__(self, name: str, array: Any) -> Any:
        """The replacement of a tensor; None to keep it."""
        if self.only is not None and name not in self.only:
            return None
        theirs = name if self.keys is None else self.keys.get(name, "")
        rows, n = self.call["rows"], len(self.call["tokens"][0])
        changed = None
        for i, row in enumerate(rows):
            full, length = self.full[row["prompt"]], self.lengths[row["prompt"]]
            at = aligned(full.shape(theirs), array.shape, len(rows), n, length) if theirs in full else None
            if at is None or not row["count"] or (not at[0] and len(rows) > 1):
                continue
            changed = array.copy() if changed is None else changed
            values = perturbed(full.load(theirs), self.dtype, theirs, self.seed)[cut(at[1], row["start"], row["count"])]
            part = slice(i, i + 1) if at[0] else slice(None)
            changed[part][cut(at[1], row["offset"], row["count"])] = values
        return changed


def source_of(request: Message, call: Message) -> Optional[Callable[[str, Any], Any]]:
    """The replacement of a call's tensors: the full passes' values, or its own perturbed by an ulp of `shaken`."""
    if request["shaken"]:
        return lambda name, array: perturbed(array, request["shaken"], name, request["seed"])
    return FullPass(request, call) if request["partner"] else None


def decode(port: Any, function: Any, request: Message) -> Message:
    """Call the user's function for each of `calls`; call k's tensors go to the tape `record`/k, with `logits` and
    `logprobs`. `partner` has the folders of full passes by prompt, whose values replace those of the calls."""
    takes = [name for name in GIVEN if name in inspect.signature(function).parameters]
    cache: Any = None
    caches: List[Any] = []
    heard: List[Any] = []
    with port.no_gradients():
        for k, call in enumerate(request["calls"]):
            tape = TensorTape(os.path.join(request["record"], str(k)))
            source = source_of(request, call)
            given = {name: port.to_tensor(np.array(call[name], np.int64), "int64") for name in ("tokens", *takes)
                     if name != "cache"}  # fmt: skip
            if "cache" in takes:
                given["cache"] = None if call["fresh"] else cache
            port.seeded()
            crossing = Crossing(tape, request["layers"], source)
            if request["listen"] is None:
                with port.watching(crossing):
                    returned = function(port.model, given.pop("tokens"), **given)
            else:
                calls = CallRecorder(port, TensorTape(os.path.join(request["record"], f"{k}-calls")), {})
                listening = Listening(port, crossing, calls, request["listen"])
                with listening, port.intercepted(calls.called):
                    returned = function(port.model, given.pop("tokens"), **given)
                heard.append(listening.heard())
            logits, cache = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
            if not port.is_tensor(logits):
                raise PortError(
                    f"{function.__name__} must return logits, or (logits, cache), not {type(logits).__name__}"
                )
            values = port.to_array(logits)
            shape = tuple(np.shape(call["tokens"]))
            if values.shape[:-1] != shape:
                raise PortError(
                    f"{function.__name__} must return logits {[*shape, 'vocabulary']}, not {list(values.shape)}"
                )
            for i, tensor in enumerate(port.tensors_in(cache) if request["listen"] is not None else ()):
                tape.put(f"cache.{i}", port.to_array(tensor))
            tape.put("logits", values)
            tape.put("logprobs", log_probabilities(values))
            tape.close()
            caches.append([described(port, tensor) for tensor in port.tensors_in(cache)])
    words = {
        layer: words_of(port.entered(port.module(layer)), given)
        for (layer, nth), given in port.calls.items()
        if nth == 0
    }
    return {"caches": caches, "takes": takes, "words": words, "heard": heard}


class Listening(Watch):
    """Records the calls of one layer's code in its first call, without those of its children."""

    def __init__(self, port: LayeredPort, crossing: Crossing, calls: CallRecorder, layer: str) -> None:
        super().__init__(port, crossing)
        self.calls, self.layer = calls, layer
        self.inputs: Dict[str, str] = {}
        self.outputs: Dict[str, str] = {}
        calls.active = False

    def passed(self, layer: str, call: int, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of a layer: the one that is recorded, one within it, or another one."""
        within, own = self.calls.active, layer == self.layer and call == 0
        self.calls.active = False
        if within:
            self._noted(self.port.tensors_in((args, kwargs)), layer, call, IN)
        args, kwargs = self._crossed(layer, call, IN, (args, kwargs))
        if own:
            words = words_of(original, (args, kwargs), self.port.is_tensor)
            for i, tensor in enumerate(self.port.tensors_in((args, kwargs))):
                word = words[i] if i < len(words) else f"x{i}"
                self.inputs[self.calls.know(tensor, word)] = f"in:{i}"
        self.calls.active = own
        result = original(*args, **kwargs)
        self.calls.active = False
        if own:
            self._noted(self.port.tensors_in(result), layer, call, OUT)
        result = self._crossed(layer, call, OUT, result)
        for i, tensor in enumerate(self.port.tensors_in(result) if within else ()):
            name = key(layer, call, OUT, i)
            self.inputs[self.calls.know(tensor, word_of(layer))] = f"child:{name}"
        self.calls.active = within
        return result

    def _noted(self, tensors: Sequence[Any], layer: str, call: int, role: str) -> None:
        for i, tensor in enumerate(tensors):
            self.outputs[key(layer, call, role, i)] = self.calls.mark_of(tensor)

    def heard(self) -> Message:
        """The reply for the host."""
        self.calls.tape.close()
        return self.calls.reply(self.inputs, self.outputs)


def described(port: Any, tensor: Any) -> Message:
    """The shape of a cached tensor, and the narrower format that holds all its numbers, if any."""
    values = port.to_array(tensor)
    fits = FITS.items() if values.dtype.kind == "f" and np.any(values) else ()
    return {"shape": list(values.shape), "narrow": next((name for name, holds in fits if holds(values)), "")}


FITS: Mapping[str, Callable[[Any], Any]] = {
    "bfloat16": lambda values: not np.any(values.astype(np.float32).view(np.uint32) & 0xFFFF),
    "float16": lambda values: np.array_equal(values.astype(np.float16), values),
}
"""Whether a format holds all of some numbers."""


def prompts(function: Any) -> Message:
    """The user's prompts."""
    try:
        token_lists = [[int(token) for token in prompt] for prompt in function()]
    except TypeError as error:
        raise PortError(f"{function.__name__} must return lists of token ids: {error}") from error
    if not token_lists or not all(token_lists):
        raise PortError(f"{function.__name__} must return one list of token ids or more, none of them empty")
    return {"prompts": token_lists}
