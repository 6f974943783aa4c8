"""Edits the `known` list in the text of a config; all other text, comments and layout do not change."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from parity.config.plan import KnownDeviation
from parity.config.yaml_lines import resolve

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
WIDTH = 120
CHANGING = ("error_ratio", "until", "reason")
"""The keys that are written anew in an entry that stays."""
REFUSED = "it cannot be changed in place; under `known:`, paste these entries yourself"


class EditError(Exception):
    """The list cannot be edited safely in this text."""


@dataclass(frozen=True)
class KnownEdit:
    """The edit of the list: entries to remove, entries with new values, entries to append."""

    dropped: tuple[KnownDeviation, ...] = ()
    changed: tuple[tuple[KnownDeviation, KnownDeviation], ...] = ()
    added: tuple[KnownDeviation, ...] = ()


Splice = tuple[int, int, str]
"""Start and end offsets, and the new text between them."""


def entry_keys(known: KnownDeviation) -> dict[str, str]:
    """An entry as written: YAML by key, without unset keys."""
    keys = {
        "case": quoted(known.case),
        "backend": known.backend and word(known.backend),
        "dtype": known.dtype,
        "tensor": known.tensor and quoted(known.tensor),
        "diagnosis": known.diagnosis,
        "error_ratio": known.error_ratio and f"{known.error_ratio:.1e}",
        "outcome": "unsupported" if known.unsupported else None,
        "until": known.until and known.until.isoformat(),
        "reason": quoted(known.reason),
    }
    return {key: str(text) for key, text in keys.items() if text}


def entry_text(known: KnownDeviation, indent: int = 0) -> str:
    """An entry as a list item, wrapped between keys at 120 columns."""
    lines = [" " * indent + "- {"]
    for i, (key, text) in enumerate(entry_keys(known).items()):
        item = f"{key}: {text}"
        if i and len(lines[-1]) + len(item) + 3 > WIDTH:
            lines[-1] += ","
            lines.append(" " * (indent + 3) + item)
        else:
            lines[-1] += f", {item}" if i else item
    return "\n".join(lines) + "}"


def word(text: str) -> str:
    """A name, quoted if YAML would read it as something else."""
    return text if PLAIN.fullmatch(text) and resolve(text) == text else quoted(text)


def quoted(text: str) -> str:
    """Any text as YAML inside braces."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def edited(text: str, edit: KnownEdit) -> str:
    """The text of a config with its list edited; raises EditError if anything else would change."""
    if edit == KnownEdit():
        return text
    try:
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        lists = [(key, value) for key, value in root.value if key.value == "known"]
        made = spliced(text, list(changes(text, *lists[0], edit))) if lists else appended(text, edit)
        before, after = (yaml.load(version, Loader=yaml.BaseLoader) for version in (text, made))  # noqa: S506
        listed = before.get("known")
        wanted = {**before, "known": expected(listed if isinstance(listed, list) else [], edit)}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise EditError(REFUSED) from error
    if after != wanted:
        raise EditError(REFUSED)
    return made


def expected(entries: Sequence[Mapping[str, str]], edit: KnownEdit) -> list[dict[str, str]]:
    """The expected list after an edit, as plain texts; raises ValueError if an entry to change is not in it."""
    gone = [plain(known) for known in edit.dropped]
    changed = [(plain(old), plain(new)) for old, new in edit.changed]
    if not all(any(means(entry, old) for entry in entries) for old in [*gone, *(old for old, _ in changed)]):
        raise ValueError("an entry is not in the list as it was read")
    kept = [dict(entry) for entry in entries if not any(means(entry, old) for old in gone)]
    for entry in kept:
        for old, new in changed:
            if means(entry, old):
                entry.update({key: new[key] for key in CHANGING if key in new})
    return kept + [plain(known) for known in edit.added]


def plain(known: KnownDeviation) -> dict[str, str]:
    """An entry as plain texts."""
    return {key: str(yaml.load(text, Loader=yaml.BaseLoader)) for key, text in entry_keys(known).items()}  # noqa: S506


def means(entry: Mapping[str, str], known: Mapping[str, str]) -> bool:
    """Whether a written entry is this one, however its numbers are spelled."""
    fixed = ("case", "backend", "dtype", "tensor", "diagnosis", "outcome", "until", "reason")
    return all((entry.get(key) or None) == known.get(key) for key in fixed)


