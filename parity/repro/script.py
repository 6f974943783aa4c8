"""A recipe as the text of a script: the framework's own calls, the data, and the comparison."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence

from parity.adapters import adapter_class
from parity.config.nodes import printable
from parity.environments.interpreter import THREAD_VARIABLES
from parity.judge.bound.envelope import WORK
from parity.judge.compare.verdict import Verdict
from parity.program.worker import user_function, user_module
from parity.repro.literals import INDENT, WIDTH, Code, array, block, literal
from parity.repro.recipe import Check, ScriptRecipe
from parity.repro.source import Calls, calls, has_method, has_mode
from parity.repro.templates import template

NARROW = ("bfloat16", "float16")
"""The dtypes in which a composition of a framework's calls is computed in float32."""
INLINE = 600
"""Up to this many numbers are written into the script itself."""


def is_small(recipe: ScriptRecipe) -> bool:
    """Whether the numbers are written into the script itself."""
    return sum(values.size for values in recipe.data.values()) <= INLINE


def render(recipe: ScriptRecipe, header: Sequence[Code], archive: str, user_ops: str) -> str:
    """The script; `archive` and `user_ops` are files beside it, or empty."""
    constructed = {"device": recipe.backend.device, "threads": recipe.threads, "mode": recipe.mode, "ranks": 1}
    # A user's op may return something other than a tensor.
    checked = recipe.ops is not None and not recipe.checks
    taken = calls(recipe.adapter, methods(recipe), constructed, ["named_outputs"] if checked else [])
    return template("script.py.jinja", Code, literal, joined).render(
        doc=block(header),
        imports=imports(recipe, taken),
        thread_variables=" ".join(THREAD_VARIABLES),
        setup=set_apart(taken.setup),
        definitions=spaced(taken.definitions.values()),
        archive=archive,
        data=[(key, array(values, INDENT)) for key, values in recipe.data.items()] if not archive else [],
        user_ops=user_ops,
        module_code=Code(calling_code(recipe)) if user_module.ARGUMENTS in recipe.params else "",
        wrapper=Code("UserModule" if takes_modules(recipe) else "UserFunction"),
        recipe=recipe,
        placements=[(name, p.strides, p.offset, p.size) for name, p in recipe.placements.items()],
        leaf=Code(recipe.leaf),
        aliases={name: Code(variable(other)) for name, other in recipe.aliases.items()},
        bfloat16=recipe.cell.dtype == "bfloat16",
        widened=recipe.cell.composed and recipe.cell.dtype in NARROW,
        framework=Code(recipe.framework),
        dtype=Code(recipe.cell.dtype),
        # Slugs and the names of ops and of their tensors need no escaping.
        op=Code(recipe.op.name),
        backend=Code(recipe.label),
        leaves=list(leaves(recipe)),
        differentiable=Code(", ".join(map(variable, recipe.differentiable))),
        gradient_names=[f"grad.{name}" for name in recipe.differentiable],
        grad_output_keys=[f"inputs/grad.{name}" for name in recipe.grad_outputs],
        call=functools.partial(call, recipe),
        moded=has_mode(recipe.adapter),
        checked=checked,
        general=is_general(recipe),
        backward=needs_backward(recipe),
        checks=list(decisions(recipe.checks)),
        structural=any(check.structural for check in recipe.checks),
        swapped=any(check.live == "expected" for check in recipe.checks),
        accuracy=any(check.accuracy for check in recipe.checks),
        parts=any(check.accuracy and check.accuracy.part for check in recipe.checks),
        reference=reference(recipe),
        wide=Code(literal(WORK[recipe.cell.dtype].__name__)),
    )


def takes_modules(recipe: ScriptRecipe) -> bool:
    """Whether a user's function may be a class of PyTorch's modules."""
    return bool(adapter_class(recipe.framework).modules)


def calling_code(recipe: ScriptRecipe) -> str:
    """The source of what calls a user's class or function with tensors by name."""
    code = inspect.getsource(user_module)
    if takes_modules(recipe):
        return code
    lines = inspect.getsource(user_function).splitlines(keepends=True)
    return code + "".join(line for line in lines if not line.startswith(("from __future__", "from parity.")))


def reference(recipe: ScriptRecipe) -> list[Code]:
    """The source of the user's reference as comments, if the op is theirs."""
    brought = recipe.cell.case.brought
    lines = [] if brought is None else ["The reference:", "", *map(printable, brought.text.splitlines())]
    return [Code(f"# {line}".rstrip()) for line in lines]


def joined(names: Sequence[str], pattern: str) -> Code:
    """The names as literals, each in place of the question mark, separated by commas."""
    return Code(", ".join(pattern.replace("?", literal(name)) for name in names))


