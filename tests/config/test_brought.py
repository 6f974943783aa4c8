"""A case may bring its own op: `reference:` names a file with a NumPy function."""

from __future__ import annotations

import cProfile
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from parity.cases import brought
from parity.cases.oracle import evaluate
from parity.config import Overrides, load_plan
from parity.config.errors import ConfigError
from parity.config.plan import CasePlan, Plan

TWO = "{x: {shape: [4, 8]}, gate: {shape: [4, 8]}}"
GATED = "def my_op(x, gate, alpha=1.0):\n"


def planned(folder: Path, body: str, inputs: str = TWO, more: str = "") -> Plan:
    """The plan of one case whose reference is `body`, after `import numpy as np` in line 1."""
    (folder / "ref.py").write_text(f"import numpy as np\n{body}\n")
    case = f"- {{op: my_op, reference: ./ref.py, inputs: {inputs}{more}}}"
    config = folder / "config.yaml"
    config.write_text(f"version: 1\nbackends: [torch]\ncases:\n  {case}\n")
    return load_plan([config], Overrides())


def case(folder: Path, body: str, inputs: str = TWO, more: str = "") -> CasePlan:
    return planned(folder, body, inputs, more).cases[0]


def problems(folder: Path, body: str, inputs: str = TWO, more: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        planned(folder, body, inputs, more)
    return str(caught.value)


def test_shapes_params_and_gradients_follow_from_the_function(tmp_path: Path):
    plan = case(
        tmp_path,
        GATED + "    return {'y': x @ gate.T * alpha, 'size': np.array([x.size])}",
        more=", params: {alpha: 2}",
    )
    assert {tensor.name: tensor.shape for tensor in plan.tensors} == {"x": (4, 8), "gate": (4, 8), "grad.y": (4, 4)}
    assert plan.params.alpha == 2.0
    assert plan.definition.differentiable == ("x", "gate")
    assert plan.definition.grad_outputs == ("y",)


def test_the_op_of_a_reference_can_be_put_under_stress(tmp_path: Path):
    plan = planned(tmp_path, GATED + "    return x * gate * alpha", more=", stress: true")
    assert {case.op for case in plan.cases} == {"my_op"}
    assert {(1, 8), (4, 33)} <= {case.tensors[0].shape for case in plan.cases}


@pytest.mark.parametrize("inputs", [TWO, TWO.replace("}}", "}, grad.y: {constant: 1}}")])
def test_a_reference_is_recorded_and_replayed_once(inputs: str, tmp_path: Path):
    with patch.object(brought, "replay", wraps=brought.replay) as replayed:
        case(tmp_path, GATED + "    return x * gate", inputs)
    assert replayed.call_count == 1


def test_a_reference_is_replayed_under_a_profiler(tmp_path: Path):
    profiler = cProfile.Profile()
    with profiler:
        case(tmp_path, GATED + "    return x * gate")
        assert sys.getprofile() is profiler


@pytest.mark.parametrize("body", [GATED + "    while True:\n        x", "while True:\n    pass"])
def test_a_reference_that_hangs_is_reported_with_its_line(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parity.cases.user_code.LIMIT_S", 0.2)
    told = problems(tmp_path, body)
    assert re.search(r"ref\.py:[234]: TimeoutError: no result after 0\.2 s", told), told


INDEX = "{x: {shape: [4, 6]}, index: {shape: [3], integers: {low: 0, high: 4}}}"


@pytest.mark.parametrize(
    "body",
    [
        "    return np.take(x, index, axis=0) * x.mean()",
        "    a, b = x[..., ::2], x[..., 1::2]\n    return np.stack([a * b, a - b[index[0]]], axis=-1).reshape(x.shape)",
        "    return np.array([row.max() for row in x]) + x.var(axis=1, ddof=1)",
        "    a, b = np.split(x, 2, axis=1)\n    return np.block([[a, b], [b, a * a]])[index].sum(axis=0)",
        "    window = np.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(0, 1))\n    return window.prod(axis=(2, 3))",
        "    return np.select([x > 1, x < -1], [x * 2, x**3], default=0.5)",
        "    s = x @ x.T + 4 * np.eye(4)\n    return np.linalg.inv(s) @ np.linalg.solve(s, x) + np.linalg.det(s) / 100",
        "    return np.linalg.cholesky(x @ x.T + 4 * np.eye(4)) + np.linalg.norm(x, axis=1, keepdims=True)",
        "    from numpy.linalg import norm\n    return norm(x, axis=1) + np.take_along_axis(x.T[:, :3], index[None] + 1, axis=0)[0, 0]",
    ],
)
def test_gradients_are_the_derivatives(body: str, tmp_path: Path):
    plan = case(tmp_path, f"def my_op(x, index):\n{body}", INDEX)
    inputs = {tensor.name: tensor.sample(0, "one", "float64") for tensor in plan.tensors}
    found = evaluate(plan.definition, plan.params, inputs)

    def total(x: np.ndarray) -> float:
        outputs = evaluate(plan.definition, plan.params, {**inputs, "x": x}, gradients=False)
        return np.sum(outputs["y"] * inputs["grad.y"])

    step = np.longdouble(1e-5)
    for place in np.ndindex(4, 6):
        moved = np.zeros((4, 6), np.longdouble)
        moved[place] = step
        slope = (total(inputs["x"] + moved) - total(inputs["x"] - moved)) / (2 * step)
        assert slope == pytest.approx(found["grad.x"][place], rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    ("formula", "slope"),
    [
        ("np.where(x > 0, np.sqrt(x), 0.0)", lambda x: np.where(x > 0, 0.5 * np.abs(x) ** -0.5, 0)),
        (
            "np.where(x > 0, x, np.where(x > -1, np.log1p(x) ** 3, -x))",
            lambda x: np.where(x > 0, 1, np.where(x > -1, 3 * np.log1p(np.maximum(x, -0.9)) ** 2 / (1 + x), -1)),
        ),
        ("np.select([x > 0], [np.log(np.exp(x))], x * 2)", lambda x: np.where(x > 0, 1.0, 2.0)),
    ],
)
def test_what_a_reference_does_not_choose_has_no_gradient(formula: str, slope: Callable, tmp_path: Path):
    plan = case(tmp_path, f"def my_op(x):\n    return {formula}", "{x: {shape: [5]}}")
    x, arriving = np.array([-1e5, -2.0, -0.5, 0.25, 3.0]), np.array([1.0, 2, 3, 4, 5])
    found = evaluate(plan.definition, plan.params, {"x": x, "grad.y": arriving}, dtype="float64")
    np.testing.assert_allclose(found["grad.x"], arriving * slope(x), rtol=1e-12)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("def my_op(x):\n    return np.linalg.tensorinv(x)", "{x: {shape: [2, 3, 3, 2]}}"),
        ("def my_op(x):\n    return np.linalg.tensorinv(x, ind=1)", "{x: {shape: [6, 3, 2]}}"),
        ("def my_op(x, b):\n    return np.linalg.tensorsolve(x, b)", "{x: {shape: [2, 3, 6]}, b: {shape: [2, 3]}}"),
        (
            "def my_op(x, b):\n    return np.linalg.tensorsolve(x, b, axes=(0,))",
            "{x: {shape: [6, 2, 3]}, b: {shape: [2, 3]}}",
        ),
    ],
)
def test_tensors_are_inverted_like_matrices(body: str, inputs: str, tmp_path: Path):
    assert case(tmp_path, body, inputs).definition.grad_outputs == ("y",)


