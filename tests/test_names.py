"""Names in parity/: a class name belongs to one class, and a name says what a thing is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.conftest import ROOT

SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "parity").rglob("*.py")}
VAGUE = {"found", "told", "off", "side", "sides", "place", "places", "parting", "upstream", "slot", "slots"}
"""Words for which a name has a better one: the row, the message, the backend, the location, the divergence, ..."""
TERMS = {
    ("parity/reporting/results/rows.py", "parting"),  # a field of results.json
    ("parity/adapters/tensorflow/adapter.py", "slot"),  # what Keras calls the state of an optimizer
    ("parity/adapters/tensorflow/adapter.py", "slots"),
}


def assigned(source: str) -> Iterator[str]:
    """The names of variables, parameters, attributes, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def vague(source: str) -> set[str]:
    """The names that contain a vague word."""
    names = {name for name in assigned(source) if not name.startswith("__")}
    return {name for name in names if VAGUE & set(re.findall("[a-z]+", re.sub("([A-Z])", r"_\1", name).lower()))}


def repeated_classes(sources: dict[str, str]) -> set[str]:
    """The names of classes that are defined more than once."""
    nodes = (node for source in sources.values() for node in ast.walk(ast.parse(source)))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {name for name, count in counts.items() if count > 1}


def test_names_say_what_things_are():
    names = {(path, name) for path, source in SOURCES.items() for name in vague(source)}
    assert names == TERMS


def test_a_class_name_belongs_to_one_class():
    assert repeated_classes(SOURCES) == set()


def test_vague_names_and_repeated_classes_are_seen():
    source = "class OtherSide:\n    def f(self, found):\n        n_places = offset = found_at = 1\n"
    assert vague(source) == {"OtherSide", "found", "n_places", "found_at"}
    assert repeated_classes({"a": "class Row: ...", "b": "class Row: ...\nclass Rows: ..."}) == {"Row"}
