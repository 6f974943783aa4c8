"""A framework's layer as an op: its class and options give the op and its params, its call is a kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.draw import File, TensorPlan, generator
from parity.cases.dtypes import as_dtype
from parity.cases.op import CaseError, Op
from parity.cases.options import in_words_of_pytorch
from parity.config.plan import CasePlan
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine.inputs import save_array
from parity.models.layouts import Layout, layout_of
from parity.models.orders import AxesConverter
from parity.models.ports import Array, LayerInfo, ModelError, RemotePort
from parity.models.worker.tape import Recorded

ALIASES = {
    "conv1dtranspose": "conv_transpose1d",
    "conv2dtranspose": "conv_transpose2d",
    "conv3dtranspose": "conv_transpose3d",
    "swish": "silu",
    "upsample": "interpolate",
    **{f"{norm}norm{d}d": f"{norm}_norm" for norm in ("batch", "instance") for d in (1, 2, 3)},
    **{f"{norm}normalization": f"{norm}_norm" for norm in ("batch", "layer", "group", "rms")},
    **{
        f"{full}pooling{d}d": f"{short}_pool{d}d"
        for full, short in (("max", "max"), ("average", "avg"))
        for d in (1, 2, 3)
    },
    "dense": "linear",
    "einsumdense": "linear",
    "upsampling2d": "interpolate",
}
"""Classes whose lower-case name is not that of an op without underscores."""
BY_CLASS = {**{name.replace("_", ""): name for name in OPS}, **ALIASES}


def options_of(port: RemotePort, layer: LayerInfo) -> dict[str, Any]:
    """A layer's options in PyTorch's names."""
    return in_words_of_pytorch(port.spec.adapter, layer.kind, layer.options)


def op_of(layer: LayerInfo) -> Op | None:
    """The op that a framework's layer computes, if parity knows it."""
    name = None if layer.own else BY_CLASS.get(layer.kind.lower().replace("_", ""))
    return None if name is None else OPS[name]


