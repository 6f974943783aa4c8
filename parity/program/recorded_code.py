"""A layer's recorded code as a function of arrays, which `cases` traces like a user's reference.

The options of parity's ops in it are params of the whole, so the judge tries other values of them like those of any op.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.brought import RecordedFunction
from parity.cases.op import Op
from parity.cases.program import labelled_as, one_call
from parity.cases.user_code import BroughtError
from parity.cases.writable import TRACING, unwrapped, wrapped
from parity.program.lossy_forms import LossyForm, RecordedCode
from parity.program.op_calls import InnerOps, inner_ops, op
from parity.program.recorded import WHOLE, RecordedCall, Value, mapped, written
from parity.program.torch_functions import TORCH, bound

MOST_AXES = 4
PROGRAM = "program.txt"
"""The file with a recording's calls, for readers."""
Array = NDArray[Any]
Values = Mapping[str, Any]
Compute = Callable[[Values, Values], Any]
"""From values by mark and options by name to a call's result."""


@dataclass(frozen=True)
class Recording:
    """What a worker recorded of a layer's code (`worker/traced.py`).

    `names` are those of values by mark. `inputs` maps marks to locations (`in:0`, `param:weight`, `child:<tensor>`,
    `constant:`), `outputs` maps outputs to tensors at boundaries, `returned` maps them to marks; `reads` are the places
    where the code gives tensors' values to Python, as in `model.py:12 (item)`. `opaque` are calls that can be made
    themselves, by mark, and `made` the marks of those that are, since they have no meaning in NumPy.
    """

    calls: Sequence[RecordedCall]
    names: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    returned: Mapping[str, str]
    reads: Sequence[str] = ()
    opaque: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Recording:
        """The recording of a worker's reply."""
        given = {name: reply[name] for name in ("names", "inputs", "outputs", "returned", "reads")}
        return cls(calls=tuple(map(RecordedCall.of, reply["calls"])), **given)

    @property
    def locations(self) -> dict[str, str]:
        """The locations of inputs by name."""
        return {self.names[mark]: location for mark, location in self.inputs.items()}

    @property
    def read(self) -> set[str]:
        """The names of the values that a call reads, or that are returned."""
        marks = {*self.returned.values(), *(mark for call in self.calls for mark in call.reads)}
        return {self.names[mark] for mark in marks}

    def returning(self, outputs: Collection[str]) -> Recording:
        """The recording with these outputs only."""
        kept = [{n: v for n, v in table.items() if n in outputs} for table in (self.outputs, self.returned)]
        return replace(self, outputs=kept[0], returned=kept[1])

    @property
    def text(self) -> str:
        """All calls, a line each."""
        lines = (f"{call.name} = {written(call, lambda mark: (self.names[mark], WHOLE))[0]}\n" for call in self.calls)
        return "".join([*lines, *(f"{output} = {self.names[mark]}\n" for output, mark in self.returned.items())])


CHANGE = "__"
"""Between the name of a call of an op and an argument of the op's reference: `layer_norm__variance`."""
LOSSY = "lossy_form"
"""The argument with which a call computes in a form that loses digits."""


