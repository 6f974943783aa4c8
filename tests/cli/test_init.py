"""`parity init`, and what parity says to who names no config."""

from __future__ import annotations

import shlex
import textwrap

import pytest

from parity.adapters import ADAPTERS
from tests.conftest import CONFIGS, call

NUMPY = """
import numpy as np

def layer_norm(x, weight, bias, normalized_shape, eps=1e-5):
    axes = tuple(range(-len(normalized_shape), 0))
    mean = x.mean(axes, keepdims=True)
    var = {variance}
    return (x - mean) / np.sqrt(var + x.dtype.type(eps)) * weight + bias
"""
RIGHT, NAIVE = "((x - mean) ** 2).mean(axes, keepdims=True)", "(x * x).mean(axes, keepdims=True) - mean * mean"


RELU = """
import numpy as np

def relu(x):
    return np.maximum(x, 0)
"""


def written(tmp_path, text):
    path = tmp_path / "my_kernel.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_the_command_in_the_header_works_where_the_user_stands(tmp_path):
    (tmp_path / "my kernels").mkdir()
    (tmp_path / "my kernels" / "act.py").write_text(RELU)
    done = call("init", "my kernels/act.py", "--no-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    header = (tmp_path / "my kernels" / "act.yaml").read_text().splitlines()[0]
    for said in (header, done.stderr.splitlines()[-1]):
        program, command, *files = shlex.split(said.rpartition("with: ")[2])
        assert (program, command) == ("parity", "run")
        assert call("validate", *files, cwd=tmp_path).returncode == 0
    again = call("init", "my kernels/act.py", cwd=tmp_path)
    assert "run it with `parity run 'my kernels/act.yaml'`" in again.stderr


@pytest.mark.process
@pytest.mark.parametrize(("variance", "code"), [(RIGHT, 0), (NAIVE, 1)])
def test_from_a_file_to_the_verdict(tmp_path, variance, code):
    path = written(tmp_path, NUMPY.format(variance=variance))
    done = call("init", path.name, cwd=tmp_path)
    strict = call("run", "my_kernel.yaml", "--fail-on", "degraded", cwd=tmp_path)
    assert strict.returncode == code
    assert "wrote my_kernel.yaml: layer_norm of my_kernel.py against the exact answer" in done.stderr
    assert ("variance-naive" in done.stdout) == (code == 1)
    again = call("init", path.name, cwd=tmp_path)
    assert again.returncode == 2
    assert "my_kernel.yaml already exists: run it with `parity run my_kernel.yaml`, or replace" in again.stderr


BACKWARD = """
import numpy as np

def mse_loss(x, target, reduction="mean"):
    return np.asarray(((x - target) ** 2).{call}()).astype(x.dtype)

def mse_loss_backward(grad_y, x, target, reduction="mean"):
    return {{"x": grad_y * 2 * (x - target) / x.dtype.type(x.size if reduction == "mean" else 1)}}
"""


@pytest.mark.process
def test_numpy_gradients_and_a_param_that_is_ignored(tmp_path):
    written(tmp_path, BACKWARD.format(call="mean"))
    done = call("init", "my_kernel.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "mean-vs-sum" in done.stdout
    written(tmp_path, BACKWARD.replace("{call}()", "mean() if reduction == 'mean' else ((x - target) ** 2).sum()"
    ).format())  # fmt: skip
    assert call("init", "my_kernel.py", "--force", cwd=tmp_path).returncode == 0


TORCH = """
import torch

DIFFERENTIABLE = False

def scaled_dot_product_attention(query, key, value):
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return torch.{softmax} @ value

def clip_grad_norm(grads, max_norm, norm_type=2.0):
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, norm_type) for g in grads]), norm_type)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    return {{"grads": [g * scale for g in grads], "total_norm": total}}
"""


@pytest.mark.frameworks
def test_kernels_of_a_framework_beside_its_own(tmp_path):
    written(tmp_path, TORCH.format(softmax="softmax(scores, -1)"))
    done = call("init", "my_kernel.py", "--no-run", cwd=tmp_path)
    assert "run it with: parity run my_kernel.yaml" in done.stderr
    assert (
        "backends: [torch, {name: mine, adapter: torch, ops: ./my_kernel.py}]"
        in (tmp_path / "my_kernel.yaml").read_text()
    )
    done = call("run", "my_kernel.yaml", "--fail-on", "degraded", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    written(tmp_path, TORCH.format(softmax="exp(scores) / torch.exp(scores).sum(-1, keepdim=True)"))
    done = call("init", "my_kernel.py", "--force", "-o", "again.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "softmax-unshifted" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py is not a file"),
        (["."], ". is not a file"),
        (["my_kernel.py", "-o", "my_kernel.py", "--force"], "my_kernel.py is the file itself"),
        (["my_kernel.py", "-o", "no/such/folder.yaml"], "cannot write no/such/folder.yaml"),
        (
            ["my_kernel.py", "--adapter", "mxnet"],
            f"there is no adapter mxnet; choose one of {', '.join(ADAPTERS)}",
        ),
    ],
)
def test_a_mistake_is_exit_code_2(tmp_path, arguments, message):
    written(tmp_path, NUMPY.format(variance=RIGHT))
    done = call("init", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_parity_alone_says_what_to_do_next(tmp_path):
    done = call(cwd=tmp_path)
    assert done.returncode == 0
    assert "parity init my_kernel.py" in done.stdout
    assert "Configs here" not in done.stdout
    assert len(done.stdout.splitlines()) < 12


@pytest.mark.parametrize("command", ["run", "validate"])
def test_without_a_config_the_configs_that_are_there_are_named(tmp_path, command):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "norm.yaml").write_text((CONFIGS / "layernorm.yaml").read_text())
    (tmp_path / "mine.yaml").write_text("version: 1\nbackends: [numpy]\ncases: []\n")
    (tmp_path / "docker-compose.yaml").write_text("services:\n  backends: 1\n")
    done = call(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "no config is named" in done.stderr
    assert "Configs here: mine.yaml, configs/norm.yaml" in done.stderr
    assert "docker" not in done.stderr
