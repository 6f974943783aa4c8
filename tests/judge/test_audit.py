"""What a case can tell: blind cases are said to be blind, good ones are not, and the command says so in words."""

from __future__ import annotations

import re
import subprocess

import pytest

from parity.config import Overrides, load_plan
from parity.judge.audit import CaseAudit
from parity.reporting.console.audit import audited, cause_rows
from tests.conftest import CONFIGS, parity_command

LAYER = "op: layer_norm, params: {normalized_shape: [6]}"
GOOD = "x: {shape: [8, 6], log_uniform: {low: 1.0e-3, high: 1, signed: true}}"


def audits(tmp_path, *cases: str, dtypes: str = "float32, float64") -> list[CaseAudit]:
    path = tmp_path / "audited.yaml"
    listed = "\n".join(f"  - {{{case}}}" for case in cases)
    path.write_text(f"version: 1\nbackends: [numpy]\ndtypes: [{dtypes}]\ncases:\n{listed}\n")
    plan = load_plan([path], Overrides())
    return [audited(case, plan.seed) for case in plan.cases]


def audit(tmp_path, case: str, **options: str) -> CaseAudit:
    [found] = audits(tmp_path, case, **options)
    return found


def seen(found: CaseAudit, name: str, **parameters: object) -> set[str]:
    """The dtypes that see a mistake, of any of its variants with these parameters."""
    chosen = [m for m in found.mistakes if m.id == name and parameters.items() <= dict(m.parameters).items()]
    assert chosen, f"{name} was not tried"
    return {dtype for m in chosen for dtype in m.seen_in}


def tensors(found: CaseAudit, name: str) -> set[str]:
    """The tensors that see a mistake in some dtype."""
    effects = [r for m in found.mistakes if m.id == name for r in m.ratios.values()]
    return {tensor for ratios in effects for tensor, ratio in ratios.items() if ratio >= 8}


def fails(found: CaseAudit, name: str) -> bool:
    return any(m.fails_in for m in found.mistakes if m.id == name)


def pairs(found: CaseAudit) -> set[frozenset[str]]:
    return {frozenset((a.id, b.id)) for a, b in found.alike}


def test_a_good_case_sees_every_mistake_and_tells_them_apart(tmp_path):
    found = audit(tmp_path, f"{LAYER}, inputs: {{{GOOD}}}")
    blind = {m.id for m in found.mistakes if not m.seen_in}
    # Both need an offset to lose digits.
    assert blind <= {"variance-naive", "affine-folding"}
    assert found.alike == ()
    assert found.remarks == ()
    assert all(fails(found, name) for name in ("eps-value", "eps-placement", "affine-order", "swapped-gradients"))


def test_a_weight_of_ones_does_not_show_the_order_of_the_affine(tmp_path):
    ones = f"{LAYER}, inputs: {{{GOOD}, weight: {{constant: 1}}}}"
    bare = f"{LAYER}, inputs: {{{GOOD}, weight: {{constant: 1}}, bias: {{constant: 0}}}}"
    found, alone, both = audits(tmp_path, ones, f"gradients: false, {ones}", bare)
    assert tensors(found, "affine-order") == {"grad.weight"}
    assert not seen(alone, "affine-order")
    assert not seen(alone, "affine-missing", without=["weight"])
    assert seen(found, "affine-missing", without=["weight"])  # its gradient is missing then
    assert not seen(both, "affine-order")
    assert [any("the weight is 1" in text for text in a.remarks) for a in (found, alone, both)] == [True] * 3
    assert [any("the bias is 0" in text for text in a.remarks) for a in (found, alone, both)] == [False, False, True]


def test_a_constant_upstream_gradient_hides_what_is_wrong_with_dx(tmp_path):
    plain = f"{LAYER}, inputs: {{{GOOD}, weight: {{constant: 1}}}}"
    steady = f"{LAYER}, inputs: {{{GOOD}, weight: {{constant: 1}}, grad.y: {{constant: 1}}}}"
    good, found = audits(tmp_path, plain, steady)
    assert seen(good, "detached-statistics", detached="variance")
    assert not seen(found, "detached-statistics", detached="variance")
    assert not seen(found, "missing-gradient", zero="grad.x")
    assert not seen(found, "sign-flipped", tensor="grad.x")
    assert any("grad.x is exactly zero (grad_output is constant)" in text for text in found.remarks)


