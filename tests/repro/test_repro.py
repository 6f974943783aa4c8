"""Scripts of findings: what stays data, what a user's op becomes, when it ends with 0, and what cannot be shown."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from parity.adapters import ADAPTERS
from parity.cases import OPS
from parity.repro.literals import Code, array, literal, paragraph, prose
from parity.repro.script import joined
from parity.repro.source import SourceError, adapter_class, calls, has_method
from parity.repro.templates import template
from tests.conftest import ROOT, call, parity_command
from tests.repro.scripts import (
    PLAIN,
    WRONG,
    comparisons,
    repro,
    rewrite,
    run_alone,
    run_together,
    scripts,
)


def test_a_wrong_op_is_shown_and_a_mended_one_is_not(finding):
    run_dir = finding(WRONG)
    first, second = scripts(run_dir)
    for script in (first, second):
        done = run_alone(sys.executable, script)
        assert done.returncode == 1, done.stderr
        assert {item.tensor for item in comparisons(done.stdout)} == {"y", "grad.bias"}
    (run_dir / "repro" / "mine.ops.py").write_text(WRONG.replace("2 * ", ""))
    done = run_alone(sys.executable, first)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the difference is gone"), done.stderr


HEADS = """
def multi_head_attention(x, num_heads, **tensors):
    return x + tensors["q_proj.bias"]
"""
TWO_HEADS = (
    "{id: one, op: multi_head_attention, params: {num_heads: 2}, gradients: false, inputs: {x: {shape: [1, 2, 4]}}}"
)


def test_names_with_a_dot_are_names_in_a_script_too(finding):
    for script in scripts(finding(HEADS, TWO_HEADS)):
        done = run_alone(sys.executable, script)
        assert done.returncode == 1, done.stderr
        assert {item.tensor for item in comparisons(done.stdout)} == {"y"}


NAIVE = """
import numpy as np

def layer_norm(x, weight, bias, normalized_shape, eps):
    mean = x.mean(-1, keepdims=True, dtype=x.dtype)
    var = (x * x).mean(-1, keepdims=True, dtype=x.dtype) - mean * mean
    return (x - mean) / np.sqrt(var + x.dtype.type(eps)) * weight + bias
