"""Where parity itself fails at a model that decodes, or a worker ends, what was measured stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.judge.failures import FAILED
from parity.models.decode import run as decoding
from parity.models.decode.judge import Decoding
from parity.models.decode.report import DecodeView
from parity.models.ports import ModelError
from parity.outcome import Outcome
from tests.conftest import call
from tests.models.ports import config_of_cases
from tests.models.test_decode import POSITIONS, SHORT, texts

pytestmark = [pytest.mark.process, pytest.mark.frameworks]

OFFSET = texts()["offset"].replace("(10, 7, 4)", "(3, 1)")
DYING = OFFSET.replace(POSITIONS, f"    if mask.shape[0] > 1:\n        import os; os._exit(3)\n{POSITIONS}")
OPTIONS = {"kind": "decode", "ways": ["step", "batch"]}


def fails(*_: Any, **__: Any) -> Any:
    raise StopIteration("injected")


class Decoded:
    """A run of a right port and a faulty one."""

    def __init__(self, folder: Path, theirs: str = OFFSET) -> None:
        self.config = config_of_cases(folder, {"a_b": (SHORT, theirs, OPTIONS)})
        self.folder = folder / "out"
        self.done = call("run", self.config, "--out", self.folder)

    def rows(self, part: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.folder / "results.json").read_text())[part]
        return rows

    @property
    def verdicts(self) -> dict[tuple[str, str], str]:
        return {(row["actual"], row["tensor"]): row["verdict"] for row in self.rows("comparisons")}

    @property
    def causes(self) -> set[tuple[str, str]]:
        return {(row["backend"], row["id"]) for row in self.rows("diagnoses")}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    found = Decoded(tmp_path_factory.mktemp("right"))
    assert found.done.returncode == 1
    assert ("theirs", "decode-position") in found.causes
    return found


def failed_once(own: Callable[..., Any], port: str, *at: Any) -> Callable[..., Any]:
    """A method of Decoding that fails for one port, with these operands if any are given."""

    def method(self: Decoding, *operands: Any) -> Any:
        return fails() if self.port.name == port and operands[: len(at)] == at else own(self, *operands)

    return method


@pytest.mark.parametrize("name", ["_explain", "_sees", "diagnoses"])
def test_an_explainer_that_fails_costs_no_verdict(
    name: str, right: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Decoding, name, failed_once(getattr(Decoding, name), "theirs"))
    if name == "_sees":
        monkeypatch.setattr("parity.models.decode.judge.position", lambda _origin: None)
    found = Decoded(tmp_path)
    assert found.done.returncode == 1
    assert right.verdicts.items() <= found.verdicts.items()
    assert ("theirs", FAILED) in found.causes
    assert "StopIteration: injected" in (found.folder / "log.txt").read_text()
    assert "Traceback" not in found.done.stdout + found.done.stderr
    assert "parity failed" in call("explain", found.folder, "a_b", "-v").stdout


@pytest.mark.parametrize(("name", "at", "lost"), [("_way", ("step",), "step."), ("_across", ("port",), "port.")])
def test_a_way_that_cannot_be_measured_costs_that_way(
    name: str, at: tuple[str], lost: str, right: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Decoding, name, failed_once(getattr(Decoding, name), "theirs", *at))
    found = Decoded(tmp_path)
    missing = {key for key in right.verdicts if key[0] == "theirs" and key[1].startswith(lost)}
    assert missing
    assert found.done.returncode == (3 if lost == "step." else 1)
    assert found.verdicts == {**right.verdicts, **dict.fromkeys(missing, "not-compared")}
    assert ("theirs", FAILED) in found.causes
    assert {row["outcome"] for row in found.rows("outcomes")} == {"ok"}
    assert "Traceback" not in found.done.stdout + found.done.stderr


@pytest.mark.parametrize(("name", "who"), [("mapped", {"theirs"}), ("Decoding", {"ours", "theirs"})])
def test_a_port_that_cannot_be_prepared_costs_that_port(
    name: str, who: set[str], right: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decoding, name, fails)
    found = Decoded(tmp_path)
    assert found.done.returncode == 3
    assert {backend for backend, cause in found.causes if cause == FAILED} == who
    assert all(row["outcome"] == "ok" for row in found.rows("outcomes"))
    assert {key for key, verdict in found.verdicts.items() if verdict == "not-compared"} == {(n, "output") for n in who}
    assert "parity failed here, preparing" in found.rows("comparisons")[-1]["message"]
    assert "Traceback" not in found.done.stdout + found.done.stderr


def test_a_worker_that_ends_in_a_way_costs_what_follows(right: Decoded, tmp_path: Path):
    found = Decoded(tmp_path, DYING)
    assert found.verdicts == {
        **{key: verdict for key, verdict in right.verdicts.items() if key[0] == "ours" or "batch" not in key[1]},
        ("theirs", "output"): "not-compared",
    }
    assert [row["outcome"] for row in found.rows("outcomes")] == ["ok", "crash"]
    assert found.causes == {("theirs", "decode-position")}
    assert "Traceback" not in found.done.stdout + found.done.stderr


def test_a_worker_that_ends_in_a_search_costs_no_verdict_so_far(
    right: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def ends(self: Decoding, *_: Any) -> None:
        self.port._worker.process.kill()  # type: ignore[union-attr]
        raise ModelError("killed", Outcome.CRASH)

    monkeypatch.setattr(Decoding, "_explain", ends)
    found = Decoded(tmp_path)
    kept = {key: verdict for key, verdict in right.verdicts.items() if "batch" not in key[1] or key[0] == "ours"}
    assert found.verdicts == {**kept, ("theirs", "output"): "not-compared"}
    assert found.causes == {("theirs", "unexplained")}
    assert "the search for the origin of the difference" in found.rows("outcomes")[1]["message"]


def test_an_interrupt_keeps_the_ports_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(self: Decoding, *operands: Any, way: Callable[..., Any]) -> Any:
        if self.port.name == "theirs":
            raise KeyboardInterrupt
        return way(self, *operands)

    with monkeypatch.context() as patch:
        way = Decoding._way
        patch.setattr(Decoding, "_way", lambda self, *operands: interrupted(self, *operands, way=way))
        found = Decoded(tmp_path)
    assert found.done.returncode == 130
    assert [row["backend"] for row in found.rows("outcomes")] == ["ours"]
    assert {actual for actual, _ in found.verdicts} == {"ours"}
    again = call("run", found.config, "--out", found.folder, "--resume")
    assert again.returncode == 1
    assert {actual for actual, _ in found.verdicts} == {"ours", "theirs"}


def test_the_answer_says_what_was_not_compared():
    row = SimpleNamespace(
        tensor="output", message="parity failed here", fails=False, compared=False, largest_ratio=0.0, max_abs_diff=None, envelope=None
    )  # fmt: skip
    cause = SimpleNamespace(evidence={"parity_failed": []})
    view = partial(DecodeView, SimpleNamespace(), "float32", "mine")([row], [cause], None)  # type: ignore[arg-type,list-item]
    assert view.answer() == ["output: parity failed here"]
    assert view.table() == [("output", *["-"] * 6)]
