"""`parity explain`: on stored runs, as text."""

from __future__ import annotations

import datetime
import io
import json

import pytest
from msgspec import convert
from rich.console import Console

from parity.config.plan import REASON_WANTED, Asked, KnownDeviation, Plan
from parity.diagnoses import catalogue
from parity.judge.compare.verdict import Comparison, ErrorRatios, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.known import apply
from parity.reporting.console.explain import ExplainError, case_called, explain_case, explain_id, explain_list
from parity.reporting.results.results import results_of
from parity.reporting.results.rows import ResultsError
from parity.reporting.text.evidence import evidence_text
from parity.reporting.text.reasons import ADVICE, FINDINGS, REASONS, aligned, limit, rounded_up
from tests.configs.loading import load
from tests.conftest import call
from tests.reporting.stored_runs import CASE, case_row, comparison, diagnosis, finding, stored, unstable


def shown(run_dir, name=CASE, width=2000, verbose=True, **options):
    return printed(lambda console: explain_case(run_dir, name, console, verbose=verbose, **options), width)


def printed(function, width=100):
    console = Console(width=width, file=io.StringIO())
    function(console)
    return console.file.getvalue()


@pytest.fixture
def run_dir(tmp_path):
    return stored(tmp_path / "run", finding(), [diagnosis()])


def bare(cases):
    """Results with nothing but cases."""
    summary = {"outcomes": {}, "verdicts": {}, "exit_code": 0}
    parts = {"backends": [], "outcomes": [], "comparisons": []}
    return results_of({"run": {"baseline": "torch"}, "cases": cases, "summary": summary, **parts})


def test_what_was_computed(run_dir):
    text = shown(run_dir)
    assert text.startswith(f"{CASE}\n")
    assert "group_norm(num_groups=4, eps=1e-05)" in text
    assert "configs/groupnorm.yaml:14" in text
    assert "x [2, 8, 6, 6] uniform(low=0.0, high=1.0) + 10000" in text
    assert "float32, float64" in text
    assert "torch: torch 1.2.3, eager, cpu, numpy 2.1.0 = baseline" in text
    assert str(run_dir / "tensors" / "0000-x") in text


def test_a_failing_tensor(run_dir):
    text = shown(run_dir)
    assert "aligned? no: paddle exceeds the error bound in y (float32)" in text
    assert "float32 y: unstable" in text
    assert "paddle 162.93 against torch 0.530001 at [0, 1, 2, 3], oracle 0.53; 570 of 576 outside;" in text
    assert "rtol 1.3e-06 atol 1e-05, needs rtol 3.1e+02" in text
    assert "careful float32 implementation: paddle 8.12e+04 · torch 0.31" in text
    assert "(the largest: 162 in float32, 3e-07 in float64)" in text
    assert "so the algorithm loses digits" in text


def test_the_cause_with_its_evidence(tmp_path):
    evidence = {
        "parameters": {"variance": "naive", "eps": 1e-3},
        "second": {"id": "variance-ddof", "residual_after": 30312.3},
        "candidates": [{"id": "a", "parameters": {"eps": 1e-3}, "residual_after": 0.4}, {"id": "b"}],
        "told_apart_by": "an offset",
        "not_told_from": [{"id": "c", "parameters": {}, "residual_after": 1.5}],
        "sizes": {"y": {"error": 0.03, "this_algorithm": 0.02, "careful_code": None}},
        "where": "channel 3",
        "required_rtol": {"y": 2e-5},
        "band_of_errors": [1.0, [2, "x"]],
    }
    text = shown(stored(tmp_path, finding(), [diagnosis(evidence=evidence), diagnosis(dtype="float64")]))
    assert "paddle float32: variance-naive: the variance is E[x^2] - E[x]^2 (y, grad.x)" in text
    assert "explains it: error ratio 8.12e+04 before, 0.91 with it" in text
    assert "with variance=naive, eps=0.001" in text
    assert "second best: variance-ddof leaves 3.03e+04" in text
    assert "equally good: a (eps=0.001) leaves 0.4 and b leaves ?" in text
    assert "to distinguish them: an offset" in text
    assert "cannot be distinguished from: c leaves 1.5" in text
    assert "size of the error: y 0.03 (this algorithm loses 0.02, a careful one ?)" in text
    assert "where: channel 3" in text
    assert "rtol that would pass: y=2e-05" in text
    assert "band of errors: [1, [2, x]]" in text
    assert text.count(catalogue()["variance-naive"].what) == 1