"""
OFFSET = (
    "{id: one, op: layer_norm, params: {normalized_shape: [64], eps: 0.1}, gradients: false, "
    "inputs: {x: {shape: [8, 64], offset: 1000}}}"
)


def test_careful_code_ends_with_0_where_no_code_keeps_the_tolerance(finding):
    """At this offset the tolerance is out of reach in float32, so that only the size of the error can tell."""
    run_dir = finding(NAIVE, OFFSET)
    [script] = scripts(run_dir, "one", "-b", "mine", "--dtype", "float32")
    assert run_alone(sys.executable, script).returncode == 1
    copy = next(script.parent.glob("*.ops.py"))
    fixed = NAIVE.replace(
        "(x * x).mean(-1, keepdims=True, dtype=x.dtype) - mean * mean", "((x - mean) ** 2).mean(-1, keepdims=True)"
    )
    copy.write_text(fixed)
    done = run_alone(sys.executable, script)
    assert re.search(r"against exact: [1-9]\d* of \d+ elements exceed", done.stdout)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the difference is gone"), done.stderr
    copy.write_text(fixed.replace("return (x", "return np.nan + (x"))
    assert run_alone(sys.executable, script).returncode == 1


def test_the_command_that_is_printed_works(finding):
    run_dir = finding(WRONG)
    done = repro(run_dir, "one", "--dtype", "float32", "--issue")
    title, command, issue = done.stdout.splitlines()
    assert (
        title == "linear in ops.py (numpy " + np.__version__ + ") computes a different formula in float32: y, grad.bias"
    )
    shown = subprocess.run(command.strip(), shell=True, capture_output=True, text=True)
    assert shown.returncode == 1
    text = Path(issue.strip()).read_text()
    assert f"```text\n{shown.stdout}```" in text
    assert "2 * bias" in text


def test_without_gradients_there_is_no_backward_in_the_script(finding):
    [script] = scripts(finding(WRONG, PLAIN), "one", "--dtype", "float64")
    assert "backward" not in script.read_text()
    assert run_alone(sys.executable, script).returncode == 1


def test_a_side_that_is_off_as_the_baseline_is_the_live_one(finding):
    run_dir = finding(WRONG, PLAIN, arguments=("--baseline", "mine"))
    rewrite(run_dir, lambda d: d.update(comparisons=[r for r in d["comparisons"] if r["expected"] == "mine"]))
    script = scripts(run_dir)[0]
    assert "swapped=True" in script.read_text()
    done = run_alone(sys.executable, script)
    [shown] = comparisons(done.stdout)
    [row] = [r for r in json.loads((run_dir / "results.json").read_text())["comparisons"] if r["dtype"] == "float32"]
    assert done.returncode == 1
    assert shown.values == {"mine": row["expected_value"], "numpy": row["actual_value"], "exact": row["oracle_value"]}
    assert (shown.index, float(shown.head["largest"])) == (row["worst_index"], row["max_abs_diff"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def linear(x, **_):\n    return x\n", "y: mine has shape [4, 7] float64, exact has shape [4, 3] float64"),
        ("def linear(x, **_):\n    return {}\n", "y: mine has no such tensor, exact has shape [4, 3] float64"),
        (
            "def linear(x, weight, bias):\n    y = x @ weight.T + bias\n    return {'y': y, 'z': y}\n",
            "z: mine has shape [4, 3] float64, exact has no such tensor",
        ),
        (
            "def linear(x, weight, bias):\n    return (x @ weight.T + bias).astype('float16')\n",
            "y: mine has shape [4, 3] float16, exact has shape [4, 3] float64",
        ),
    ],
)
def test_another_structure(finding, text, line):
    [script] = scripts(finding(text, PLAIN), "one", "--dtype", "float64", "--issue")
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert line in done.stdout.splitlines()
    assert f"```text\n{done.stdout}```" in script.with_suffix(".md").read_text()


def test_nan_against_a_number(finding):
    text = "import numpy as np\ndef linear(x, weight, bias):\n    y = x @ weight.T + bias\n    y[2, 1] = np.nan\n    return y\n"
    [script] = scripts(finding(text, PLAIN), "one", "--dtype", "float32", "--issue")
    done = run_alone(sys.executable, script)
    assert done.stdout in script.with_suffix(".md").read_text()
    [shown, _] = comparisons(done.stdout)
    assert shown.index == [2, 1]
    assert math.isnan(shown.values["mine"])
    assert (shown.head["n"], shown.head["odd"]) == ("1", "NaN where a number")


def test_an_error_that_the_tolerance_hides(finding):
    text = "def linear(x, weight, bias):\n    return (x @ weight.T + bias) * (1 + 1e-9)\n"
    run_dir = finding(text, PLAIN)
    [script] = scripts(run_dir, "one", "--dtype", "float64")
    done = run_alone(sys.executable, script)
    [shown] = comparisons(done.stdout)
    assert done.returncode == 1
    assert shown.head["n"] == "0"
    assert shown.ratio > 1000
    (run_dir / "repro" / "mine.ops.py").write_text(text.replace(" * (1 + 1e-9)", ""))
    assert run_alone(sys.executable, script).returncode == 0


def test_lists_and_float16(finding):
    text = "def clip_grad_norm(grads, **_):\n    return {'grads': [g * 0 + 1 for g in grads], 'total_norm': 3.0}\n"
    case = "{id: clip, op: clip_grad_norm, params: {max_norm: 1, norm_type: .inf}, dtypes: [float16], inputs: {grads: [{shape: [3]}, {shape: [2, 2]}]}}"
    run_dir = finding(text, case)
    [script] = repro(run_dir, "--all").returncode == 0 and sorted((run_dir / "repro").glob("*mine.py"))
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert {item.tensor for item in comparisons(done.stdout)} == {"grads.0", "grads.1", "total_norm"}


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def linear(**_):\n    raise ValueError('no such luck')\n", 1, "ValueError: no such luck"),
        ("def linear(x, weight, bias, stride):\n    return x\n", 1, "stride"),
        ("def linear(x, bias):\n    return x\n", 1, "weight"),
        ("def linear(**_:\n", 1, "SyntaxError"),
        ("linear = 3\n", 1, "3 is not a callable"),
        ("other = 3\n", 1, "linear"),
        ("import os, signal\ndef linear(**_):\n    os.kill(os.getpid(), signal.SIGSEGV)\n", -11, "Segmentation fault"),
    ],
)
def test_a_call_without_a_result_is_made_again(finding, text, code, said):
    run_dir = finding(text, PLAIN)
    [script] = scripts(run_dir, "one", "--dtype", "float32")
    done = run_alone(sys.executable, script)
    assert done.returncode == code
    assert said in done.stderr
    (run_dir / "repro" / "mine.ops.py").write_text("def linear(x, weight, bias):\n    return x @ weight.T + bias\n")
    assert run_alone(sys.executable, script).stdout == "no error: the call works\n"


def test_a_call_that_hangs_ends_with_its_stack(finding):
    text = "import time\ndef linear(**_):\n    time.sleep(1000)\n"
    run_dir = finding(text, PLAIN, arguments=("--timeout", "1"))
    [script] = scripts(run_dir, "one", "--dtype", "float32")
    script.write_text(script.read_text().replace("dump_traceback_later(60", "dump_traceback_later(1"))
    done = run_alone(sys.executable, script)
    assert done.returncode == 1
    assert "in linear" in done.stderr


TORCH_OPS = {
    "no gradients": (
        "def linear(x, weight, bias):\n    return (x @ weight.T + bias).detach()\n",
        "grad.x: mine has no such tensor, exact has shape [4, 7] float64",
    ),
    "a shape without gradients": (
        "def linear(x, weight, bias):\n    return (x @ weight.T + bias)[:3]\n",
        "y: mine has shape [3, 3] float64, exact has shape [4, 3] float64",
    ),
    "a dtype that NumPy lacks": (
        "def linear(x, weight, bias):\n    return (x @ weight.T + bias).bfloat16()\n",
        "y: mine has shape [4, 3] bfloat16, exact has shape [4, 3] float64",
    ),
}


@pytest.mark.frameworks
@pytest.mark.parametrize("name", TORCH_OPS)
def test_the_structure_of_a_framework_s_tensors(finding, name):
    text, line = TORCH_OPS[name]
    [script] = scripts(finding(text, adapter="torch", backends=("torch",)), "one", "--dtype", "float64")
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert line in done.stdout.splitlines()


HOSTILE = 'a"""````<img src=x>\nimport os\nos.system("touch owned")\n# \\"""\r\u2028\x00{{ 1 }} %}'


