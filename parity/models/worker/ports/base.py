"""The base of ports: what requests about a model need of its framework, with a subclass per framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

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


def same(one: Any, other: Any) -> bool:
    """Whether two arrays are equal, NaN included."""
    return bool(one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


@dataclass(frozen=True)
class ModelTensor:
    """A parameter or buffer: its name, the framework's object, whether it is trained, and the name of the first tensor
    that it shares memory with, if any."""

    name: str
    tensor: Any
    trained: bool
    tied: str = ""


@dataclass(frozen=True)
class ClosedCall:
    """A layer's call with closed children: its inputs by number, and its children's outputs by boundary."""

    layer: str
    call: int
    inputs: Mapping[int, Any]
    values: Mapping[str, Any]
    children: Collection[str]


class Port:
    """A user's model in its framework: builds, loads and runs it, watches its layers, and calls them alone.

    A subclass implements what raises NotImplementedError here; `adapter` makes the framework's tensors, and arrays of
    them. `calls` has what each call of a layer got in the last run that watched it. `outputs` are the names that the
    baseline gives to outputs. `kept` are the last run's outputs with their values then, if it `keeps_outputs`.
    """

    differentiable: bool = True
    """Whether it computes gradients; if not, only forward results are compared."""

    trains: ClassVar[bool] = True
    """Whether it has a training mode."""

    called_by_user: ClassVar[bool] = True
    """Whether the user's `forward` and `loss` can call it; if not, there is no loss to compare."""

    converted: ClassVar[bool] = False
    """Whether its model was converted from another port's, with its parameters."""

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
        self.keeps_outputs = False
        self.kept: Dict[str, Tuple[Any, Any]] = {}
        self.seeded()
        self.model = self.built(build)

    def built(self, build: Callable[[], Any]) -> Any:
        """The user's model, in float32 and in `mode`; raises PortError if it is not of this framework."""
        raise NotImplementedError

    def named_like(self, layers: Collection[str]) -> None:
        """Use these names for layers that are the same."""

    def seeded(self) -> None:
        """Seed the framework's random number generators."""

    # Layers and tensors

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
        """The dtype in which the model gets an array of the batch: the model's for floats."""
        return self.dtype if array.dtype.kind == "f" else str(array.dtype)

    # State

    def load(self, state: str, dtype: str, seed: int) -> None:
        """Load parameters and buffers from a tape, in `dtype`, each perturbed by an ulp if there is a seed."""
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
        """Convert parameters, buffers, and the default dtype."""
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
        """The calls of a layer's code in a port whose layers are no objects (`traced.calls_of`)."""
        raise NotImplementedError

    def extracted(self, layer: str, call: int, path: str) -> Dict[str, Any]:  # noqa: ARG002 - of graphs
        """Write the graph of one call of a layer; returns the names of its `inputs` and `outputs`."""
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
        """Repeat a call of one layer with other tensors; its outputs and gradients go to the crossing's tape.

        `parameters` are values for the layer's own; they are put back.
        """
        raise NotImplementedError
