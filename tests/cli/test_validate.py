"""`parity validate` says what a run would say, without running anything."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from parity.config import Overrides, load_plan
from parity.preflight import defined_names, remarks
from tests.conftest import CONFIGS, call, run_in, started, user_config

CASES = [
    "{id: one, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}, gradients: false}",
    "{id: two, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 6]}}, gradients: false}",
]
LINEAR = "def linear(x, weight, bias):\n    return x @ weight.T + bias\n"


def validated(folder: Path, ops: str = LINEAR, known: str = "", *arguments: str, cases: list[str] = CASES):
    (folder / "ops.py").write_text(ops)
    (folder / "config.yaml").write_text(user_config("ops.py", cases=cases) + known)
    done = call("validate", "config.yaml", *arguments, cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.replace(f"{folder}/", ""), done.stdout


def test_a_good_config(tmp_path):
    known = "known: [{case: two, reason: r, until: 2999-01-01}, {case: t*, reason: r}]\n"
    assert validated(tmp_path, known=known) == (
        0,
        "",
        "ok: 2 cases, 4 cells on each of numpy, mine; baseline numpy; judged: mine\n",
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "{case: two, reason: r, until: 2020-01-31}",
            "config.yaml:6: expired: on 2020-01-31; remove the entry, or set another `until`\n",
        ),
        (
            "{case: 'tow*', reason: r}",
            "config.yaml:6: stale: no case matches tow*; fix the pattern or remove the entry\n",
        ),
        (
            "{case: two, reason: r, dtype: float16}",
            "config.yaml:6: stale: no case matching two runs in float16; fix the dtype or remove the entry\n",
        ),
    ],
)
def test_an_entry_that_fails_every_run(tmp_path, entry, said):
    code, stderr, stdout = validated(tmp_path, known=f"known: [{entry}]\n")
    assert (code, stderr) == (1, said)
    assert stdout.startswith("no run of these cases can pass: 2 cases, ")
    # A run says the same.
    config = (tmp_path / "config.yaml").read_text()
    finished = run_in(tmp_path, config, "-k", "two", "--fail-on", "semantic")
    assert finished.code == 1
    assert [row["state"] for row in finished.results["known"]] == [said.split(": ")[1]]


def test_an_expired_entry_for_cases_that_are_left_out_fails_nothing(tmp_path):
    known = "known: [{case: two, reason: r, until: 2020-01-31}]\n"
    assert validated(tmp_path, LINEAR + "layer_norm = linear", known, "-k", "one")[0] == 0


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ("def x(): pass\n", "mine: ops.py defines none of the ops of the cases: layer_norm, linear\n"),
        (
            "def layernorm(): pass\n",
            "mine: ops.py defines none of the ops of the cases: layer_norm, linear; "
            'did you mean "layer_norm" with "layernorm"?\n',
        ),
        (
            "class A:\n    def linear(self): pass\n",
            "mine: ops.py defines none of the ops of the cases: layer_norm, linear",
        ),
        ("def x(:\n", "mine: ops.py:1: not Python: invalid syntax\n"),
        ("x = 1\0", "mine: ops.py:1: not Python: source code string cannot contain null bytes\n"),
    ],
)
def test_ops_that_replace_nothing(tmp_path, ops, said):
    code, stderr, _ = validated(tmp_path, ops)
    assert code == 1
    assert stderr.startswith(said)
    assert run_in(tmp_path, (tmp_path / "config.yaml").read_text()).code == 3


@pytest.mark.parametrize(
    "ops",
    [
        "from math import *\n",
        "import math as linear\n",
        "from os import path as layer_norm\n",
        "if True:\n    linear = max\n",
        "try:\n    import x\nexcept ImportError:\n    def linear(): pass\n",
        "globals().update(linear=1)\n",
        "def setup():\n    global linear\n    linear = max\nsetup()\n",
        "(linear := max)\n",
        "raise SystemExit\ndef linear(): pass\n",
    ],
)
def test_ops_that_may_replace_something_are_not_run_to_find_out(tmp_path, ops):
    assert validated(tmp_path, ops)[:2] == (0, "")


def test_only_a_backends_own_cases_count(tmp_path):
    validated(tmp_path)
    (tmp_path / "other.yaml").write_text(
        "version: 1\nbackends: [numpy]\ncases: [{id: three, op: relu, inputs: {x: {shape: [3]}}}]\n"
    )
    (tmp_path / "ops.py").write_text("def relu(x): return x\n")
    done = call("validate", "config.yaml", "other.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "defines none of the ops of the cases: layer_norm, linear" in done.stderr


def test_a_training_can_be_replaced_in_part(tmp_path):
    training = (
        "{kind: train, model: [{linear: {out_features: 3}}], steps: 2, batch_size: 8,"
        " data: {name: classification, features: [5], classes: 3, rows: 16}, optimizer: {name: sgd, lr: 0.01}}"
    )
    assert validated(tmp_path, "def learning_rate(): pass\n", cases=[training])[0] == 0
    assert "defines none of the ops of the cases" in validated(tmp_path, "def x(): pass\n", cases=[training])[1]


def test_an_interpreter_that_is_not_there(tmp_path):
    text = "version: 1\nbackends: [numpy, {name: mine, adapter: torch, python: python3.99}]\ncases:\n  - "
    (tmp_path / "config.yaml").write_text(text + CASES[0])
    done = call("validate", "config.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert 'there is no command "python3.99" on PATH and no such file beside the config' in done.stderr


def test_names_are_read_and_nothing_is_run(tmp_path):
    (tmp_path / "ops.py").write_text("import os.path\nraise SystemExit\nfor a in []:\n    b: int = 1\nc[0] = d.e = 1\n")
    assert defined_names(tmp_path / "ops.py") == {"os", "a", "b"}


CONSTANT = "{id: one, op: embedding, params: {num_embeddings: 4, embedding_dim: 8}, inputs: {x: {shape: [6], integers: {low: 0, high: 1}}}}"
NAN = "{id: two, op: rooted, reference: ./reference.py, gradients: false, inputs: {x: {shape: [4], uniform: {low: -2, high: -1}}}}"


@pytest.mark.parametrize("command", ["validate", "run"])
def test_inputs_that_hide_mistakes_and_references_that_are_not_finite_are_told_first(tmp_path, command):
    (tmp_path / "reference.py").write_text("import numpy as np\n\ndef rooted(x):\n    return np.sqrt(x)\n")
    (tmp_path / "ops.py").write_text("import numpy as np\n\ndef rooted(x):\n    return np.sqrt(x)\n")
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[CONSTANT, NAN]))
    done = call(command, "config.yaml", cwd=tmp_path)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: one: inputs.x is drawn, but always 0; `high` is exclusive, so it hides mistakes",
        "warning: two: the reference is NaN in 4 of 4 elements of y",
    ]


def test_a_reference_beyond_the_range_of_a_dtype_of_its_case_is_told_first(tmp_path):
    (tmp_path / "reference.py").write_text("import numpy as np\n\ndef scaled(x):\n    return 1000 * x\n")
    (tmp_path / "ops.py").write_text("def scaled(x):\n    return 1000 * x\n")
    inputs = "inputs: {x: {values: [1.0, 80.0]}}, gradients: false, dtypes: [float16, float32]"
    case = f"{{id: one, op: scaled, reference: ./reference.py, {inputs}}}"
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[case]))
    done = call("validate", "config.yaml", cwd=tmp_path)
    assert done.returncode == 0
    stressed = case.replace("{id", "{stress: true, id")
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[stressed]))
    assert "beyond" not in call("validate", "config.yaml", cwd=tmp_path).stderr
    assert done.stderr == (
        "warning: one: with these inputs the reference is beyond float16's range of 65504 in 1 of 2 elements of y, up to "
        "8e+04: choose another scale\n"
    )


def test_the_shipped_configs_draw_no_constants():
    for folder in (CONFIGS, CONFIGS / "ops"):
        assert list(remarks(load_plan(sorted(folder.glob("*.yaml")), Overrides()))) == []


BRANCHES = """import numpy as np

