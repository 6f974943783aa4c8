"""What the command line keeps of a config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parity.config.case_filter import KeywordError, keyword_matcher
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
        ("NOT bn Or Offset", [0, 2]),
        ("[", []),
        ("", [0, 1, 2]),
    ],
)
def test_keywords(expression: str, kept: list[int]) -> None:
    matches = keyword_matcher(expression, IDS)
    assert [i for i, case_id in enumerate(IDS) if matches(case_id)] == kept


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("bn or", "expected a word at column 6, found the end; for example -k 'offset and"),
        ("bn or  ", "expected a word at column 6, found the end"),
        ("and bn", "expected a word at column 1, found `and`"),
        ("bn (plain", "expected `and`, `or`, or the end at column 4, found `(`"),
        ("(bn or plain", "expected `)` at column 13, found the end"),
        ("bn)", "expected `and`, `or`, or the end at column 3, found `)`"),
        ("offset bn", "expected `and`, `or`, or the end at column 8, found `bn`"),
        ("not", "expected a word at column 4, found the end"),
        ("()", "expected a word at column 2, found `)`"),
        ("__import__('os')", "expected `and`, `or`, or the end at column 11, found `(`"),
        ("(" * 5000, "more than 200 words and operators"),
    ],
)
def test_a_keyword_that_is_no_expression(tmp_path: Path, expression: str, said: str) -> None:
    with pytest.raises(KeywordError, match=re.escape(said)):
        keyword_matcher(expression, IDS)
    assert said in refused(tmp_path, CASES, keyword=expression)


@pytest.mark.parametrize(
    ("expression", "first"), [("ofset", 0), ("plian", 1), ("not bn and sqaure", 2), ("lienar or x", 2), ("ofs", 0)]
)
def test_a_keyword_that_matches_nothing_names_near_ids(tmp_path: Path, expression: str, first: int) -> None:
    message = refused(tmp_path, CASES, keyword=expression)
    assert f'no case matches; did you mean "{IDS[first]}"?\n  allowed: {IDS[first]}, ' in message


def test_a_keyword_like_no_id_names_the_ids_there_are(tmp_path: Path) -> None:
    message = refused(tmp_path, CASES, keyword="xyz")
    assert message == f"command line: -k xyz\n  no case matches\n  allowed: {', '.join(IDS)}"


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


def test_problems_of_the_command_line_and_the_file_are_reported_together(tmp_path: Path) -> None:
    message = refused(tmp_path, f"sed: 1\n{CASES}", backends=("torhc",), dtypes=("float8",), rtol=("x",))
    for part in ("sed", "--backend torhc", "--dtype float8", "--rtol x"):
        assert part in message


def test_the_command_line_may_describe_a_backend(tmp_path):
    plan = load(tmp_path, CASES, backends=("torch", "paddle==3.0.0", "jax:jit"))
    assert [(spec.name, spec.adapter, spec.version, spec.mode) for spec in plan.backends] == [
        ("torch", "torch", None, "eager"),
        ("paddle==3.0.0", "paddle", "3.0.0", "eager"),
        ("jax:jit", "jax", None, "jit"),
    ]
    assert all(case.runs_on("paddle==3.0.0") for case in plan.cases)


def test_a_described_backend_that_is_wrong_is_one_problem(tmp_path):
    told = refused(tmp_path, CASES, backends=("torch:compil",))
    assert 'torch has no mode "compil"; did you mean "compile"?' in told and "has no such backend" not in told
