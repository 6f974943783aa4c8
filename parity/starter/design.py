"""Chooses inputs of an op that can reveal mistakes: shapes that its definition accepts, and sweeps that reveal more.

Nothing here knows an op by its name. A setting is tried where the op accepts it, and kept where the audit of
`parity validate --audit` sees a common mistake in it that the cases before do not show, or where the reference with the
usual value of a param gives another result, which is that of a kernel that ignores the param.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from parity.cases import OPS
from parity.cases.draw import Integers, Shape, TensorPlan
from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.op import CaseError, Input, Op, TensorShapes
from parity.cases.oracle import evaluate
from parity.config import ConfigError, load_plan
from parity.config.plan import CasePlan
from parity.judge.audit import audit_case
from parity.judge.bound.envelope import ERROR_BOUND, Array, error_ratio, size
from parity.judge.case import CLEAR, Cell
from parity.judge.compare.cell import consult_oracle
from parity.starter import StarterError
from parity.starter.source import REQUIRED, Function, UserFile, check_signature

SHAPES: Mapping[int, Shape] = {2: (16, 33), 3: (3, 7, 6), 4: (4, 6, 9, 7), 5: (2, 4, 5, 3, 4)}
"""A first shape by number of axes: small, all axes different, and odd, so that blocks of a kernel are partly filled."""
SPARE: Sequence[Shape] = ((4, 12, 5, 3), (2, 3, 5, 6), (33,))
"""For an op that accepts none of these: channels with several divisors, some squares; an even axis; a vector."""
EDGES: Mapping[int, tuple[Shape, ...]] = {
    1: ((1,), (1025,)),
    2: ((1, 33), (5, 1025), (16, 1)),
    3: ((1, 7, 6), (2, 129, 6), (3, 1, 6)),
    4: ((1, 6, 9, 7), (2, 6, 33, 31), (4, 6, 1, 7)),
    5: ((1, 4, 5, 3, 4),),
}
"""A batch of one, an axis of more elements than a block of a GPU kernel holds (1,024), an axis of one."""
COUNTS = (3, 2)
"""Numbers of groups, heads, features and pixels that are tried for a required param."""
OFFSETS = (0, 100, 10000)
SCALES = (1, 1.0e-3, 30)
"""Variances near eps, and scores beyond 88, where exp overflows in float32."""
NARROW_SCALES = (*SCALES, 1000)
"""And squares beyond 65504, the largest number of float16."""
FAR = 1000.0
"""An unreachable bound, as an alternative to a bound of 1."""
SHARE = 0.1
"""For a param that is 0 by default: a decay, a momentum."""
CLOSE = 0.01
"""Inputs are useless if a careful implementation's error exceeds this share of the result."""
SEEDS = (0, 1, 2)
IGNORED_PART = 4
"""One of so many integers of an input is the value of a param, such as `ignore_index`."""
IMAGE_AXES = 4
"""More axes are not added: volumes have functions of their own in frameworks."""
MAX_NAMED = 3

Written = dict[str, Any]
Mistakes = frozenset[tuple[str, str]]
"""Mistakes by id and parameters."""


@dataclass(frozen=True)
class Axis:
    """A path of a case, and the values that are tried for it. `graded`: if one reveals more, all are kept."""

    path: str
    levels: tuple[Any, ...]
    graded: bool = False


@dataclass(frozen=True)
class Designed:
    """A case as written to the config, and its purpose."""

    case: Written
    why: str


