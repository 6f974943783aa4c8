"""Curves, probes and verdicts of trainings: what diverges, which backend is wrong, and messages for missing data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.config.plan import ORACLE, CasePlan
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Verdict
from parity.outcome import CellOutcome, Outcome
from parity.training.judge.curves import CurveJudge, CurveRatios
from parity.training.judge.divergence import FirstDivergence
from parity.training.judge.findings import kind_of
from parity.training.judge.measured import measure
from parity.training.judge.oracle import NOTHING, StepOracle, UnknownError
from parity.training.judge.probes import around, planned_steps
from parity.training.judge.recorded import UsedRates, UsedRows
from parity.training.records import Curves, Ensemble
from parity.training.report.case import TrainingReport
from parity.training.spec import Training
from parity.training.steps import Update, rates
from tests.training.runs import (
    HONEST,
    MEMBERS,
    WIDE,
    Lie,
    Run,
    judge_of,
    judged,
    lies,
    planned,
    reference_runs,
    setting_of,
)
from tests.training.whole_steps import StepChanges

TEXT = """
  - id: small
    kind: train
    model: [{linear: {out_features: 6}}, {activation: relu}, {linear: {out_features: 3}}]
    data: {name: classification, features: [5], classes: 3, rows: 32}
    optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
    schedule: {name: step, step_size: 4}
    batch_size: 8
    steps: 10
