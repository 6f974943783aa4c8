"""Which interpreter a backend gets, and how a worker is started in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.config.plan import BackendSpec
from parity.environments import EnvironmentUnavailable, Interpreter, resolve, worker_environment
from parity.environments.pins import PINS, Pin

PYTHON = Path(sys.executable)
VERSION = "{}.{}.{}".format(*sys.version_info)


@pytest.fixture(autouse=True)
def empty_home(request, tmp_path, monkeypatch):
    """No test here makes an environment, except those of the real frameworks, which use the default folder."""
    if "frameworks" not in request.keywords:
        monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))


@pytest.fixture
def bare(tmp_path):
    """An interpreter without numpy, in a virtual environment."""
    folder = tmp_path / "bare"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def refusal(spec, **options):
    with pytest.raises(EnvironmentUnavailable) as caught:
        resolve(spec, **options)
    return str(caught.value)


def named(python, adapter="numpy", version=None):
    return BackendSpec("mine", adapter, version=version, python=python)


def pretend(monkeypatch, **changes):
    """An adapter `click`, whose framework is a distribution that every parity has."""
    fields = {"modules": ("click",), "distributions": ("click",), "version": "8.1.0", "pythons": ("3.11",)}
    monkeypatch.setitem(PINS, "click", Pin(**(fields | changes)))


# --- the host


def test_the_numpy_adapter_runs_on_the_host():
    found = resolve(BackendSpec("numpy", "numpy"), provision=False)
    assert (found.python, found.kind, found.python_version) == (PYTHON, "host", VERSION)
    assert found.numpy_version == found.framework_version


def test_the_host_is_taken_where_the_framework_is_importable(monkeypatch):
    pretend(monkeypatch)
    found = resolve(BackendSpec("mine", "click"), provision=False)
    assert found.kind == "host"
    assert found.framework_version


def test_the_host_is_taken_for_the_release_that_it_has(monkeypatch):
    pretend(monkeypatch)
    here = resolve(BackendSpec("mine", "click")).framework_version
    assert resolve(BackendSpec("mine", "click", version=here), provision=False).kind == "host"


def test_the_host_is_not_taken_for_another_release(monkeypatch):
    pretend(monkeypatch)
    assert "`parity env create click==0.1`" in refusal(BackendSpec("m", "click", version="0.1"), provision=False)


def test_the_host_is_not_taken_where_a_module_is_missing(monkeypatch):
    pretend(monkeypatch, modules=("click", "nothing_of_this_name"))
    assert "`parity env create click`" in refusal(BackendSpec("mine", "click"), provision=False)


def test_resolving_on_the_host_imports_no_framework_and_starts_no_process():
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen = None\n"
        "from parity.config.plan import BackendSpec\n"
        "from parity.environments import EnvironmentUnavailable, resolve\n"
        "for adapter in ('torch', 'paddle', 'oneflow', 'numpy'):\n"
        "    try: resolve(BackendSpec('mine', adapter), provision=False)\n"
        "    except EnvironmentUnavailable: pass\n"
        "print({'torch', 'paddle', 'oneflow', 'uv', 'filelock'} & sys.modules.keys())\n"
    )
    assert subprocess.check_output([PYTHON, "-c", code], text=True) == "set()\n"


# --- a named interpreter


@pytest.mark.process
def test_a_named_interpreter():
    found = resolve(named(PYTHON))
    assert (found.python, found.kind, found.python_version) == (PYTHON, "named", VERSION)
    assert found.numpy_version == found.framework_version


@pytest.mark.process
def test_a_named_link_is_kept_because_it_says_which_environment(tmp_path):
    """The interpreter behind the link of a virtual environment knows nothing of its packages."""
    assert resolve(named(PYTHON)).python == PYTHON
    relative = Path(os.path.relpath(PYTHON))
    assert resolve(named(relative)).python == Path.cwd() / relative


def test_a_named_interpreter_comes_before_the_host_and_its_failure_is_no_reason_to_go_on(bare):
    assert "lacks numpy" in refusal(named(bare))


def test_a_named_interpreter_without_numpy(bare):
    message = refusal(named(bare, "paddle"))
    assert message == (
        f"{bare} (Python {VERSION}) lacks numpy and paddle and setuptools:"
        f" run `{bare} -m pip install paddlepaddle==3.3.1 setuptools`."
    )


def test_the_remedy_can_be_pasted_into_a_shell(bare):
    assert "install oneflow==0.9.0 'numpy<2' nvidia-cudnn" in refusal(named(bare, "oneflow"))


@pytest.mark.process
def test_a_named_interpreter_with_another_release():
    message = refusal(named(PYTHON, version="1.22.0"))
    assert f"{PYTHON} has numpy 2" in message
    assert "1.22.0 is required" in message
    assert "or leave out `python:`" in message


@pytest.mark.process
def test_a_named_interpreter_whose_release_is_unknown(tmp_path, monkeypatch):
    (tmp_path / "sourcebuild.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pretend(monkeypatch, modules=("sourcebuild",), distributions=("sourcebuild",))
    assert resolve(named(PYTHON, "click")).framework_version is None
    assert "of unknown version" in refusal(named(PYTHON, "click", "8.1.0"))


def test_a_named_interpreter_that_does_not_exist(tmp_path):
    assert f"{tmp_path}/python does not exist; correct `python:`" in refusal(named(tmp_path / "python"))


def test_a_named_folder(tmp_path):
    assert "is a folder; name the interpreter in it, such as bin/python" in refusal(named(tmp_path))


def test_a_named_file_that_is_not_executable(tmp_path):
    (tmp_path / "python").touch()
    assert "is not executable" in refusal(named(tmp_path / "python"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("exit 127", "is not a working Python interpreter: it exited with status 127"),
        ("echo hello", "its output is not that of a Python"),
        ("echo 3.7.16; echo /bin/python", "is Python 3.7.16, but a worker needs 3.8 or newer"),
        ("echo 2.7.18; echo /bin/python", "is Python 2.7.18"),
        (
            '[ "$1" = -c ] && exec echo "3.10.1\n/bin/python"; exit 3',
            "cannot list its packages: it exited with status 3",
        ),
    ],
)
def test_a_named_file_that_is_no_usable_python(tmp_path, answer, message):
    (tmp_path / "python").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "python").chmod(0o755)
    assert message in refusal(named(tmp_path / "python"))


def test_what_is_refused_before_anything_is_looked_for():
    assert "there is no environment for adapter 'mxnet'" in refusal(BackendSpec("mine", "mxnet"))
    assert "is not a release" in refusal(BackendSpec("mine", "torch", version="../2.4"))


# --- the worker's variables


def interpreter(kind):
    return Interpreter(PYTHON, kind, VERSION, "2.0.0", "2.0.0")


@pytest.mark.parametrize("kind", ["named", "host", "managed"])
def test_the_thread_count_reaches_every_library(kind, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    variables = worker_environment(interpreter(kind), 3)
    assert {name: value for name, value in variables.items() if name.endswith("_THREADS") and value == "3"} == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "NUMEXPR_NUM_THREADS": "3",
        "VECLIB_MAXIMUM_THREADS": "3",
    }
    assert os.environ["OMP_NUM_THREADS"] == "64"


@pytest.mark.parametrize(("kind", "is_kept"), [("named", True), ("host", True), ("managed", False)])
def test_a_managed_worker_sees_only_its_own_packages(kind, is_kept, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/host")
    monkeypatch.setenv("PYTHONHOME", "/host")
    monkeypatch.setenv("LANG_OF_THE_USER", "stays")
    variables = worker_environment(interpreter(kind), 1)
    assert ("PYTHONPATH" in variables, "PYTHONHOME" in variables) == (is_kept, is_kept)
    assert variables["LANG_OF_THE_USER"] == "stays"


# --- the cost of asking


def test_importing_the_room_is_cheap():
    code = "import sys, parity.environments; print('\\n'.join(sys.modules))"
    loaded = set(subprocess.check_output([PYTHON, "-c", code], text=True).split())
    assert "parity.environments" in loaded
    heavy = {"uv", "filelock", "platformdirs", "numpy", "pydantic", "yaml", "pandas", "torch", "paddle", "click"}
    assert heavy & loaded == set()
    other_rooms = {"engine", "judge", "reporting", "cli", "cases", "adapters", "config"}
    assert {f"parity.{room}" for room in other_rooms} & loaded == set()


# --- the real ones

LAYER_NORM = {
    "oneflow": """
        import numpy, oneflow
        x = oneflow.tensor(numpy.arange(8, dtype="float32").reshape(2, 4) ** 2, requires_grad=True)
        layer = oneflow.nn.LayerNorm(4)
        layer(x).backward(oneflow.tensor(numpy.arange(8, dtype="float32").reshape(2, 4)))
    """,
    "paddle": """
        import numpy, paddle
        x = paddle.to_tensor(numpy.arange(8, dtype="float32").reshape(2, 4) ** 2, stop_gradient=False)
        layer = paddle.nn.LayerNorm(4)
        layer(x).backward(paddle.to_tensor(numpy.arange(8, dtype="float32").reshape(2, 4)))
    """,
}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "version", "python_minor"),
    [("oneflow", "0.9.0", "3.10"), pytest.param("paddle", "2.6.2", "3.11", marks=pytest.mark.exhaustive)],
)
def test_a_real_managed_environment_computes_and_is_found_again_without_a_process(
    adapter, version, python_minor, monkeypatch
):
    def refuse(*_arguments, **_options):
        raise AssertionError("a process was started")

    spec = BackendSpec("mine", adapter, version=version)
    made = resolve(spec)
    assert made.kind == "managed"
    assert made.framework_version == version
    assert made.python_version.startswith(f"{python_minor}.")
    assert made.numpy_version.startswith("1.")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        assert resolve(spec, provision=False) == made

    lines = (line.strip() for line in LAYER_NORM[adapter].strip().splitlines())
    code = "\n".join([*lines, "print(layer.bias.grad.numpy().tolist(), numpy.abs(x.grad.numpy()).max() > 0)"])
    said = subprocess.check_output([made.python, "-c", code], env=worker_environment(made, 1), text=True)
    assert said.strip().splitlines()[-1] == "[4.0, 6.0, 8.0, 10.0] True"