def test_hostile_texts_stay_data(finding, tmp_path):
    clean = finding(WRONG)
    shape_before = shape_of(scripts(clean, "one", "--dtype", "float32")[0])

    def change(document):
        for rows in (document["cases"], document["comparisons"], document["diagnoses"], document["outcomes"]):
            for row in rows:
                row["id" if "op" in row else "case"] = HOSTILE
                row.update({key: HOSTILE for key in ("message", "title", "known") if key in row})
        for row in document["diagnoses"]:
            row.update(id=HOSTILE, evidence={HOSTILE: HOSTILE})
        document["run"]["host"].update(os=HOSTILE, cpu=HOSTILE)
        for case in document["cases"]:
            case["source"]["file"] = HOSTILE
            for item in case["inputs"].values():
                item["draw"] = HOSTILE
        for row in document["backends"]:
            row.update(version=HOSTILE, python=HOSTILE, numpy=HOSTILE, executable=HOSTILE, flags={"ops": HOSTILE})

    rewrite(clean, change)
    done = repro(clean, "--all", "--issue", "--dtype", "float32", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "\x00" not in done.stdout
    [script] = (tmp_path / "out").glob("*.mine.py")
    assert shape_of(script) == shape_before
    shown = run_alone(sys.executable, script)
    assert shown.returncode == 1, shown.stderr
    assert not list(tmp_path.rglob("owned"))
    text = script.with_suffix(".md").read_text()
    fence = re.search("(`{3,})python\n", text)[1]
    assert fence not in script.read_text()
    before, _, behind = text.partition(f"\n{fence}python\n{script.read_text().rstrip()}\n{fence}\n")
    assert "<img" in before
    assert behind
    assert not re.search(r"^(import os|os\.system)", before + behind.replace(WRONG.strip(), ""), re.MULTILINE)


def shape_of(script: Path) -> list[str]:
    """The kinds of a script's statements at its top."""
    return [type(node).__name__ for node in ast.parse(script.read_text()).body]


def test_hostile_tensor_names_stay_data(finding):
    text = f"def linear(x, weight, bias):\n    return {{'y': x @ weight.T + bias, {HOSTILE!r}: x}}\n"
    run_dir = finding(text, PLAIN)
    [script] = scripts(run_dir, "one", "--dtype", "float32")
    done = run_alone(sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert "exact has no such tensor" in done.stdout
    assert not (script.parent / "owned").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["cases"][0].update(op="os.system"), "this parity does not know os.system"),
        (lambda d: d["backends"][1].update(framework="os"), "this parity does not know linear on os"),
        (lambda d: d["backends"][1].update(device="cpu'); x("), "this parity does not know"),
        (lambda d: d["backends"][1].update(ops="../ops.py"), "not in the run directory"),
        (lambda d: d["backends"][1].update(ops="/etc/passwd"), "not in the run directory"),
        (lambda d: d["cases"][0]["params"].update(out_features={"a": 1}), "invalid params"),
        (lambda d: d["cases"][0]["params"].update(x=1), "invalid params"),
        (lambda d: d["cases"][0]["inputs"]["x"].update(file="/etc/passwd"), "not inside the run directory"),
        (lambda d: d["cases"][0]["inputs"].update({"q": d["cases"][0]["inputs"]["x"]}), "linear has no input q"),
        (lambda d: d["cases"][0]["inputs"]["x"].update(file=None), "its inputs were not stored"),
    ],
)
def test_what_an_edited_file_asks_for_is_refused(finding, change, said):
    run_dir = finding(WRONG, PLAIN)
    rewrite(run_dir, change)
    done = repro(run_dir, "one")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (run_dir / "repro").exists()


