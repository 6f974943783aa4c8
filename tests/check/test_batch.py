"""Folders of pairs: what belongs together, what is kept, and how a batch ends."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from parity.check import CheckError
from parity.check.answer import not_judged
from parity.check.batch import ANSWERS, Member, answer_in, answered, batch_of, junit, one_of, part, summary, worst
from parity.cli.check_batch import passed_on


def files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return folder


def pairs_of(reference: Path, new: Path | None) -> dict[str, tuple[str, str]]:
    batch = batch_of(str(reference), None if new is None else str(new))
    assert batch is not None
    return {m.name: (Path(m.reference).name, Path(m.new).name) for m in batch.members}


def test_files_of_the_same_name_or_number_are_pairs_and_others_are_named(tmp_path: Path) -> None:
    theirs = files(tmp_path / "level1", "19_ReLU.py", "2_Add.py", "3_a.py", "3_b.py", "100_x.py", "_helper.py")
    ours = files(tmp_path / "mine", "19_ReLU.py", "2.py", "3_mine.py", "notes.txt", "other.py")
    assert pairs_of(theirs, ours) == {"2_Add": ("2_Add.py", "2.py"), "19_ReLU": ("19_ReLU.py", "19_ReLU.py")}
    batch = batch_of(str(theirs), str(ours))
    assert batch is not None
    assert {Path(path).name for path in batch.unmatched} == {"3_a.py", "3_b.py", "100_x.py", "3_mine.py", "other.py"}
    assert "without a pair: " in summary([], 2, batch.unmatched)[1]


def test_a_folder_per_candidate_matches_a_file(tmp_path: Path) -> None:
    theirs, ours = files(tmp_path / "a", "7_x.py"), files(tmp_path / "b", "7_x/new.py")
    assert pairs_of(theirs, ours) == {"7_x": ("7_x.py", "new.py")}


def test_a_folder_of_folders_is_a_batch_and_one_of_two_files_is_a_pair(tmp_path: Path) -> None:
    folder = files(tmp_path, "a/reference.py", "a/new.py", "b/reference.py", "b/solution.py", "c/reference.py")
    assert pairs_of(folder, None) == {"a": ("reference.py", "new.py"), "b": ("reference.py", "solution.py")}
    assert batch_of(str(folder / "a"), None) is None
    assert one_of(folder / "b").new.endswith("solution.py")


def test_a_task_of_gpu_mode_is_a_folder(tmp_path: Path) -> None:
    folder = files(tmp_path, "vectoradd/reference.py", "vectoradd/submission.py", "vectoradd/task.yml")
    assert one_of(folder / "vectoradd").reference.endswith("vectoradd")


def test_a_folder_of_operators_is_a_batch(tmp_path: Path) -> None:
    folder = files(tmp_path, "relu__default/relu__default_implementation_v1.py", "notes/readme.md")
    assert pairs_of(folder, None) == {"relu__default": ("aten", "relu__default_implementation_v1.py")}


@pytest.mark.parametrize(
    ("names", "other", "sentence"),
    [
        (["x/readme.md"], None, r"has no pairs: a pair is a folder with reference\.py and one of new\.py"),
        (["1_a.py"], ["2_b.py"], r"no file of .* has its pair in .*: give them the same names"),
        ([], None, "is no folder; name two files, or a folder of pairs"),
    ],
)
def test_folders_without_pairs_say_what_is_missing(
    tmp_path: Path, names: list[str], other: list[str] | None, sentence: str
) -> None:
    folder = files(tmp_path / "a", *names)
    new = None if other is None else str(files(tmp_path / "b", *other))
    with pytest.raises(CheckError, match=sentence):
        batch_of(str(folder), new)


def test_shards_are_all_pairs_once() -> None:
    members = [Member(str(i), "", "") for i in range(7)]
    shards = [part(members, f"{i}/3") for i in (1, 2, 3)]
    assert sorted((m for shard in shards for m in shard), key=lambda m: m.name) == members
    with pytest.raises(CheckError, match="write I/N"):
        part(members, "4/3")


def test_only_pairs_that_have_not_changed_are_answered(tmp_path: Path) -> None:
    files(tmp_path, "a.py", "b.py")
    members = [Member(name, str(tmp_path / "a.py"), str(tmp_path / f"{name}.py")) for name in ("a", "b")]
    rows = [json.dumps({"name": m.name, "digest": m.digest}) for m in members]
    (tmp_path / ANSWERS).write_text("\n".join([*rows, '{"name": "b", "dig']))
    assert set(answered(tmp_path, members)) == {"a", "b"}
    (tmp_path / "b.py").write_text("# changed\n")
    assert set(answered(tmp_path, members)) == {"a"}


def test_a_check_without_an_answer_is_not_judged() -> None:
    row = answer_in("nonsense\n[1]\n", "Traceback\nMemoryError\n\n", -9, 1.0)
    assert row["verdict"] == "not-judged"
    assert "exit code -9 and no answer: MemoryError" in row["sentence"]


def rows_of(*codes: int) -> list[dict[str, object]]:
    row = json.loads(not_judged("a \x01 < b").as_json())
    return [{"name": str(i), "new": "n.py", **row, "exit_code": code} for i, code in enumerate(codes)]


def test_the_worst_pair_is_the_exit_code() -> None:
    assert [worst(rows_of(*codes)) for codes in ((), (0, 0), (0, 3), (3, 1, 0), (0, 2))] == [0, 0, 3, 1, 3]


def test_junit_has_a_case_per_pair() -> None:
    suite = Xml.fromstring(junit(rows_of(0, 1, 3)))[0]
    assert suite.attrib | {"name": ""} == {"name": "", "tests": "3", "failures": "1", "errors": "1"}
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["error"]]


def test_options_of_a_batch_are_those_of_each_check() -> None:
    given = {"settings": ("n=4", "m=2"), "dtypes": (), "forward_only": True, "everything": False, "seconds": 9.0}
    words = passed_on({**given, "inputs": None, "out": Path("x")})
    assert words == ["--set", "n=4", "--set", "m=2", "--forward-only", "--seconds", "9.0"]
