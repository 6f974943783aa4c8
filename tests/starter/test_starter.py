"""What `parity init` reads in a user's file, and which inputs it chooses."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from parity.adapters import ADAPTERS
from parity.cases import FAMILIES, OPS
from parity.config import load_plan
from parity.starter import StarterError
from parity.starter.design import CaseEvaluator, base_case, design
from parity.starter.source import REQUIRED, Function, UserFile, adapter_of, read_source
from parity.starter.write import starter

LAYER_NORM = "def layer_norm(x, weight, bias, normalized_shape, eps=1e-5):\n    return x\n"


def source_of(tmp_path, text):
    path = tmp_path / "my_kernel.py"
    path.write_text(text)
    return read_source(path)


def config_of(tmp_path, text, adapter=None):
    path, config = tmp_path / "my_kernel.py", tmp_path / "my_kernel.yaml"
    path.write_text(text)
    config.write_text(starter(path, config, adapter, lambda _: None).text)
    load_plan([config])
    return yaml.safe_load(config.read_text())


def refusal(tmp_path, text, adapter=None):
    with pytest.raises(StarterError) as caught:
        config_of(tmp_path, text, adapter)
    return str(caught.value)


def test_the_file_is_read_and_not_run(tmp_path):
    marker = tmp_path / "ran"
    source_of(tmp_path, f"import torch\nopen({str(marker)!r}, 'w')\n{LAYER_NORM}")
    config_of(tmp_path, f"import numpy\nopen({str(marker)!r}, 'w')\n{LAYER_NORM}")
    assert not marker.exists()


def test_signatures_constants_and_imports(tmp_path):
    text = (
        "from torch.nn.functional import gelu\nfrom mine import relu\nDTYPES = ['float32']\n"
        "try:\n    import paddle\nexcept ImportError:\n    tanh = None\n"
        "def layer_norm(x, /, weight, *, bias=None, eps=1e-6, scale=compute(), **rest): ...\n"
        "linear = make()\n"
    )
    source = source_of(tmp_path, text)
    assert set(source.ops) == {"relu", "layer_norm", "linear"}
    norm = source.ops["layer_norm"]
    assert norm.parameters == {"weight": REQUIRED, "bias": None, "eps": 1e-6, "scale": REQUIRED}
    assert (norm.line, norm.needed, norm.anything) == (8, ("x", "weight"), True)
    assert source.ops["linear"].takes("whatever")
    assert source.dtypes == ("float32",)
    assert source.frameworks == ("torch", "paddle")


@pytest.mark.parametrize(
    ("imports", "adapter"),
    [("import torch\nimport numpy as np", "torch"), ("from paddle.nn import functional", "paddle"), ("import numpy", "numpy"), ("import oneflow as flow", "oneflow")],
)  # fmt: skip
def test_the_imports_name_the_adapter(tmp_path, imports, adapter):
    assert adapter_of(source_of(tmp_path, imports + "\n" + LAYER_NORM)) == adapter


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LAYER_NORM,
            f"imports none of {', '.join(ADAPTERS)}: name the framework whose tensors its functions take",
        ),
        (f"import torch, paddle\n{LAYER_NORM}", "imports torch and paddle: name the framework whose"),
        ("def f(:\n", "my_kernel.py:1:7: invalid syntax\n  def f(:"),
        ("import torch\ndef layernorm(x): ...\n", "layernorm (line 2): did you mean layer_norm?"),
        ("import torch\n", "no function has the name of an op"),
        ("import torch\n", "def layer_norm(x, weight, bias, normalized_shape, eps):"),
        (
            "import torch\ndef layer_norm(input, weight, bias, eps): ...",
            "my_kernel.py:2: layer_norm does not take x, normalized_shape by keyword and requires input, which layer_norm does",
        ),
        (
            "import torch\ndef adam(param, grad, lr, betas, eps): ...",
            "adam does not take exp_avg, exp_avg_sq by keyword",
        ),
        ("\0", "my_kernel.py: source code string cannot contain null bytes"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(tmp_path, text, message):
    assert message in refusal(tmp_path, text)


def test_a_near_name_is_a_note_where_another_op_is_there(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text(f"import numpy\n{LAYER_NORM}def grup_norm(x): ...\ndef layer_norm_backward(grad_y): ...\n")
    notes = starter(path, tmp_path / "c.yaml", None, lambda _: None).notes
    assert [note.partition(": ")[2] for note in notes] == ["grup_norm is not an op of parity; did you mean group_norm?"]


def test_a_helper_with_the_name_of_an_op_is_left_out(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text(f"import numpy\n{LAYER_NORM}def linear(a, b): ...\n")
    made = starter(path, tmp_path / "c.yaml", None, lambda _: None)
    assert "linear" not in made.text
    assert made.notes[0].startswith(f"left out: {path}:4: linear does not take x, weight by keyword")


def test_the_dtypes_of_the_command_line_replace_those_of_the_file(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text(f'import numpy\nDTYPES = ["float32"]\n{LAYER_NORM}')
    made = starter(path, tmp_path / "c.yaml", None, lambda _: None, ("float16",))
    assert "\ndtypes: [float16]\n" in made.text
    with pytest.raises(StarterError, match="--dtype float8: no such dtype; allowed: "):
        starter(path, tmp_path / "c.yaml", None, lambda _: None, ("float8",))


def test_a_strange_name_is_a_path_all_the_same(tmp_path):
    path = tmp_path / "my: kernel's #é.py"
    path.write_text(f"import numpy\n{LAYER_NORM}")
    config = tmp_path / "c.yaml"
    config.write_text(starter(path, config, None, lambda _: None).text)
    assert [spec.ops for spec in load_plan([config]).backends] == [path]
    with pytest.raises(StarterError, match="control characters"):
        starter(tmp_path / "a\nb.py", config, None, lambda _: None)


def source_with(name):
    """A file whose function accepts whatever the op has."""
    return UserFile(Path("x.py"), {name: Function(1, {}, anything=True)}, {}, ("torch",))


@cache
def designed_for(name):
    """The cases for such a function, which take seconds to choose."""
    return design(source_with(name), "torch", lambda _: None)[0]


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_a_case_that_its_definition_accepts(name, tmp_path):
    trial = CaseEvaluator(tmp_path, ("float32", "float64"))
    assert trial.plan(base_case(trial, source_with(name), name, "torch")) is not None


LONG = {"scaled_dot_product_attention", "lstm", "interpolate", "cross_entropy", "ctc_loss", "conv1d", "pad", "l1_loss"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LONG else [])
        for name in (family.OPS[0].name for family in FAMILIES)
    ],
)
def test_an_op_of_every_family_has_a_few_cases_that_its_definition_accepts(name, tmp_path):
    trial = CaseEvaluator(tmp_path, ("float32", "float64"))
    cases = [designed.case for designed in designed_for(name)]
    assert len(cases) >= 2
    assert len(cases) <= 8
    assert all(trial.plan(case) is not None for case in cases)


def mistakes_shown(name, tmp_path):
    trial = CaseEvaluator(tmp_path, ("float32", "float64"))
    base = {identity for identity, _ in trial.shows(base_case(trial, source_with(name), name, "torch"))}
    designed = designed_for(name)
    return (
        base,
        {word for each in designed for word in each.why.removeprefix("shows ").replace(",", "").split()},
        designed,
    )


@pytest.mark.slow
def test_the_sweep_shows_what_the_plain_case_does_not(tmp_path):
    base, told, designed = mistakes_shown("layer_norm", tmp_path)
    assert "variance-naive" not in base
    assert "variance-naive" in told
    assert designed[0].case["sweep"] == {"inputs.x.offset": [0, 100, 10000]}


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param("scaled_dot_product_attention", "softmax-unshifted", marks=pytest.mark.exhaustive),
        ("cross_entropy", "logits-clipped"),
        ("clip_grad_norm", "clip-unclamped"),
        pytest.param("conv2d", "padding-mode", marks=pytest.mark.slow),
    ],
)
def test_what_only_other_inputs_show_is_swept(name, mistake, tmp_path):
    base, told, _ = mistakes_shown(name, tmp_path)
    assert mistake not in base
    assert mistake in told


def test_a_default_of_the_signature_is_used_and_an_absent_input_is_off(tmp_path):
    text = "import numpy\ndef layer_norm(x, weight, normalized_shape=(64,), eps=1e-3): ...\n"
    config = config_of(tmp_path, text)
    case = config["cases"][0]
    assert case["params"] == {"normalized_shape": [64], "eps": 1e-3}
    assert case["inputs"] == {"x": {"shape": [16, 64]}, "bias": None}
    assert config["defaults"] == {"gradients": False}


@pytest.mark.parametrize("default", ["None", "-1.0", "'small'", "[1, 2]", "float('inf')"])
def test_a_default_that_the_op_refuses_is_not_used(tmp_path, default):
    text = f"import numpy\ndef layer_norm(x, weight, bias, normalized_shape, eps={default}): ...\n"
    assert config_of(tmp_path, text)["cases"][0]["params"] == {"normalized_shape": [33]}


@pytest.mark.slow
def test_groups_of_the_signature_make_the_channels(tmp_path):
    text = "import numpy\ndef group_norm(x, weight, bias, num_groups=8, eps=1e-5): ...\n"
    config = config_of(tmp_path, text)
    assert config["cases"][0]["params"] == {"num_groups": 8}
    assert config["cases"][0]["inputs"]["x"]["shape"][1] == 16


def test_groups_that_do_not_divide_the_channels_come_with_others(tmp_path):
    cases = config_of(tmp_path, "import numpy\ndef conv1d(x, weight, bias, groups=1): ...\n")["cases"]
    assert any(case["params"].get("groups", 1) > 1 for case in cases)


@pytest.mark.slow
def test_a_param_that_the_function_lacks_is_not_varied(tmp_path):
    with_stride = config_of(tmp_path, "import numpy\ndef conv2d(x, weight, bias, stride, **rest): ...\n")
    without = config_of(tmp_path, "import numpy\ndef conv2d(x, weight, bias): ...\n")
    assert any("stride" in case.get("params", {}) for case in with_stride["cases"])
    assert not any({"stride", "padding", "dilation"} & case.get("params", {}).keys() for case in without["cases"])


@pytest.mark.slow
def test_dtypes_and_gradients_are_what_the_file_says(tmp_path):
    text = f"import numpy\nDTYPES = ['float32']\nDIFFERENTIABLE = False\n{LAYER_NORM}def layer_norm_backward(grad_y): ...\n"
    config = config_of(tmp_path, text)
    assert config["dtypes"] == ["float32"]
    assert config["defaults"] == {"gradients": False}
    both = config_of(tmp_path, text.replace("DIFFERENTIABLE = False\n", "") + "def relu(x): ...\n")
    assert [case.get("gradients", True) for case in both["cases"]] == [
        case["op"] == "layer_norm" for case in both["cases"]
    ]


@pytest.mark.slow
def test_without_the_framework_the_baseline_is_the_oracle(tmp_path, monkeypatch):
    config = config_of(tmp_path, f"import numpy\n{LAYER_NORM}")
    mine = {"name": "mine", "adapter": "numpy", "ops": "./my_kernel.py"}
    assert (config["backends"], config["baseline"]) == ([mine], "oracle")
    # PyTorch has no LAMB to compare with.
    text = "import torch\ndef lamb(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step): ...\n"
    assert config_of(tmp_path, text)["baseline"] == "oracle"


def test_the_config_is_short_and_its_comments_say_what_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("my_kernel.py")
    path.write_text(f"import numpy\n{LAYER_NORM}")
    text = starter(path, Path("sub/c.yaml"), None, lambda _: None).text
    assert len(text.splitlines()) < 25
    assert max(map(len, text.splitlines())) <= 120
    assert "ops: ../my_kernel.py" in text
    assert "  # shows variance-naive\n" in text


def test_a_param_that_names_an_integer_comes_with_that_integer(tmp_path):
    text = "import numpy\ndef cross_entropy(x, target, ignore_index, reduction): ...\n"
    cases = [case for case in config_of(tmp_path, text)["cases"] if "ignore_index" in case.get("params", {})]
    assert [case["params"]["ignore_index"] for case in cases] == [0, -100]
    assert [case["inputs"]["target"]["special"]["values"] for case in cases] == [[0], [-100]]


def test_a_param_is_told_by_a_case_only_if_it_changes_the_result(tmp_path):
    trial = CaseEvaluator(tmp_path, ("float64",))
    plain = {"op": "sgd", "params": {"dampening": 0.1}, "inputs": {"param": {"shape": [4, 3]}}}
    assert not trial.reveals_ignored(plain, "dampening", 0.0)
    assert trial.reveals_ignored({**plain, "params": {"dampening": 0.1, "momentum": 0.1}}, "dampening", 0.0)


def test_inputs_without_a_finite_exact_result_are_not_used(tmp_path):
    trial = CaseEvaluator(tmp_path, ("float64",))
    assert trial.plan({"op": "rmsprop", "params": {"centered": True}, "inputs": {"param": {"shape": [16, 33]}}}) is None
