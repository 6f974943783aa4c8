"""A recipe as the text of a script: the framework's own calls, the data, and the comparison."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from parity.environments.interpreter import THREAD_VARIABLES
from parity.judge.bound.envelope import WORK
from parity.judge.compare.verdict import Verdict
from parity.repro.literals import INDENT, WIDTH, Code, array, block, literal
from parity.repro.recipe import Check, Recipe
from parity.repro.source import Calls, adapter_class, calls, has_method, has_mode

if TYPE_CHECKING:
    import jinja2

INLINE = 600
"""Up to this many numbers stand in the script itself."""

TEMPLATE = "script.py.jinja"


def is_small(recipe: Recipe) -> bool:
    """Whether the numbers stand in the script itself."""
    return sum(values.size for values in recipe.data.values()) <= INLINE


def render(recipe: Recipe, header: Sequence[Code], archive: str, user_ops: str) -> str:
    """The script; `archive` and `user_ops` are files beside it, or empty."""
    constructed = {"device": recipe.backend.device, "threads": recipe.threads, "mode": recipe.mode, "ranks": 1}
    found = calls(recipe.adapter, methods(recipe), constructed, ["named_outputs"] if is_checked(recipe) else [])
    checks = recipe.checks
    return template().render(
        doc=block(header),
        imports=imports(recipe, found),
        thread_variables=literal(" ".join(THREAD_VARIABLES)),
        threads=literal(str(recipe.threads)),
        setup=set_apart(found.setup),
        definitions=spaced(found.definitions.values()),
        archive=bool(archive),
        data=[(literal(key), array(values, INDENT)) for key, values in recipe.data.items()] if not archive else [],
        user_ops=bool(user_ops),
        general=is_general(recipe),
        dtype=literal(recipe.cell.dtype),
        gradients=bool(recipe.upstream),
        compute=list(compute(recipe, user_ops)),
        run=block(run_lines(recipe)),
        checks=list(decisions(checks)),
        patience=literal(recipe.patience_s if recipe.cell.outcome == "timeout" else None),
        structural=any(check.structural for check in checks),
        swapped=any(check.live == "expected" for check in checks),
        accuracy=any(check.accuracy for check in checks),
        wide=literal(WORK[recipe.cell.dtype].__name__),
        # A slug, which can stand inside of a string.
        backend=Code(recipe.label),
    )


@functools.cache
def template() -> jinja2.Template:
    """The script's fixed parts; what is put into it must be source text already."""
    import jinja2

    def checked(value: Any) -> Code:
        if not isinstance(value, Code):
            raise TypeError(f"{value!r} is not source text")
        return value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parity.repro"),
        finalize=checked,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python and not HTML; `checked` is the guard
    )
    return environment.get_template(TEMPLATE)


def methods(recipe: Recipe) -> list[str]:
    """The adapter's methods that the script calls."""
    names = ["leaf", "to_numpy", *(["in_mode"] if has_mode(recipe.adapter) else [])]
    names += ["gradients"] if recipe.upstream and not needs_backward(recipe) else []
    return names + ([recipe.op.name] if not recipe.own and has_method(recipe.framework, recipe.op.name) else [])


def needs_backward(recipe: Recipe) -> bool:
    """Whether gradients come from the user's `<op>_backward`."""
    return bool(adapter_class(recipe.framework).needs_backward)


def imports(recipe: Recipe, found: Calls) -> list[Code]:
    """The imports from the standard library, but for those that every script begins with."""
    names = set() if recipe.checks else {"faulthandler"}
    names |= {"importlib.util", "inspect"} if recipe.ops else set()
    lines = {*found.imports, *(f"import {name}" for name in names)} - {"import os", "import sys"}
    lines |= {"from collections.abc import Mapping"} if recipe.ops else set()
    return [Code(line) for line in sorted(lines, key=lambda line: (line.startswith("from "), line))]


