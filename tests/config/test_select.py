"""What the command line keeps of a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.config.case_filter import keyword_matcher
from tests.configs.loading import load, refused

CASES = """cases:
  - {id: bn-offset-mean=100, op: batch_norm, dtypes: [float32], inputs: {x: {shape: [2, 4]}}}
  - {id: BN plain, op: batch_norm, dtypes: [float64], inputs: {x: {shape: [2, 4]}}}
  - {id: "linear (square)", op: linear, params: {out_features: 4}, inputs: {x: {shape: [4, 4]}}}
"""
IDS = ("bn-offset-mean=100", "BN plain", "linear (square)")


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("bn", [0, 1]),
        ("BN", [0, 1]),
        ("bn and not offset", [1]),
        ("offset or square", [0, 2]),
        ("not bn", [2]),
        ("not (bn and plain) and (mean=100 or linear)", [0, 2]),
        ("not not bn", [0, 1]),
        ("mean=100", [0]),
        ("bn-off", [0]),
        ("bn plain", [1]),
        ("linear (square)", [2]),
        ("(square)", [2]),
        ("bn or", []),
        ("__import__('os')", []),
        ("[", []),
        ("", [0, 1, 2]),
        ("(" * 5000, []),
    ],
)
def test_keywords(expression: str, kept: list[int]) -> None:
    matches = keyword_matcher(expression)
    assert [i for i, case_id in enumerate(IDS) if matches(case_id)] == kept


def test_keyword(tmp_path: Path) -> None:
    assert [case.id for case in load(tmp_path, CASES, keyword="offset or square").cases] == [IDS[0], IDS[2]]


def test_a_keyword_that_matches_nothing(tmp_path: Path) -> None:
    message = refused(tmp_path, CASES, keyword="bn-ofset-mean=100")
    assert message.startswith("command line: -k bn-ofset-mean=100\n  no case matches; did you mean")
    assert f"allowed: {', '.join(IDS)}" in message


def test_dtypes(tmp_path: Path) -> None:
    plan = load(tmp_path, CASES, dtypes=("float64",))
    assert [(case.id, case.dtypes) for case in plan.cases] == [(IDS[1], ("float64",)), (IDS[2], ("float64",))]


def test_dtypes_that_leave_nothing(tmp_path: Path) -> None:
    message = refused(tmp_path, CASES, dtypes=("float16",))
    assert message == "command line: --dtype float16\n  no case has this dtype\n  allowed: float32, float64"


def test_an_unknown_dtype(tmp_path: Path) -> None:
    assert 'did you mean "float32"?' in refused(tmp_path, CASES, dtypes=("flaot32",))


def test_backends(tmp_path: Path) -> None:
    plan = load(tmp_path, CASES, backends=("oneflow", "paddle"))
    assert [spec.name for spec in plan.backends] == ["paddle", "oneflow"]
    assert plan.baseline == "paddle"


def test_a_stated_baseline_that_is_not_kept_becomes_the_oracle(tmp_path: Path) -> None:
    assert load(tmp_path, f"baseline: torch\n{CASES}", backends=("paddle",)).baseline == "oracle"
    assert load(tmp_path, f"baseline: paddle\n{CASES}", backends=("paddle", "torch")).baseline == "paddle"


def test_an_unknown_backend(tmp_path: Path) -> None:
    message = refused(tmp_path, CASES, backends=("pytorch", "paddle"))
    assert "--backend pytorch" in message
    assert 'did you mean "torch"?\n  allowed: torch, paddle, oneflow' in message


def test_baseline(tmp_path: Path) -> None:
    assert load(tmp_path, f"baseline: torch\n{CASES}", baseline="oneflow").baseline == "oneflow"
    assert load(tmp_path, CASES, baseline="oracle").baseline == "oracle"
    assert "--baseline torch" in refused(tmp_path, CASES, baseline="torch", backends=("paddle",))


def test_the_command_line_and_the_file_are_told_together(tmp_path: Path) -> None:
    message = refused(tmp_path, f"sed: 1\n{CASES}", backends=("torhc",), dtypes=("float8",), rtol=("x",))
    for part in ("sed", "--backend torhc", "--dtype float8", "--rtol x"):
        assert part in message