def test_a_size_that_the_cause_does_not_reach_is_left_out(tmp_path):
    fits = {"error": 0.08, "this_algorithm": 0.01, "careful_code": 1e-5}
    evidence = {"sizes": {"y": {**fits, "error": 0.081}, "grad.x": fits}}
    text = shown(stored(tmp_path, finding(), [diagnosis(evidence=evidence)]))
    assert "size of the error: grad.x 0.08 (this algorithm loses 0.01" in text
    del evidence["sizes"]["grad.x"]
    text = shown(stored(tmp_path, finding(), [diagnosis(evidence=evidence)]))
    assert "size of the error" not in text
    assert "\n\n" not in text.partition("causes")[2].partition("what to do")[0].rstrip()


@pytest.mark.parametrize(
    "key",
    ["parameters", "second", "candidates", "told_apart_by", "where", "required_rtol", "sizes", "not_told_from", "new"],
)
@pytest.mark.parametrize("value", [None, 1, "text", [1], {"a": 1}, [{"id": 1}], True, float("inf"), list(range(99))])
def test_any_evidence_can_be_shown(key, value):
    assert evidence_text(key, value)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("offset=100", "bn-offset=100"),
        ("OFFSET=1", "bn-offset=1-eps=0"),
        ("bn-offset=100", "bn-offset=100"),
        ("bn-offset=1", "bn-offset=1-eps=0"),
        ("=10000", "bn-offset=10000"),
    ],
)
def test_a_part_of_an_id_that_others_contain(name, case):
    ids = ["bn-offset=1-eps=0", "bn-offset=100", "bn-offset=1000-eps=1.5", "bn-offset=10000"]
    results = bare([case_row(name) for name in ids])
    assert case_called(name, results).id == case
    with pytest.raises(ExplainError, match="matches 2 cases"):
        case_called("eps=", results)
    with pytest.raises(ExplainError, match="matches 4 cases"):
        case_called("bn-", results)
    more = bare([case_row(name) for name in (*ids, "gn-offset=100")])
    with pytest.raises(ExplainError, match="matches 2 cases"):
        case_called("offset=100", more)


def test_a_cause_that_explains_a_part_or_nothing(tmp_path):
    rows = [diagnosis(explained=False), diagnosis("unexplained", explained=False, residual_after=None)]
    text = shown(stored(tmp_path, finding(), rows))
    assert "explains a part of it" in text
    assert "not explained: error ratio 8.12e+04" in text
    assert "not explained" not in shown(stored(tmp_path, finding(), [diagnosis(residual_after=None)]))
    rows = [diagnosis("rounding", residual_after=0.5), diagnosis("not-identifiable", explained=False)]
    text = shown(stored(tmp_path, finding(), rows))
    assert "error ratio 0.5, within the error bound" in text
    assert "each of them explains it: error ratio 8.12e+04 before, 0.91 with one of them" in text


def test_values_have_the_digits_of_their_dtype(tmp_path):
    rows = [comparison("semantic", ("paddle",), dtype=d, actual_value=1 / 3) for d in ("float16", "float32", "float64")]
    text = shown(stored(tmp_path, rows))
    for digits in ("0.33333", "0.333333333", "0.33333333333333331"):
        assert f"paddle {digits} against" in text


def test_numbers_spelled_out_in_a_diagnosis(tmp_path):
    rows = [diagnosis(residual_before=float("inf"), evidence={"parameters": {"eps": float("nan")}})]
    assert "error ratio inf before" in shown(stored(tmp_path, finding(), rows))