def set_apart(setup: Sequence[Code]) -> list[Code]:
    """The statements, with a line between the imports and what follows them."""
    lines: list[Code] = []
    for text in setup:
        follows = bool(lines) and lines[-1].startswith("import ") and not text.startswith("import ")
        lines.append(Code(f"\n{text}") if follows else text)
    return lines


def spaced(definitions: Iterable[Code]) -> Iterator[Code]:
    """The definitions with two lines above and below functions and classes, and one between constants."""
    after_constant = True
    for text in definitions:
        constant = not text.startswith(("def ", "class "))
        yield Code(f"\n{text}" if constant and after_constant else f"\n\n{text}")
        after_constant = constant


def is_checked(recipe: Recipe) -> bool:
    """Whether what the user's op returns may be no tensor at all."""
    return recipe.ops is not None and not recipe.checks


def is_general(recipe: Recipe) -> bool:
    """Whether outputs may be lists, plain numbers, or of any dtype."""
    return (
        recipe.ops is not None
        or any(item.listed for item in recipe.op.inputs)
        or any(check.structural for check in recipe.checks)
    )


def compute(recipe: Recipe, user_ops: str) -> Iterator[Code]:
    """The lines that compute outputs and gradients."""
    yield from leaf_lines(recipe)
    yield from user_call(recipe, user_ops) if recipe.ops else own_call(recipe)
    if recipe.upstream:
        yield from backward_lines(recipe) if needs_backward(recipe) else gradient_lines(recipe)
    simple = "{name: to_numpy(value) for name, value in outputs.items() if value is not None}"
    yield Code(f"return {'to_arrays(outputs)' if is_general(recipe) else simple}")


def leaf_lines(recipe: Recipe) -> Iterator[Code]:
    """The inputs as the framework's tensors."""
    for item in recipe.op.inputs:
        n = sum(name.startswith(f"{item.name}.") for name in recipe.inputs)
        if item.listed and n:
            yield Code(f'{item.name} = [leaf(DATA[f"inputs/{item.name}.{{i}}"], False) for i in range({n})]')
        elif item.name in recipe.inputs:
            yield Code(f'{item.name} = leaf(DATA["inputs/{item.name}"], {item.name in recipe.differentiable})')


def call(function: str, recipe: Recipe, *, absent: bool = False) -> Iterator[Code]:
    """A call with the op's tensors and params by keyword, in one line or in four."""
    tensors = [f"{name}={name}" for name in recipe.passed]
    tensors += [f"{name}=None" for name in recipe.absent] if absent else []
    params = [f"{name}={literal(value)}" for name, value in recipe.params.items()]
    line = f"{function}({', '.join([*tensors, *params])})"
    if len(line) <= WIDTH:
        yield Code(line)
        return
    groups = (f"    {', '.join(group)}," for group in (tensors, params) if group)
    yield from map(Code, (f"{function}(", *groups, ")"))


def in_mode(recipe: Recipe, function: str) -> str:
    """A function as the backend's mode runs it."""
    return f"in_mode({function})" if has_mode(recipe.adapter) else function


def own_call(recipe: Recipe) -> Iterator[Code]:
    """The framework's own op."""
    yield from call(f"result = {in_mode(recipe, recipe.op.name)}", recipe)
    yield Code('outputs = result if isinstance(result, dict) else {"y": result}')


def user_call(recipe: Recipe, user_ops: str) -> Iterator[Code]:
    """The user's op, with what it takes; the framework's own where the user's file turns out to have none."""
    name = recipe.op.name
    droppable = literal([*recipe.absent, *recipe.droppable])
    yield Code(f"ops = load(os.path.join(os.path.dirname(os.path.abspath(__file__)), {literal(user_ops)}))")
    yield Code(f"function = ops.{name}" if recipe.own else f'function = getattr(ops, "{name}", {name})')
    yield from call("offered = dict", recipe, absent=True)
    yield Code(f"result = {in_mode(recipe, 'function')}(**taken(function, offered, {droppable}))")
    plain = 'dict(result) if isinstance(result, Mapping) else {"y": result}'
    yield Code(f"outputs = {'named_outputs(result)' if is_checked(recipe) else plain}")


