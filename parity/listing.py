"""What `parity ops`, `parity backends` and `parity env list` print."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from parity import environments
from parity.adapters import ADAPTERS, adapter_class
from parity.cases import OPS
from parity.cases.draw import DISTRIBUTIONS, Draw, Integers, Normal, Shape, TensorPlan
from parity.cases.formula import formulas
from parity.cases.op import Input, Op, TensorShapes, flatten_lists, group_lists
from parity.cases.param_meanings import MEANINGS
from parity.cases.program import trace
from parity.cases.repeats import repeats
from parity.config.errors import nearest
from parity.config.plan import BackendSpec
from parity.diagnoses import catalogue
from parity.errors import UserError
from parity.reporting.console.run import stdout_console
from parity.starter.design import example

MOST_LINES, LONGEST = 12, 160
"""A longer reference, one with a longer line or a loop is not shown."""
Rows = tuple[tuple[str, ...], ...]


class UnknownOpError(UserError):
    """There is no op of that name."""


@dataclass(frozen=True)
class OpCard:
    """An op as `parity ops NAME` and the pages of the reference tell it. Rows are name, default, meaning of params;
    name, shape in the example, what it is, of tensors; id, title, what shows it, of conventions."""

    name: str
    summary: str
    notes: str
    shapes: str
    formula: tuple[str, ...]
    kernel: str
    params: Rows
    inputs: Rows
    outputs: Rows
    conventions: Rows
    runs_on: str
    example: str

    @property
    def tables(self) -> Mapping[str, tuple[tuple[str, ...], Rows]]:
        """The tables that have rows: their heads and rows by title."""
        tables = {
            "params": (("param", "default", "meaning"), self.params),
            "inputs": (("input", "shape in the example", "what it is"), self.inputs),
            "outputs": (("output", "shape in the example", "what it is"), self.outputs),
            "conventions that a run distinguishes, with the params of the example": (
                ("id", "what it is", "shown by"),
                self.conventions,
            ),
        }
        return {title: (head, rows) for title, (head, rows) in tables.items() if rows}


def op_card(name: str) -> OpCard:
    """Everything about an op; UnknownOpError with the nearest name if there is none."""
    if name not in OPS:
        near = nearest(name, OPS)
        raise UnknownOpError(
            f'there is no op "{name}"{f"; did you mean {near}?" if near else ""}; parity ops lists them'
        )
    op = OPS[name]
    case, params, shapes = example(op)
    return OpCard(
        name=name,
        summary=op.summary,
        notes=docstring(op.params),
        shapes=docstring(op.infer_shapes) or "x: any shape; y: as x.",
        formula=tuple(formula_lines(op, params, shapes)),
        kernel=kernel_text(op, shapes),
        params=tuple((f.name, default_text(f), meaning(op, f.name)) for f in fields(op.params)),
        inputs=tuple((input_name(item), shape_of(item, shapes.inputs), input_text(item, shapes)) for item in op.inputs),
        outputs=tuple(output_rows(op, shapes)),
        conventions=tuple(convention_rows(op, params, shapes)),
        runs_on=", ".join(offered(adapter, name) for adapter in ADAPTERS if adapter_class(adapter).offers(name)),
        example=f"cases: [{json.dumps(case)}]".replace('"', ""),
    )


def offered(adapter: str, op: str) -> str:
    """An adapter that offers an op, and when it is parity's own composition of the framework's calls."""
    plain = adapter_class(adapter).declared(op)
    if plain is None:
        return adapter
    unless = " and ".join(f"{name} is {json.dumps(value)}" for name, value in plain.items())
    return f"{adapter} (composed{' unless ' if unless else ''}{unless})"


def docstring(value: Any) -> str:
    """The docstring of a class or function, of the one that a `partial` calls; none that a dataclass made."""
    called = value.func if isinstance(value, functools.partial) else value
    text = inspect.cleandoc(called.__doc__ or "")
    return "" if text.startswith((f"{getattr(called, '__name__', '')}(", "The op has no params")) else text


def default_text(field: Any) -> str:
    """The default of a param as a config writes it."""
    return "needed" if field.default is MISSING else json.dumps(field.default)


def meaning(op: Op, param: str) -> str:
    """What a param means for an op."""
    return MEANINGS.get(f"{op.name}.{param}", MEANINGS.get(param, ""))


def input_name(item: Input) -> str:
    """`bias?` for an optional input."""
    return item.name + ("?" if item.optional else "")


def shape_of(item: Input, shapes: Mapping[str, Shape]) -> str:
    """An input's shape, or those of its list."""
    names = [name for name in shapes if name == item.name or (item.listed and name.startswith(f"{item.name}."))]
    return ", ".join(str(list(shapes[name])) for name in names) or "-"