"""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> CasePlan:
    return planned(TEXT, tmp_path_factory.mktemp("case"))


def late(step: int, changes: StepChanges) -> Lie:
    """A lie in one step only."""
    return Lie(changes=lambda now: changes if now == step else StepChanges())


SKIPPED = StepChanges(update=Update({"nesterov": True}))
WRONG = lies(SKIPPED)
NOTHING_SHOWN = ("output", "loss", "grad.", "clipped.", "norm", "param.", "state.", "buffer.")


def test_a_fault_between_the_planned_probes_is_found_where_the_curve_parts(case: CasePlan) -> None:
    assert 7 not in planned_steps(case.params)
    found = judged(case, {"honest": HONEST, "liar": late(7, SKIPPED)})
    divergence = found.divergences["liar"]
    assert divergence is not None
    assert (divergence.step, divergence.stage, divergence.diagnosis) == (7, "update", "nesterov-form")


def test_the_parameter_that_is_off_and_the_only_step_are_named(case: CasePlan) -> None:
    still = late(2, StepChanges(update=Update(skipped=frozenset(["linear1.weight"]))))
    [diagnosis] = judged(case, {"honest": HONEST, "liar": still}).diagnoses
    assert diagnosis.evidence["off"] == ["linear1.weight"]
    assert diagnosis.evidence["worst_tensor"] in ("param.linear1.weight", "state.momentum_buffer.linear1.weight")
    where = TrainingReport().since(diagnosis)
    assert where == f"only at step 2 of {diagnosis.evidence['only']} probed, in the update of linear1.weight"
    [everywhere] = judged(case, {"honest": HONEST, "liar": WRONG}).diagnoses
    assert "off" not in everywhere.evidence
    assert TrainingReport().since(everywhere) == "first at step 1, in the update"


def test_a_curve_that_no_probe_explains_has_no_stage(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "liar": replace(late(7, SKIPPED), hidden=NOTHING_SHOWN)})
    divergence = found.divergences["liar"]
    assert divergence is not None
    assert (divergence.step, divergence.stage, divergence.diagnosis) == (7, None, "unexplained")
    [diagnosis] = found.diagnoses
    assert diagnosis.evidence["stage"] is None
    assert "none of the 0 probed steps" in diagnosis.evidence["where"]


def test_a_baseline_that_is_off_is_the_culprit_and_the_others_do_not_part(case: CasePlan) -> None:
    found = judged(case, {"liar": WRONG, "honest": HONEST})
    assert found.divergences["honest"] is None
    failing = [c for c in found.comparisons if c.verdict.fails and c.actual == "honest"]
    assert failing
    assert {c.culprit for c in failing} == {("liar",)}
    assert {d.backend for d in found.diagnoses} == {"liar"}


def test_where_the_baseline_has_no_curve_the_oracle_s_takes_its_place(case: CasePlan) -> None:
    outcomes = {name: CellOutcome(case.id, "float32", name, Outcome.OK) for name in ("honest", "liar")}
    outcomes["baseline"] = CellOutcome(case.id, "float32", "baseline", Outcome.UNSUPPORTED, message="no sgd")
    judge = judge_of(case, {"baseline": HONEST, "honest": HONEST, "liar": WRONG}, without="baseline")
    found = judge.judged(outcomes)
    curves = [c for c in found.comparisons if not c.tensor.startswith("stage.")]
    assert {(c.actual, c.expected) for c in curves} == {("honest", ORACLE), ("liar", ORACLE)}
    assert {c.actual for c in curves if c.verdict.fails} == {"liar"}
    rows = {row.backend: row for row in found.rows}
    assert rows["honest"].expected == ORACLE
    assert set(rows["honest"].curves.ratio) == {"loss", "grad_norm", "param", "state"}
    assert not rows[ORACLE].curves.ratio


def test_comparisons_are_curves_against_the_baseline_and_stages_against_the_oracle(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "liar": WRONG})
    curves = {c.tensor: c for c in found.comparisons if c.expected == "honest"}
    assert set(curves) == {"loss", "grad_norm", "param", "state"}
    assert curves["param"].verdict is Verdict.SEMANTIC
    assert curves["param"].culprit == ("liar",)
    stages = {c.tensor: c for c in found.comparisons if c.actual == "liar" and c.expected == ORACLE}
    assert set(stages) == {f"stage.{s}" for s in ("data", "forward", "loss", "gradient", "clip", "schedule", "update")}
    assert {name for name, c in stages.items() if c.verdict.fails} == {"stage.update"}
    assert stages["stage.update"].error_ratio.actual is not None
    assert stages["stage.update"].error_ratio.actual >= 8
    mine = [c for c in found.comparisons if c.actual == "honest"]
    assert {c.expected for c in mine} == {ORACLE}
    assert all(c.verdict.passes for c in mine)


def test_a_tolerance_that_is_configured_counts_for_the_curves(tmp_path: Path) -> None:
    loose = planned(TEXT + "    tolerance: {float32: {rtol: 10.0, atol: 10.0}}\n", tmp_path)
    found = judged(loose, {"honest": HONEST, "liar": WRONG})
    curves = [c for c in found.comparisons if c.expected == "honest"]
    assert {c.verdict.passes for c in curves} == {True}
    assert [c.tensor for c in found.comparisons if c.verdict.fails] == ["stage.update"]


def test_nan_on_one_side_is_not_finite_from_its_step_on(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "liar": late(5, StepChanges(update=Update(factor=float("nan"))))})
    divergence = found.divergences["liar"]
    assert divergence is not None
    assert (divergence.step, divergence.stage) == (5, "update")
    verdicts = {c.tensor: c.verdict for c in found.comparisons if c.expected == "honest"}
    assert verdicts["loss"] is Verdict.NONFINITE
    assert verdicts["param"] is Verdict.NONFINITE


def test_who_did_not_come_to_the_end_is_not_compared_and_still_diagnosed(case: CasePlan) -> None:
    judge = judge_of(case, {"honest": HONEST, "liar": WRONG})
    outcomes = {
        "honest": CellOutcome(case.id, "float32", "honest", Outcome.OK),
        "liar": CellOutcome(case.id, "float32", "liar", Outcome.CRASH, message="died in step 9"),
    }
    found = judge.judged(outcomes)
    curves = [c for c in found.comparisons if c.expected == "honest"]
    assert {c.verdict for c in curves} == {Verdict.NOT_COMPARED}
    assert all("died in step 9" in c.message for c in curves)
    assert [d.id for d in found.diagnoses] == ["nesterov-form"]


def test_without_time_for_causes_the_stage_is_known_and_the_cause_is_not(case: CasePlan) -> None:
    judge = judge_of(case, {"honest": HONEST, "liar": WRONG})
    found = judge.judged({}, diagnose=False)
    divergence = found.divergences["liar"]
    assert divergence is not None
    assert divergence.stage == "update"
    assert not found.diagnoses
    assert {row.backend: row.parting and row.parting.diagnosis for row in found.rows}["liar"] is None


def test_rows_of_results_json_are_read_back(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "liar": WRONG})
    rows = {row.backend: row for row in found.rows}
    assert set(rows) == {"honest", "liar", ORACLE}
    liar = rows["liar"]
    assert liar.parting.diagnosis == "nesterov-form"
    assert liar.steps == liar.planned == len(liar.curves.loss) == 10
    assert set(liar.curves.ratio) == {"loss", "grad_norm", "param", "state"}
    assert [p.step for p in liar.probes][:3] == [1, 2, 3]
    assert rows["honest"].curves.ratio == {}
    assert rows["honest"].parting is None


def test_probes_are_the_first_steps_the_turns_of_the_schedule_and_some_spread(case: CasePlan) -> None:
    long = replace(case.params, steps=1000)
    steps = planned_steps(long)
    assert {1, 2, 3, 4, 5, 1000} <= set(steps)
    assert 6 <= len(steps) <= 9
    assert planned_steps(replace(case.params, steps=1)) == (1,)
    assert planned_steps(long, n_backends=10**7) == (1, 2)
    assert around(1, 10) == (1, 2)
    assert around(10, 10) == (9, 10)


def test_the_steps_around_a_parting_are_wanted_of_both_sides(case: CasePlan) -> None:
    judge = judge_of(case, {"honest": HONEST, "liar": late(7, SKIPPED)})
    assert judge.diverged == {"liar": 7}
    for side in judge.backends.values():
        assert {6, 7, 8} <= set(side.probes)


def test_a_curve_that_leaves_the_ensemble_in_right_steps_drifts_and_passes(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "drifting": Lie(jump=(7, 1e-3))})
    assert found.divergences == {"honest": None, "drifting": None}
    curves = {c.tensor: c for c in found.comparisons if c.expected == "honest"}
    assert curves["loss"].verdict is Verdict.CLOSE
    assert curves["loss"].suspect
    assert (
        curves["loss"].message
        == "leaves the envelope at step 7, where every stage is right given the backend's own state"
    )
    assert not found.diagnoses


def test_a_fault_in_a_drift_is_found(case: CasePlan) -> None:
    lie = Lie(jump=(4, 1e-4), changes=lambda step: SKIPPED if step == 7 else StepChanges())
    divergence = judged(case, {"honest": HONEST, "drifting": lie}).divergences["drifting"]
    assert divergence is not None
    assert (divergence.step, divergence.stage) == (7, "update")


def test_what_grows_by_and_by_is_no_drift() -> None:
    once = CurveRatios(param=[0.3, 0.4, 0.3, 12.0, 20.0, 90.0, 80.0, 700.0])
    slowly = CurveRatios(param=[1.0, 2.0, 4.0, 6.0, 8.5, 11.0])
    assert once.jumped()
    assert once.crossings() == {4, 6, 8}
    assert not slowly.jumped()
    assert not CurveRatios(param=[50.0, 60.0]).jumped()
    assert CurveRatios(loss=[0.0, 9.0, float("inf")]).crossings() == {2, 3}


def test_a_rate_that_is_nan_is_outside(case: CasePlan) -> None:
    right = UsedRates(case.params, "float32")
    right.take(rates_of(case.params, 6))
    assert right.fault is None
    broken = UsedRates(case.params, "float32")
    values = rates_of(case.params, 6)
    values[4] = np.nan
    broken.take(values)
    fault = broken.fault
    assert fault is not None
    assert fault.steps == (5,)


def rates_of(training: Training, n: int) -> np.ndarray:
    """The schedule's rates of the first steps."""
    return np.array([rates(training, step) for step in range(1, n + 1)])


