"""Accepted deviations: what an entry accepts, and when it fails itself."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from msgspec import structs, to_builtins

from parity.config.plan import Asked, BackendSpec, KnownDeviation, Plan, WrittenAt
from parity.diagnoses import catalogue
from parity.judge.compare.verdict import ErrorRatios, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.known import EntryState, apply
from parity.reporting.results.record import known_row
from parity.reporting.results.results import read_results
from parity.reporting.text.answer import known_lines
from parity.reporting.text.reasons import case_rows, known_entries
from tests.configs.loading import load, refused
from tests.conftest import FAKES, user_config
from tests.reporting.stored_runs import CASE, diagnosis, finding, stored

TODAY = datetime.date(2027, 1, 31)
YESTERDAY, TOMORROW = TODAY - datetime.timedelta(1), TODAY + datetime.timedelta(1)
CASES = (("bn-0", ("float32", "float64")), ("bn-1", ("float32",)))
SIDES = ("torch", "paddle", "oneflow")


def entry(case="bn-0", **keys):
    return KnownDeviation(case, keys.pop("reason", "because"), source=WrittenAt("x.yaml", 7), **keys)


def plan(*known, asked=None):
    everything = Asked(CASES, SIDES)
    backends = tuple(BackendSpec(name, name) for name in SIDES)
    return Plan("x", (), backends, "torch", 0, (), known, asked or everything)


def compared(changed=(), cases=CASES, backends=SIDES):
    """Every cell with two tensors, all sides against torch and the oracle; `changed` are put in place of their like."""
    found = {}
    for case, dtypes in cases:
        for dtype in dtypes:
            for tensor in ("y", "grad.weight"):
                pairs = [(b, "oracle") for b in backends] + [(b, "torch") for b in backends if b != "torch"]
                for actual, expected in pairs:
                    c = comparison_of(case, dtype, tensor, actual, expected, Verdict.CLOSE, 0.0, 0.0)
                    found[key(c)] = c
    found |= {key(c): c for c in changed}
    return list(found.values())


def key(c):
    return (c.case, c.dtype, c.tensor, c.actual, c.expected)


def off(
    *culprit,
    case="bn-0",
    dtype="float32",
    tensor="y",
    actual="oneflow",
    expected="torch",
    verdict=Verdict.UNSTABLE,
    ratio=100.0,
    **more,
):
    ratios = ErrorRatios(*(ratio if side in culprit else 0.5 for side in (actual, expected)))
    return comparison_of(
        case, dtype, tensor, actual, expected, verdict, 0.0, 0.0, culprit=culprit, error_ratio=ratios, **more
    )


def cause(name, backend="oneflow", tensors=("y",), case="bn-0", dtype="float32"):
    return Diagnosis(case, dtype, backend, name, "", tuple(tensors), True)


def judged(known, changed, diagnoses=(), **more):
    """The reasons that the changed comparisons were accepted for, the states of the entries, and the result."""
    known = known if isinstance(known, tuple) else (known,)
    result = apply(plan(*known), compared(changed), diagnoses, TODAY, **more)
    by_key = {key(c): c for c in result.comparisons}
    return [by_key[key(c)].known for c in changed], [e.state for e in result.entries], result


def test_a_plan_without_known_entries_changes_nothing():
    found = compared([off("oneflow")])
    result = apply(plan(), found, (), TODAY)
    assert result.comparisons == tuple(found)
    assert not result.entries
    assert not result.fails


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"case": "bn*"},
        {"case": "bn-[0-9]"},
        {"backend": "oneflow"},
        {"dtype": "float32"},
        {"tensor": "y"},
        {"tensor": "?"},
        {"until": TODAY},
        {"error_ratio": 100.0},
        {"diagnosis": "variance-naive"},
        {"diagnosis": "variance-naive", "backend": "oneflow"},
    ],
)
def test_an_entry_accepts_what_it_speaks_of(keys):
    reasons, states, result = judged(entry(**keys), [off("oneflow")], [cause("variance-naive")])
    assert (reasons, states) == (["because"], [EntryState.MATCHED])
    assert result.entries[0].n_matched == 1
    assert result.entries[0].worst_ratio == 100.0
    assert not result.fails
    assert sum(c.known is not None for c in result.comparisons) == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"case": "bn-1"},
        {"case": "BN-0"},
        {"backend": "torch"},
        {"backend": "paddle"},
        {"dtype": "float64"},
        {"tensor": "grad.*"},
        {"diagnosis": "running-var-ddof"},
        {"diagnosis": "variance-naive", "backend": "torch"},
    ],
)
def test_an_entry_accepts_nothing_else_and_is_stale(keys):
    reasons, states, result = judged(entry(**keys), [off("oneflow")], [cause("variance-naive")])
    assert (reasons, states) == ([None], [EntryState.STALE])
    assert result.fails
    assert "x.yaml:7: stale: " in result.entries[0].message
    assert "remove the entry" in result.entries[0].message


def test_a_diagnosis_must_be_of_this_tensor_this_case_and_this_dtype():
    for other in (cause("scaled", tensors=("grad.x",)), cause("scaled", case="bn-1"), cause("scaled", dtype="float64")):
        assert judged(entry(diagnosis="scaled"), [off("oneflow")], [other])[1] == [EntryState.STALE]


def test_a_case_id_with_brackets_is_meant_by_itself():
    cases = (("x[1]", ("float32",)),)
    found = compared([off("oneflow", case="x[1]")], cases)
    result = apply(plan(entry("x[1]"), asked=Asked(cases, SIDES)), found, (), TODAY)
    assert [c.case for c in result.comparisons if c.known] == ["x[1]"]


def test_both_culprits_have_to_be_covered():
    both = off("oneflow", "torch")
    one, other = entry(backend="oneflow", reason="first"), entry(backend="torch", reason="second")
    assert judged(one, [both])[:2] == ([None], [EntryState.MATCHED])
    assert judged((one, other), [both])[:2] == (["first; second"], [EntryState.MATCHED] * 2)
    assert judged(entry(), [both])[0] == ["because"]


def test_a_diagnosis_covers_only_the_backend_that_has_it():
    both = off("oneflow", "torch")
    assert judged(entry(diagnosis="scaled"), [both], [cause("scaled")])[0] == [None]
    assert judged(entry(diagnosis="scaled"), [both], [cause("scaled"), cause("scaled", "torch")])[0] == ["because"]


def test_every_cause_of_a_tensor_has_to_be_accepted():
    causes = [cause("scaled"), cause("shifted")]
    one, other = entry(diagnosis="scaled", reason="first"), entry(diagnosis="shifted", reason="second")
    assert judged(one, [off("oneflow")], causes)[0] == [None]
    assert judged((one, other), [off("oneflow")], causes)[0] == ["first; second"]
    assert judged(entry(), [off("oneflow")], causes)[0] == ["because"]


def test_of_indistinguishable_causes_one_is_enough():
    causes = [cause("not-identifiable"), cause("scaled")]
    assert judged(entry(diagnosis="scaled"), [off("oneflow")], causes)[0] == ["because"]
    assert judged(entry(diagnosis="not-identifiable"), [off("oneflow")], causes)[0] == ["because"]


@pytest.mark.parametrize("verdict", [Verdict.ROUNDING, Verdict.NONFINITE, Verdict.STRUCTURE])
@pytest.mark.parametrize(("backend", "accepted"), [(None, True), ("oneflow", True), ("torch", True), ("paddle", False)])
def test_without_a_culprit_an_entry_may_name_either_backend(verdict, backend, accepted):
    reasons, _, _ = judged(entry(backend=backend), [off(verdict=verdict)])
    assert reasons == (["because"] if accepted else [None])


def test_the_nan_of_one_backend_is_not_accepted_in_the_name_of_another():
    assert judged(entry(backend="torch"), [off("oneflow", verdict=Verdict.NONFINITE)])[0] == [None]


def test_a_pass_that_hides_a_culprit_can_be_accepted_and_keeps_its_entry_alive():
    hidden = off("oneflow", verdict=Verdict.CLOSE, suspect=True)
    assert judged(entry(), [hidden])[:2] == (["because"], [EntryState.MATCHED])


def test_a_vacuous_pass_does_not_keep_an_entry_alive():
    vacuous = off(verdict=Verdict.CLOSE, suspect=True)
    assert judged(entry(), [vacuous])[:2] == ([None], [EntryState.STALE])
    known = entry(diagnosis="degenerate-gradient")
    assert judged(known, [vacuous], [cause("degenerate-gradient")])[1] == [EntryState.MATCHED]


def test_an_expired_entry_accepts_nothing_and_fails():
    reasons, states, result = judged(entry(until=YESTERDAY), [off("oneflow")])
    assert (reasons, states) == ([None], [EntryState.EXPIRED])
    assert "expired: on 2027-01-30, with 1 comparison still deviating" in result.entries[0].message
    _, states, result = judged(entry(until=YESTERDAY), [])
    assert states == [EntryState.EXPIRED]
    assert "remove the entry" in result.entries[0].message
    assert judged(entry(until=TOMORROW), [off("oneflow")])[1] == [EntryState.MATCHED]


def test_worse_than_recorded_fails():
    small, large = off("oneflow", ratio=40.0), off("oneflow", expected="oracle", ratio=400.0)
    reasons, states, result = judged(entry(error_ratio=50.0), [small, large])
    assert (reasons, states) == ([None, None], [EntryState.WORSE])
    assert "error ratio 400 in 2 comparisons, more than the recorded 50" in result.entries[0].message
    assert judged(entry(error_ratio=400.0), [small, large])[1] == [EntryState.MATCHED]


@pytest.mark.parametrize("ratio", [float("inf"), float("nan")])
def test_no_number_is_beyond_any_recorded_size(ratio):
    assert judged(entry(error_ratio=1e9), [off("oneflow", verdict=Verdict.NONFINITE, ratio=ratio)])[1] == [
        EntryState.WORSE
    ]


def test_the_other_backends_ratio_does_not_count():
    c = structs.replace(off("oneflow", "torch"), error_ratio=ErrorRatios(10.0, 1e6))
    assert judged(entry(backend="oneflow", error_ratio=20.0), [c])[1] == [EntryState.MATCHED]


def state_of(known, asked=None, **run):
    return apply(plan(known, asked=asked), compared(**run), (), TODAY).entries[0]


def test_an_entry_waits_for_no_backend_that_a_case_is_not_for():
    two = Asked(CASES, SIDES, narrower={"bn-1": ("torch", "oneflow")})
    ran = {"cases": (CASES[1],), "backends": ("torch", "oneflow")}
    assert state_of(entry("bn-1"), asked=two, **ran).state is EntryState.STALE
    assert state_of(entry("bn-1"), **ran).state is EntryState.NOT_CHECKED
    assert state_of(entry("bn-1", backend="paddle"), asked=two, **ran).state is EntryState.NOT_CHECKED


def test_what_was_not_run_is_not_checked():
    assert state_of(entry("bn-1"), cases=CASES[:1]).state is EntryState.NOT_CHECKED
    assert state_of(entry("bn-*"), cases=CASES[:1]).state is EntryState.NOT_CHECKED
    assert state_of(entry(dtype="float64"), cases=(("bn-0", ("float32",)),)).state is EntryState.NOT_CHECKED
    assert state_of(entry(), cases=(("bn-0", ("float32",)),)).state is EntryState.NOT_CHECKED
    found = state_of(entry(backend="oneflow"), backends=("torch", "paddle"))
    assert found.state is EntryState.NOT_CHECKED
    assert "did not compare oneflow in 2 of 2 cells" in found.message
    assert state_of(entry(), backends=("torch", "paddle")).state is EntryState.NOT_CHECKED


def test_what_was_run_is_checked_whatever_else_was_not():
    assert state_of(entry("bn-0"), cases=CASES[:1]).state is EntryState.STALE
    assert state_of(entry(dtype="float32"), cases=(("bn-0", ("float32",)),)).state is EntryState.STALE
    assert state_of(entry(backend="paddle"), backends=("torch", "paddle")).state is EntryState.STALE


def test_an_unsupported_cell_can_show_nothing():
    run = [c for c in compared() if "oneflow" not in (c.actual, c.expected) or c.dtype == "float32"]
    known = entry(backend="oneflow")
    assert apply(plan(known), run, (), TODAY).entries[0].state is EntryState.NOT_CHECKED
    unsupported = {("bn-0", "float64", "oneflow")}
    assert apply(plan(known), run, (), TODAY, unsupported).entries[0].state is EntryState.STALE


def test_a_comparison_that_could_not_be_made_is_no_answer():
    run = [structs.replace(c, verdict=Verdict.NOT_COMPARED) if c.actual == "oneflow" else c for c in compared()]
    assert apply(plan(entry(backend="oneflow")), run, (), TODAY).entries[0].state is EntryState.NOT_CHECKED


def test_an_expired_entry_of_what_was_not_run_waits():
    assert state_of(entry("bn-1", until=YESTERDAY), cases=CASES[:1]).state is EntryState.NOT_CHECKED
    assert state_of(entry("bn-*", until=YESTERDAY), cases=CASES[:1]).state is EntryState.EXPIRED


def test_other_tolerances_than_the_configs_make_nothing_stale():
    found = state_of(entry(), asked=Asked(CASES, SIDES, altered=True))
    assert found.state is EntryState.NOT_CHECKED
    assert "other tolerances or another baseline" in found.message


def test_a_glob_that_matches_no_case_is_reported():
    assert "no case matches ln-*" in state_of(entry("ln-*")).message
    assert "no case matching bn-1 runs in float64" in state_of(entry("bn-1", dtype="float64")).message
    assert state_of(entry("ln-*")).state is EntryState.STALE


def test_states_have_no_truth_value():
    with pytest.raises(TypeError, match="truth value"):
        bool(EntryState.STALE)


def test_rows_and_lines():
    known = (entry(until=TOMORROW, diagnosis="scaled", error_ratio=3.0), entry("bn-1", reason="[red]x"))
    _, _, result = judged(known, [off("oneflow", case="bn-1")])
    rows = [known_row(e) for e in result.entries]
    assert to_builtins(rows[0]) == {
        "case": "bn-0", "backend": None, "dtype": None, "tensor": None, "diagnosis": "scaled", "error_ratio": 3.0,
        "outcome": None,
        "until": "2027-02-01", "reason": "because", "source": {"file": "x.yaml", "line": 7}, "state": "stale",
        "n_matched": 0, "worst_ratio": None, "message": result.entries[0].message,
    }  # fmt: skip
    lines = [line.plain for line in known_lines(rows[::-1])]
    assert lines[0].startswith("known: x.yaml:7: stale: ")
    assert lines[1] == "known: bn-1: [red]x"


# What a backend cannot compute


def without(*absent, case="bn-0", dtype="float32"):
    """Every comparison; those of a cell in which these backends gave no result could not be made."""
    here = (case, dtype)
    return [
        structs.replace(c, verdict=Verdict.NOT_COMPARED)
        if (c.case, c.dtype) == here and not {c.actual, c.expected}.isdisjoint(absent)
        else c
        for c in compared()
    ]


def unsupported(*backends, case="bn-0", dtype="float32"):
    return frozenset((case, dtype, name) for name in backends)


def cannot(**keys):
    return entry(unsupported=True, **keys)


def held(known, absent=("paddle",), cannot_compute=None, asked=None, found=None):
    known = known if isinstance(known, tuple) else (known,)
    missing = unsupported(*(absent if cannot_compute is None else cannot_compute))
    return apply(plan(*known, asked=asked), found or without(*absent), (), TODAY, missing)


def accepted_pairs(result):
    """The sides of the comparisons of y that are accepted, and of those that could not be made and are not."""
    rows = [c for c in result.comparisons if c.tensor == "y"]
    left = {(c.actual, c.expected) for c in rows if c.verdict is Verdict.NOT_COMPARED and c.known is None}
    return {(c.actual, c.expected) for c in rows if c.known is not None}, left


@pytest.mark.parametrize("keys", [{}, {"backend": "paddle"}, {"dtype": "float32"}, {"case": "b*"}, {"until": TODAY}])
def test_what_is_unsupported_can_be_accepted(keys):
    result = held(cannot(**keys))
    assert accepted_pairs(result) == ({("paddle", "oracle"), ("paddle", "torch")}, set())
    assert {c.known for c in result.comparisons} == {None, "because"}
    (found,) = result.entries
    assert (found.state, found.n_matched, found.worst_ratio) == (EntryState.MATCHED, 4, None)
    assert found.message == "x.yaml:7: matched: 4 comparisons that cannot be made: because"
    assert known_row(found).outcome == "unsupported"


def test_a_baseline_that_cannot_compute_a_cell_is_accepted_for_all_that_wanted_it():
    result = held(cannot(backend="torch"), absent=("torch",))
    assert accepted_pairs(result) == ({("torch", "oracle"), ("paddle", "torch"), ("oneflow", "torch")}, set())


def test_both_absent_backends_have_to_be_accepted():
    absent = ("torch", "paddle")
    one = held(cannot(backend="paddle"), absent)
    assert accepted_pairs(one) == (
        {("paddle", "oracle")}, {("torch", "oracle"), ("paddle", "torch"), ("oneflow", "torch")}
    )  # fmt: skip
    both = held((cannot(backend="paddle"), cannot(backend="torch", reason="too")), absent)
    assert accepted_pairs(both)[1] == set()
    assert {c.known for c in both.comparisons if (c.actual, c.expected) == ("paddle", "torch")} >= {"because; too"}
    assert not both.fails


def test_no_other_outcome_is_accepted():
    crashed = held(cannot(backend="paddle"), cannot_compute=())
    assert accepted_pairs(crashed) == (set(), {("paddle", "oracle"), ("paddle", "torch")})
    assert crashed.entries[0].state is EntryState.NOT_CHECKED
    beside = held(cannot(), absent=("torch", "paddle"), cannot_compute=("paddle",))
    assert accepted_pairs(beside)[0] == {("paddle", "oracle")}


def test_an_entry_for_unsupported_accepts_no_difference_and_the_reverse():
    found = [c for c in without("paddle") if key(c) != key(off("oneflow"))] + [off("oneflow")]
    result = held(cannot(), found=found)
    assert [c.known for c in result.comparisons if c.verdict is Verdict.UNSTABLE] == [None]
    result = held(entry(backend="paddle", dtype="float32"))
    assert accepted_pairs(result)[0] == set()
    assert result.entries[0].state is EntryState.STALE
    assert "use `outcome: unsupported`" in result.entries[0].message


@pytest.mark.parametrize("altered", [False, True])
def test_an_entry_is_stale_once_the_backend_can_compute_it(altered):
    result = held(cannot(backend="paddle"), absent=(), asked=Asked(CASES, SIDES, altered=altered))
    assert result.entries[0].state is EntryState.STALE
    assert "everything it covers is supported; remove the entry" in result.entries[0].message


def test_an_expired_entry_for_unsupported_fails():
    result = held(cannot(backend="paddle", until=YESTERDAY))
    assert accepted_pairs(result)[0] == set()
    assert result.entries[0].state is EntryState.EXPIRED
    assert "with 4 comparisons still unsupported" in result.entries[0].message
    result = held(cannot(backend="paddle", until=YESTERDAY), absent=())
    assert "nothing it covers is unsupported any more" in result.entries[0].message


def test_an_entry_for_unsupported_that_a_filter_leaves_out_is_not_checked():
    assert (
        held(cannot(backend="paddle"), found=compared(backends=("torch",))).entries[0].state is EntryState.NOT_CHECKED
    )
    assert (
        held(cannot(case="bn-1"), absent=(), found=compared(cases=CASES[:1])).entries[0].state is EntryState.NOT_CHECKED
    )


# From the config to the exit code

LACKS = """from parity.adapters.base import Unsupported