def test_a_folder_that_leads_elsewhere_is_not_written_to(finding, tmp_path):
    run_dir = finding(WRONG, PLAIN)
    (tmp_path / "elsewhere").mkdir()
    (run_dir / "repro").symlink_to(tmp_path / "elsewhere")
    done = repro(run_dir, "one")
    assert done.returncode == 2
    assert "points outside the run directory" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing-like-it"], "this run has no case"),
        (["one", "-b", "torhc"], 'there is no backend "torhc"'),
        (["one", "--dtype", "float3"], 'there is no dtype "float3"; did you mean "float32"?'),
        (["one", "-b", "numpy"], "there is nothing to show: numpy float32: passed"),
        (["one", "--all"], "give a case or --all, not both"),
    ],
)
def test_what_cannot_be_shown(finding, arguments, said):
    done = repro(finding(WRONG, PLAIN), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_there_is_nothing_to_show_of_parity_s_own_reference(finding):
    run_dir = finding(WRONG, PLAIN)
    rewrite(run_dir, lambda d: [b.update(ops=None) for b in d["backends"]])
    done = repro(run_dir, "one")
    assert done.returncode == 2
    assert "parity's own reference" in done.stderr


def test_tensors_that_are_gone_are_asked_for(finding):
    run_dir = finding(WRONG, PLAIN)
    for path in run_dir.rglob("float64/oracle/y.npy"):
        path.unlink()
    done = repro(run_dir, "one", "--dtype", "float64")
    assert done.returncode == 2
    assert "run it again" in done.stderr
    done = repro(run_dir, "one")
    assert done.returncode == 0
    assert "one float64 on mine" in done.stderr
    assert "float32.mine.py" in done.stdout


def constructed(device="cpu", threads=1):
    """What an adapter's constructor gets."""
    return {"device": device, "threads": threads, "mode": "eager", "ranks": 1}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_method_of_every_adapter_becomes_functions(adapter):
    names = [op for op in OPS if has_method(adapter, op)]
    assert names or adapter == "numpy"
    for op in names:
        needed = ["leaf", "to_numpy", *(["gradients"] if OPS[op].grad_outputs else []), op]
        found = calls(adapter, needed, constructed())
        text = "\n".join([*found.imports, *found.setup, *found.definitions.values()])
        tree = ast.parse(text, feature_version=(3, 8))
        assert "self" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert set(needed) <= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not any(isinstance(node, ast.AnnAssign) for node in ast.walk(tree))


def test_an_adapter_that_cannot_be_turned_into_functions_is_refused():
    with pytest.raises(SourceError, match="there is no method no_such_op"):
        calls("torch", ["no_such_op"], constructed())
    with pytest.raises(SourceError, match="imports from parity"):
        calls("numpy", ["run"], constructed())


def test_a_device_that_is_not_asked_for_leaves_no_line():
    setup = "\n".join(calls("torch", ["leaf"], constructed(threads=3)).setup)
    assert "is_available" not in setup
    assert "torch.set_num_threads(3)" in setup
    assert "is_available" in "\n".join(calls("torch", ["leaf"], constructed(device="cuda")).setup)
    assert adapter_class("torch").__name__ == "TorchAdapter"


@given(arrays(st.sampled_from(["float16", "float32", "float64"]), array_shapes(min_dims=0, max_dims=3, max_side=7)))
def test_an_array_is_written_bit_for_bit(values):
    again = eval(array(values), {"np": np, "float": float})
    assert again.dtype == values.dtype
    assert again.shape == values.shape
    np.testing.assert_array_equal(again, values)
    numbers = ~np.isnan(values)
    assert np.array_equal(np.signbit(again)[numbers], np.signbit(values)[numbers])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda v: st.lists(v) | st.tuples(v)
    )
)
def test_a_literal_is_its_value(value):
    again = eval(literal(value))
    assert repr(again) == repr(value)