def run_lines(recipe: Recipe) -> Iterator[Code]:
    """The call of `compute`; a user's op that ends the process gives no result, whatever exit code it asks for."""
    call = f"{'RESULT = ' if recipe.checks else ''}compute()"
    if recipe.ops is None:
        yield Code(call)
        return
    lines = "try:", f"    {call}", "except SystemExit as error:", '    sys.exit(f"SystemExit: {error}")'
    yield from map(Code, lines)


def gradient_lines(recipe: Recipe) -> Iterator[Code]:
    """The gradients through the framework's autograd."""
    leaves, names = ", ".join(recipe.differentiable), literal([f"grad.{name}" for name in recipe.differentiable])
    outputs = ", ".join(f"outputs[{literal(name)}]" for name in recipe.upstream)
    upstream = ", ".join(f"leaf(DATA[{literal(f'inputs/grad.{name}')}], False)" for name in recipe.upstream)
    indent = ""
    if is_general(recipe):
        fits = 'tuple(getattr(outputs.get(name), "shape", "?")) == DATA[f"inputs/grad.{name}"].shape'
        yield Code(f"wanted = [name for name in {literal(recipe.upstream)} if {fits}]")
        yield Code("if wanted:")
        indent = "    "
        outputs = "outputs[name] for name in wanted"
        upstream = 'leaf(DATA[f"inputs/grad.{name}"], False) for name in wanted'
    yield Code(f"{indent}found = gradients([{outputs}], [{upstream}], [{leaves}])")
    yield Code(f"{indent}outputs.update(zip({names}, found))")


def backward_lines(recipe: Recipe) -> Iterator[Code]:
    """The gradients through the user's `<op>_backward`."""
    upstream = ", ".join(f"DATA[{literal(f'inputs/grad.{name}')}]" for name in recipe.upstream)
    yield Code(f'backward = getattr(ops, "{recipe.op.name}_backward", None)')
    yield Code("if backward is not None:")
    yield Code(f"    upstream = iter([{upstream}])")
    yield Code("    names = inspect.signature(backward).parameters")
    yield Code("    found = backward(**{name: offered[name] if name in offered else next(upstream) for name in names})")
    yield Code("    if not isinstance(found, Mapping):")
    yield Code("        found = found if isinstance(found, (tuple, list)) else [found]")
    yield Code(f"        found = dict(zip({literal(recipe.differentiable)}, found))")
    yield Code('    outputs.update((n if n.startswith("grad.") else f"grad.{n}", value) for n, value in found.items())')


def decisions(checks: Sequence[Check]) -> Iterator[Code]:
    """The expressions that are true while a tensor's difference is there.

    Where the backend is off, the error itself decides; where that fails a comparison, both do.
    """
    for tensor in dict.fromkeys(check.row.tensor for check in checks):
        mine = [check for check in checks if check.row.tensor == tensor]
        calls = [check_call(check) for check in mine]
        found = mine[-1].accuracy
        if found is None:
            yield from calls
            continue
        sizes = f"rms={literal(found.rms)}, largest={literal(found.max)}, limit={literal(found.limit)}"
        inaccurate = f"inaccurate({literal(tensor)}, {sizes})"
        if Verdict(mine[-1].row.verdict).passes:
            yield from (*calls, Code(inaccurate))
        else:
            each = "\n        | ".join(calls)
            either = f"(\n        {each}\n    )" if len(calls) > 1 else each
            yield Code(f"{either}\n    and {inaccurate}")


def check_call(check: Check) -> Code:
    """The call that makes a comparison again."""
    tensor, row = literal(check.row.tensor), check.row
    swapped = ", swapped=True" if check.live == "expected" else ""
    limits = f"rtol={literal(row.rtol)}, atol={literal(row.atol)}"
    return Code(f"check({tensor}, {literal(check.side)}, {limits}{swapped})")
