"""The code of a layer between its children as an op: traced in the baseline, used to judge the other port."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases.brought import Brought, op_of, outputs_of
from parity.cases.op import CaseError, Op
from parity.cases.oracle import program_of
from parity.cases.replay import first_difference
from parity.cases.user_code import BroughtError
from parity.config.plan import CasePlan
from parity.models.findings import Boundary
from parity.models.layer_ops import case_of, held
from parity.models.orders import AxesConverter
from parity.models.ports import Array, ModelError, RemotePort
from parity.models.worker.crossing import LOSS
from parity.models.worker.tape import Recorded
from parity.program.recorded import Value
from parity.program.recorded_code import Recording, others, reference
from parity.program.recorded_code import op_of as called_op
from parity.program.torch_functions import TORCH

MOST_INPUTS = 64
VALUE = "value:"
"""The prefix of what a call of the code has computed, among what was recorded."""
CODE = "code"
"""The name of a recording's op."""


@dataclass(frozen=True)
class CodeKernel:
    """A port's layer with its children closed, as a kernel.

    `inputs` and `outputs` map the program's names to this port's locations and tensors. `rest` are the tensors of the
    run that the program does not read, by location.
    """

    port: RemotePort
    layer: str
    call: int
    children: Sequence[str]
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, str]
    rest: Mapping[str, Array]
    state: Path
    dtype: str
    op: str
    params: Any
    converter: AxesConverter

    def name(self, location: str) -> str:
        """The name of the tensor at a location, if it is at a boundary."""
        kind, _, own = location.partition(":")
        return own if kind == "child" else f"{self.layer}|{self.call}|in|{own}" if kind == "in" else ""

    def __call__(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Its outputs by the program's names; None for another op or dtype, or if the call fails."""
        if dtype != self.dtype or (case.op, case.params) != (self.op, self.params):
            return None
        given = dict(self.rest)
        given |= {
            location: self.converter.to_port(self.name(location), np.asarray(inputs[name]))
            for name, locations in self.inputs.items()
            for location in locations
            if name in inputs
        }
        grad_outputs = {name: inputs[f"grad.{name}"] for name in self.outputs if f"grad.{name}" in inputs}
        for name, array in grad_outputs.items():
            given[f"grad:{self.outputs[name].rpartition('|')[2]}"] = self.converter.to_port(
                self.outputs[name], np.asarray(array)
            )
        try:
            returned = self.port.alone(self.state, self.layer, self.call, given, self.children)
        except ModelError:
            return None
        firsts = {name: locations[0] for name, locations in self.inputs.items() if locations}
        locations = {
            f"grad.{name}": f"grad.{location[3:]}" for name, location in firsts.items() if location[:3] == "in:"
        }
        outputs = {
            name: self.converter.to_baseline(key, returned[key])
            for name, key in self.outputs.items()
            if key in returned
        }
        return outputs | {
            name: self.converter.to_baseline(self.name(f"in:{key[5:]}"), returned[key])
            for name, key in locations.items()
            if key in returned
        }


@dataclass(frozen=True)
class CodeCase:
    """The case with its inputs, and both ports as kernels, the baseline first."""

    case: CasePlan
    inputs: Mapping[str, Array]
    kernels: Mapping[str, CodeKernel]
    params: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def otherwise(self) -> Iterator[tuple[str, Any, CasePlan]]:
        """The case with one option of an op changed: the option, its other value, the case."""
        options = {name: getattr(self.case.params, name) for name in self.params}
        for name, value in others(options, self.params):
            yield name, value, replace(self.case, params=replace(self.case.params, **{name: value}))


def children_of(layer: str, paired: Sequence[str]) -> list[str]:
    """The outermost layers within a layer that have a partner."""
    inner = [name for name in paired if name and name != layer and (not layer or name.startswith(f"{layer}."))]
    return [name for name in inner if not any(name.startswith(f"{other}.") for other in inner)]


def code_case(
    model: CasePlan,
    dtype: str,
    ports: tuple[RemotePort, RemotePort],
    states: Mapping[str, Path],
    partners: Mapping[str, str],
    parameters: Mapping[str, str],
    layer: str,
    call: int,
    plain: Recorded,
    converter: AxesConverter,
    keys: Mapping[str, str],
    folder: Path,
    rows: int | None = None,
    behind: Collection[str] = (),
) -> CodeCase:
    """The code of the other port's `layer` as a case whose reference is the program traced in the baseline's partner.

    Its files are stored in `folder`. `parameters` maps the baseline's parameters to the other port's of the same
    layout, `keys` the other port's tensors (`converter`) to those of the baseline's run, `plain`. With `rows`, only so
    many rows of the batch are computed. `behind` are layers of the baseline that the other port has folded into those
    before them. Raises ModelError where the code cannot be traced, or has no program.
    """
    base, other = ports
    ours = partners[layer]
    theirs = {there: here for here, there in partners.items()}
    children = children_of(ours, [*partners.values(), *behind])
    boundary = [name for name in plain if Boundary.of(name) is not None]
    cut = Cut(rows)
    given = cut.all(given_to(ours, call, children, boundary, plain))
    reply, recorded = base.traced(states[base.name], ours, call, given, children)
    by_partner = inverted(keys)
    recording = without_flags(Recording.of(reply), plain, converter.run, by_partner)

    def is_returned(at: str) -> bool:
        return not is_folded(at, behind) and (at in by_partner or not is_called(at, theirs, converter.run))

    recording = recording.returning([name for name, at in recording.outputs.items() if is_returned(at)])
    outputs, locations = dict(recording.outputs), recording.locations
    values = values_of(recording, base, ours, Recorded(str(states[base.name])), {**given, **recorded})
    used = {name: held(array, dtype) for name, array in values.items() if name in recording.read}
    options: Mapping[str, tuple[str, str]] = {}
    single = single_op(recording)
    if single is None:
        case, options = planned(model, dtype, recording, used, folder)
    else:
        op, params, tensors = single
        used = {name: used[argument] for name, argument in tensors.items()}
        locations = {name: locations[argument] for name, argument in tensors.items()}
        last = recording.calls[-1].mark
        outputs = {op.grad_outputs[0]: next(outputs[o] for o, mark in recording.returned.items() if mark == last)}
        # A loss is one number, which says little; its gradient says more.
        one = np.ones((), np.float64 if dtype == "float64" else np.float32)
        differentiated = layer == LOSS and base.differentiable and other.differentiable
        used |= {f"grad.{name}": one for name in outputs} if differentiated else {}
        case = replace(case_of(model, dtype, op.name, params, used, folder), gradients=differentiated)
        recording = replace(recording, returned=dict.fromkeys(outputs, last))
    own = {f"{ours}.{name}".removeprefix("."): name for name in own_names(base, ours)}
    closed = [theirs[child] for child in children if child in theirs]
    kernels = {}
    for port, name, inner, names, known, seen in (
        (base, ours, children, {name: name for name in boundary}, own, AxesConverter(plain)),
        (other, layer, closed, keys, parameters, converter),
    ):
        there = inverted(names)
        at = {tensor: placed(tensor, name, (ours, call), there, known) for tensor in {*locations.values(), *given}}
        rest = cut.all(dict(own_inputs(seen.run, name, call))) if port is other else {}
        inputs = {argument: at[location] for argument, location in locations.items()}
        returned = {output: there[key][0] for output, key in outputs.items() if key in there}
        kernel = CodeKernel(
            port, name, call, inner, inputs, returned, rest, states[port.name], dtype, case.op, case.params, seen
        )
        rest |= {mine: seen.to_port(kernel.name(mine), array) for tensor, array in given.items() for mine in at[tensor]}
        kernels[port.name] = kernel
    marks = {name.removeprefix(VALUE): array for name, array in recorded.items() if name.startswith(VALUE)}
    computed = {recording.names[mark]: array for mark, array in marks.items()}
    replay(kernels[base.name], case, used, recording, {**values, **computed})
    return CodeCase(case, used, kernels, options)


def replay(
    kernel: CodeKernel,
    case: CasePlan,
    inputs: Mapping[str, Array],
    recording: Recording,
    computed: Mapping[str, Array],
) -> None:
    """Compare a recording with the code that it comes from, for the run's inputs and for others.

    `computed` are the code's values by name. Raises ModelError with the line of the first value that differs.
    """
    given = {name: array for name, array in inputs.items() if not case.definition.is_grad_output(name)}
    program = program_of(case.definition, case.params, given, gradients=False)
    returned = {output: recording.names[mark] for output, mark in recording.returned.items()}
    own = {output: computed[name] for output, name in returned.items() if name in computed}
    source_lines = {call.name: call.source_line for call in recording.calls}
    for tensors in (given, *others_of(given, recording.locations)):
        outputs = own if tensors is given else kernel(case, kernel.dtype, tensors)
        if outputs is None:
            continue
        outputs = {name: values for name, values in outputs.items() if name in program.outputs}
        difference = first_difference(program, tensors, outputs, computed if tensors is given else {}, kernel.dtype)
        if difference is not None:
            step = difference.name if difference.name in source_lines else returned.get(difference.name, "")
            head = f"{source_lines[step]}: " if source_lines.get(step) else ""
            whose = "its recording" + ("" if tensors is given else " for other inputs")
            text = f"{head}{whose} differs from {kernel.port.name}: {difference.name} {difference.text}"
            raise ModelError("; ".join([text, *read_by_python(recording.reads)]))


def read_by_python(reads: Sequence[str]) -> Iterator[str]:
    """What may make a recording wrong: the places where the code gives values of tensors to Python."""
    if reads:
        where = ", ".join(dict.fromkeys(reads))
        yield f"Python gets values of tensors at {where}, which are constants of the recording"


def others_of(inputs: Mapping[str, Array], locations: Mapping[str, str]) -> Iterator[dict[str, Array]]:
    """Other values for a program's inputs: in another order, with other signs, and smaller; those of constants stay."""
    rng = np.random.default_rng(0)
    for factor in (1, -1, 1 / 16):
        yield {
            name: factor * rng.permutation(array.ravel()).reshape(array.shape)
            if array.dtype.kind == "f" and not locations.get(name, "").startswith("constant")
            else array
            for name, array in inputs.items()
        }


@dataclass
class Cut:
    """Cuts tensors to the first `rows` of the batch, whose length is that of the first tensor; None keeps all."""

    rows: int | None
    batch: int = 0

    def all(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Tensors by location; those as long as the batch are cut."""
        if self.rows is None:
            return dict(given)
        self.batch = self.batch or next((len(array) for array in given.values() if array.ndim), 0)
        return {
            location: array[: self.rows] if array.ndim and len(array) == self.batch else array
            for location, array in given.items()
        }


def without_flags(
    recording: Recording, plain: Recorded, run: Recorded, theirs: Mapping[str, Sequence[str]]
) -> Recording:
    """A recording without outputs that are numbers here and booleans in the other port: these agree only on 0 and 1.

    `theirs` maps this port's names to the other port's.
    """

    def is_flag(name: str) -> bool:
        return any(run.entries[own]["dtype"] == "bool" for own in theirs.get(name, ()))

    outputs = recording.outputs.items()
    return recording.returning(
        [o for o, name in outputs if plain.entries[name]["dtype"] == "bool" or not is_flag(name)]
    )


def is_called(boundary: str, partners: Mapping[str, str], run: Recorded) -> bool:
    """Whether the other port's run has a tensor at this boundary; if it is not aligned with ours, it is padded."""
    layer, _, rest = boundary.partition("|")
    return f"{partners.get(layer, '')}|{rest}" in run


def is_folded(boundary: str, behind: Collection[str]) -> bool:
    """Whether a tensor is the input of a layer that the other port has folded away."""
    layer, _, role, _ = boundary.split("|")
    return role == "in" and layer in behind


def inverted(names: Mapping[str, str]) -> dict[str, list[str]]:
    """The keys of a mapping by their value."""
    by_partner: dict[str, list[str]] = {}
    for mine, partner in names.items():
        by_partner.setdefault(partner, []).append(mine)
    return by_partner


def given_to(
    layer: str, call: int, children: Collection[str], boundary: Collection[str], plain: Recorded
) -> dict[str, Array]:
    """The inputs of a call's code and the outputs of its children, by location."""
    outputs = [name for name in boundary if name.split("|")[0] in children and "|out|" in name]
    given = {f"child:{name}": plain.load(name) for name in outputs}
    inputs = {i: f"{layer}|{call}|in|{i}" for i in range(MOST_INPUTS)}
    return given | {f"in:{i}": plain.load(name) for i, name in inputs.items() if name in plain}


def values_of(
    recording: Recording, base: RemotePort, layer: str, state: Recorded, given: Mapping[str, Array]
) -> dict[str, Array]:
    """The baseline's values of a recording's inputs, by name; `given` has tensors by location and constants by mark."""
    values: dict[str, Array] = {}
    for mark, location in recording.inputs.items():
        kind, _, own = location.partition(":")
        if kind == "param":
            info = base.tensors[f"{layer}.{own}".removeprefix(".")]
            values[recording.names[mark]] = state.load(info.tied or info.name)
        else:
            values[recording.names[mark]] = given[mark if kind == "constant" else location]
    return values


def planned(
    model: CasePlan, dtype: str, recording: Recording, inputs: Mapping[str, Array], folder: Path
) -> tuple[CasePlan, Mapping[str, tuple[str, str]]]:
    """A recording's case, and which param of which op each of its params is; the inputs are stored.

    Raises ModelError if the recording cannot be computed.
    """
    whole = tuple((n, *bounds(a)) for n, a in inputs.items() if a.dtype.kind == "i")
    shapes = tuple((name, array.shape) for name, array in inputs.items())
    try:
        source, options = reference(recording, inputs, folder)
        brought = Brought(source, CODE, tuple(inputs), whole, (), tuple(options.values))
        params = op_of(brought).params(**options.values)
        differentiable = tuple(n for n, (_, kind) in outputs_of(brought, params, shapes).items() if kind.kind == "f")
    except (BroughtError, CaseError) as error:
        raise ModelError(str(error)) from error
    brought = replace(brought, grad_outputs=differentiable)
    fixed = [name for name, location in recording.locations.items() if location.startswith("constant")]
    return replace(case_of(model, dtype, CODE, params, inputs, folder, fixed), brought=brought), options.origins


def bounds(values: Array) -> tuple[int, int]:
    """The bounds for integers in further inputs. Negative ones, such as `ignore_index`, do not count unless all are."""
    counted = values[values >= 0]
    return int((counted if counted.size else values).min(initial=0)), max(0, int(values.max(initial=0))) + 1


def single_op(recording: Recording) -> tuple[Op, Any, dict[str, str]] | None:
    """The op of a recording that is a single call, its params, and the name for each of its tensors; else None."""
    calls = recording.calls
    if len(calls) != 1 or calls[0].function in TORCH or calls[0].mark not in recording.returned.values():
        return None
    try:
        op, given = called_op(calls[0])
    except BroughtError:
        return None
    tensors = {item.name: given[item.name] for item in op.inputs if item.name in given}
    known = {param.name: given[param.name] for param in fields(op.params) if param.name in given}
    left = {name: value for name, value in given.items() if name not in tensors and name not in known}
    if any(value is not False for value in left.values()) or not all(isinstance(v, Value) for v in tensors.values()):
        return None
    try:
        params = op.params(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        )
    except (TypeError, ValueError):
        return None
    return op, params, {name: recording.names[value.mark] for name, value in tensors.items()}


def own_names(port: RemotePort, layer: str) -> list[str]:
    """The names of a layer's own tensors, without the layer's."""
    return [name.rpartition(".")[2] for name in port.tensors if name.rpartition(".")[0] == layer]


def own_inputs(run: Recorded, layer: str, call: int) -> Iterator[tuple[str, Array]]:
    """A layer's inputs in a run, by location."""
    for i in range(MOST_INPUTS):
        name = f"{layer}|{call}|in|{i}"
        if name in run:
            yield f"in:{i}", run.load(name)


def placed(
    location: str, layer: str, ours: tuple[str, int], names: Mapping[str, Sequence[str]], parameters: Mapping[str, str]
) -> list[str]:
    """The locations of a program's input in a port, possibly none or several. `ours` is the baseline's call."""
    kind, _, own = location.partition(":")
    if kind == "in":
        inputs = names.get(f"{ours[0]}|{ours[1]}|in|{own}", [])
        return [f"in:{name.rpartition('|')[2]}" for name in inputs]
    if kind == "child":
        return [f"child:{name}" for name in names.get(own, [])]
    name = parameters.get(f"{ours[0]}.{own}".removeprefix("."), "") if kind == "param" else ""
    owner, _, own = name.rpartition(".")
    return [f"param:{own}"] if name and owner in ("", layer) else []