@given(st.text())
def test_prose_stays_in_its_docstring(text):
    for lines in ([prose(text)], paragraph(text, text)):
        source = '"""' + "\n".join(lines) + '\n"""\n'
        [node] = ast.parse(source).body
        assert isinstance(node, ast.Expr)
        assert isinstance(node.value, ast.Constant)


def test_what_is_not_data_gets_no_literal():
    with pytest.raises(TypeError, match="no literal for a dict"):
        literal({})
    with pytest.raises(TypeError, match="is no Code"):
        template("script.py.jinja", Code, literal, joined).environment.from_string("{{ x }}").render(x="import os")


def test_a_script_that_imports_parity_fails(tmp_path):
    (tmp_path / "script.py").write_text("import parity.exit_codes\n")
    done = run_alone(sys.executable, tmp_path / "script.py")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    [[code, _]] = run_together({sys.executable: [tmp_path / "script.py"]}, tmp_path).values()
    assert "a script must not import parity" in code


def test_help_ends_with_an_example():
    done = subprocess.run(parity_command("repro", "--help"), capture_output=True, text=True, cwd=ROOT)
    assert "parity repro RUN_DIR --all" in done.stdout.splitlines()[-1]


@pytest.mark.frameworks
def test_a_composition_in_sixteen_bits_is_shown_as_it_was_computed(tmp_path):
    case = "{id: one, op: ctc_loss, dtypes: [bfloat16, float16], inputs: {x: {shape: [6, 4, 5]}}}"
    turned = "{id: two, op: rotary_embedding, dtypes: [bfloat16], inputs: {x: {shape: [1, 1, 4, 6]}}}"
    (tmp_path / "config.yaml").write_text(f"version: 1\nbackends: [torch]\ncases: [{case}, {turned}]\n")
    assert (
        call("run", tmp_path / "config.yaml", "--rtol", "0", "--atol", "0", "--out", tmp_path / "run").returncode == 0
    )
    done = repro(tmp_path / "run", "--all", "--issue")
    assert done.stdout.count("parity's own composition of torch") == 3
    assert done.stderr.count("parity composes the torch calls, so there is nothing to report upstream") == 3
    assert not [*tmp_path.rglob("*.md")]
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["comparisons"]
    for row in rows:
        script = tmp_path / "run" / "repro" / f"{row['case']}.{row['dtype']}.torch.py"
        shown = {item.tensor: item for item in comparisons(run_alone(sys.executable, script).stdout)}
        assert shown[row["tensor"]].values == {"torch": row["actual_value"], "exact": row["oracle_value"]}