def test_what_to_do(run_dir):
    (run_dir / "tensors/0000-x/float32/paddle").mkdir(parents=True)
    (run_dir / "tensors/0000-x/float32/oracle").mkdir()
    text = shown(run_dir)
    assert "tolerance: {tensors: {y: {float32: {rtol: 2.1e-05, atol: 1.0e-05}}}}" in text
    assert "--fail-on degraded" in text
    assert "unstable: look for a subtraction that cancels" in text
    assert f"inputs: {run_dir}/tensors/0000-x/*.npy" in text
    assert f"{run_dir}/tensors/0000-x/float32/{{oracle,paddle}}/*.npy" in text


def pasted(text, tmp_path):
    lines = [line for line in text.splitlines() if line.strip().startswith("- {case")]
    cases = f'cases:\n  - {{id: "{CASE}", op: linear, params: {{out_features: 2}}, inputs: {{x: {{shape: [2, 4]}}}}}}\n'
    text = "\n".join(lines).replace(REASON_WANTED, "as agreed")
    return load(tmp_path, f"{cases}known:\n{text}\n").known


def test_the_entry_to_paste_is_one_that_accepts_it(run_dir, tmp_path):
    (known,) = pasted(shown(run_dir), tmp_path)
    assert isinstance(known, KnownDeviation)
    assert (known.diagnosis, known.until, known.dtype) == ("variance-naive", datetime.date(2027, 8, 1), "float32")
    found = comparison_of(
        CASE,
        "float32",
        "y",
        "paddle",
        "torch",
        Verdict.UNSTABLE,
        0,
        0,
        error_ratio=ErrorRatios(81234.0, 0.3),
        culprit=("paddle",),
    )
    cause = Diagnosis(CASE, "float32", "paddle", "variance-naive", "", ("y",), True)
    plan = Plan("x", (), (), "torch", 0, (), (known,), Asked(((CASE, ("float32",)),), ("torch", "paddle")))
    result = apply(plan, [found], [cause], datetime.date(2027, 2, 1))
    assert result.comparisons[0].known == known.reason
    assert not result.fails


def test_without_a_cause_the_entry_is_for_what_is_unexplained(tmp_path):
    run_dir = stored(tmp_path / "run", finding(), [diagnosis("unexplained")])
    (known,) = pasted(shown(run_dir), tmp_path)
    assert (known.diagnosis, known.error_ratio) == ("unexplained", 1.7e5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([comparison("degraded", ("paddle",), dtype="float64", actual_value=1.0 + 3e-8, expected_value=1.0)], "has float32 accuracy"),
        ([comparison("degraded", ("paddle",), dtype="float64", actual_value=1.0 + 3e-8, expected_value=1.0)], "3e-08 of the value"),
        ([comparison("semantic", ("paddle",)), comparison(dtype="float64")], "the formula differs, as far as one dtype shows"),
        ([comparison("nonfinite", ("paddle",), actual_value=float("nan"))], "paddle is not finite where the exact answer is"),
        ([comparison("nonfinite")], "NaN or infinity in one backend only; no tolerance"),
        ([comparison("structure", message="paddle has no y", worst_index=None)], "why: paddle has no y; the values were not compared"),
        ([comparison("rounding", error_ratio={"actual": 1.25, "expected": 0.5})], "the error is paddle's 1.25 and torch's 0.5 times that of a careful implementation, the error bound is 8"),
        ([comparison("rounding", error_ratio={"actual": 7.9999, "expected": 0.5})], "the error is paddle's 7.99 and"),
        ([comparison("rounding")], "rounding alone: the tolerance is tighter than float32 allows"),
        ([comparison(suspect=True, culprit=("paddle",), error_ratio={"actual": 9.0, "expected": 0.1})], "only because the tolerance is loose: the error of paddle is 9 times"),
        ([comparison(suspect=True)], "zeros, or a doubled or sign-flipped tensor, could pass too"),
        ([comparison("semantic", ("paddle", "torch"), error_ratio={"actual": 9.0, "expected": 50.0})], "the error of paddle is 9 times and the error of torch is 50 times that of a careful implementation"),
        ([comparison("unstable", ("paddle",), known="as agreed")], "accepted: as agreed"),
        ([comparison("not-compared", message="paddle: crash: killed", worst_index=None)], "unknown: nothing of it could be compared"),
    ],
)  # fmt: skip
def test_the_reason_in_words(tmp_path, rows, said):
    assert said in shown(stored(tmp_path, rows))