def branching(x, scale=1.0):
    if scale < 0:
        x = -x
    if x.shape[0] > 3:
        y = x * scale
    else:
        y = x / scale
    if scale == 7:
        raise ValueError("not 7")
    return y
"""


@pytest.mark.parametrize("command", ["validate", "run"])
def test_branches_that_no_case_takes_are_told_first(tmp_path, command):
    (tmp_path / "reference.py").write_text(BRANCHES)
    (tmp_path / "ops.py").write_text("def branching(x, scale=1.0):\n    return x * scale\n")
    case = "{{id: {}, op: branching, reference: ./reference.py, gradients: false, inputs: {{x: {{shape: [{}]}}}}}}"
    for sizes, wanted in (
        ((4,), ["4: `scale < 0` is never true", "6: `x.shape[0] > 3` is never false"]),
        ((4, 2), ["4: `scale < 0` is never true"]),
    ):
        (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[case.format(f"of-{n}", n) for n in sizes]))
        done = call(command, "config.yaml", cwd=tmp_path)
        warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
        end = " in these cases, so nothing shows what that branch computes"
        assert warnings == [f"warning: reference.py:{text}{end}" for text in wanted]


LEFT = {
    "thread": "threading.Thread(target=threading.Event().wait).start()",
    "pool": "ThreadPoolExecutor(1).submit(threading.Event().wait)",
    "process": "multiprocessing.get_context('fork').Process(target=threading.Event().wait).start()",
}


@pytest.mark.process
def test_a_program_that_a_reference_starts_ends_with_the_command(tmp_path):
    start = 'subprocess.Popen(["sleep", "900"], start_new_session=True)'
    (tmp_path / "reference.py").write_text(
        "import subprocess\nfrom pathlib import Path\nimport numpy as np\n"
        f"Path(__file__).with_name('pid').write_text(str({start}.pid))\n\n\ndef left(x):\n    return np.sin(x)\n"
    )
    (tmp_path / "ops.py").write_text("def left(x):\n    return x\n")
    case = "{id: left, op: left, reference: ./reference.py, inputs: {x: {shape: [4]}}}"
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[case]))
    with started("validate", "config.yaml", cwd=tmp_path) as process:
        process.communicate(timeout=120)
    assert process.returncode == 0
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.process
@pytest.mark.parametrize("name", LEFT)
def test_what_a_reference_leaves_running_does_not_keep_the_command_from_ending(tmp_path, name):
    imports = (
        "import multiprocessing, threading\nfrom concurrent.futures import ThreadPoolExecutor\nimport numpy as np\n"
    )
    (tmp_path / "reference.py").write_text(f"{imports}\n\ndef left(x):\n    {LEFT[name]}\n    return np.sin(x)\n")
    (tmp_path / "ops.py").write_text("def left(x):\n    return x\n")
    case = "{id: left, op: left, reference: ./reference.py, inputs: {x: {shape: [4]}}}"
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[case]))
    with started("validate", "config.yaml", cwd=tmp_path) as process:
        answer, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    assert answer.startswith("ok: 1 case")
