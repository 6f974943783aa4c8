"""A finding as the text of an upstream issue: what, with which versions, the script, what it prints, and why."""

from __future__ import annotations

from collections.abc import Iterator

from parity.judge.catalogue import CATALOGUE
from parity.reporting.evidence import diagnosis_lines
from parity.reporting.results import Results, as_number
from parity.reporting.safe import code, fenced, longest_run
from parity.reporting.safe import prose as said
from parity.repro.recipe import Recipe
from parity.repro.words import reasons, recorded, sides, title, user_file, versions

RATIO = "An error ratio is an error from the exact answer over that of careful code in this dtype; 8 is too much."


def issue(recipe: Recipe, results: Results, script: str, name: str, archive: str, user_ops: str) -> str:
    """Markdown around the script `name`; text of others is never markup."""
    parts = [f"# {said(title(recipe))}", f"Seen with {code(versions(recipe, results))}."]
    parts += [computed(recipe), *expected(recipe, results)]
    run = f"Save it as {code(name)} and run {code(f'python {name}')}; it needs {code(recipe.framework)} and NumPy."
    parts += ["## Script", run]
    if archive:
        parts.append(
            f"The arrays are large: {code(archive)} is attached and must lie beside the script. {drawn(recipe)}"
        )
    parts.append(block(script, "python"))
    if user_ops and recipe.ops:
        text = recipe.ops.read_text(encoding="utf-8", errors="backslashreplace")
        parts += [f"{code(user_file(recipe))}, beside it as {code(user_ops)}:", block(text, "python")]
    parts += ["## What it prints" if recipe.checks else "## What was seen", fenced(recorded(recipe))]
    told = list(diagnosed(recipe))
    parts += ["## Diagnosis", RATIO, *told] if told else []
    return "\n\n".join(parts) + "\n"


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
    texts = (f"{code(name)} is {code(item['draw'])}" for name, item in recipe.cell.case["inputs"].items())
    return f"The inputs: {', '.join(texts)}."


def expected(recipe: Recipe, results: Results) -> Iterator[str]:
    """What was found, and what should have been."""
    yield "\n".join(f"- {code(tensor)}: {said(text)}" for tensor, text in reasons(recipe))
    if recipe.checks:
        meant = "; ".join(f"{code(side)} is {said(text)}" for side, text in sides(recipe, results))
        yield f"Expected: values as near to the exact ones as this dtype allows. {meant}."
    else:
        yield "Expected: a result."


def diagnosed(recipe: Recipe) -> Iterator[str]:
    """Each diagnosis with its evidence."""
    for row in recipe.cell.diagnoses:
        lines = [line.plain for line in diagnosis_lines(as_number(row), brief=True)]
        lines += [CATALOGUE[row["id"]].what] if row["id"] in CATALOGUE else []
        yield "\n".join(f"{'  ' if i else '- '}{said(line)}" for i, line in enumerate(lines))