@dataclass
class RecordedOpCall:
    """A call of an op: the fixed params, the names of options by param, and the shapes of its operands."""

    op: Op
    params: Mapping[str, Any]
    options: Mapping[str, str]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class CodeOptions:
    """The params of a recording: their values, and which param of which op each is; its `calls` of ops by name."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: dict[str, RecordedOpCall] = field(default_factory=dict)
    first_parts: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def first_part(self, call: RecordedCall) -> str:
        """The name of the first result of a call."""
        return self.first_parts.setdefault((call.function, tuple(call.reads), call.source_line), call.name)

    def note(self, name: str, inner: InnerOps) -> None:
        """Keep the op that a call makes inside, if it is one, for its variants."""
        if len(inner.params) == 1 and name not in self.calls:
            (op_name, params), (shapes,) = next(iter(inner.params.items())), inner.shapes.values()
            self.calls[name] = RecordedOpCall(OPS[op_name], params, {}, dict(shapes))

    def add(self, op_name: str, param: str, value: Any) -> str:
        """A new option; returns its name."""
        wanted = f"{op_name}_{param}"
        names = (wanted, *(f"{wanted}_{i}" for i in range(2, len(self.values) + 3)))
        name = next(name for name in names if name not in self.values)
        self.values[name], self.origins[name] = value, (op_name, param)
        return name


class CodeFunction:
    """A recording as a function of its inputs and options by name; raises BroughtError with the user's line."""

    def __init__(self, recording: Recording, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.recording, self.shapes, self.options = recording, shapes, CodeOptions()
        exact = {call.mark: self.computation(call) for call in recording.calls}
        self.lossy = {call.mark: form for call, form in RecordedCode(recording.calls, exact).forms()}
        self.steps = [(call, self.either_form(call, exact[call.mark])) for call in recording.calls]
        kind = inspect.Parameter.KEYWORD_ONLY
        tensors = [inspect.Parameter(name, kind) for name in shapes]
        options = [inspect.Parameter(name, kind, default=value) for name, value in self.options.values.items()]
        self.__signature__ = inspect.Signature([*tensors, *options])

    def __call__(self, **given: Any) -> dict[str, Any]:
        """The outputs by name."""
        for name, shape in self.shapes.items():
            if tuple(given[name].shape) != tuple(shape):
                raise BroughtError(f"{name} was recorded with the shape {list(shape)}, not {list(given[name].shape)}")
        marks = {mark: self.recording.names[mark] for mark in self.recording.inputs}
        values = {mark: given[name] for mark, name in marks.items() if name in self.shapes}
        for number, (call, compute) in enumerate(self.steps):
            with one_call(number), located(call):
                value = compute(values, given)
                values[call.mark] = labelled_as(without_gradient(value) if call.cut else value, call.name)
        return {output: values[mark] for output, mark in self.recording.returned.items()}

    def lossy_calls(self) -> Iterator[tuple[RecordedCall, LossyForm]]:
        """The calls that have a form that loses digits."""
        yield from ((call, self.lossy[call.mark]) for call, _ in self.steps if call.mark in self.lossy)

    def either_form(self, call: RecordedCall, exact: Compute) -> Compute:
        """What a call computes, in its lossy form where that is asked."""
        form, name = self.lossy.get(call.mark), f"{call.name}{CHANGE}{LOSSY}"
        if form is None:
            return exact
        return lambda values, given: form.compute(values, given) if given.get(name) else exact(values, given)

    def computation(self, call: RecordedCall) -> Compute:
        """What a call computes in NumPy; where that has no meaning, the call itself if it can be made."""
        own = self.recording.opaque.get(call.mark)
        if own is None:
            return computation(call, self.options)
        known = len(self.options.values)
        try:
            compute = computation(call, self.options)
        except BroughtError:
            self.recording.made.add(call.mark)
        if call.mark in self.recording.made:
            for name in list(self.options.values)[known:]:
                del self.options.values[name], self.options.origins[name]
            self.options.calls.pop(call.name, None)
            return lambda values, _: own(values)

        def either(values: Values, given: Values) -> Any:
            if call.mark not in self.recording.made:
                try:
                    return compute(values, given)
                except Exception:
                    self.recording.made.add(call.mark)
            return own(values)

        return either


def without_gradient(value: Any) -> Any:
    """A value through which no gradient flows."""
    stopped = getval(unwrapped(value))
    return wrapped(stopped) if TRACING.get() else stopped


class located:  # noqa: N801 - a context manager
    """Inside, an error becomes a BroughtError with the line and the function of a call."""

    def __init__(self, call: RecordedCall) -> None:
        self.call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BroughtError):
            what = self.call.function if isinstance(error, TypeError | AttributeError) else type(error).__name__
            raise BroughtError(f"{self.call.source_line}: {what}: {error}") from error


def reference(recording: Recording, inputs: Mapping[str, Array], folder: Path) -> tuple[RecordedFunction, CodeOptions]:
    """The recording as a reference of its `inputs` by name, and its options; its calls are stored in `folder`.

    Raises BroughtError if it calls something that has no meaning in NumPy.
    """
    function = CodeFunction(recording, {name: array.shape for name, array in inputs.items()})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(recording.text, encoding="utf-8")
    return RecordedFunction(folder / PROGRAM, recording.text.encode(), function), function.options