def input_text(item: Input, shapes: TensorShapes) -> str:
    """Dtype, gradient and default values of an input."""
    return "; ".join(input_parts(item, shapes))


def input_parts(item: Input, shapes: TensorShapes) -> Iterator[str]:
    """The sentence of an input, part by part."""
    if item.listed:
        yield "a list of tensors"
    if item.integers:
        low, high = shapes.integers.get(item.name, (None, None))
        yield "int64" if low is None else f"int64, here {low} to {high - 1 if high is not None else ''}"
    if item.differentiable:
        yield "gets a gradient"
    if item.state:
        yield "the state before the step"
    if item.opt_in:
        yield "not used unless a case gives it"
    elif item.name not in shapes.inputs and not item.listed:
        yield "only with params that use it"
    if item.default is not None or not item.integers:
        yield f"by default {draw_text(item.default or Normal())}"


def draw_text(draw: Draw) -> str:
    """A distribution as a config names it: `normal(mean=0.0, std=1.0)`."""
    names = {kind: name for name, kind in DISTRIBUTIONS.items()}
    return str(draw).replace(type(draw).__name__, names.get(type(draw), type(draw).__name__), 1)


def output_rows(op: Op, shapes: TensorShapes) -> Iterator[tuple[str, ...]]:
    """The outputs, and the states that other params have."""
    states = [item.name for item in op.inputs if item.state]
    for name, shape in shapes.outputs.items():
        what = f"int64, an index into {op.indexes[name]}" if name in op.indexes else ""
        yield name, str(list(shape)), what or ("the new value" if name in states else "")
    yield from ((name, "-", "only with params that use it") for name in states if name not in shapes.outputs)


def convention_rows(op: Op, params: Any, shapes: TensorShapes) -> Iterator[tuple[str, ...]]:
    """Each diagnosis among the op's variants and fitted numbers, with what shows it."""
    shown: dict[str, dict[str, None]] = {}
    for variant in op.variants(params, {**shapes.inputs, **shapes.outputs}):
        shown.setdefault(variant.id, {})[variant.shown_by] = None
    for fit in op.fits:
        shown.setdefault(fit.id, {})[fit.shown_by] = None
    for identity, texts in shown.items():
        yield identity, catalogue()[identity].title, "; ".join(filter(None, texts))


def formula_lines(op: Op, params: Any, shapes: TensorShapes) -> list[str]:
    """The reference as it is traced for the example; where that is long, what its docstring says first."""
    tensors = {}
    for name, shape in shapes.inputs.items():
        item = op.input(name)
        draw = Integers(*shapes.integers[name]) if name in shapes.integers else item.default if item else None
        plan = TensorPlan(name, shape, draw or Integers(1, 2), integers=item is not None and item.integers)
        tensors[name] = plan.sample(0, op.name, "float64")
    regroup = functools.partial(group_lists, op=op)
    with np.errstate(all="ignore"):
        program, _ = trace(op.reference, tensors, params, regroup=regroup, flatten=flatten_lists)
    lines = [] if repeats(program) else formulas(program)
    if 0 < len(lines) <= MOST_LINES and max(map(len, lines), default=0) <= LONGEST:
        return lines
    return docstring(op.reference).splitlines()[:1]