@dataclass(frozen=True)
class Tried:
    """A case as a run would have it, with the inputs that its first run draws, and its exact result in each dtype."""

    plan: CasePlan
    inputs: Mapping[str, Array]
    cells: Mapping[str, Cell]

    @cached_property
    def mistakes(self) -> Mistakes:
        """The mistakes for which the case would fail."""
        mistakes = audit_case(self.plan, self.inputs).mistakes
        return frozenset((mistake.id, repr(dict(mistake.parameters))) for mistake in mistakes if mistake.fails_in)

    def differs(self, params: Any) -> bool:
        """Whether a kernel with other params fails: beyond the tolerance and the error bound, or with an exception."""
        op, exact = OPS[self.plan.op], next(iter(self.cells.values())).oracle
        wide = next(iter(exact.values())).dtype
        try:
            with np.errstate(all="ignore"):
                other = evaluate(op, params, self.inputs, dtype=wide, gradients=self.plan.gradients)
        except (ValueError, TypeError, IndexError, ArithmeticError):
            return True
        if any(name not in other or other[name].shape != exact[name].shape for name in exact):
            return True
        return any(self.fails(dtype, name, as_dtype(other[name], dtype)) for dtype in self.cells for name in exact)

    def fails(self, dtype: str, name: str, values: Array) -> bool:
        """Whether a tensor of a kernel is clearly wrong."""
        cell, tolerance = self.cells[dtype], self.plan.tolerance.lookup(dtype, name)
        exact = cell.oracle[name]
        if np.allclose(values, exact, rtol=tolerance.rtol, atol=tolerance.atol):
            return False
        return error_ratio(values, exact, cell.first_envelope(name)) >= CLEAR * ERROR_BOUND


@dataclass(frozen=True)
class CaseEvaluator:
    """The environment for trying cases: folder, adapter and dtypes."""

    folder: Path
    dtypes: tuple[str, ...]
    known: dict[str, Tried | None] = field(default_factory=dict)

    def tried(self, case: Written) -> Tried | None:
        """The case as a run would have it; None if the op refuses it, or its result has no correct digits."""
        text = json.dumps({"version": 1, "backends": ["numpy"], "dtypes": self.dtypes, "cases": [case]})
        if text not in self.known:
            path = self.folder / "case.yaml"
            path.write_text(text)
            try:
                self.known[text] = compared(load_plan([path]).cases[0])
            except ConfigError:
                self.known[text] = None
        return self.known[text]

    def plan(self, case: Written) -> CasePlan | None:
        """The plan of a case that can be tried."""
        tried = self.tried(case)
        return tried.plan if tried is not None else None

    def shows(self, case: Written) -> Mistakes:
        """The mistakes for which a case would fail; none where it cannot be tried."""
        tried = self.tried(case)
        return tried.mistakes if tried is not None else frozenset()

    def reveals_ignored(self, case: Written, param: str, usual: Any) -> bool:
        """Whether a case fails a kernel that ignores a param and always uses its `usual` value."""
        tried = self.tried(case)
        if tried is None or getattr(tried.plan.params, param) == usual:
            return False
        return tried.differs(replace(tried.plan.params, **{param: usual}))


def compared(plan: CasePlan) -> Tried | None:
    """A case with its exact result; None where that is not finite, or rounding alone changes it by 1 percent."""
    draws = [{tensor.name: tensor.sample(seed, plan.id, *plan.dtypes) for tensor in plan.tensors} for seed in SEEDS]
    try:
        with np.errstate(all="ignore"):
            oracles = [consult_oracle(plan, inputs) for inputs in draws]
            cells = {dtype: Cell(plan, dtype, draws[0], oracles[0]) for dtype in plan.dtypes}
            finite = all(np.isfinite(values).all() for oracle in oracles for values in oracle.values())
            usable = finite and all(is_close(cell, name) for cell in cells.values() for name in cell.oracle)
    except (ValueError, TypeError, IndexError, ArithmeticError):
        # The reference itself cannot take such inputs: an integer outside its range.
        return None
    return Tried(plan, draws[0], cells) if usable else None


def is_close(cell: Cell, name: str) -> bool:
    """Whether a careful implementation shares digits with the exact result, or that is zero."""
    envelope = cell.first_envelope(name)
    unknown = envelope.excused is not None and envelope.excused.any()
    return not unknown and (name in cell.zero_gradients or envelope.rms <= CLOSE * size(cell.oracle[name]).rms)


def design(source: UserFile, adapter: str, announce: Callable[[str], None]) -> tuple[list[Designed], list[str]]:
    """The cases for a file's ops, and the problems of functions that parity cannot call.

    Raises StarterError if there is no other function.
    """
    with TemporaryDirectory(prefix="parity-init-") as folder:
        trial = CaseEvaluator(Path(folder), source.dtypes or ("float32", "float64"))
        bases: dict[str, Written] = {}
        refused = []
        for name in source.ops:
            try:
                bases[name] = base_case(trial, source, name, adapter)
            except StarterError as error:
                refused.append(str(error))
        if not bases:
            raise StarterError("\n".join(refused))
        cases = []
        for name, base in bases.items():
            announce(name)
            cases += list(cases_of(trial, source.ops[name], base))
    return cases, refused