def computation(call: RecordedCall, options: CodeOptions) -> Compute:
    """What a call computes; the options of an op are added to `options`. Raises BroughtError if it is not known."""
    compute = of_function(call, options) if call.function in TORCH else of_op(call, options)
    return compute if call.part is None else lambda values, given: compute(values, given)[call.part]


def of_function(call: RecordedCall, options: CodeOptions) -> Compute:
    """What a function of PyTorch computes; where that is an op with other arguments, its variants are known, too."""
    function, kwargs = TORCH[call.function], {name: v for name, v in call.kwargs.items() if name != "inplace"}
    name = options.first_part(call) if call.part is not None else call.name
    prefix = f"{name}{CHANGE}"

    def compute(values: Values, given: Values) -> Any:
        def value(item: Value) -> Any:
            return values[item.mark]

        changes = {key.removeprefix(prefix): v for key, v in given.items() if key.startswith(prefix)}
        with inner_ops(changes) as inner:
            try:
                return function(
                    *(mapped(item, value) for item in call.args), **{n: mapped(v, value) for n, v in kwargs.items()}
                )
            finally:
                options.note(name, inner)

    return compute


def of_op(call: RecordedCall, options: CodeOptions) -> Compute:
    """What an op computes."""
    name, (definition, given) = call.function, op_of(call)
    known = {item.name for item in definition.inputs}
    fixed = {key: value for key, value in given.items() if key in known}
    chosen: dict[str, str] = {}
    for param, kind in zip(fields(definition.params), types_of(name).values(), strict=True):
        default = None if param.default is MISSING else param.default
        if param.name in given and not is_option(param.name, kind):
            fixed[param.name] = given[param.name]
        elif is_option(param.name, kind) and (param.name in given or default is not None):
            chosen[param.name] = options.add(name, param.name, given.get(param.name, default))
    left = [key for key, value in given.items() if key not in {*fixed, *chosen} and not is_unused(key, value)]
    if left:
        raise BroughtError(
            f"{call.source_line}: {name} is called with {', '.join(left)}, which parity's op does not have"
        )

    known_params = {key: value for key, value in fixed.items() if key not in known}
    own = options.calls[call.name] = RecordedOpCall(definition, known_params, chosen)
    prefix = f"{call.name}{CHANGE}"

    def compute(values: Values, numbers: Values) -> Any:
        arguments = {key: mapped(value, lambda item: values[item.mark]) for key, value in fixed.items()}
        own.shapes = {key: tuple(arguments[key].shape) for key in known if hasattr(arguments.get(key), "shape")}
        changes = {key.removeprefix(prefix): value for key, value in numbers.items() if key.startswith(prefix)}
        return op(name, changes, **arguments, **{key: numbers[option] for key, option in chosen.items()})

    return compute


def is_unused(name: str, value: Any) -> bool:
    """Whether an argument asks for nothing: 0, False or None, where 0 is no index."""
    return value in (False, None) and (value is None or not name.endswith("_idx"))


def op_of(call: RecordedCall) -> tuple[Op, dict[str, Any]]:
    """The op that a call is, and its arguments by name; raises BroughtError if it is none."""
    given = bound(call.function, call.parameters, call.args, call.kwargs)
    if call.function not in OPS or given is None or call.part is not None:
        raise BroughtError(f"{call.source_line}: {call.function} has no translation to NumPy")
    return OPS[call.function], given


def is_option(name: str, kind: Any) -> bool:
    """Whether other values of a param are tried: a number, a word or an axis, but no size and no flag of shapes."""
    return kind in (float, "float") or bool(words_of(kind)) or name == "dim"


def words_of(kind: Any) -> tuple[Any, ...]:
    """The values of a param that is a word or a bool; empty for a number."""
    if kind is bool or bool in get_args(kind):
        return True, False
    return get_args(kind) if get_origin(kind) is Literal else ()


def types_of(name: str) -> dict[str, Any]:
    """The types of an op's params."""
    return get_type_hints(OPS[name].params)


def others(options: Mapping[str, Any], origins: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Every other word or axis that an option may be; `origins` maps options to op and param."""
    for option, value in options.items():
        op_name, param = origins[option]
        axes = tuple(range(-MOST_AXES, 0)) if param == "dim" else ()
        yield from ((option, other) for other in (*words_of(types_of(op_name)[param]), *axes) if other != value)