def params_of(op: Op, options: Mapping[str, Any], layer: Mapping[str, tuple[int, ...]]) -> Any:
    """The op's params from a layer's options in PyTorch's names; `layer` has the shapes of its own tensors.

    Raises CaseError, TypeError or ValueError where they do not fit.
    """
    given = dict(options)
    if op.name == "layer_norm" and "weight" in layer:
        given.setdefault("normalized_shape", list(layer["weight"]))
    known = {field.name: given[field.name] for field in fields(op.params) if field.name in given}
    return op.params(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


@dataclass(frozen=True)
class Kernel:
    """A call of a port's layer as a kernel of an op: `state` is the port's, `params` follow from its options."""

    port: RemotePort
    layer: LayerInfo
    call: int
    op: Op
    params: Any
    state: Path
    dtype: str
    converter: AxesConverter

    def own_name(self, name: str) -> tuple[str, Layout]:
        """The layer's name for one of the op's tensors, and its layout."""
        names = (t.rpartition(".")[2] for t in self.port.tensors if t.rpartition(".")[0] == self.layer.name)
        own = ((own, layout_of(self.port.spec.adapter, self.layer, own)) for own in names)
        return next(((own, layout) for own, layout in own if layout.name == name), (name, Layout(name)))

    def info(self, name: str) -> Any:
        """The layer's tensor for one of the op's, or None."""
        return self.port.tensors.get(f"{self.layer.name}.{self.own_name(name)[0]}".removeprefix("."))

    @property
    def placed(self) -> dict[str, str]:
        """The location of each of the op's inputs in a call of the layer: `in:0`, `param:weight`."""
        locations: dict[str, str] = {}
        for item in self.op.inputs:
            if self.info(item.name) is not None:
                locations[item.name] = f"param:{self.own_name(item.name)[0]}"
            elif not item.optional:
                locations[item.name] = f"in:{sum(location.startswith('in:') for location in locations.values())}"
        return locations

    def key(self, role: str, index: Any) -> str:
        """The name of a tensor at its boundary."""
        return f"{self.layer.name}|{self.call}|{role}|{index}"

    def inputs(self, plain: Recorded) -> dict[str, Array]:
        """The op's inputs in a run of this port. Raises KeyError."""
        stored, arrays = Recorded(str(self.state)), {}
        for name, location in self.placed.items():
            kind, _, own = location.partition(":")
            if kind == "in":
                arrays[name] = plain.load(self.key("in", own))
            else:
                info = self.info(name)
                arrays[name] = self.own_name(name)[1].there(stored.load(info.tied or info.name))
        return arrays

    def __call__(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Its outputs and gradients by the op's names; None for other options, another dtype, or parameters of other
        shapes."""
        if case.params != self.params or dtype != self.dtype or case.op != self.op.name:
            return None
        given: dict[str, Array] = {}
        for name, location in self.placed.items():
            array = np.asarray(inputs[name]) if name in inputs else None
            if array is None:
                return None
            if location.startswith("param:"):
                layout, shape = self.own_name(name)[1], self.info(name).shape
                if array.size != np.prod(shape, dtype=int):
                    return None
                array = layout.back(array, shape)
            else:
                array = self.converter.to_port(self.key("in", location.partition(":")[2]), array)
            given[location] = array
        given |= {
            f"grad:{i}": self.converter.to_port(self.key("out", i), np.asarray(inputs[f"grad.{n}"]))
            for i, n in enumerate(self.op.grad_outputs)
            if f"grad.{n}" in inputs
        }
        try:
            returned = self.port.alone(self.state, self.layer.name, self.call, given)
        except ModelError:
            return None
        return self._named(returned, inputs)

    def _named(self, returned: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        try:
            shapes = self.op.infer_shapes(self.params, {name: np.shape(array) for name, array in inputs.items()})
        except CaseError:
            return outputs
        for i, name in enumerate(self.op.grad_outputs):
            if self.key("out", i) in returned:
                array = returned[self.key("out", i)]
                outputs[name] = self.converter.to_baseline(self.key("out", i), array, shapes.outputs[name])
        for name, location in self.placed.items():
            kind, _, own = location.partition(":")
            for key, target in ((f"grad.{own}", f"grad.{name}"), (f"after.{own}" if kind == "param" else "", name)):
                if key in returned and (target.startswith("grad.") or not self.info(name).trained):
                    if kind == "param":
                        array = self.own_name(name)[1].there(returned[key])
                    else:
                        array = self.converter.to_baseline(self.key("in", own), returned[key])
                    outputs[target] = array.reshape(inputs[name].shape)
        return outputs


def layer_case(
    kernel: Kernel, model: CasePlan, plain: Recorded, folder: Path, *, gradients: bool
) -> tuple[CasePlan, dict[str, Array]] | None:
    """A layer's call as a case of its op with the tensors of the run, which are stored in `folder`.

    None if the op does not take them. grad_outputs are drawn.
    """
    op = kernel.op
    try:
        inputs = {name: held(array, kernel.dtype) for name, array in kernel.inputs(plain).items()}
        shapes = op.infer_shapes(kernel.params, {name: array.shape for name, array in inputs.items()})
        inputs = {name: array.reshape(shapes.inputs.get(name, array.shape)) for name, array in inputs.items()}
    except (CaseError, KeyError, ValueError):
        return None
    if gradients and op.differentiable:
        for name in op.grad_outputs:
            drawn = generator(0, model.id, kernel.layer.name, name).normal(size=shapes.outputs[name])
            inputs[f"grad.{name}"] = as_dtype(drawn, kernel.dtype)
    case = case_of(model, kernel.dtype, op.name, kernel.params, inputs, folder)
    return replace(case, gradients=gradients and bool(op.differentiable)), inputs


def case_of(
    model: CasePlan,
    dtype: str,
    name: str,
    params: Any,
    inputs: Mapping[str, Array],
    folder: Path,
    fixed: Collection[str] = (),
) -> CasePlan:
    """A case of an op with these inputs, which are stored; backends make the `fixed` ones themselves, so further inputs
    keep them."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = []
    for tensor, array in inputs.items():
        save_array(folder / f"{tensor}.npy", array)
        draw, integers = File(folder / f"{tensor}.npy"), array.dtype.kind == "i"
        plans.append(TensorPlan(tensor, array.shape, draw, integers=integers, fixed=tensor in fixed))
    tolerance, source = DEFAULT_TOLERANCES, model.source
    return CasePlan(model.id, name, params, (dtype,), tuple(plans), tolerance, source, gradients=False)


def held(array: Array, dtype: str) -> Array:
    """A tensor in the dtype that the host uses: integers in int64, bfloat16 in float32."""
    return array.astype(np.int64) if array.dtype.kind in "iub" else as_dtype(array, dtype)


def words(differences: Mapping[str, tuple[Any, Any]], names: Sequence[str]) -> str:
    """`eps is 1e-05 in torch and 1e-12 in paddle`."""
    parts = (f"{name} is {shown(a)} in {names[0]} and {shown(b)} in {names[1]}" for name, (a, b) in differences.items())
    return "; ".join(parts)


def shown(value: Any) -> str:
    """A value in at most 10 digits: 1 - 0.99 is 0.01."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
