"""A finding as the text of an upstream issue: what, with which versions, the script, what it prints, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parity.judge.bound.envelope import OFF
from parity.judge.catalogue.entries import CATALOGUE
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import Results
from parity.reporting.text.evidence import evidence_text, residual_text
from parity.reporting.text.safe import code, fenced, longest_run
from parity.reporting.text.safe import prose as said
from parity.repro.recipe import Recipe
from parity.repro.words import ANOTHER, convention, few, reasons, recorded, sides, subject, title, user_file, versions

RATIO = (
    f"An error ratio is an error from the exact answer over that of careful code in this dtype; {OFF:g} is too much."
)
MAX_OPS = 20_000
"""A user's file of more characters is attached."""

INTERNAL = frozenset(("first_found_in",))
"""Evidence about the search and not about the finding."""

SPECIAL = re.compile(r"[\\`*_\[\]<>&#~|$]")
"""What Markdown may take for markup inside of a sentence."""


def issue(recipe: Recipe, results: Results, script: str, name: str, archive: str, user_ops: str) -> str:
    """Markdown around the script `name`; text of others is never markup."""
    parts = [f"# {heading(recipe)}", f"Seen with {code(versions(recipe, results))}."]
    parts += [computed(recipe), *expected(recipe, results)]
    run = f"Save it as {code(name)} and run {code(f'python {name}')}; it needs {code(recipe.framework)} and NumPy."
    parts += ["## Script", run]
    if archive:
        parts.append(
            f"The arrays are in {code(archive)}, which must lie beside the script; attach it in a .zip. {drawn(recipe)}"
        )
    parts.append(block(script, "python"))
    if user_ops and recipe.ops:
        parts += user_file_parts(recipe.ops.read_text(encoding="utf-8", errors="backslashreplace"), recipe, user_ops)
    parts += ["## What it prints" if recipe.checks else "## What was seen", fenced(recorded(recipe))]
    told = list(diagnosed(recipe))
    parts += ["## Diagnosis", RATIO, *told] if told else []
    return "\n\n".join(parts) + "\n"


def heading(recipe: Recipe) -> str:
    """The title as Markdown."""
    entry = convention(recipe)
    if entry is None:
        return said(title(recipe))
    where = f"({recipe.cell.dtype}: {few(recipe.cell.tensors)})"
    return f"{said(subject(recipe))} {ANOTHER}: {ours(entry.title)} {said(where)}"


def ours(text: str) -> str:
    """A sentence of parity's own as Markdown."""
    return SPECIAL.sub(r"\\\g<0>", text)


def user_file_parts(text: str, recipe: Recipe, user_ops: str) -> Iterator[str]:
    """The user's file, or that it has to be attached."""
    beside = f"{code(user_file(recipe))}, beside it as {code(user_ops)}"
    if len(text) > MAX_OPS:
        yield f"{beside} (attach it in a .zip)."
    else:
        yield from (f"{beside}:", block(text, "python"))


def block(text: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, longest_run(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def computed(recipe: Recipe) -> str:
    """The op with its params and the shapes of its inputs."""
    params = ", ".join(f"{name}={value!r}" for name, value in recipe.params.items())
    shapes = ", ".join(f"{name} {list(recipe.data[f'inputs/{name}'].shape)}" for name in recipe.inputs)
    return f"{code(f'{recipe.op.name}({params})')} in {code(recipe.cell.dtype)} on {code(shapes)}."


def drawn(recipe: Recipe) -> str:
    """How the inputs were drawn."""
    texts = (f"{code(name)} is {code(item.draw)}" for name, item in recipe.cell.case.inputs.items())
    return f"The inputs: {', '.join(texts)}."


def expected(recipe: Recipe, results: Results) -> Iterator[str]:
    """What was found, and what should have been."""
    yield "\n".join(f"- {code(tensor)}: {said(text)}" for tensor, text in reasons(recipe))
    if not recipe.checks:
        yield "Expected: a result."
        return
    meant = "; ".join(f"{code(side)} is {said(text)}" for side, text in sides(recipe, results))
    entry = convention(recipe)
    if entry is None:
        yield f"Expected: values as near to the exact ones as this dtype allows. {meant}."
    else:
        yield (
            "Expected: the exact answer, which is PyTorch's documented formula. What was found follows another "
            f"convention, {code(entry.id)}: {ours(entry.title)}. {ours(entry.what)}"
        )
        yield f"{meant}."


def diagnosed(recipe: Recipe) -> Iterator[str]:
    """Each diagnosis with its evidence; what the convention is has been told."""
    told = convention(recipe)
    for row in recipe.cell.diagnoses:
        entry = CATALOGUE.get(row.id)
        sentence = ours(entry.title) if entry and entry.title == row.title else said(row.title)
        who, tensors = f"{row.backend} {row.dtype}: {row.id}:", f"({', '.join(row.tensors)})"
        lines = [f"{said(who)} {sentence} {said(tensors)}"]
        lines += map(said, (residual_text(row), *evidence(row)))
        lines += [ours(entry.what)] if entry and entry is not told else []
        yield "\n".join(f"{'  ' if i else '- '}{line}" for i, line in enumerate(lines))


def evidence(row: Diagnosis) -> Iterator[str]:
    """What supports a diagnosis, in the words of all reports."""
    for key, value in row.evidence.items():
        itself = key == "second" and isinstance(value, dict) and value.get("id") == row.id
        if key not in INTERNAL and not itself and (text := evidence_text(str(key), value)):
            yield text