def kernel_text(op: Op, shapes: TensorShapes) -> str:
    """How a user's function of the op is called, and what it returns."""
    needed = [item.name.replace(".", "_") for item in op.inputs if not item.optional and not item.state]
    more = [f"{item.name.replace('.', '_')}=None" for item in op.inputs if item.optional or item.state]
    defaults = [f.name if f.default is MISSING else f"{f.name}={f.default!r}" for f in fields(op.params)]
    given = sorted([*needed, *more, *defaults], key=lambda text: "=" in text)
    listed = sorted({name.partition(".")[0] for name in shapes.outputs if name.partition(".")[2].isdigit()})
    names = list(dict.fromkeys(name.partition(".")[0] if listed else name for name in shapes.outputs))
    result = ", ".join(f'"{name}": {"[...]" if name in listed else "..."}' for name in names)
    return f"def {op.name}({', '.join(given)}): ... return {'y' if names == ['y'] else '{' + result + '}'}"


def op_details(name: str) -> None:
    """Print one op; UnknownOpError if there is none."""
    card, console = op_card(name), stdout_console()
    show: Callable[..., None] = functools.partial(console.print, markup=False, highlight=False)
    show(f"{card.name}: {card.summary}", style="bold")
    if card.notes:
        show(card.notes)
    for line in card.formula:
        show(f"  {line}", soft_wrap=True)
    show(f"\nshapes: {card.shapes}")
    for title, (head, rows) in card.tables.items():
        show(f"\n{title}", style="bold")
        table = plain_table(*head)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    show(f"\nruns on: {card.runs_on}")
    show(f"example:\n  {card.example}\na kernel of your own:\n  {card.kernel}", soft_wrap=True)
    show("\n? optional: null leaves it out. parity explain ID has more on a convention.", style="dim")
    if "(composed" in card.runs_on:
        show("composed: by parity of several calls; in 16 bits in float32, rounded once", style="dim")


def ops_table() -> None:
    """Every op with its params and their defaults, its tensors, and the backends that implement it."""
    table = plain_table("op", "params", "inputs", "runs on")
    for op in OPS.values():
        inputs = ", ".join(item.name + ("?" if item.optional else "") for item in op.inputs)
        runs_on = ", ".join(name for name in ADAPTERS if adapter_class(name).offers(op.name))
        table.add_row(op.name, ", ".join(map(param_text, fields(op.params))), inputs, runs_on)
    console = stdout_console()
    console.print(table)
    console.print("? optional: null leaves it out; parity ops NAME shows one op", style="dim")


def param_text(field: Any) -> str:
    """`eps=1e-05`, or the bare name of a param without a default."""
    return str(field.name) if field.default is MISSING else f"{field.name}={field.default}"


def backends_table() -> None:
    """Every adapter: where it would run and in which version, without creating anything."""
    table = plain_table("backend", "version", "runs in", "python", "numpy")
    for name in ADAPTERS:
        try:
            interpreter = environments.resolve(BackendSpec(name, name), provision=False)
        except environments.EnvironmentUnavailable as error:
            table.add_row(name, "-", Text(str(error), style="yellow"), "", "")
            continue
        where = f"{interpreter.kind}: {interpreter.python}"
        table.add_row(
            name,
            interpreter.framework_version or interpreter.numpy_version,
            where,
            interpreter.python_version,
            interpreter.numpy_version,
        )
    stdout_console().print(table)


def environments_table() -> None:
    """Every managed environment with its size."""
    managed = environments.list_environments()
    console = stdout_console()
    if not managed:
        console.print("no managed environments; `parity run` creates one when a backend needs it")
        return
    table = plain_table("name", "backend", "version", "python", "size", "created", "")
    for each in managed:
        size = f"{each.size_bytes / 2**30:.1f} GiB"
        state = "" if each.ready else Text("incomplete, not used", style="yellow")
        table.add_row(
            each.name, each.adapter, each.version, each.python, size, each.created[:16].replace("T", " "), state
        )
    console.print(table)
    console.print(os.path.commonpath([each.path for each in managed]), style="dim")


def plain_table(*columns: str) -> Table:
    """A borderless table that wraps long texts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