def appended(text: str, edit: KnownEdit) -> str:
    """A text without a list, with a new one at its end."""
    ending = line_ending(text)
    entries = "\n".join(entry_text(known, 2) for known in edit.added)
    return text.rstrip() + f"\n\nknown:\n{entries}\n".replace("\n", ending)


def line_ending(text: str) -> str:
    """The line ending of a text."""
    return "\r\n" if "\r\n" in text else "\n"


def spliced(text: str, splices: Sequence[Splice]) -> str:
    """A text with non-overlapping changes applied."""
    ending = line_ending(text)
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new.replace("\n", ending) + text[end:]
    return text


def changes(text: str, key: Any, value: Any, edit: KnownEdit) -> Iterator[Splice]:
    """The changes to an existing list."""
    items = value.value if isinstance(value, yaml.SequenceNode) else []
    fields = [{k.value: v.value for k, v in item.value} for item in items]
    gone = {i for i, entry in enumerate(fields) if any(means(entry, plain(known)) for known in edit.dropped)}
    for old, new in edit.changed:
        for item in (item for item, entry in zip(items, fields, strict=True) if means(entry, plain(old))):
            yield from rewritten(text, item, new)
    if not items:
        yield from began(text, key, value, edit)
    elif value.flow_style:
        yield from changed_in_brackets(text, items, gone, edit)
    else:
        yield from changed_in_lines(text, key, value, gone, edit)


def rewritten(text: str, item: Any, new: KnownDeviation) -> Iterator[Splice]:
    """An entry with its number, date and reason rewritten."""
    keys = {k.value: v for k, v in item.value}
    wanted = {key: written for key, written in entry_keys(new).items() if key in CHANGING}
    for key in wanted.keys() & keys.keys():
        yield keys[key].start_mark.index, end_of(text, keys[key]), wanted[key]
    between = ", " if item.flow_style else "\n" + " " * item.start_mark.column
    more = "".join(f"{between}{key}: {wanted[key]}" for key in wanted if key not in keys)
    last = end_of(text, item.value[-1][1])
    if more:
        yield last, last, more


def began(text: str, key: Any, value: Any, edit: KnownEdit) -> Iterator[Splice]:
    """The first entries of an empty list, of which comments stay."""
    start, end = key.end_mark.index + 1, max(key.end_mark.index + 1, end_of(text, value))
    line, indent = end_of_line(text, end), key.start_mark.column + 2
    opening, last = value.start_mark.index, text.rfind("\n", 0, end)
    if last < opening:
        yield start, end, ""
    else:  # brackets over several lines, with nothing but comments in them
        yield opening, opening + 1, ""
        alone = text[last:line].strip() == "]"
        yield end_of_line(text, last) if alone else end - 1, end, ""
    yield line, line, "".join(f"\n{entry_text(known, indent)}" for known in edit.added)


def changed_in_brackets(text: str, items: Sequence[Any], gone: Collection[int], edit: KnownEdit) -> Iterator[Splice]:
    """A list in brackets: entries are removed with their comma."""
    kept = [i for i in range(len(items)) if i not in gone]
    last = kept[-1] if kept else -1
    for i in gone:
        if i < last:
            yield items[i].start_mark.index, items[i + 1].start_mark.index, ""
    end = end_of(text, items[last]) if kept else items[0].start_mark.index
    if last < len(items) - 1:
        yield end, end_of(text, items[-1]), ""
    added = ", ".join(entry_text(known)[2:] for known in edit.added)
    yield end, end, f"{', ' if kept and added else ''}{added}"


def changed_in_lines(text: str, key: Any, value: Any, gone: Collection[int], edit: KnownEdit) -> Iterator[Splice]:
    """A block list: entries are removed with their lines."""
    for i in gone:
        dash = text.rindex("-", 0, value.value[i].start_mark.index)
        yield text.rindex("\n", 0, dash), end_of_line(text, end_of(text, value.value[i])), ""
    if len(gone) == len(value.value) and not edit.added:
        yield key.end_mark.index + 1, key.end_mark.index + 1, " []"
    line = end_of_line(text, end_of(text, value))
    yield line, line, "".join(f"\n{entry_text(known, value.start_mark.column)}" for known in edit.added)


def end_of(text: str, node: Any) -> int:
    """The end of a value; a block ends with its last value, not where the next token begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        below = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        return max(end_of(text, inner) for inner in below)
    start = node.start_mark.index
    return int(start + len(text[start : node.end_mark.index].rstrip()))


def end_of_line(text: str, offset: int) -> int:
    """The end of an offset's line, before its line ending."""
    end = text.find("\n", offset)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" else end