def methods(recipe: ScriptRecipe) -> list[str]:
    """The adapter's methods that the script calls."""
    names = [
        recipe.leaf,
        "to_numpy",
        *(["shared"] if recipe.aliases else []),
        *(["in_mode"] if has_mode(recipe.adapter) else []),
    ]
    names += ["gradients"] if recipe.grad_outputs and not needs_backward(recipe) else []
    return names + ([recipe.op.name] if not recipe.own and has_method(recipe.framework, recipe.op.name) else [])


def needs_backward(recipe: ScriptRecipe) -> bool:
    """Whether gradients come from the user's `<op>_backward`."""
    return bool(adapter_class(recipe.framework).needs_backward)


def imports(recipe: ScriptRecipe, taken: Calls) -> list[Code]:
    """The imports from the standard library, except for those that every script has."""
    names = set() if recipe.checks else {"faulthandler"}
    names |= {"importlib.util", "inspect"} if recipe.ops else set()
    lines = {*taken.imports, *(f"import {name}" for name in names)} - {"import os", "import sys"}
    lines |= {"from collections.abc import Mapping"} if recipe.ops else set()
    lines |= {"import copy"} if recipe.n_calls > 1 else set()
    lines |= {"import contextlib"} if recipe.n_calls > 2 else set()
    lines |= {"import functools"} if recipe.n_calls > 1 and recipe.ops else set()
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


def is_general(recipe: ScriptRecipe) -> bool:
    """Whether outputs may be lists, plain numbers, or of any dtype."""
    return (
        recipe.ops is not None
        or any(item.listed for item in recipe.op.inputs)
        or any(check.structural for check in recipe.checks)
    )


def variable(name: str) -> str:
    """The name of an input in the script: `q_proj.weight` is no name in Python."""
    return name.replace(".", "_")


def leaves(recipe: ScriptRecipe) -> Iterator[tuple[Code, Code, int, bool]]:
    """Each input by its name in the script and its own, with the length of its list (0: none) and whether it has a
    gradient."""
    for item in recipe.op.inputs:
        n = sum(name.startswith(f"{item.name}.") for name in recipe.inputs) if item.listed else 0
        if n or item.name in recipe.inputs:
            yield Code(variable(item.name)), Code(item.name), n, item.name in recipe.differentiable


def call(recipe: ScriptRecipe, function: str, *, absent: bool = False) -> Code:
    """A call with the op's tensors and params by keyword, in one line or in four, inside of a function."""
    given = {name: variable(name) for name in recipe.passed}
    given |= dict.fromkeys(recipe.absent, "None") if absent else {}
    tensors = [f"{name}={value}" for name, value in given.items() if "." not in name]
    dotted = ", ".join(f"{literal(name)}: {value}" for name, value in given.items() if "." in name)
    tensors += [f"**{{{dotted}}}"] if dotted else []
    params = [f"{name}={literal(value)}" for name, value in recipe.params.items()]
    line = f"{function}({', '.join([*tensors, *params])})"
    if len(line) <= WIDTH:
        return Code(line)
    groups = (f"    {', '.join(group)}," for group in (tensors, params) if group)
    return Code(f"\n{INDENT}".join((f"{function}(", *groups, ")")))


def decisions(checks: Sequence[Check]) -> Iterator[Code]:
    """The expressions that are true while a tensor's difference is there.

    If the backend exceeds the error bound, the error decides; if it also fails a comparison, both do.
    """
    for tensor in dict.fromkeys(check.row.tensor for check in checks):
        mine = [check for check in checks if check.row.tensor == tensor]
        calls = [check_call(check) for check in mine]
        bound = mine[-1].accuracy
        if bound is None:
            yield from calls
            continue
        sizes = f"rms={literal(bound.rms)}, largest={literal(bound.max)}, limit={literal(bound.limit)}"
        part = f"part=np.s_{bound.where}, where={literal(f' in {bound.where}')}," if bound.part else ""
        given = f"{literal(tensor)}, {sizes}"
        inaccurate = f"inaccurate(\n        {given},\n        {part}\n    )" if part else f"inaccurate({given})"
        if Verdict(mine[-1].row.verdict).passes:
            yield from (*calls, Code(inaccurate))
        else:
            joined = "\n        | ".join(calls)
            either = f"(\n        {joined}\n    )" if len(calls) > 1 else joined
            yield Code(f"{either}\n    and {inaccurate}")


def check_call(check: Check) -> Code:
    """The call that repeats a comparison."""
    tensor, row = literal(check.row.tensor), check.row
    swapped = ", swapped=True" if check.live == "expected" else ""
    limits = f"rtol={literal(row.rtol)}, atol={literal(row.atol)}"
    return Code(f"check({tensor}, {literal(check.label)}, {limits}{swapped})")