def base_case(trial: CaseEvaluator, source: UserFile, name: str, adapter: str) -> Written:
    """The simplest case that an op's definition accepts, with the defaults of the function's signature."""
    op, function = OPS[name], source.ops[name]
    own = own_params(trial, op, function)
    shape = first_shape(op, own)
    params, shapes = fitted(op, shape, own) or (None, None)
    if params is None or shapes is None:
        raise StarterError(f"found no inputs for {name}; write a case by hand (`parity ops` lists its params)")
    check_signature(source, op, op.params(**params), set(shapes.inputs))
    optional = [item for item in op.inputs if item.optional and item.opt_in == function.takes(item.name)]
    switched: Written = {item.name: {} if item.opt_in else None for item in optional}
    case = in_order(op, case_of(op, params, {**stated(op, shape), **switched}))
    return case if source.differentiable(name, adapter) else {**case, "gradients": False}


def example(op: Op) -> tuple[Written, Any, TensorShapes]:
    """The simplest case that an op accepts, its params, and its shapes; StarterError if there is none."""
    shape = first_shape(op, {})
    fit = fitted(op, shape, {})
    if fit is None:
        raise StarterError(f"found no inputs for {op.name}")
    params = op.params(**{name: as_tuple(value) for name, value in fit[0].items()})
    return in_order(op, case_of(op, fit[0], stated(op, shape))), params, fit[1]


def case_of(op: Op, params: Written, inputs: Written) -> Written:
    """A case as it is written."""
    return {"op": op.name, **({"params": params} if params else {}), "inputs": inputs}


def stated_input(op: Op) -> Input:
    """The input whose shape a config states, and which determines the others: x, or the first."""
    return op.input("x") or op.inputs[0]


def stated(op: Op, shape: Shape) -> Written:
    """The shape of an op's stated input as in a config; a list has two tensors."""
    first = stated_input(op)
    plain: Written = {"shape": list(shape)}
    return {first.name: [plain, {"shape": list(shape[-1:])}] if first.listed else plain}


def own_params(trial: CaseEvaluator, op: Op, function: Function) -> Written:
    """The params whose default in the signature differs from the op's."""
    known = {f.name: f for f in fields(op.params) if f.name in function.parameters}
    values = {name: function.parameters[name] for name in known}
    given = {name: value for name, value in values.items() if value not in (REQUIRED, None, known[name].default)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return {name: value for name, value in plain.items() if accepted(trial, op, {name: value})}


def accepted(trial: CaseEvaluator, op: Op, params: Written) -> bool:
    """Whether an op accepts this value of a param with any shape."""
    fit = fitted(op, first_shape(op, params), params)
    return fit is not None and trial.plan(case_of(op, fit[0], stated(op, first_shape(op, params)))) is not None


def first_shape(op: Op, own: Written) -> Shape:
    """The shape with the fewest axes that an op accepts; images if an input has an element per channel.

    If no shape fits a param of the user's function, an axis is adapted to it.
    """
    numbers = [n for value in own.values() for n in (value if isinstance(value, list) else [value])]
    sizes = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MAX_AXIS]
    resized = [replaced_axis(shape, axis, n) for shape in SHAPES.values() for n in sizes for axis in (1, -1)]
    usable = [shape for shape in (*SHAPES.values(), *resized) if fitted(op, shape, own) is not None]
    usable = usable or [shape for shape in SPARE if fitted(op, shape, own) is not None]
    images = [shape for shape in usable if len(shape) == 4 and per_channel(op, shape, own)]
    return (images or usable or [SHAPES[2]])[0]


MAX_AXIS = 1 << 16


def replaced_axis(shape: Shape, axis: int, length: int) -> Shape:
    """The shape with another length of an axis; groups and heads have two elements each."""
    lengths = list(shape)
    lengths[axis] = length if axis == -1 else 2 * length
    return tuple(lengths)