@pytest.mark.parametrize("function", ["det", "inv", "cholesky"])
def test_a_matrix_without_a_factorization_has_no_finite_answer(function: str, tmp_path: Path):
    plan = case(tmp_path, f"def my_op(x):\n    return np.linalg.{function}(x)", "{x: {shape: [3, 3]}}")
    inputs = {tensor.name: np.full(tensor.shape, -1.0) for tensor in plan.tensors}
    exact = evaluate(plan.definition, plan.params, inputs)
    assert function == "det" or np.isnan(exact["y"]).all()
    assert np.isnan(exact["grad.x"]).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (GATED + "    raise RuntimeError('no')", "ref.py:3: RuntimeError: no (with x [4, 8], gate [4, 8])"),
        (GATED + "    x * gate", "ref.py:2: my_op returns NoneType; return an array"),
        (GATED + "    return x, gate", "ref.py:2: my_op returns tuple; return an array, or a mapping"),
        (GATED + "    return x @ gate", "ref.py:3: ValueError: matmul"),
        (
            GATED + "    return x if x.sum() > 0 else gate",
            "ref.py:3: TraceError: a reference must not branch on the values",
        ),
        (GATED + "    x.shape = (32,)\n    return x", "ref.py:3: TraceError: a reference must not set the shape"),
        (GATED + "    return np.sort(x)", "has no gradient: NotImplementedError"),
        (GATED + "    return np.linalg.svd(x, compute_uv=False)", "parity has no gradient of np.linalg.svd; use other"),
        (GATED + "    return np.linalg.svd(x)[1]", "np.linalg.svd returns several arrays, and a step returns one"),
        ("def my_op(x, gate:\n    return x", "ref.py:2: SyntaxError"),
        ("import nothing_of_this_name", "ref.py:2: ModuleNotFoundError"),
        ("def other(x):\n    return x", "ref.py defines no function my_op"),
        ("def my_op(*x):\n    return x[0]", "ref.py:2: my_op takes *x"),
        ("raise SystemExit(3)", "ref.py:2: SystemExit: 3"),
        (GATED + "    raise SystemExit(0)", "ref.py:3: SystemExit: 0"),
        (GATED + "    raise KeyboardInterrupt", "ref.py:3: KeyboardInterrupt: no message"),
        (
            "class Mute(BaseException):\n    def __str__(self):\n        raise RuntimeError\n"
            + GATED
            + "    raise Mute",
            "ref.py:6: Mute: no message",
        ),
        (
            "class Mute(Exception):\n    def __str__(self):\n        return 5\n" + GATED + "    raise Mute",
            "ref.py:6: Mute: no message",
        ),
        (
            GATED + "    if not isinstance(x, np.ndarray):\n        return x\n    raise KeyboardInterrupt",
            "ref.py:5: KeyboardInterrupt: no message",
        ),
        ("import os\n" + GATED + "    os._exit(0)", "ref.py:4: SystemExit: os._exit would end parity, too"),
        ("import os\nos.execlp('true', 'true')", "ref.py:3: SystemExit: os.execv would end parity, too"),
        ("my_op = max", "ref.py: my_op does not show its arguments"),
    ],
)
def test_a_broken_reference_is_reported_with_its_file_and_line(body: str, message: str, tmp_path: Path):
    told = problems(tmp_path, body)
    assert "config.yaml:4: cases[0].reference = ./ref.py" in told
    assert message in told


