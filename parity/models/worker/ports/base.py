"""What the requests about a model need of its framework: a port, which is a class per framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Collection, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from parity.adapters.base import Unsupported
from parity.adapters.bits import bits_of, values_of
from parity.models.worker.crossing import Crossing, perturbed
from parity.models.worker.tape import Recorded, TensorTape


class PortError(ValueError):
    """A user's model cannot be used as it is; the message says what to change.

    `key` is the one by which the config names the function that is to blame, if one is.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class ModelTensor:
    """A parameter or buffer: its name, the framework's object, whether it is trained, and the name of the first one
    that it shares its memory with, if any."""

    name: str
    tensor: Any
    trained: bool
    tied: str = ""


@dataclass(frozen=True)
class ClosedCall:
    """A layer's call by itself: its tensors by number, and what its children, which are not entered, return, by
    boundary."""

    layer: str
    call: int
    inputs: Mapping[int, Any]
    values: Mapping[str, Any]
    children: Collection[str]


class Port:
    """A user's model in its framework: built, loaded, run with its layers watched, and layers called alone.

    A subclass implements what raises NotImplementedError here; `adapter` makes the framework's tensors, and arrays of
    them. `calls` has what each call of a layer got in the last run that watched it. `outputs` are the names that the
    baseline gives to outputs.
    """

    differentiable: bool = True
    """Whether it computes gradients; one that does not is run forward only, and the rest is compared."""

    trains: ClassVar[bool] = True
    """Whether it has a training mode."""

    called_by_user: ClassVar[bool] = True
    """Whether the user's `forward` and `loss` can call it; what cannot be called has no loss to compare."""

    converted: ClassVar[bool] = False
    """Whether its model is made of another port's, with that one's parameters."""

    traced: ClassVar[bool] = False
    """Whether the code between layers can be recorded (`traced.py`)."""

    def __init__(self, adapter: Any, build: Callable[[], Any], mode: str) -> None:
        if mode == "train" and not self.trains:
            raise Unsupported("its models have no training mode")
        self.adapter, self.framework, self.mode = adapter, adapter.framework, mode
        self.dtype = "float32"
        self.loaded: Any = None
        self.calls: Dict[Any, Any] = {}
        self.outputs: Sequence[str] = ()
        self.seeded()
        self.model = self.built(build)

    def built(self, build: Callable[[], Any]) -> Any:
        """The user's model, in float32 and in `mode`; raises PortError where it is none of this framework."""
        raise NotImplementedError

    def named_like(self, layers: Collection[str]) -> None:
        """Use these names of layers where they mean the same."""

    def seeded(self) -> None:
        """Start the framework's generators of random numbers anew."""

    # What it is made of

    def described(self) -> List[Dict[str, Any]]:
        """The layers in the order of definition: dotted `name`, "" for the model; `kind`, the name of the class; `own`,
        whether that is the user's; `options`, plain attributes."""
        raise NotImplementedError

    def tensors(self) -> Iterator[ModelTensor]:
        """Parameters and buffers."""
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a tensor with values."""
        raise NotImplementedError

    def depends(self, tensor: Any) -> bool:  # noqa: ARG002 - where tensors do not say it
        """Whether a tensor depends on a trained parameter."""
        return True

    def to_array(self, tensor: Any) -> Any:
        """A tensor's values; bfloat16 as float32."""
        array = self.adapter.to_numpy(tensor)
        return values_of(array) if array.dtype == np.uint16 else np.array(array)

    def to_tensor(self, array: Any, like: Any, requires_grad: bool = False) -> Any:
        """Values as a tensor of the dtype of `like`, a tensor or a dtype's name."""
        name = like if isinstance(like, str) else self.dtype_of(like)
        held = bits_of(array) if name == "bfloat16" else np.ascontiguousarray(array).reshape(array.shape).astype(name)
        return self.adapter.leaf(held, requires_grad)

    def dtype_of(self, tensor: Any) -> str:
        """`float32`."""
        return str(tensor.dtype).rpartition(".")[2].lower()

    def held(self, array: Any) -> str:
        """The dtype in which an array of the batch is given: floats in the model's."""
        return self.dtype if array.dtype.kind == "f" else str(array.dtype)

    # Its state

    def load(self, state: str, dtype: str, seed: int) -> None:
        """Take parameters and buffers from a tape, in `dtype`, each perturbed by an ulp if there is a seed."""
        if self.loaded == (state, dtype, seed) and self.mode == "eval":
            return
        if dtype != self.dtype:
            self.cast(dtype)
            self.dtype = dtype
        stored = Recorded(state)
        for own in self.tensors():
            if own.name in stored and not own.tied:
                self.assign(own.tensor, perturbed(stored.load(own.name), dtype, own.name, seed))
        self.loaded = (state, dtype, seed)

    def assign(self, tensor: Any, array: Any) -> None:
        """Set a parameter's or buffer's values."""
        raise NotImplementedError

    def cast(self, dtype: str) -> None:
        """Convert parameters and buffers, and what the model creates without a dtype."""
        raise NotImplementedError

    # Runs

    def run(
        self,
        batch: Mapping[str, Any],
        functions: Mapping[str, Optional[Callable[..., Any]]],
        targets: Collection[str],
        crossing: Crossing,
        seed: int,
        gradients: bool,
    ) -> None:
        """Run the model on a batch; outputs, loss and gradients go to the crossing's tape."""
        raise NotImplementedError

    def given(self, batch: Mapping[str, Any], targets: Collection[str], seed: int) -> Dict[str, Any]:
        """The batch as tensors; raises PortError where it lacks one of the `targets`."""
        unknown = sorted(set(targets) - set(batch))
        if unknown:
            raise PortError(f"targets: the batch has no {unknown[0]!r}; it has {', '.join(sorted(batch))}")
        moved = {name: perturbed(array, self.dtype, name, seed) for name, array in batch.items()}
        return {name: self.to_tensor(array, self.held(array)) for name, array in moved.items()}

    def noted(self, closed: ClosedCall, tape: TensorTape, others: Mapping[int, Any]) -> Dict[str, Any]:
        """What a port whose layers are no objects calls between them (`traced.calls_of`)."""
        raise NotImplementedError

    def extracted(self, layer: str, call: int, path: str) -> Dict[str, Any]:  # noqa: ARG002 - of graphs
        """Write the graph of one call of a layer; the names of its `inputs` and `outputs`."""
        raise Unsupported("its models are no graphs")

    def alone(
        self,
        layer: str,
        call: int,
        inputs: Mapping[int, Any],
        grad_outputs: Mapping[int, Any],
        parameters: Mapping[str, Any],
        crossing: Crossing,
    ) -> None:
        """Call one layer as it was called, with other tensors; its outputs and gradients go to the crossing's tape.

        `parameters` are values for the layer's own; they are put back.
        """
        raise NotImplementedError