def test_a_little_noise_that_nothing_explains_is_tolerated_and_told(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "approximate": Lie(noise=3e-6)})
    assert found.divergences["approximate"] is None
    [stage] = [c for c in found.comparisons if (c.actual, c.tensor) == ("approximate", "stage.forward")]
    assert stage.verdict is Verdict.CLOSE
    assert stage.suspect
    assert stage.culprit == ("approximate",)
    assert stage.error_ratio.actual >= ERROR_BOUND


def test_more_noise_than_that_is_a_parting(case: CasePlan) -> None:
    found = judged(case, {"honest": HONEST, "noisy": Lie(noise=1e-4)})
    divergence = found.divergences["noisy"]
    assert divergence is not None
    assert (divergence.step, divergence.stage) == (1, "forward")
    assert any(c.verdict.fails for c in found.comparisons if c.actual == "noisy")


def test_a_record_whose_tensors_do_not_fit_is_outside(case: CasePlan) -> None:
    setting = setting_of(case)
    run = Run(case.params, "float32", setting)
    record = run.one()
    wrong = {n: v[:2] if n == "param.linear0.weight" else v for n, v in record.before.items()}
    oracle = StepOracle(case.id, case.params, "float32", setting, np.float64)
    found = measure(oracle, "gradient", replace(record, before=wrong))
    assert found is not None
    assert found.outside
    lacking = {n: v for n, v in record.before.items() if n != "param.linear0.weight"}
    with pytest.raises(UnknownError):
        oracle.answer("gradient", replace(record, before=lacking), NOTHING)


