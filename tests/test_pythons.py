"""parity on every Python that it names: installed from its source with NumPy alone, and used as a newcomer would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from parity.environments.discover import find_python
from parity.environments.installer import UvError, run_uv
from tests.conftest import ROOT, user_config
from tests.exhaustive import one_of_each

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MINORS = [
    m[1] for item in PROJECT["classifiers"] if (m := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", item))
]
OTHERS = [minor for minor in MINORS if minor != f"{sys.version_info[0]}.{sys.version_info[1]}"]
"""All but the one on which all other tests run."""
KERNEL = """
import numpy as np

DIFFERENTIABLE = False

def layer_norm(x, weight, bias, normalized_shape, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    var = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(var + x.dtype.type(eps)) * weight + bias
"""


CASE = "{op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}, gradients: false}"


def test_the_pythons_that_are_named():
    assert MINORS == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={MINORS[0]}"


def source(folder):
    """What a wheel is made of, outside of the checkout, in which a build would leave files."""
    shutil.copytree(ROOT / "parity", folder / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def uv(folder, *arguments):
    """uv, with what it has stored if that is enough, so that a second run needs no network."""
    try:
        run_uv([*arguments, "--offline"], folder / "uv.log", lambda _: None)
    except UvError:
        run_uv(arguments, folder / "uv.log", lambda _: None)


def installed(minor, folder):
    """The folder of programs of a new environment with parity in it; uv downloads a Python that the machine lacks."""
    found = find_python([minor])
    uv(folder, "venv", "-q", "--python", found[1] if found else minor, folder / "env")
    uv(folder, "pip", "install", "-q", "--python", folder / "env" / "bin" / "python", source(folder / "source"))
    return folder / "env" / "bin"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("minor", one_of_each(lambda _: "", ((minor,) for minor in reversed(OTHERS))))
def test_installed_and_used(minor, tmp_path):
    programs = installed(minor, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        return subprocess.run(
            [programs / command[0], *command[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    assert run("python", "--version").stdout.startswith(f"Python {minor}.")
    package = next((tmp_path / "env").glob("lib/python3*/site-packages/parity"))
    assert run("python", "-W", "error", "-m", "compileall", "-q", "-f", package).returncode == 0
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    done = run("parity", "init", "my_kernel.py")
    assert done.returncode == 1, done.stderr
    assert "variance-naive" in done.stdout
    # Two passes instead of one, and one more backend.
    (tmp_path / "right.py").write_text(
        KERNEL.replace("(x * x).mean(-1, keepdims=True) - mean * mean", "x.var(-1, keepdims=True)")
    )
    (tmp_path / "config.yaml").write_text(user_config("./right.py", cases=[CASE]))
    done = run("parity", "run", "config.yaml", "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Python {minor}." in done.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
