"""Forms from a table: an op's name and the statements of each of its formulations.

`y` is what the statements compute, `grad_NAME` the gradient of an input. They may use the op's inputs and params by
name, `grad_y`, NumPy, and the functions that the table's module hands over.
"""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from parity.cases import OPS

Form = Callable[..., Mapping[str, Any]]


def written(table: Mapping[str, Sequence[str]], names: Mapping[str, Any]) -> dict[str, tuple[Form, ...]]:
    """The forms of every op of a table, `OP_1`, `OP_2`, ...; `names` are a module's globals."""
    return {op: tuple(compiled(op, i, text, names) for i, text in enumerate(texts, 1)) for op, texts in table.items()}


def compiled(op: str, i: int, text: str, names: Mapping[str, Any]) -> Form:
    """A function of these statements, whose source `inspect` finds."""
    body = ast.parse(textwrap.dedent(text)).body
    names_in = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Name)]
    loaded = {node.id for node in names_in if isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in names_in if isinstance(node.ctx, ast.Store)}
    inputs = [item.name for item in OPS[op].inputs]
    known = [*inputs, *(field.name for field in fields(OPS[op].params)), *(f"grad_{n}" for n in OPS[op].grad_outputs)]
    arguments = [name for name in known if name in loaded]
    returned = dict.fromkeys(("y", "indices", *OPS[op].grad_outputs, *(f"grad_{n}" for n in OPS[op].differentiable)))
    outputs = [name for name in returned if name in stored]
    entries = ", ".join(f"{name.replace('grad_', 'grad.')!r}: {name}" for name in outputs)
    lines = [f"def {op}_{i}({', '.join(arguments)}):", '    """From the table."""']
    lines += [f"    {line}" for part in body for line in ast.unparse(part).splitlines()]
    source = "\n".join([*lines, f"    return {{{entries}}}", ""])
    file = f"<{names['__name__']}.{op}_{i}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = dict(names)
    exec(compile(source, file, "exec"), space)
    return space[f"{op}_{i}"]  # type: ignore[no-any-return]