def test_a_tensor_that_is_missing_among_its_kind_is_outside(case: CasePlan) -> None:
    setting = setting_of(case)
    record = Run(case.params, "float32", setting).one()
    tensors = {n: v for n, v in record.tensors.items() if n != "grad.linear0.weight"}
    found = measure(
        StepOracle(case.id, case.params, "float32", setting, np.float64),
        "gradient",
        replace(record, tensors=tensors),
    )
    assert found is not None
    assert found.tensor == "grad.linear0.weight"
    assert found.outside


def curves_of(values: np.ndarray, tensor: np.ndarray) -> Curves:
    n = len(values)
    return Curves(
        1,
        values,
        values,
        np.ones((n, 1)),
        np.zeros((n, 1), int),
        tensor[:, None],
        tensor[:, None],
        ("param.linear0.bias",),
    )


def curve_judge(case: CasePlan) -> CurveJudge:
    return CurveJudge(case.params, "float32", "a", Ensemble("a", "a", ("~1",)))


def test_curves_are_measured_in_envelopes_that_never_shrink(case: CasePlan) -> None:
    judge = curve_judge(case)
    one = np.ones(4)
    moved = np.array([1.0, 1.001, 1.0, 1.0])
    off = np.array([1.0, 1.0, 1.004, 1.02])
    judge.take({"a": curves_of(one, one), "~1": curves_of(moved, moved), "b": curves_of(off, off)})
    ratio = judge.runs["b"].ratio["loss"]
    assert ratio[2:] == pytest.approx([4.0, 20.0])
    assert judge.runs["b"].ratio.first_outside() == (4, "loss", pytest.approx(20.0))
    later = curves_of(one, one)
    judge.take({"a": later, "~1": later, "b": curves_of(one * 1.004, one)})
    assert judge.runs["b"].ratio["loss"][-1] == pytest.approx(4.0)


def test_a_tensor_of_noise_says_nothing(case: CasePlan) -> None:
    judge = curve_judge(case)
    one = np.ones(2)
    judge.take({"a": curves_of(one, one), "~1": curves_of(one, 2 * one), "b": curves_of(one, 50 * one)})
    assert np.isnan(judge.runs["b"].ratio["param"]).all()
    assert judge.runs["b"].ratio.first_outside() is None


def test_a_gradient_norm_that_is_not_shown_is_not_compared(case: CasePlan) -> None:
    judge = curve_judge(case)
    one = np.ones(2)
    shown = curves_of(one, one)
    judge.take({"a": shown, "~1": shown, "b": replace(shown, grad_norm=np.full(2, np.nan))})
    assert judge.runs["b"].ratio.worst("grad_norm") is None
    assert judge.runs["b"].ratio.worst("loss") == 0.0