def test_a_reference_imports_files_of_its_folder(tmp_path: Path):
    for number, name in enumerate(("one", "two"), 1):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "neighbour.py").write_text(
            f"import numpy as np\n\n\ndef helper(x):\n    return np.exp(x) * {number}\n"
        )
        body = "from neighbour import helper\ndef my_op(x, gate):\n    import neighbour\n    return neighbour.helper(x) * helper(gate)"
        plan = case(folder, body)
        inputs = {tensor.name: np.zeros(tensor.shape) for tensor in plan.tensors}
        assert (evaluate(plan.definition, plan.params, inputs)["y"] == number**2).all()


@pytest.mark.parametrize("line", ["from random import helper", "import colorsys\nhelper = colorsys.helper"])
def test_a_file_named_like_another_module_is_told_to_have_another_name(line: str, tmp_path: Path):
    for name in ("random", "colorsys"):
        (tmp_path / f"{name}.py").write_text("def helper(x):\n    return x\n")
    told = problems(tmp_path, f"{line}\ndef my_op(x, gate):\n    return helper(x) * gate")
    assert ".py beside it, and comes first: give that file another name" in told


def test_a_reference_is_a_module_of_its_own(tmp_path: Path):
    body = (
        "import dataclasses\n@dataclasses.dataclass\nclass Scale:\n    by: float = 0.5\n"
        "def checked(function):\n    assert function.__annotations__['x'] is np.ndarray\n    return function\n"
        "@checked\ndef my_op(x: np.ndarray, gate):\n    import pickle\n"
        "    return x * gate * pickle.loads(pickle.dumps(Scale())).by"
    )
    plan = case(tmp_path, body)
    inputs = {tensor.name: np.ones(tensor.shape) for tensor in plan.tensors}
    assert (evaluate(plan.definition, plan.params, inputs)["y"] == 0.5).all()


def test_a_file_that_cannot_be_run_is_one_problem(tmp_path: Path):
    (tmp_path / "ref.py").write_text("import nothing_of_this_name\n")
    config = tmp_path / "config.yaml"
    lines = "".join(f"  - {{op: {op}, reference: ./ref.py, inputs: {{x: {{shape: [4]}}}}}}\n" for op in ("a", "b", "c"))
    config.write_text(f"version: 1\nbackends: [torch]\ncases:\n{lines}")
    with pytest.raises(ConfigError) as caught:
        load_plan([config], Overrides())
    assert str(caught.value).count("ModuleNotFoundError") == 1


def test_a_reference_may_format_what_it_computes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    body = '    print(f"{x.sum():.3f} {x[0, 0]:g} {alpha:.1f}", x[0, :2])\n    return x * gate * alpha'
    assert case(tmp_path, GATED + body).definition.grad_outputs == ("y",)
    assert "24.000 0.75 1.0 [0.75 0.75]\n" in capfd.readouterr().err


