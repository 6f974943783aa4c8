"""A finding as the text of an upstream issue: what, with which versions, the script, what it prints, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parity.diagnoses import catalogue
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import Results
from parity.reporting.text import safe
from parity.reporting.text.evidence import evidence_text, residual_text
from parity.repro.recipe import ScriptRecipe
from parity.repro.templates import template
from parity.repro.words import (
    ANOTHER,
    convention,
    few,
    reasons,
    recorded,
    recorded_names,
    subject,
    title,
    user_file,
    versions,
)

RATIO = (
    "The error ratio is the error over that of a careful implementation in this dtype; "
    f"the error bound is {ERROR_BOUND:g}."
)
MAX_OPS = 20_000
"""A user's file of more characters is attached."""

INTERNAL = frozenset(("first_found_in",))
"""Evidence about the search rather than the finding."""

SPECIAL = re.compile(r"[\\`*_\[\]<>&#~|$]")
"""Characters that Markdown may take for markup inside a sentence."""


class Markdown(str):
    """Markdown that needs no escaping."""

    __slots__ = ()


def code(text: str) -> Markdown:
    """Untrusted text as a code span."""
    return Markdown(safe.code(text))


def prose(text: str) -> Markdown:
    """An untrusted sentence, escaped."""
    return Markdown(safe.prose(text))


def ours(text: str) -> Markdown:
    """A sentence by parity."""
    return Markdown(SPECIAL.sub(r"\\\g<0>", text))


def fenced(lines: Iterable[str]) -> Markdown:
    """A code block with the lines as they are."""
    return Markdown(safe.fenced(lines))


def block(text: str, language: str) -> Markdown:
    """A code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, safe.longest_run(text) + 1)
    return Markdown(f"{fence}{language}\n{text.rstrip()}\n{fence}")


def issue(recipe: ScriptRecipe, results: Results, script: str, name: str, archive: str, user_ops: str) -> str:
    """Markdown around the script `name`; untrusted text is never markup."""
    params = ", ".join(f"{name}={value!r}" for name, value in recipe.params.items())
    draws = (f"{code(name)} is {code(item.draw)}" for name, item in recipe.cell.case.inputs.items())
    return template("issue.md.jinja", Markdown, code, prose, ours, fenced, block).render(
        recipe=recipe,
        heading=heading(recipe),
        versions=versions(recipe, results),
        call=f"{recipe.op.name}({params})",
        shapes=", ".join(f"{name} {list(recipe.data[f'inputs/{name}'].shape)}" for name in recipe.inputs),
        reasons=list(reasons(recipe)),
        entry=convention(recipe),
        meant=Markdown("; ".join(f"{code(label)} is {prose(text)}" for label, text in recorded_names(recipe, results))),
        name=name,
        archive=archive,
        draws=Markdown(", ".join(draws)),
        script=script,
        user_ops=user_ops,
        ops_name=user_file(recipe),
        ops_text=recipe.ops.read_text(encoding="utf-8", errors="backslashreplace") if recipe.ops else "",
        max_ops=MAX_OPS,
        recorded=recorded(recipe),
        ratio=RATIO,
        diagnoses=list(diagnosed(recipe)),
    )


def heading(recipe: ScriptRecipe) -> Markdown:
    """The title as Markdown."""
    entry = convention(recipe)
    if entry is None:
        return prose(title(recipe))
    where = f"({recipe.cell.dtype}: {few(recipe.cell.tensors)})"
    return Markdown(f"{prose(subject(recipe))} {ANOTHER}: {ours(entry.title)} {prose(where)}")


def diagnosed(recipe: ScriptRecipe) -> Iterator[Markdown]:
    """Each diagnosis with its evidence; the convention is explained above."""
    explained = convention(recipe)
    for row in recipe.cell.diagnoses:
        entry = catalogue().get(row.id)
        sentence = ours(entry.title) if entry and entry.title == row.title else prose(row.title)
        label, tensors = f"{row.backend} {row.dtype}: {row.id}:", f"({', '.join(row.tensors)})"
        lines = [f"{prose(label)} {sentence} {prose(tensors)}"]
        lines += map(prose, (residual_text(row), *evidence(row)))
        lines += [ours(entry.what)] if entry and entry is not explained else []
        yield Markdown("\n".join(f"{'  ' if i else '- '}{line}" for i, line in enumerate(lines)))


def evidence(row: Diagnosis) -> Iterator[str]:
    """What supports a diagnosis, in the words of all reports."""
    for key, value in row.evidence.items():
        itself = key == "second" and isinstance(value, dict) and value.get("id") == row.id
        if key not in INTERNAL and not itself and (text := evidence_text(str(key), value)):
            yield text
