"""The code of a layer between its children as an op: traced in one port, it judges what the other port computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases.brought import Brought, BroughtError, Source, op_of, outputs_of
from parity.cases.draw import File, TensorPlan
from parity.cases.op import CaseError
from parity.config.plan import DEFAULT_TOLERANCES, CasePlan
from parity.engine.inputs import save_array
from parity.models.findings import Boundary
from parity.models.functions import source
from parity.models.leaves import held
from parity.models.ports import Array, ModelError, Port
from parity.models.worker.tape import Recorded

FUNCTION = "code"
"""The name of the function in a traced program's file."""


@dataclass(frozen=True)
class CodeKernel:
    """A port's layer with its children closed, as a kernel: `inputs` and `outputs` say where each is in this port."""

    port: Port
    layer: str
    call: int
    children: Sequence[str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    state: Path
    dtype: str

    def __call__(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Its outputs by the program's names; None for another op or dtype, or what it cannot be given."""
        if dtype != self.dtype or case.brought is None or case.brought.name != FUNCTION:
            return None
        given = {place: np.asarray(inputs[name]) for name, place in self.inputs.items() if name in inputs}
        try:
            returned = self.port.alone(self.state, self.layer, self.call, given, self.children)
        except ModelError:
            return None
        return {name: returned[key] for name, key in self.outputs.items() if key in returned}


@dataclass(frozen=True)
class CodeCase:
    """The case with its inputs, and both ports as kernels, the baseline first."""

    case: CasePlan
    inputs: Mapping[str, Array]
    kernels: Mapping[str, CodeKernel]


def children_of(layer: str, paired: Sequence[str]) -> list[str]:
    """The layers with a partner that are in a layer, and in no other one that is in it."""
    inner = [name for name in paired if name and name != layer and (not layer or name.startswith(f"{layer}."))]
    return [name for name in inner if not any(name.startswith(f"{other}.") for other in inner)]


def code_case(
    model: CasePlan,
    dtype: str,
    ports: tuple[Port, Port],
    states: Mapping[str, Path],
    partners: Mapping[str, str],
    parameters: Mapping[str, str],
    layer: str,
    call: int,
    plain: Recorded,
    folder: Path,
) -> CodeCase:
    """The code of the other port's `layer` as a case, by the program of the baseline's partner; its files are stored
    in `folder`. `parameters` maps the baseline's parameters to those of the other port that have the same layout.

    Raises ModelError where it cannot be traced, or has no program.
    """
    base, other = ports
    ours = partners[layer]
    theirs = {there: here for here, there in partners.items()}
    children = children_of(ours, list(partners.values()))
    boundary = [name for name in plain if Boundary.of(name) is not None]
    given = {
        f"child:{name}": plain.load(name) for name in boundary if name.split("|")[0] in children and "|out|" in name
    }
    given |= {f"in:{i}": plain.load(name) for i in range(64) if (name := f"{ours}|{call}|in|{i}") in plain}
    reply, constants = base.traced(states[base.name], ours, call, given, children)
    places, outputs = reply["inputs"], reply["outputs"]
    state = Recorded(str(states[base.name]))
    values: dict[str, Array] = {}
    for name, place in places.items():
        kind, _, own = place.partition(":")
        if kind == "constant":
            values[name] = constants[name]
        elif kind == "param":
            info = base.tensors[f"{ours}.{own}".removeprefix(".")]
            values[name] = state.load(info.tied or info.name)
        else:
            values[name] = given[place]
    used = {name: held(array, dtype) for name, array in values.items()}
    title = f"The code of {ours or 'the model'} in {base.name}: what it makes of its inputs and its layers' outputs"
    case = planned(model, dtype, title, reply, used, folder)
    kernels = {}
    for port, name, layers in ((base, ours, {child: child for child in children}), (other, layer, theirs)):
        there = {**layers, ours: name}
        names = (
            {f"{ours}.{own}".removeprefix("."): own for own in own_names(base, ours)} if port is base else parameters
        )
        inputs = {argument: placed(place, name, ours, there, names) for argument, place in places.items()}
        kernels[port.name] = CodeKernel(
            port,
            name,
            call,
            [there[child] for child in children],
            {argument: place for argument, place in inputs.items() if place},
            {output: at_port(key, there) for output, key in outputs.items()},
            states[port.name],
            dtype,
        )
    return CodeCase(case, used, kernels)


def planned(
    model: CasePlan, dtype: str, title: str, program: Mapping[str, Any], inputs: Mapping[str, Array], folder: Path
) -> CasePlan:
    """A traced program's case with its inputs; both are stored. Raises ModelError if it cannot be run."""
    text, options = source(FUNCTION, title, program["lines"], program["returned"], list(inputs))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "code.py"
    path.write_text(text, encoding="utf-8")
    whole = tuple(
        (n, int(a.min(initial=0)), int(a.max(initial=0)) + 1) for n, a in inputs.items() if a.dtype.kind == "i"
    )
    brought = Brought(Source(path, text.encode()), FUNCTION, tuple(inputs), whole, (), tuple(options))
    shapes = tuple((name, array.shape) for name, array in inputs.items())
    try:
        params = op_of(brought).params(**options)
        upstream = tuple(n for n, (_, kind) in outputs_of(brought, params, shapes).items() if kind.kind == "f")
    except (BroughtError, CaseError) as error:
        raise ModelError(str(error)) from error
    brought = replace(brought, upstream=upstream)
    plans = []
    for name, array in inputs.items():
        save_array(folder / f"{name}.npy", array)
        plans.append(TensorPlan(name, array.shape, File(folder / f"{name}.npy"), integers=array.dtype.kind == "i"))
    return CasePlan(
        model.id, FUNCTION, params, (dtype,), tuple(plans), DEFAULT_TOLERANCES, model.source, gradients=False,
        brought=brought,
    )  # fmt: skip


def own_names(port: Port, layer: str) -> list[str]:
    """The last parts of the names of a layer's own tensors."""
    return [name.rpartition(".")[2] for name in port.tensors if name.rpartition(".")[0] == layer]


def placed(place: str, layer: str, ours: str, layers: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    """Where an input of the program is in a port; nothing for what the port cannot be given."""
    kind, _, own = place.partition(":")
    if kind == "in":
        return place
    if kind == "child":
        return f"child:{at_port(own, layers)}"
    name = parameters.get(f"{ours}.{own}".removeprefix("."), "") if kind == "param" else ""
    owner, _, own = name.rpartition(".")
    return f"param:{own}" if name and owner in ("", layer) else ""


def at_port(key: str, layers: Mapping[str, str]) -> str:
    """A boundary of the baseline's layer as that of its partner."""
    layer, _, rest = key.partition("|")
    return f"{layers[layer]}|{rest}"
