"""YAML 1.2 with the line of every key and value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from parity.config.nodes import Node, Problems
from parity.config.yaml_lines import MAX_ALIASED, MAX_DEPTH, read_yaml, resolve


def read(tmp_path: Path, text: str | bytes) -> Node:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    report = Problems()
    file = read_yaml(path, report)
    assert file is not None, report.problems
    return file.root


def complaint(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    report = Problems()
    assert read_yaml(path, report) is None
    (problem,) = report.problems
    return f"{problem.line}: {problem.message}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        (".Inf", math.inf),
        ("12", 12),
        ("-3", -3),
        ("007", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("yes", "yes"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2027-06-30", "2027-06-30"),
        ("0b1", "0b1"),
        ("1e", "1e"),
        ("-", "-"),
        ("nan", "nan"),
        ("1" * 500, math.inf),
    ],
)
def test_scalars_by_the_core_schema(text: str, value: Any) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_nan() -> None:
    assert math.isnan(float(str(resolve(".nan"))))


def test_quoted_scalars_stay_text(tmp_path: Path) -> None:
    assert read(tmp_path, "a: '1'\nb: \"true\"\nc: |\n  2\n").plain() == {"a": "1", "b": "true", "c": "2\n"}


def test_lines_and_paths(tmp_path: Path) -> None:
    root = read(tmp_path, "# comment\na: 1\nb:\n  - x\n  - y: 2\n    z:\n      {p: 3,\n       q: 4}\n")
    b = root.mapping["b"]
    assert (b.line, b.key) == (3, "b")
    assert (b.items[0].line, b.items[0].key) == (4, "b[0]")
    z = b.items[1].mapping["z"]
    assert (z.line, z.key) == (6, "b[1].z")
    assert (z.mapping["q"].line, z.mapping["q"].key) == (8, "b[1].z.q")


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    root = read(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert root.plain() == {"a": 1, "b": 2}
    assert root.mapping["b"].line == 2


def test_the_text_of_a_scalar_is_kept(tmp_path: Path) -> None:
    assert read(tmp_path, "version: 2.10\n").mapping["version"].text == "2.10"


def test_aliases_stand_for_what_they_name(tmp_path: Path) -> None:
    root = read(tmp_path, "a: &x {p: [1, 2]}\nb: *x\n")
    assert root.mapping["b"].plain() == {"p": (1, 2)}
    assert root.mapping["b"].line == 2


def test_merge_keys(tmp_path: Path) -> None:
    text = "a: &a {p: 1, q: 1}\nb: &b {q: 2, r: 2}\nc: {<<: *a, q: 3}\nd: {<<: [*a, *b], s: 4}\n"
    root = read(tmp_path, text)
    assert root.mapping["c"].plain() == {"p": 1, "q": 3}
    assert root.mapping["d"].plain() == {"p": 1, "q": 1, "r": 2, "s": 4}


def test_merging_a_scalar_is_refused(tmp_path: Path) -> None:
    assert complaint(tmp_path, "a: 1\nb: {<<: 3}\n") == '2: "<<" merges a mapping or a list of mappings'


def test_an_explicit_key_indicator(tmp_path: Path) -> None:
    assert read(tmp_path, "? a\n: 1\n? b\n").plain() == {"a": 1, "b": None}


def test_an_alias_cannot_be_a_key(tmp_path: Path) -> None:
    assert complaint(tmp_path, "a: &x 1\n*x : 2\n") == "2: a key must be a word, not an alias"


def test_nesting_is_bounded(tmp_path: Path) -> None:
    n = MAX_DEPTH - 1
    read(tmp_path, f"a: {'[' * n}{']' * n}\n")
    assert "levels deep" in complaint(tmp_path, f"a: {'[' * (n + 1)}{']' * (n + 1)}\n")
    assert "levels deep" in complaint(tmp_path, f"a: {'[' * 100_000}\n")


def test_nesting_through_aliases_is_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [[[[[[[[[[1]]]]]]]]]]"]
    lines += [f"a{i}: &a{i} [[[[[[[[[[*a{i - 1}]]]]]]]]]]" for i in range(1, 8)]
    assert "levels deep" in complaint(tmp_path, "\n".join(lines))


def test_aliases_are_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert f"more than {MAX_ALIASED} values" in complaint(tmp_path, "\n".join(lines))


def test_tags_are_refused(tmp_path: Path) -> None:
    assert "the tag !!str is not allowed" in complaint(tmp_path, "a: !!str 1\n")
    assert "the tag !mine is not allowed" in complaint(tmp_path, "a: !mine [1]\n")


def test_values_are_shown_short(tmp_path: Path) -> None:
    shown = read(tmp_path, f"a: [{', '.join(map(str, range(1000)))}]\n").mapping["a"].shown()
    assert shown.startswith("[0, 1, 2,")
    assert shown.endswith(" ...")
    assert len(shown) <= 70
    assert read(tmp_path, 'a: {b: "1", c: "x\\ny", d: word, e: null, f: "null"}\n').mapping["a"].shown() == (
        '{b: "1", c: "x\\ny", d: word, e: null, f: "null"}'
    )
