"""Which `known` entries a run lacks: one per cause, with its own size, for the cases that show it and no others."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import pytest
from msgspec import structs

from parity.config.plan import Asked, BackendSpec, KnownDeviation, Plan
from parity.judge.acceptance import JudgedRun, globs, lacking, outgrown, unsupported
from parity.judge.compare.verdict import ErrorRatios, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.known import EntryState
from parity.reporting.results.rows import FINDINGS

TODAY = datetime.date(2027, 1, 31)
SWEEP = [f"ln-{size}-offset={offset}-eps=1e-05" for size in ("4x6", "4x8") for offset in (0, 1, 100, 10000)]
BOTH = ("float32", "float64")


def run(comparisons, diagnoses=(), known=(), cannot=(), cases=SWEEP):
    everything = Asked(tuple((case, BOTH) for case in cases), ("torch", "paddle"))
    backends = tuple(BackendSpec(name, name) for name in everything.backends)
    plan = Plan("x", (), backends, "torch", 0, (), tuple(known), everything)
    return JudgedRun(plan, comparisons, diagnoses, dict.fromkeys(cannot, "no kernel"), TODAY)


def off(case, dtype="float32", tensor="y", ratio=20.0, verdict=Verdict.UNSTABLE, **changed):
    culprit = changed.pop("culprit", ("paddle",))
    c = comparison_of(case, dtype, tensor, "paddle", "torch", verdict, 0.0, 0.0, culprit=culprit)
    return structs.replace(c, error_ratio=ErrorRatios(ratio, 0.5), **changed)


def cause(c, name="variance-naive"):
    return Diagnosis(c.case, c.dtype, "paddle", name, "title", (c.tensor,), True, 1.0, 0.1)


def anything(*_):
    return True


def entries(found, chosen=anything):
    return [(e.case, e.dtype, e.diagnosis, e.error_ratio) for e in lacking(found, chosen, FINDINGS)]


def test_a_cause_in_several_cases_and_dtypes_is_one_entry_with_its_largest_ratio():
    rows = [off(case, dtype, ratio=i + 10) for i, case in enumerate(SWEEP) if "offset=10" in case for dtype in BOTH]
    found = run(rows, [cause(c) for c in rows])
    (entry,) = lacking(found, anything, FINDINGS)
    assert (entry.case, entry.backend, entry.dtype) == ("ln-4x*-offset=100*-eps=1e-05", "paddle", None)
    assert (entry.diagnosis, entry.error_ratio) == ("variance-naive", 2 * 17.0)
    (held,) = found.held([replace(entry, reason="agreed")]).entries
    assert (held.state, held.n_matched) == (EntryState.MATCHED, len(rows))


def test_each_cause_has_a_ratio_of_its_own():
    rows = [off(SWEEP[0], ratio=1e6), off(SWEEP[0], tensor="grad.x", ratio=11.0)]
    found = run(rows, [cause(rows[0]), cause(rows[1], "scaled")])
    name = SWEEP[0]
    assert sorted(entries(found)) == [(name, "float32", "scaled", 22.0), (name, "float32", "variance-naive", 2e6)]


def test_all_causes_of_a_tensor_are_named_and_a_deviation_without_a_cause_is_accepted_too():
    c, bare = off(SWEEP[0]), off(SWEEP[1])
    found = run([c, bare], [cause(c), cause(c, "unexplained"), cause(bare, "unexplained")])
    got = entries(found)
    assert {(case, name) for case, _, name, _ in got} == {
        (SWEEP[0], "variance-naive"), (SWEEP[0], "unexplained"), (SWEEP[1], "unexplained"),
    }  # fmt: skip
    made = [replace(e, reason="agreed") for e in lacking(found, anything, FINDINGS)]
    assert all(c.known == "agreed" for c in found.held(made).comparisons)


def test_what_is_accepted_needs_nothing():
    c = off(SWEEP[0])
    known = KnownDeviation(SWEEP[0], "agreed", backend="paddle", diagnosis="variance-naive")
    assert entries(run([c], [cause(c)], [known])) == []
    two = [cause(c), cause(c, "scaled")]
    assert [name for _, _, name, _ in entries(run([c], two, [known]))] == ["scaled"]


def test_passes_and_rounding_need_nothing_but_a_strict_level_accepts_rounding():
    rounding = off(SWEEP[0], verdict=Verdict.ROUNDING, culprit=(), ratio=3.0)
    found = run([rounding, off(SWEEP[1], verdict=Verdict.CLOSE, suspect=True)])
    assert entries(found) == []
    (entry,) = lacking(found, anything, FINDINGS | {"rounding"})
    assert (entry.case, entry.backend, entry.error_ratio) == (SWEEP[0], "paddle", 6.0)


def test_a_glob_may_mean_cases_in_which_a_tolerance_hides_the_cause():
    rows = [off(case) for case in SWEEP[1:4]] + [off(SWEEP[0], verdict=Verdict.CLOSE, suspect=True, ratio=9.0)]
    assert [case for case, *_ in entries(run(rows, [cause(c) for c in rows]))] == ["ln-4x6-offset=*-eps=1e-05"]


def test_what_is_chosen_alone_is_accepted():
    rows = [off(case, dtype) for case in SWEEP for dtype in BOTH]
    found = run(rows, [cause(c) for c in rows])
    (entry,) = lacking(found, lambda case, dtype, *_: case == SWEEP[2] and dtype == "float64", FINDINGS)
    assert (entry.case, entry.dtype) == (SWEEP[2], "float64")


def test_an_infinite_error_has_no_ratio_to_record():
    assert entries(run([off(SWEEP[0], ratio=math.inf, verdict=Verdict.NONFINITE)]))[0][3] is None


def limits(*rows, name="scaled"):
    found = run(rows, [cause(c, name) for c in rows])
    made = lacking(found, anything, FINDINGS)
    assert all(c.known for c in found.held([replace(e, reason="agreed") for e in made]).comparisons if c in rows)
    return [(e.case, e.dtype, e.tensor, e.error_ratio) for e in made]


@pytest.mark.parametrize(("ratio", "apart"), [(100.0, False), (1e9, True)])
def test_dtypes_have_an_entry_each_where_their_ratios_differ_much(ratio, apart):
    case = SWEEP[0]
    rows = [off(case, ratio=10.0), off(case, "float64", ratio=ratio)]
    got = limits(*rows, name="variance-naive")
    each = [(case, "float32", None, 20.0), (case, "float64", None, 2 * ratio)]
    assert got == (each if apart else [(case, None, None, 2 * ratio)])


def test_how_a_tensor_looks_is_accepted_for_that_tensor():
    one, two = SWEEP[:2]
    assert limits(off(one), off(one, tensor="grad.x"), off(one, tensor="grad.w")) == [
        (one, "float32", "grad.*", 40.0), (one, "float32", "y", 40.0),
    ]  # fmt: skip
    passes = off(one, tensor="grad.b", verdict=Verdict.CLOSE, culprit=())
    found = run([off(one, tensor="grad.w"), off(one, tensor="grad.x"), passes])
    assert [e.tensor for e in lacking(found, anything, FINDINGS)] == ["grad.w", "grad.x"]
    far = limits(off(one, tensor="grad.x"), off(one, tensor="grad.w", ratio=1e4))
    assert {tensor for _, _, tensor, _ in far} == {"grad.x", "grad.w"}
    assert limits(off(one), off(two, tensor="grad.x")) == [
        (two, "float32", "grad.x", 40.0), (one, "float32", "y", 40.0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["scaled", "variance-naive"])
def test_an_infinite_error_leaves_the_limits_of_others(name):
    one, two = SWEEP[:2]
    infinite = {"ratio": math.inf, "verdict": Verdict.NONFINITE}
    rows = [off(one, **infinite), off(one, tensor="grad.x"), off(two)]
    assert set(limits(*rows, name=name)) == {
        (one, "float32", "y", None), (one, "float32", "grad.x", 40.0), (two, "float32", "y", 40.0),
    }  # fmt: skip


def test_an_entry_of_which_others_cover_all_is_left_out():
    rows = [off(SWEEP[i], dtype) for i, dtype in ((0, "float32"), (1, "float32"), (1, "float64"), (2, "float32"))]
    got = limits(*rows, off(SWEEP[3]), name="variance-naive")
    assert sorted((case, dtype) for case, dtype, *_ in got) == [
        ("ln-4x6-offset=*-eps=1e-05", "float32"), (SWEEP[1], None),
    ]  # fmt: skip


@pytest.mark.parametrize("changed", [{"error_ratio": 5.0}, {"until": TODAY - datetime.timedelta(1)}])
def test_an_entry_that_is_outgrown_or_expired_is_renewed(changed):
    c = off(SWEEP[0])
    known = KnownDeviation("ln-*", "agreed", backend="paddle", **changed)
    found = run([c], [cause(c)], [known])
    assert outgrown(found, anything) == [known]
    assert found.sized([known])[0].error_ratio == 40.0
    assert outgrown(found, lambda *_: False) == []
    assert outgrown(run([], [], [known]), anything) == []


def test_what_is_unsupported_is_accepted_with_the_backends_message():
    rows = [off(case, dtype, verdict=Verdict.NOT_COMPARED, culprit=()) for case in SWEEP for dtype in BOTH]
    answered = [off(c.case, c.dtype, verdict=Verdict.CLOSE, actual="torch", expected="oracle") for c in rows]
    cannot = [(case, dtype, "paddle") for case in SWEEP[:4] for dtype in BOTH]
    found = run(rows + answered, cannot=cannot)
    (entry,) = unsupported(found, anything)
    assert (entry.case, entry.reason, entry.dtype) == ("ln-4x6-offset=*-eps=1e-05", "no kernel", None)
    expired = replace(entry, until=TODAY - datetime.timedelta(1))
    assert outgrown(run(rows + answered, known=[expired], cannot=cannot), anything) == [expired]
    assert outgrown(run(rows + answered, known=[expired]), anything) == []
    crashed = [c.case for c in found.held([entry]).comparisons if c.verdict is Verdict.NOT_COMPARED and not c.known]
    assert set(crashed) == set(SWEEP[4:])


@pytest.mark.parametrize(
    ("needed", "patterns"),
    [
        (["a-x=1-y=1", "a-x=1-y=2"], ["a-x=1-y=*"]),
        (["a-x=1-y=1", "a-x=2-y=1", "a-x=1-y=2", "a-x=2-y=2"], ["a-x=1-y=*", "a-x=2-y=*"]),
        (["a-x=1-y=1", "a-x=2-y=2"], ["a-x=1-y=1", "a-x=2-y=2"]),
        (["a-x=3-y=1", "a-x=3-y=2", "b"], ["a-x=3-y=*", "b"]),
        (["b", "c[1]"], ["b", "c[[]1]"]),
        (["c1"], ["c1"]),
    ],
)
def test_globs_mean_what_is_needed_and_nothing_else(needed, patterns):
    every = [f"a-x={x}-y={y}" for x in (1, 2) for y in (1, 2)] + ["a-x=3-y=1", "a-x=3-y=2", "b", "c[1]", "c1"]
    assert sorted(globs(needed, [case for case in every if case not in needed])) == patterns