def test_an_eps_far_below_the_variance_does_not_show(tmp_path):
    far = "op: layer_norm, params: {normalized_shape: [64], eps: 1.0e-9}, inputs: {x: {shape: [8, 64]}}"
    found = audit(tmp_path, far, dtypes="float32")
    assert not seen(found, "eps-value", eps=1e-12)
    assert not seen(found, "eps-placement")
    assert any(text.startswith("eps is below") for text in found.remarks)
    assert not audit(tmp_path, f"{LAYER}, inputs: {{{GOOD}}}").remarks


def test_one_tensor_does_not_show_a_norm_per_tensor(tmp_path):
    one = "op: clip_grad_norm, params: {max_norm: 1}, inputs: {grads: [{shape: [4, 3]}]}"
    two = "op: clip_grad_norm, params: {max_norm: 1}, inputs: {grads: [{shape: [4, 3]}, {shape: [4, 3]}]}"
    blind, good = audits(tmp_path, one, two)
    assert any(text.startswith("there is one gradient tensor") for text in blind.remarks)
    assert not any(m.id == "clip-per-tensor" for m in blind.mistakes)
    assert seen(good, "clip-per-tensor") == {"float32", "float64"}
    assert good.remarks == ()


def test_what_shows_a_missing_transpose_of_a_square_weight(tmp_path):
    square = "op: linear, inputs: {x: {shape: [5, 2]}, weight: {values: [[1, 2], [3, 4]]}}"
    symmetric = "op: linear, inputs: {x: {shape: [5, 2]}, weight: {values: [[1, 2], [2, 1]]}}"
    alone = "op: linear, gradients: false, inputs: {x: {shape: [5, 2]}, weight: {values: [[1, 2], [2, 1]]}}"
    said = [found.remarks[0] for found in audits(tmp_path, square, symmetric, alone)]
    assert [text.rpartition("; ")[2] for text in said] == [
        "y does",
        "only gradients do, y does not",
        "neither y nor the gradients do",
    ]


def test_mistakes_that_look_the_same_are_named(tmp_path):
    pair = "op: layer_norm, params: {normalized_shape: [2], eps: 0}, inputs: {x: {shape: [5, 2]}}"
    rows = "op: layer_norm, params: {normalized_shape: [3], eps: 0}, inputs: {x: {shape: [5, 3]}}"
    two, three = audits(tmp_path, pair, rows)
    same = frozenset(("variance-ddof", "mean-vs-sum"))  # n / (n - 1) is n where n is 2
    assert same in pairs(two)
    assert same not in pairs(three)


def test_an_algorithm_that_loses_digits_is_seen_at_an_offset_only(tmp_path):
    near, far = audits(
        tmp_path, *(f"{LAYER}, inputs: {{x: {{shape: [8, 6], offset: {offset}}}}}" for offset in (0, 1000))
    )
    assert not seen(near, "variance-naive")
    assert seen(far, "variance-naive") == {"float32", "float64"}


def test_what_only_float64_can_see_is_not_asked_of_float32(tmp_path):
    both, narrow = (audit(tmp_path, f"{LAYER}, inputs: {{{GOOD}}}", dtypes=d) for d in ("float32, float64", "float32"))
    assert seen(both, "attribute-precision") == {"float64"}
    assert not any(m.id == "attribute-precision" for m in narrow.mistakes)


def test_a_suspect_pass_is_no_failure(tmp_path):
    loose = f"{LAYER}, inputs: {{{GOOD}}}, tolerance: {{float32: {{rtol: 1.0e+3, atol: 1.0e+6}}}}"
    found = audit(tmp_path, loose, dtypes="float32")
    row = next(row for row in cause_rows([found], found.dtypes) if row.id == "affine-order")
    assert (row.n_seen, row.n_failing) == (1, 0)