def per_channel(op: Op, shape: Shape, own: Written) -> bool:
    """Whether another input has an element for each channel of an image."""
    fit = fitted(op, shape, own)
    return fit is not None and (shape[1],) in fit[1].inputs.values()


def fitted(op: Op, shape: Shape, own: Written) -> tuple[Written, TensorShapes] | None:
    """Params with which an op accepts a shape of its stated input, and all shapes; None if there are none."""
    first = stated_input(op)
    given = {f"{first.name}.0": shape, f"{first.name}.1": shape[-1:]} if first.listed else {first.name: shape}
    open_fields = [f for f in fields(op.params) if f.default is MISSING and f.name not in own]
    while True:
        asked = None
        for values in product(*(choices(op, f, shape) for f in open_fields)):
            params = {**own, **dict(zip((f.name for f in open_fields), values, strict=True))}
            try:
                return params, op.infer_shapes(op.params(**{n: as_tuple(v) for n, v in params.items()}), given)
            except CaseError as error:
                asked = asked or left_open(op, error, params)
            except TypeError:
                # The user's signature has an invalid default.
                return None
        if asked is None:
            return None
        open_fields.append(asked)


def as_tuple(value: Any) -> Any:
    """A list from a config as a param's dataclass stores it."""
    return tuple(value) if isinstance(value, list) else value


def left_open(op: Op, error: CaseError, params: Written) -> Field[Any] | None:
    """The param that is missing to infer a shape."""
    by_key = {f"params.{f.name}": f for f in fields(op.params) if f.default is None and f.name not in params}
    return by_key.get(error.key)


def choices(op: Op, param: Field[Any], shape: Shape) -> tuple[Any, ...]:
    """Values that are tried for a required param."""
    hint = get_type_hints(op.params)[param.name]
    numbers = (*COUNTS, shape[-1]) if hint is not float else (1.0,)
    parts = get_args(hint) if get_origin(hint) is not tuple else (hint,)
    if not any(get_origin(part) is tuple for part in parts):
        return numbers
    lists = tuple([n] * length for length in (1, 2) for n in numbers)
    # An axis of the input is part of a shape, which is a list even where a lone number is allowed.
    return (*COUNTS, *lists) if int in parts else lists


def cases_of(trial: CaseEvaluator, function: Function, base: Written) -> Iterator[Designed]:
    """The base case with a sweep, then settings that reveal more, then other sizes."""
    op = OPS[base["op"]]
    kept = worthwhile(trial, base, list(axes(op, function, base, trial.dtypes)))
    kept.sort(key=lambda item: not item[0].graded)
    for number, (axis, gained) in enumerate(kept):
        # The first sweep includes the base case, the others do not repeat it.
        rest = axis if number == 0 else replace(axis, levels=axis.levels[1:])
        yield Designed(in_order(op, swept(base, rest)), f"shows {named(gained)}")
    if not kept:
        yield Designed(base, "")
    yield from ignored(trial, op, passed(op, function), base, [axis for axis, _ in kept])
    yield from without_eps(trial, op, base)
    yield from sizes(trial, op, base)


def without_eps(trial: CaseEvaluator, op: Op, base: Written) -> Iterator[Designed]:
    """The base case with a state of 0 and gradients that are 0 in part, where a kernel without eps divides 0 by 0."""
    tried = trial.tried(base)
    if tried is None or op.grad_outputs:
        return
    exact = next(iter(tried.cells.values())).oracle
    _, *others = (tensor for tensor in tried.plan.tensors if not isinstance(tensor.draw, Integers))
    case = base
    for tensor in others:
        state = {"constant": 0} if tensor.name in exact else {"special": in_part(tensor, 0)}
        case = with_value(case, ["inputs", tensor.name], state)
    names = [fit.target for fit in op.fits if hasattr(tried.plan.params, fit.target)]
    if any(trial.reveals_ignored(case, name, 0.0) for name in names):
        yield Designed(in_order(op, case), f"shows a kernel without {any_of(names)}")


