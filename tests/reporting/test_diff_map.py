"""`--map` of `parity diff`: another release, another name, or two backends of one run."""

from __future__ import annotations

import pytest

from parity.reporting.diff.compare import ChangeKind, compare
from parity.reporting.diff.compared_run import DiffError, mapping, releases
from parity.reporting.results.results import read_results
from tests.reporting.test_diff import both_releases, fails, outcome, passes, renamed_backends, run

NAMES = ["torch", "paddle", "paddle==2.6.2", "a=b"]


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("paddle==2.6.2=paddle", ("paddle==2.6.2", "paddle")),
        ("paddle=paddle==2.6.2", ("paddle", "paddle==2.6.2")),
        ("paddle==2.6.2=paddle==2.6.2", ("paddle==2.6.2", "paddle==2.6.2")),
        ("a=b=torch", ("a=b", "torch")),
    ],
)
def test_a_map_is_split_where_both_sides_are_backends(text, pair):
    assert mapping(text, NAMES, NAMES) == pair


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch", "is not OLD=NEW"),
        ("torch==2", "is not OLD=NEW"),
        ("padle=torch", 'RUN_A has no backend "padle"; did you mean "paddle"? It has torch'),
        ("torch=padle", 'RUN_B has no backend "padle"; did you mean "paddle"?'),
        ("zzz=\x1b[31m", 'RUN_A has no backend "zzz"; It has torch'),
    ],
)
def test_a_map_that_names_nobody_is_told_with_the_nearest(text, said):
    with pytest.raises(DiffError) as error:
        mapping(text, NAMES, NAMES)
    assert said in str(error.value)
    assert str(error.value).isprintable()


def test_an_ambiguous_map_is_refused():
    with pytest.raises(DiffError, match="2 ways"):
        mapping("a=b=c", ["a", "a=b"], ["c", "b=c"])


def test_a_mapped_backend_is_compared_under_its_new_name(tmp_path):
    old = run(
        tmp_path / "a",
        [fails(actual="paddle==2.6.2", culprit=["paddle==2.6.2"])],
        [outcome("torch"), outcome("paddle==2.6.2")],
        backends=renamed_backends("torch", "paddle==2.6.2"),
    )
    new = run(tmp_path / "b", [passes()], backends=renamed_backends("torch", "paddle"))
    for maps in ([], ["paddle==2.6.2=paddle"]):
        diff = compare(old, new, maps=maps)
        assert [(change.kind, change.backend) for change in diff.changes] == [(ChangeKind.FIXED, "paddle")]
        (note,) = (note for note in diff.run_notes if "is compared with" in note)
        assert note.startswith("paddle==2.6.2 in A (1.2.3) is compared with paddle in B (1.2.3)")
        assert note.endswith("--map changes it") is not bool(maps)


@pytest.mark.parametrize(
    ("before", "after", "pairs"),
    [
        ({"paddle==2.6.2": {}}, {"paddle": {}}, {"paddle==2.6.2": "paddle"}),
        ({"paddle": {}}, {"paddle==2.6.2": {}}, {"paddle": "paddle==2.6.2"}),
        ({"paddle==2.6.2": {}, "paddle": {}}, {"paddle": {}}, {}),
        ({"paddle==2.6.2": {}, "paddle==3.0": {}}, {"paddle": {}}, {}),
        ({"paddle==2.6.2": {}}, {"paddle": {}, "paddle==3.0": {}}, {}),
        ({"paddle==2.6.2": {"mode": "static"}}, {"paddle": {}}, {}),
        ({"mine": {"ops": "ops/mine.py"}}, {"paddle": {}}, {}),
        ({"old": {"ops": "ops/old.py"}, "paddle==2": {}}, {"paddle": {}}, {"paddle==2": "paddle"}),
        ({"torch==2": {"framework": "torch"}, "paddle==2": {}}, {"paddle": {}}, {"paddle==2": "paddle"}),
    ],
)
def test_another_release_is_found_where_there_is_one_candidate_on_each_side(tmp_path, before, after, pairs):
    def backends(changed):
        rows = renamed_backends(*changed)
        return [{**row, "framework": "paddle", "mode": "eager", **changed[row["name"]]} for row in rows]

    runs = [run(tmp_path / name, [], [], backends=backends(rows)) for name, rows in (("a", before), ("b", after))]
    results = tuple(map(read_results, runs))
    assert releases(results, {}) == pairs
    assert releases(results, pairs) == {}


def test_map_overrides_what_is_found(tmp_path):
    old = run(tmp_path / "a", [passes()], backends=renamed_backends("torch", "paddle==1", "paddle==2"))
    new = run(tmp_path / "b", [passes()], backends=renamed_backends("torch", "paddle"))
    assert compare(old, new).a.names["paddle==1"] == "paddle==1"
    mapped = compare(old, new, maps=["paddle==1=paddle"]).a
    assert (mapped.names["paddle==1"], mapped.paired) == ("paddle", frozenset())


def test_two_backends_of_one_run(tmp_path):
    path = both_releases(tmp_path / "a")
    diff = compare(path, tmp_path / "." / "a", maps=["paddle==2.6.2=paddle"])
    assert ([(c.kind, c.backend) for c in diff.changes], diff.same) == ([(ChangeKind.NEW, "paddle")], 0)
    back = compare(path, path, maps=["paddle=paddle==2.6.2"])
    assert [(c.kind, c.backend) for c in back.changes] == [(ChangeKind.FIXED, "paddle==2.6.2")]


def test_a_backend_whose_name_is_given_away_is_told(tmp_path):
    a, b = both_releases(tmp_path / "a"), both_releases(tmp_path / "b")
    diff = compare(a, b, maps=["paddle==2.6.2=paddle"])
    assert "paddle of A is not compared: --map gives its name to another backend" in diff.run_notes


def test_a_backend_has_one_counterpart(tmp_path):
    path = both_releases(tmp_path / "a")
    with pytest.raises(DiffError, match="names a backend twice"):
        compare(path, path, maps=["paddle==2.6.2=paddle", "torch=paddle"])