def test_a_loss_that_is_not_finite_on_one_side_is_infinitely_far(case: CasePlan) -> None:
    judge = curve_judge(case)
    one = np.ones(2)
    shown = curves_of(one, one)
    judge.take({"a": shown, "~1": shown, "b": replace(shown, loss=np.array([1.0, np.nan]))})
    assert judge.runs["b"].ratio.first_outside() == (2, "loss", np.inf)


def test_rows_of_no_step_are_off_without_a_cause() -> None:
    order = np.arange(12).reshape(3, 4)
    rows = UsedRows(order)
    rows.take(1, np.array([[0, 1, 2, 3], [4, 5, 6, 11], [8, 9, 10, 11]]))
    assert list(rows.wrong_steps) == [2]
    assert rows.fault is not None
    assert not rows.fault.causes
    other = UsedRows(order[:, ::-1])
    other.take(1, np.array([[0, 5, 2, 7], [4, 1, 6, 11], [8, 9, 10, 3]]))
    assert other.fault is not None
    assert other.fault.causes[0].parameters == {"rows": "another shuffle: no row comes twice in an epoch"}
    ahead = UsedRows(order)
    ahead.take(1, order[[1, 2]])
    assert ahead.fault is not None
    assert ahead.fault.causes[0].parameters == {"rows": "those of another step, +1"}


def test_ranks_may_share_the_rows_of_a_micro_batch_as_they_like() -> None:
    order = np.arange(16).reshape(2, 8)
    strided = np.array([[0, 2, 1, 3, 4, 6, 5, 7], [8, 10, 9, 11, 12, 14, 13, 15]])
    rows = UsedRows(order, accumulation=2, ranks=2)
    rows.take(1, strided)
    assert rows.fault is None
    alone = UsedRows(order, accumulation=2)
    alone.take(1, strided)
    assert alone.fault is not None
    assert alone.fault.causes[0].id == "batch-order"


def test_rates_may_be_off_by_a_rounding_and_not_by_more(case: CasePlan) -> None:
    rates = UsedRates(case.params, "float32")
    rates.take(np.array([[0.1], [np.float32(0.1)], [0.1 * (1 + 1e-7)]]))
    assert rates.fault is None
    rates.take(np.array([[0.1 * (1 + 1e-5)]]))
    assert rates.fault is not None
    assert rates.fault.steps == (4,)
    narrow = UsedRates(case.params, "float64")
    narrow.take(np.full((3, 1), np.float64(np.float32(0.1))))
    assert narrow.fault is not None
    assert narrow.fault.causes[0].id == "attribute-precision"


@pytest.mark.parametrize(
    ("ratio", "dtype", "others", "kind"),
    [
        (1e5, "float32", {}, "semantic"),
        (50.0, "float32", {}, "unstable"),
        (50.0, "float32", {"float64": None}, "unstable"),
        (50.0, "float32", {"float64": 50.0 * 2.0**29}, "semantic"),
        (50.0, "float32", {"float64": 60.0}, "unstable"),
        (1e6, "float64", {"float32": None}, "degraded"),
        (1e12, "float64", {"float32": None}, "semantic"),
    ],
)
def test_what_no_cause_explains_is_judged_by_the_other_dtype(
    ratio: float, dtype: str, others: dict[str, float | None], kind: str
) -> None:
    assert kind_of(FirstDivergence(1, "update", "param.x", ratio), dtype, others) == kind


def test_members_and_the_oracle_have_the_same_steps(case: CasePlan) -> None:
    runs = reference_runs(case, "float32", 0)
    assert set(runs) == {"~0", ORACLE, *MEMBERS}
    assert WIDE["float32"] == "float64"
    assert {run.n_steps for run in runs.values()} == {10}


def test_float64_is_judged_by_float64_where_longdouble_takes_too_long(
    case: CasePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge_of(case, {"honest": HONEST}, "float64").backends["honest"].oracle.wide == np.longdouble
    monkeypatch.setattr("parity.training.judge.oracle.SLOW_S", 0.0)
    found = judged(case, {"honest": HONEST, "liar": WRONG}, "float64")
    assert found.divergences["honest"] is None
    assert [d.id for d in found.diagnoses] == ["nesterov-form"]
    assert "longdouble takes too long" in found.diagnoses[0].evidence["oracle"]