def test_every_verdict_has_its_words():
    assert set(REASONS) == {verdict.value for verdict in Verdict}
    assert set(ADVICE) == FINDINGS


def test_a_passing_case_is_aligned(tmp_path):
    text = shown(stored(tmp_path, [comparison(), comparison("equal", tensor="grad.x", worst_index=None)]))
    assert "aligned? yes (within tolerance)" in text
    assert "float32: aligned, y, grad.x agree; the worst element differs by 0.094 tolerances: paddle" in text
    assert "what to do" not in text


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        ([], "unknown: nothing of it could be compared"),
        ([comparison(), comparison("equal")], "yes (within tolerance)"),
        ([comparison(), comparison(tensor="grad.x", suspect=True)], "yes (within tolerance), but 1 of 2 tensors is suspect"),
        ([comparison(), comparison("not-compared", tensor="grad.x")], "yes (within tolerance) (1 of 2 tensors lacks the result of some backend)"),
        ([comparison("rounding", required_rtol=2.04e-5)], "yes, within rounding: needs rtol 2.1e-05 (float32 y)"),
        ([comparison("rounding", required_rtol=float("inf"), max_abs_diff=3e-4)], "yes, within rounding: needs atol 3.0e-04 (float32 y)"),
        ([comparison("rounding"), unstable()], "no: paddle exceeds the error bound in y (float32)"),
        ([unstable(culprit=["paddle", "torch"]), unstable(tensor="grad.x", dtype="float64")], "no: paddle and torch exceed the error bound in y (float32); grad.x (float64)"),
        ([comparison("structure")], "no: different in y (float32)"),
        ([unstable(known="agreed"), comparison()], "no: paddle exceeds the error bound in y (float32); accepted: agreed"),
        ([unstable(known="agreed"), unstable()], "no: paddle exceeds the error bound in y (float32)"),
    ],
)  # fmt: skip
def test_may_i_call_these_aligned(rows, answer):
    assert aligned(convert(rows, list[Comparison])) == answer


@pytest.mark.parametrize("value", [0.0, 1e-5, 2e-5, 2.04e-5, 9.99e-5, 1.3e-6, 0.95, 123.0, 99.9, 1e-300])
def test_what_is_needed_is_rounded_up(value):
    up = rounded_up(value)
    assert value <= up <= value * 1.11
    assert float(f"{up:.1e}") == up


def test_a_tolerance_near_zero_is_an_absolute_one():
    rows = [comparison(required_rtol=0.5, max_abs_diff=1.23e-4), comparison(required_rtol=None, max_abs_diff=None)]
    near, unknown = convert(rows, list[Comparison])
    assert limit([near]) == {"atol": 1.3e-4}
    assert limit([unknown]) == {"atol": float("inf")}


def test_only_one_dtype_and_some_tensors(run_dir):
    text = shown(run_dir, dtype="float64")
    assert "float32 y" not in text
    assert "aligned? yes" in text
    assert "causes" not in text
    text = shown(run_dir, dtype="float32", tensor="y")
    assert "3e-07 in float64" in text
    assert "grad.x agree" not in text
    assert "grad.x agree" in shown(run_dir, tensor="grad.*")
    with pytest.raises(ExplainError, match="has no dtype"):
        shown(run_dir, dtype="float16")
    with pytest.raises(ExplainError, match=r'did you mean "grad\.x"'):
        shown(run_dir, tensor="gard.x")


CASES = [case_row(name) for name in ("bn-offset=1", "bn-offset=10", "LN plain", "bn[0]")]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("bn-offset=1", "bn-offset=1"),
        ("bn-offset=10", "bn-offset=10"),
        ("ln", "LN plain"),
        ("=10", "bn-offset=10"),
        ("[0]", "bn[0]"),
    ],
)
def test_a_case_by_a_part_of_its_id(tmp_path, name, found):
    run_dir = stored(tmp_path, [comparison(case=row["id"]) for row in CASES], cases=CASES)
    assert shown(run_dir, name).startswith(f"{found}\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bn-offset", "matches 2 cases"),
        ("bn-ofset=10", 'did you mean "bn-offset=10"'),
        (None, "name a case"),
        ("", "4 cases"),
    ],
)
def test_a_case_that_is_not_clear(tmp_path, name, said):
    run_dir = stored(tmp_path, [comparison(case=row["id"]) for row in CASES], cases=CASES)
    with pytest.raises(ExplainError, match=said) as caught:
        shown(run_dir, name)
    assert "bn-offset=1" in str(caught.value)