def test_a_warning_of_a_reference_is_shown_once(tmp_path: Path):
    body = "import warnings\n" + GATED + "    warnings.warn('odd')\n    return x * gate"
    with warnings.catch_warnings(record=True, action="always") as shown:
        plan = case(tmp_path, body)
        inputs = {tensor.name: tensor.sample(0, "one", "float64") for tensor in plan.tensors}
        evaluate(plan.definition, plan.params, inputs)
    assert [(str(warning.message), warning.lineno) for warning in shown] == [("odd", 4)]


HALF = "def my_op(x):\n    h = x.astype(np.float16)\n    {}"


def test_a_result_that_overflows_float16_is_no_difference_of_the_recording(tmp_path: Path):
    plan = case(tmp_path, HALF.format("return h * h * 30000"), "{x: {shape: [4, 8]}}")
    assert plan.definition.grad_outputs == ("y",)


def test_a_value_that_overflows_float16_on_the_way_is_told_as_such(tmp_path: Path):
    told = problems(tmp_path, HALF.format("e = np.exp(h * 8); return e / (e + 1)"), "{x: {shape: [4, 8]}}")
    assert (
        "ref.py:4: y is nan at [0, 5], and 0.999998 in the recording; the reference computes in float16, and a" in told
    )
    assert "value is beyond float16's range with these inputs" in told
    assert "branch" not in told


@pytest.mark.process
def test_a_reference_that_forks_leaves_one_process(tmp_path: Path):
    own = os.getpid()
    case(tmp_path, "import os\n" + GATED + "    os.fork()\n    return x")
    assert os.getpid() == own


def test_a_signal_while_a_reference_runs_is_no_error_of_it(tmp_path: Path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        planned(tmp_path, "import signal\n" + GATED + "    signal.raise_signal(signal.SIGINT)\n    return x")
    signal.signal(signal.SIGINT, before)


def test_what_a_reference_prints_goes_to_stderr_and_its_working_directory_ends_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    body = "    os.chdir('/')\n    os.write(1, b'raw')\n    print('printed')\n    return x * gate"
    plan = case(tmp_path, "import os\n" + GATED + body)
    evaluate(plan.definition, plan.params, {tensor.name: tensor.sample(0, "one", "float64") for tensor in plan.tensors})
    out, err = capfd.readouterr()
    assert out == ""
    assert "raw" in err
    assert "printed" in err
    assert Path.cwd() != Path("/")


@pytest.mark.parametrize(
    ("inputs", "more", "message"),
    [
        (TWO, ", params: {alpa: 2}", 'my_op has no "alpa"; did you mean "alpha"?'),
        (TWO, ", params: {alpha: big}", "alpha must be a number"),
        ("{x: {shape: [4]}, gat: {shape: [4]}}", "", 'my_op takes no "gat"; did you mean "gate"?'),
        ("{x: {shape: [4]}}", "", "my_op takes gate: a tensor goes under inputs, a number under params"),
        ("{x: {shape: [4]}, gate: {constant: 1}}", "", "a shape (or `values`, or a `file`) is needed for gate"),
        (TWO, ", differentiable: [gat]", 'no floating-point input of the case; did you mean "gate"?'),
        ("{x: {shape: [4]}, gate: {shape: [4]}, grad.z: {shape: [4]}}", "", "no floating-point output z, only y"),
    ],
)
def test_what_does_not_fit_the_signature_is_an_error_at_its_line(inputs: str, more: str, message: str, tmp_path: Path):
    told = problems(tmp_path, GATED + "    return x * gate * alpha", inputs, more)
    assert "config.yaml:4" in told
    assert message in told


def test_unknown_ops_and_backends_lead_to_the_door(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("version: 1\nbackends: [jxa]\ncases:\n  - {op: my_op, inputs: {x: {shape: [4]}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_plan([config], Overrides())
    assert "parity knows no op my_op (to bring your own, give the case a `reference:`" in str(caught.value)
    assert "ops: ./my_kernel.py}, see docs/own-kernel.md" in str(caught.value)


def test_a_backend_is_no_reference(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: 1\nbackends: [torch]\ncases:\n  - {op: my_op, reference: torch, inputs: {x: {shape: [4]}}}\n"
    )
    with pytest.raises(ConfigError, match="a reference is a NumPy function in a file"):
        load_plan([config], Overrides())


def test_a_known_op_keeps_its_own_reference(tmp_path: Path):
    (tmp_path / "ref.py").write_text("def relu(x):\n    return x\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: 1\nbackends: [torch]\ncases:\n  - {op: relu, reference: ./ref.py, inputs: {x: {shape: [4]}}}\n"
    )
    with pytest.raises(ConfigError, match="parity has a reference of its own for relu"):
        load_plan([config], Overrides())