def ignored(
    trial: CaseEvaluator, op: Op, params: Sequence[Field[Any]], base: Written, kept: Sequence[Axis]
) -> Iterator[Designed]:
    """Cases that fail a kernel which ignores a param and always uses the base case's value.

    Each covers as many params as possible; a param that no case reveals is left out.
    """
    tried = trial.tried(base)
    if tried is None:
        return
    usual, swept_to = tried.plan.params, [(axis.path.split("."), axis.levels[-1]) for axis in kept]
    revealed = {
        path[1]
        for path, value in swept_to
        if path[0] == "params"
        and trial.reveals_ignored(with_value(base, path, value), path[1], getattr(usual, path[1]))
    }
    left = [f for f in params if f.name not in revealed]
    joined: Sequence[Field[Any]] = params
    while left:
        rounds = (together(trial, op, joined, left, start, usual) for start in starts(op, params, base, trial.dtypes))
        case, names = next(((case, names) for case, names in rounds if any(f.name in names for f in left)), (base, ()))
        if not names:
            break
        yield Designed(in_order(op, case), f"shows a kernel that ignores {any_of(names)}")
        left = joined = [f for f in left if f.name not in names]
    yield from outside(trial, op, params, base, tried)


def together(
    trial: CaseEvaluator, op: Op, params: Sequence[Field[Any]], left: Sequence[Field[Any]], case: Written, usual: Any
) -> tuple[Written, tuple[str, ...]]:
    """The case with other values of as many params as it reveals, and their names.

    A param that another case reveals is added if it hides no mistake: dilation and padding are better together.
    """
    names: tuple[str, ...] = ()
    for param in params:
        for tried in settings(trial, op, param, case):
            wanted = (*names, param.name)
            if all(trial.reveals_ignored(tried, name, getattr(usual, name)) for name in wanted) and (
                param in left or trial.shows(tried) >= trial.shows(case)
            ):
                case, names = tried, wanted
                break
    return case, names


def starts(op: Op, params: Sequence[Field[Any]], base: Written, dtypes: Collection[str]) -> Iterator[Written]:
    """The base case, then with one setting that a param may need to have an effect."""
    yield base
    for param in params:
        yield from (with_value(base, ["params", param.name], value) for value in others(op, param, base))
    for axis in numeric_axes(op, dtypes):
        yield from (with_value(base, axis.path.split("."), level) for level in axis.levels[1:])


def settings(trial: CaseEvaluator, op: Op, param: Field[Any], case: Written) -> Iterator[Written]:
    """The case with other values of a param: first alone, then with what makes it fit.

    A count that does not divide another one comes with twice of that, or of itself as the channels; an integer that
    names one of an input's values comes with an input that has it.
    """
    values = others(op, param, case)
    for value in values:
        plain = with_value(case, ["params", param.name], value)
        for tried in (plain, *with_channels(op, plain, value)):
            yield tried
            if trial.tried(tried) is not None:
                break
            for name, number in case.get("params", {}).items():
                if name != param.name and is_count(number):
                    yield with_value(tried, ["params", name], 2 * number)
    plan = trial.plan(case)
    for tensor in plan.tensors if plan is not None and any(map(is_count, values)) else ():
        if isinstance(tensor.draw, Integers):
            yield holding(case, param.name, tensor, tensor.draw.low)


def with_channels(op: Op, case: Written, count: Any) -> Iterator[Written]:
    """The case with twice as many channels as a positive count, where its stated input has any."""
    shape = first_of(op, case)
    if is_count(count) and count > 0 and len(shape) > 1:
        yield {**case, "inputs": {**case["inputs"], **stated(op, replaced_axis(shape, 1, count))}}


def outside(
    trial: CaseEvaluator, op: Op, params: Sequence[Field[Any]], base: Written, tried: Tried
) -> Iterator[Designed]:
    """The base case with integers outside an input's range, which its definition takes where a param names them."""
    for param in params:
        value = getattr(tried.plan.params, param.name)
        for tensor in tried.plan.tensors if is_count(value) else ():
            if isinstance(tensor.draw, Integers) and not tensor.draw.low <= value < tensor.draw.high:
                case = holding(base, param.name, tensor, value)
                if trial.reveals_ignored(case, param.name, value - 1):
                    yield Designed(in_order(op, case), f"shows a kernel that ignores {param.name}")


def holding(case: Written, param: str, tensor: TensorPlan, value: int) -> Written:
    """The case with a value of a param that some of the integers of an input have."""
    special = ["inputs", tensor.name, "special"]
    return with_value(with_value(case, ["params", param], value), special, in_part(tensor, value))


