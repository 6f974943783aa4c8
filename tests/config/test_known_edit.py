"""Entries of `known` are added, renewed and dropped in the text of a config, of which nothing else changes."""

from __future__ import annotations

import datetime

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.config.known_edit import EditError, KnownEdit, edited, entry_text
from parity.config.plan import KnownDeviation
from parity.config.yaml_lines import resolve

DAY = datetime.date(2027, 6, 30)
OLD = KnownDeviation("a*", "agreed", backend="mine", error_ratio=30.0)
OTHER = KnownDeviation("b", "agreed", backend="mine")
NEW = KnownDeviation("ln-[1]", "it's fine: #1", backend="t:compile", diagnosis="scaled", error_ratio=12.0, until=DAY)
WRITTEN = '- {case: "ln-[1]", backend: "t:compile", diagnosis: scaled, error_ratio: 1.2e+01, until: 2027-06-30,\n'
WRITTEN_REST = """reason: "it's fine: #1"}"""
HEAD = "version: 1 # one\nbackends: [mine]\n"
LISTS = {
    "lines": 'known:  # ours\n  # first\n  - {case: "a*", reason: agreed, backend: mine, error_ratio: 30}  # x\n  # second\n'
    "  - {case: b, backend: mine, reason: 'agreed'}\n# end\n",
    "blocks": "known:\n- case: a*  # one\n  # why\n  reason: |-\n    agreed\n  backend: mine\n  error_ratio: 3e1\n\n-   case: b\n"
    "    reason: agreed\n    backend: mine\n\ncases: []  # none\n",
    "brackets": "known: [{case: a*, reason: agreed, backend: mine, error_ratio: 30},\n  {case: b, backend: mine, reason: agreed}]\n"
    "cases: []\n",
}


def known_of(text):
    return yaml.load(text, Loader=yaml.BaseLoader)["known"]


def rest(text):
    """All lines without entries."""
    words = ("case:", "reason:", "backend: mine", "error_ratio:", "agreed", "until:", "fine")
    return [line for line in text.splitlines() if not any(word in line for word in words) and line.strip()]


def test_an_entry_is_one_line_or_breaks_between_keys():
    assert entry_text(OTHER) == '- {case: "b", backend: mine, reason: "agreed"}'
    assert entry_text(NEW, 2) == f"  {WRITTEN}     {WRITTEN_REST}"
    (read,) = yaml.safe_load(entry_text(NEW))
    assert (read["case"], read["reason"], read["backend"]) == (NEW.case, NEW.reason, NEW.backend)


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_entries_are_added_renewed_and_dropped(text):
    text = HEAD + text
    newer = KnownDeviation("a*", "again", backend="mine", error_ratio=70.0, until=DAY)
    made = edited(text, KnownEdit(dropped=(OTHER,), changed=((OLD, newer),), added=(NEW,)))
    renewed, added = known_of(made)
    assert renewed == {
        "case": "a*",
        "backend": "mine",
        "error_ratio": "7.0e+01",
        "until": "2027-06-30",
        "reason": "again",
    }
    assert (added["case"], added["diagnosis"]) == ("ln-[1]", "scaled")
    assert rest(made) == rest(text) or "[" in text.partition("known:")[2]
    assert {part for part in text.split() if part.startswith("#")} <= set(made.split())


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_what_is_added_is_all_that_changes(text):
    text = HEAD + text
    made = edited(text, KnownEdit(added=(OTHER,)))
    added = entry_text(OTHER)[2:]
    before, _, after = made.partition(added) if made.count(added) == 1 else made.rpartition(added)
    assert (before.rstrip(" -,\n") + after).replace("\n", "") in (
        text.replace("\n", ""),
        text.replace("\n", "").strip(),
    )


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_all_entries_are_dropped(text):
    made = edited(HEAD + text, KnownEdit(dropped=(OLD, OTHER)))
    assert known_of(made) == []
    assert known_of(edited(made, KnownEdit(added=(OTHER,)))) == [
        {"case": "b", "backend": "mine", "reason": "agreed"},
    ]


EMPTY = ["known:", "known:   # ours", "known: []", "known: [ ]  # ours", "known: null", "known: [\n]  # ours"]
EMPTY += [
    "known: [   # ours [\n  # ours ]\n\n]",
    "known: [   # ours [\n  # ours\n  ]  # ours",
    "known:\n  [ # ours\n  ]",
]


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_list_begins_with_the_entries(empty):
    made = edited(f"{HEAD}{empty}\ncases: [] # none\n", KnownEdit(added=(OTHER, NEW)))
    assert [entry["case"] for entry in known_of(made)] == ["b", "ln-[1]"]
    assert made.endswith("\ncases: [] # none\n")
    lines = [line.partition("# ours")[2] for line in made.splitlines() if "# ours" in line]
    assert lines == [line.partition("# ours")[2] for line in empty.splitlines() if "# ours" in line]


def test_a_config_without_a_list_has_one_at_its_end():
    text = f"{HEAD}cases:\n  - {{op: relu}}\n# the end"
    assert edited(text, KnownEdit(added=(OTHER,))) == f"{text}\n\nknown:\n  {entry_text(OTHER)}\n"
    assert edited(text, KnownEdit()) == text


def test_line_endings_stay():
    for text in (HEAD + LISTS["lines"], HEAD, HEAD + "known: [ # ours\n]\n"):
        made = edited(text.replace("\n", "\r\n"), KnownEdit(added=(OTHER,)))
        assert made.count("\n") == made.count("\r") == made.count("\r\n")
        assert known_of(made)[-1]["case"] == "b"


@pytest.mark.parametrize(
    "text",
    [
        "{version: 1, cases: []}\n",
        "version: 1\n...\n",
        "base: &base\n  - {case: a*, reason: agreed, backend: mine}\nknown: *base\n",
        "version: 1\n---\n",
        "- 1\n",
    ],
)
def test_what_cannot_be_changed_alone_is_refused(text):
    with pytest.raises(
        EditError, match=r"^it cannot be changed in place; under `known:`, paste these entries yourself"
    ):
        edited(text, KnownEdit(added=(NEW,)))


def test_an_entry_that_is_not_there_is_not_dropped():
    with pytest.raises(EditError):
        edited(HEAD + LISTS["lines"], KnownEdit(dropped=(NEW,)))


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.text(min_size=1))
def test_any_case_and_reason_are_read_as_they_were_given(case, reason):
    reason = reason.encode("utf-8", "replace").decode()
    (read,) = yaml.load(entry_text(KnownDeviation(case, reason, backend=case)), Loader=yaml.BaseLoader)
    assert (read["case"], read["backend"]) == (case, case)
    assert resolve(case) == case or '"' in entry_text(KnownDeviation("x", "y", backend=case))