def test_a_large_case_is_left_out_and_named(tmp_path):
    found = audit(tmp_path, "op: layer_norm, params: {normalized_shape: [768]}, inputs: {x: {shape: [512, 768]}}")
    assert "too large" in found.problem
    assert not found.mistakes


# One case per op tells whether a mode is its framework's eager ops, not which mistake it makes; trainings are no ops.
OTHER_QUESTIONS = {"low_precision", "modes", "training"}


BLIND = {
    # Folding loses more than the reference where one element is a whole mean, which no instance_norm allows.
    "instance_norm": {"affine-folding"},
    # The gradient of a key's bias is zero: a softmax does not see what is added to all scores of a row.
    "multi_head_attention": {"missing-gradient", "sign-flipped", "mean-vs-sum", "softmax-unshifted"},
    # Scores are small: of large ones, frameworks lose more than their own scripts repeat bit for bit.
    "scaled_dot_product_attention": {"softmax-unshifted"},
}


WITHIN = {
    # Constants in float32 change a float64 result by 1e-8, which its tolerance allows.
    "gelu": {"attribute-precision"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "layernorm" else [pytest.mark.exhaustive])
        for name in sorted({path.stem for path in CONFIGS.glob("*.yaml")} - OTHER_QUESTIONS)
    ],
)
def test_a_shipped_config_sees_every_mistake_and_tells_them_apart_somewhere(name):
    plan = load_plan([CONFIGS / f"{name}.yaml"], Overrides())
    found = [audited(case, plan.seed) for case in plan.cases]
    for op in {audit.op for audit in found}:
        mine = [audit for audit in found if audit.op == op and not audit.problem]
        rows = cause_rows(mine, ())
        assert {row.id for row in rows if row.unseen} == BLIND.get(op, set())
        assert {row.id for row in rows if not row.n_failing} <= {"affine-folding"} | BLIND.get(op, set()) | WITHIN.get(
            op, set()
        )
        for ids in {pair for audit in mine for pair in pairs(audit)}:
            both = [a for a in mine if ids <= {m.id for m in a.mistakes if m.seen_in}]
            assert any(ids not in pairs(a) for a in both), ids


def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(parity_command("validate", *map(str, arguments)), capture_output=True, text=True)


@pytest.fixture
def hostile(tmp_path):
    path = tmp_path / "hostile.yaml"
    path.write_text(
        "version: 1\nbackends: [numpy]\ncases:\n"
        f"  - {{id: '[red]x[/red] :smile: [/]', {LAYER}, inputs: {{{GOOD}, weight: {{constant: 1}}}}}}\n"
        f"  - {{id: other, {LAYER}, inputs: {{{GOOD}}}}}\n"
    )
    return path


def test_the_command_says_what_is_blind_and_leaves_with_0(hostile):
    done = call("--audit", hostile)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^layer_norm: 2 cases audited", done.stdout, re.M)
    assert re.search(r"^variance-naive +0 of 2 ", done.stdout, re.M)
    assert re.search(r"^eps-value +2 of 2 ", done.stdout, re.M)
    assert "[red]x[/red] :smile: [/]: the weight is 1 everywhere" in done.stdout
    assert "\x1b" not in done.stdout


def test_filters_choose_what_is_audited(hostile):
    done = call("--audit", hostile, "-k", "other", "--dtype", "float32")
    assert "layer_norm: 1 case audited" in done.stdout
    assert "float64" not in done.stdout.partition("audited")[2].partition("detected by")[0]
    assert "the weight is 1" not in done.stdout


def test_without_the_flag_nothing_is_audited(hostile):
    assert "audited" not in call(hostile).stdout


def test_a_wrong_config_is_2(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("version: 1\nbackends: [numpy]\ncases: [{op: layer_nrm}]\n")
    done = call("--audit", path)
    assert done.returncode == 2
    assert "layer_norm" in done.stderr