def test_the_only_case_needs_no_name(run_dir):
    assert shown(run_dir, None).startswith(CASE)


def test_a_backend_that_gave_nothing(tmp_path):
    gone = {"case": CASE, "dtype": "float32", "backend": "oneflow", "outcome": "crash", "message": "killed\nby SIGSEGV"}
    assert "oneflow float32: crash: killed | by SIGSEGV" in shown(stored(tmp_path, finding(), outcomes=[gone]))


HOSTILE = "[red]x[/red]\x1b[31m :smile: 层归一化 \u202e \ud800"


def test_hostile_names_are_shown_as_they_are(tmp_path):
    rows = [unstable(case=HOSTILE, tensor="[/]", actual="[bold]", culprit=["[bold]"], message="[x", known=None)]
    causes = [diagnosis(case=HOSTILE, backend="[bold]", title="[/]", tensors=["[/]"], evidence={"[i]": HOSTILE})]
    cases = [case_row(HOSTILE, op="[u]", params={"[b]": "[/b]"})]
    run_dir = stored(tmp_path / "[red]", rows, causes, cases)
    for width in (20, 80):
        text = shown(run_dir, HOSTILE, width=width)
        assert "[red]x[/red]\\x1b[31m :smile: 层归一化" in text
        assert "\x1b" not in text
    done = call("explain", run_dir, "red")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["cases"][0].pop("params"),
        lambda d: d["cases"][0].update(inputs=[1]),
        lambda d: d["cases"][0].update(inputs={"x": 1}),
        lambda d: d["cases"][0].update(source={}),
        lambda d: d["diagnoses"][0].pop("explained"),
        lambda d: d["diagnoses"][0].update(tensors=None),
        lambda d: d["diagnoses"].append(1),
    ],
)
def test_an_edited_result_is_refused(run_dir, edit):
    path = run_dir / "results.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ResultsError, match=r"results\.json"):
        shown(run_dir)


# Diagnoses by themselves


def test_the_list():
    lines = printed(explain_list).splitlines()
    assert [line.split()[0] for line in lines] == list(catalogue())


@pytest.mark.parametrize("name", catalogue())
def test_a_paragraph_each(name):
    text = " ".join(printed(lambda console: explain_id(name, console)).split())
    entry = catalogue()[name]
    assert text.startswith(f"{name}: {entry.title}")
    assert " ".join(entry.what.split()) in text
    assert f"In the data: {entry.shows}" in text


def test_every_entry_is_told():
    for entry in catalogue().values():
        for text in (entry.what, entry.shows):
            assert len(text) > 40
        for text in (entry.what, entry.shows, entry.known_in, entry.source):
            assert text == " ".join(text.split())
            assert not text or text.endswith((".", ")")), (entry.id, text[-20:])


def test_the_command(run_dir):
    assert call("explain", "--list").stdout.startswith("reference-edit ")
    assert call("explain", "variance-naive").stdout.startswith("variance-naive: ")
    done = call("explain", run_dir, "offset", "--tensor", "y")
    assert done.returncode == 0
    assert done.stdout.startswith(CASE)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["variance-niave"], 'did you mean "variance-naive"'),
        (["no-such-dir", "case"], "results.json"),
        ([], "name a diagnosis"),
        (["--list", "x"], "name a diagnosis"),
        (["RUN", "nothing-like-it"], "this run has no case"),
        (["RUN", "group", "--dtype", "int8"], "has no dtype"),
    ],
)
def test_mistakes_end_with_two_and_no_traceback(run_dir, arguments, said):
    done = call("explain", *(str(run_dir) if word == "RUN" else word for word in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