def in_part(tensor: TensorPlan, value: int) -> Written:
    """A value that some of the elements of a tensor have."""
    return {"values": [value], "count": max(1, prod(tensor.shape) // IGNORED_PART)}


def is_count(value: Any) -> bool:
    """Whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def any_of(names: Sequence[str]) -> str:
    """Names as a text."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else names[0]


KEYS = ("op", "params", "sweep", "inputs", "gradients")


def passed(op: Op, function: Function) -> list[Field[Any]]:
    """The params that the function takes."""
    return [f for f in fields(op.params) if function.takes(f.name) and not f.metadata.get("implied")]


def in_order(op: Op, case: Written) -> Written:
    """The case with its keys and params in declaration order."""
    params = case.get("params", {})
    case = {**case, "params": {f.name: params[f.name] for f in fields(op.params) if f.name in params}}
    return {key: case[key] for key in KEYS if key in case and case[key] != {}}


def worthwhile(trial: CaseEvaluator, base: Written, candidates: Sequence[Axis]) -> list[tuple[Axis, Mistakes]]:
    """The axes that reveal more than the base case and the axes before them, each with what it adds.

    The next axis is the one that adds most; among equals, the one that reveals most at its worst level.
    """
    left: dict[Axis, dict[Any, Mistakes]] = {}
    for axis in candidates:
        at = {level: swept(base, replace(axis, levels=(level,))) for level in axis.levels[1:]}
        by_level = {level: trial.shows(case) for level, case in at.items() if trial.tried(case) is not None}
        if by_level:
            left[replace(axis, levels=(axis.levels[0], *by_level))] = by_level
    seen, kept = trial.shows(base), []
    while left:
        added = {axis: frozenset[tuple[str, str]]().union(*by_level.values()) - seen for axis, by_level in left.items()}
        best = max(left, key=lambda axis: (len(added[axis]), min(map(len, left[axis].values()))))
        if not added[best]:
            break
        telling = [level for level, mistakes in left.pop(best).items() if mistakes & added[best]]
        kept.append((best if best.graded else replace(best, levels=(best.levels[0], *telling)), added[best]))
        seen |= added[best]
    return kept


def axes(op: Op, function: Function, base: Written, dtypes: Collection[str]) -> Iterator[Axis]:
    """What can be swept: the offset and scale of inputs, and the choices that the function accepts."""
    yield from numeric_axes(op, dtypes)
    for param in passed(op, function):
        if not is_plain_number(param):
            yield Axis(f"params.{param.name}", alternatives(op, param, base))


def numeric_axes(op: Op, dtypes: Collection[str]) -> Iterator[Axis]:
    """The offset and scale of each input; of a list, those of its first tensor."""
    numeric = [item for item in op.inputs if not (item.integers or item.optional or "." in item.name)]
    paths = [f"inputs.{item.name}{'.0' * item.listed}" for item in numeric]
    yield from (Axis(f"{path}.offset", OFFSETS, graded=True) for path in paths)
    scales = SCALES if COMPUTED_IN.keys().isdisjoint(dtypes) else NARROW_SCALES
    yield from (Axis(f"{path}.scale", scales) for path in paths)


def is_plain_number(param: Field[Any]) -> bool:
    """Whether a param is a number that is not 0 by default: all values reveal equally much."""
    return isinstance(param.default, int | float) and not isinstance(param.default, bool) and param.default != 0


def alternatives(op: Op, param: Field[Any], base: Written) -> tuple[Any, ...]:
    """The value of a param in the base case, then others.

    Every allowed word, both booleans, a count plus one, SHARE for 0, FAR for a bound, three times a number or a third.
    """
    value = base.get("params", {}).get(param.name, param.default)
    hint = get_type_hints(op.params)[param.name]
    if get_origin(hint) is Literal:
        return (value, *(word for word in get_args(hint) if word != value))
    if isinstance(value, bool):
        return value, not value
    if isinstance(value, int):
        return (value, value + 1) if param.default is not MISSING else (value,)
    if not isinstance(value, float):
        return (value,)
    return (
        (value, FAR)
        if param.default is MISSING
        else (value, SHARE)
        if value == 0
        else (value, *(float(f"{n:.6g}") for n in (3 * value, value / 3)))
    )


def others(op: Op, param: Field[Any], case: Written) -> tuple[Any, ...]:
    """Values of a param that may reveal a kernel which ignores it: other counts, each number of a tuple smaller, and a
    share if three times as much is still too little."""
    value = case.get("params", {}).get(param.name, param.default)
    if is_count(value):
        return value + 1, value + 2, value - 1
    if isinstance(value, tuple | list) and all(isinstance(number, float) for number in value):
        return ([float(f"{number / 3:.6g}") for number in value],)
    more = (SHARE,) if isinstance(value, float) and 0 < value < SHARE and param.default is not MISSING else ()
    return (*alternatives(op, param, case)[1:], *more)


def swept(base: Written, axis: Axis) -> Written:
    """The base case over the levels of an axis; a single level is set, not swept."""
    path = axis.path.split(".")
    if len(axis.levels) == 1:
        return with_value(base, path, axis.levels[0])
    return {**without(base, path), "sweep": {axis.path: list(axis.levels)}}


def with_value(tree: Written, path: Sequence[str], value: Any) -> Written:
    """A copy of a tree of mappings and lists with a value at a path."""
    head, *rest = path
    return {**tree, head: part_with(tree.get(head, {}), rest, value)}


def part_with(part: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of a part of a tree with a value at a path."""
    if not path:
        return value
    if isinstance(part, list):
        return [part_with(item, path[1:], value) if str(i) == path[0] else item for i, item in enumerate(part)]
    return with_value(part, path, value)


def without(tree: Written, path: Sequence[str]) -> Written:
    """A copy of a tree without the value at a path and without emptied mappings; lists keep their length."""
    head, *rest = path
    left = without(tree[head], rest) if rest and isinstance(tree.get(head), dict) else tree.get(head) if rest else None
    return {key: left if key == head else value for key, value in tree.items() if key != head or left}


def sizes(trial: CaseEvaluator, op: Op, base: Written) -> Iterator[Designed]:
    """The base case in other sizes; those that differ only in a shape are one sweep.

    A larger case reveals what the base case does; a smaller one that reveals nothing is left out.
    """
    first, shape, params = stated_input(op), first_of(op, base), base.get("params", {})
    free = {f.name for f in fields(op.params) if f.default is MISSING or f.default is None}
    by_params: dict[str, list[Shape]] = {}
    deeper = (2, *shape)
    for edge in (*EDGES[len(shape)], *([deeper] if len(deeper) <= IMAGE_AXES else [])):
        fit = fitted(op, edge, params) or fitted(op, edge, {n: v for n, v in params.items() if n not in free})
        case = fit and in_order(op, with_shape(op, base, fit[0], edge))
        if fit and case and trial.tried(case) and (prod(edge) > prod(shape) or trial.shows(case)):
            by_params.setdefault(json.dumps(fit[0]), []).append(edge)
    for text, edges in by_params.items():
        axis = Axis(f"inputs.{first.name}{'.0' * first.listed}.shape", tuple(map(list, edges)))
        case = in_order(op, with_shape(op, base, json.loads(text), edges[0]))
        yield Designed(in_order(op, swept(case, axis)), "other sizes")
    for name, value in params.items():
        if isinstance(value, list) and tuple(value) == shape[-len(value) :]:
            case = with_shape(op, base, {**params, name: list(deeper[-len(value) - 1 :])}, deeper)
            if trial.tried(case):
                yield Designed(in_order(op, case), f"{name} with one more axis")


def with_shape(op: Op, base: Written, params: Written, shape: Shape) -> Written:
    """The base case with another shape of its stated input."""
    return {**base, **case_of(op, params, {**base["inputs"], **stated(op, shape)})}


def first_of(op: Op, case: Written) -> Shape:
    """The shape of the stated input of a case."""
    first = stated_input(op)
    tensor = case["inputs"][first.name]
    return tuple((tensor[0] if first.listed else tensor)["shape"])


def named(gained: Mistakes) -> str:
    """The ids of the revealed mistakes, as text."""
    ids = sorted({identity for identity, _ in gained})
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return f"{', '.join(ids[:MAX_NAMED])}{more}"