def layer_norm(x, weight, bias, normalized_shape, eps):
    if x.shape[-1] == 6:
        raise Unsupported("no such kernel")
    d = x - x.mean(-1, keepdims=True)
    return d / ((d * d).mean(-1, keepdims=True) + eps) ** 0.5 * weight + bias
"""
ACCEPTED = "known:\n  - {case: o*, backend: mine, outcome: unsupported, reason: no such kernel}\n"


@pytest.fixture
def lacking(tmp_path):
    """The backend `mine` has no kernel for the case `one`."""
    (tmp_path / "ops.py").write_text(LACKS)
    return user_config(tmp_path / "ops.py", cases=[ONE, ONE.replace("one", "two").replace("6", "7")])


def test_a_run_passes_whose_unsupported_cells_are_accepted(parity_run, lacking):
    assert parity_run(lacking).code == 3
    finished = parity_run(lacking + ACCEPTED)
    assert finished.code == 0
    assert finished.results["known"][0]["state"] == "matched"
    assert finished.results["summary"]["cells"] == {"known": 2, "passed": 6}
    assert "6 tensors of 2 cases" not in finished.stdout
    assert "no findings; 2 tensors agree; 2 lack the result of some backend, as known" in finished.stdout
    baseline = parity_run(lacking + ACCEPTED, "--baseline", "mine")
    assert (baseline.code, baseline.results["summary"]["cells"]) == (0, {"known": 2, "passed": 6})


def test_a_run_that_compares_nothing_does_not_pass_whatever_is_accepted(parity_run, lacking):
    finished = parity_run(lacking + ACCEPTED, "-k", "one", "-b", "mine")
    assert "INCOMPLETE  no findings, but 2 tensors lack the result of a backend" in finished.stdout
    assert {row["known"] for row in finished.results["comparisons"]} == {"no such kernel"}
    assert finished.code == 3


def test_an_entry_for_what_is_supported_fails_the_run(parity_run, lacking):
    finished = parity_run(lacking + ACCEPTED.replace("o*", "two"))
    assert (finished.code, finished.results["known"][0]["state"]) == (1, "stale")


OPS = "def layer_norm(x, weight, bias, normalized_shape, eps):\n    d = x - x.mean(-1, keepdims=True)\n    return 1.5 * (d / ((d * d).mean(-1, keepdims=True) + eps) ** 0.5 * weight + bias)\n"
ONE = "{id: one, op: layer_norm, gradients: false, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}"


@pytest.fixture
def scaled(tmp_path):
    (tmp_path / "ops.py").write_text(OPS)
    return user_config(tmp_path / "ops.py", cases=[ONE])


def test_an_accepted_deviation_passes_and_is_written_down(parity_run, scaled):
    finished = parity_run(f"{scaled}known:\n  - {{case: o*, backend: mine, reason: as agreed}}\n")
    assert finished.code == 0
    assert {row["known"] for row in finished.failing()} == {"as agreed"}
    (row,) = finished.results["known"]
    assert (row["state"], row["n_matched"], row["source"]["line"]) == ("matched", 4, 6)
    assert parity_run(scaled).code == 1


@pytest.mark.parametrize("keys", ["until: 2020-01-01", "error_ratio: 1.5", "tensor: nothing", "dtype: float16"])
def test_a_failing_entry_fails_the_run(parity_run, scaled, keys):
    finished = parity_run(f"{scaled}known:\n  - {{case: one, reason: r, {keys}}}\n")
    assert finished.code == 1
    assert finished.results["known"][0]["state"] in ("expired", "worse", "stale")


def test_an_entry_that_a_filter_leaves_out_is_not_checked(parity_run, scaled):
    finished = parity_run(f"{scaled}known:\n  - {{case: one, reason: r, backend: mine}}\n", "-b", "numpy")
    assert finished.code == 0
    assert finished.results["known"][0]["state"] == "not-checked"


def test_tensors_without_a_finite_exact_value_can_be_accepted(parity_run):
    case = "{id: one, op: clip_grad_norm, params: {max_norm: 1}, inputs: {grads: [{values: [.nan, 1]}]}}"
    other = "{op: clip_grad_norm, params: {max_norm: 1}, inputs: {grads: [{values: [3, 1]}]}}"
    config = user_config(FAKES / "honest.py", cases=[case, other])
    assert parity_run(config, "-b", "numpy").code == 3
    accepted = f"{config}known:\n  - {{case: one, reason: a NaN makes all of them NaN}}\n"
    finished = parity_run(accepted, "-b", "numpy")
    assert finished.code == 0
    assert finished.results["known"][0]["state"] == "matched"


def test_the_level_at_which_a_run_fails(parity_run, scaled):
    semantic = parity_run(scaled, "--fail-on", "semantic")
    assert {row["verdict"] for row in semantic.failing()} == {"semantic"}
    assert semantic.code == 1
    strict = f"{user_config(FAKES / 'honest.py', cases=[ONE])}tolerance: {{float32: {{rtol: 0, atol: 0}}, float64: {{rtol: 0, atol: 0}}}}\n"
    rounding = parity_run(strict, "-b", "numpy")
    assert {row["verdict"] for row in rounding.failing()} == {"rounding"}
    assert rounding.code == 0
    assert parity_run(strict, "-b", "numpy", "--fail-on", "mismatch").code == 1


# What the config says


TEXT = "cases:\n  - {id: a, op: linear, params: {out_features: 2}, inputs: {x: {shape: [2, 4]}}}\n  - {id: b, op: linear, params: {out_features: 3}, inputs: {x: {shape: [2, 4]}}}\n"


def test_keys(tmp_path):
    text = (
        TEXT + "known:\n  - {case: a, reason: r, dtype: float32, error_ratio: 20, backend: paddle, diagnosis: scaled}\n"
    )
    (known,) = load(tmp_path, text).known
    assert (known.dtype, known.error_ratio, known.backend, known.diagnosis) == ("float32", 20.0, "paddle", "scaled")


def test_the_catalogue_is_read_only_where_an_entry_names_a_diagnosis(tmp_path):
    catalogue.cache_clear()
    load(tmp_path, TEXT)
    assert not catalogue.cache_info().misses
    load(tmp_path, TEXT + "known:\n  - {case: a, reason: r, diagnosis: scaled}\n")
    assert catalogue.cache_info().misses == 1


def test_an_entry_for_unsupported(tmp_path):
    (known,) = load(tmp_path, TEXT + "known:\n  - {case: a, reason: r, outcome: unsupported}\n").known
    assert known.unsupported
    assert not load(tmp_path, TEXT + "known:\n  - {case: a, reason: r}\n").known[0].unsupported


def test_the_entries_that_are_offered_want_a_reason(tmp_path):
    stored(tmp_path / "run", finding(), [diagnosis()])
    results = read_results(tmp_path / "run")
    (offered,) = known_entries(case_rows(results)[results.cases[0].id])
    text = TEXT + "known:\n  " + offered.replace(CASE, "a")
    assert "a known deviation needs a reason: say why it is accepted" in refused(tmp_path, text)
    assert load(tmp_path, text.replace("WHY IS IT ACCEPTED?", "as agreed")).known[0].reason == "as agreed"


def test_the_plan_remembers_what_was_asked_for(tmp_path):
    both = ("float32", "float64")
    everything = Asked((("a", both), ("b", both)), ("torch", "paddle", "oneflow"))
    assert load(tmp_path, TEXT).everything == everything
    assert load(tmp_path, TEXT, keyword="a", dtypes=("float32",), backends=("torch",)).everything == everything
    assert load(tmp_path, TEXT, rtol=("1e-3",)).everything == replace(everything, altered=True)
    assert load(tmp_path, TEXT, atol=("1e-3",)).everything.altered
    assert load(tmp_path, TEXT, baseline="paddle").everything.altered
    assert not load(tmp_path, TEXT, baseline="torch").everything.altered
    assert Plan("x", (), (), "torch", 0, load(tmp_path, TEXT).cases).everything.cases == everything.cases


def test_an_included_entry_may_speak_of_a_backend_that_is_left_out(tmp_path):
    (tmp_path / "base.yaml").write_text(
        f"version: 1\nbackends: [torch, oneflow]\n{TEXT}known: [{{case: a, backend: oneflow, reason: r}}]\n"
    )
    plan = load(tmp_path, "version: 1\ninclude: [base.yaml]\nbackends: [torch]\n")
    assert plan.known[0].backend == "oneflow"
    assert 'there is no backend "oneflow"' in refused(
        tmp_path, f"version: 1\nbackends: [torch]\n{TEXT}known: [{{case: a, backend: oneflow, reason: r}}]\n"
    )
