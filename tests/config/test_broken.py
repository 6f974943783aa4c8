"""One file per broken situation; what is said about it stands beside it. PARITY_UPDATE_SNAPSHOTS=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from parity.config import ConfigError, load_plan
from tests.configs.loading import CONFIGS, HEAD

BROKEN = CONFIGS / "broken"
NAMES = sorted(path.stem for path in BROKEN.glob("*.yaml"))


@pytest.fixture(autouse=True)
def same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and the machine's memory are part of some messages."""
    monkeypatch.chdir(BROKEN)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 2**30))


@pytest.mark.parametrize("name", NAMES)
def test_message(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan([Path(f"{name}.yaml")])
    snapshot = BROKEN / f"{name}.txt"
    if os.environ.get("PARITY_UPDATE_SNAPSHOTS"):
        snapshot.write_text(f"{caught.value}\n", encoding="utf-8")
    assert f"{caught.value}\n" == snapshot.read_text(encoding="utf-8")


def test_every_snapshot_has_its_config() -> None:
    assert sorted(path.stem for path in BROKEN.glob("*.txt")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_problems_name_their_location(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan([Path(f"{name}.yaml")])
    for problem in caught.value.problems:
        n_lines = len(Path(problem.file).read_bytes().splitlines())
        assert 0 <= problem.line <= n_lines + 1
        assert problem.message
        assert problem.hint is None or problem.hint in problem.allowed


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such\.yaml\n  cannot be read: No such file or directory"):
        load_plan([tmp_path / "no-such.yaml"])


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is a directory"):
        load_plan([tmp_path])


def test_strange_path() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan([Path("a\0b")])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan([Path("a" * 5000)])


def test_unreadable_file() -> None:
    # Even root gets an error here: nothing is mapped at the address 0.
    with pytest.raises(ConfigError, match="cannot be read: Input/output error"):
        load_plan([Path("/proc/self/mem")])


def test_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(ConfigError, match="larger than 10 MiB"):
        load_plan([path])


def test_no_file_at_all() -> None:
    with pytest.raises(ConfigError, match="no config file is named"):
        load_plan([])


def test_problems_of_all_files_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan([Path("seed-text.yaml"), Path("no-such.yaml"), Path("op-unknown.yaml")])
    assert [p.file for p in caught.value.problems] == ["seed-text.yaml", "no-such.yaml", "op-unknown.yaml"]


def test_many_problems_are_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(HEAD + "cases:\n" + "  - {op: layernorm}\n" * 150)
    with pytest.raises(ConfigError) as caught:
        load_plan([path])
    assert len(caught.value.problems) == 150
    assert str(caught.value).endswith("... and 50 more problems")
