"""Asking interpreters what they are and what they have, and finding one of a given release."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.environments import discover, installed
from parity.environments.pins import Pin
from parity.environments.probe import ProbeError, contents_of, host_contents, identify

pytestmark = pytest.mark.process

PYTHON = Path(sys.executable)
UNKNOWN = "3.97"  # a minor release that no machine has


def script(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


def python_that_says(path, version):
    return script(path, f"echo {version}", f"echo {path}")


def pin(*modules, distributions=("click",)):
    return Pin(modules=modules, distributions=distributions, version=None, pythons=())


@pytest.fixture
def package_on_path(tmp_path, monkeypatch):
    """A folder on the PYTHONPATH of the interpreters that are asked."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_identify():
    identity = identify(PYTHON)
    assert identity.version == sys.version_info[:3]
    assert identity.executable == PYTHON
    assert identity.version_text == "{}.{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["exit 127"], r"exited with status 127 \(no message\)"),
        (["echo 'pyenv: python3.10: command not found' >&2", "exit 127"], r"127 \(pyenv: python3.10: command not"),
        (["echo hello"], "its output is not that of a Python"),
        (["true"], "its output is not that of a Python"),
        (["exec sleep 60"], "did not answer within 0.5 s"),
        (["kill -SEGV $$"], "exited with status -11"),
    ],
)
def test_identify_what_is_no_python(tmp_path, lines, message):
    with pytest.raises(ProbeError, match=message):
        identify(script(tmp_path / "python", *lines), timeout_s=0.5 if "sleep" in lines[0] else 30.0)


def test_identify_what_cannot_be_started(tmp_path):
    (tmp_path / "python").write_bytes(b"\0not a program")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ProbeError, match="cannot be started"):
        identify(tmp_path / "python")


def test_the_host_is_asked_without_importing_and_agrees_with_a_process():
    asked = pin("click", "nothing_of_this_name")
    found = host_contents(asked)
    assert found == contents_of(PYTHON, asked)
    assert found.missing == ("nothing_of_this_name",)
    assert found.numpy_version
    assert found.framework_version


def test_a_stray_folder_of_the_same_name_is_not_the_framework(tmp_path, monkeypatch):
    (tmp_path / "frobnicate").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert host_contents(pin("frobnicate")).missing == ("frobnicate",)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert contents_of(PYTHON, pin("frobnicate")).missing == ("frobnicate",)


def test_neither_the_current_folder_nor_paritys_own_files_are_seen(tmp_path, monkeypatch):
    (tmp_path / "frobnicate.py").touch()
    monkeypatch.chdir(tmp_path)
    assert contents_of(PYTHON, pin("frobnicate", "pins", "probe")).missing == ("frobnicate", "pins", "probe")


def test_a_package_without_metadata_has_no_version(package_on_path):
    (package_on_path / "frobnicate.py").touch()
    found = contents_of(PYTHON, pin("frobnicate", distributions=("frobnicate",)))
    assert found.missing == ()
    assert found.framework_version is None


def test_the_second_distribution_is_recognised():
    assert host_contents(pin(distributions=("click-gpu", "click"))).framework_version


def test_a_framework_that_prints_and_aborts_at_exit_is_loaded(package_on_path):
    (package_on_path / "noisy.py").write_text(
        "import atexit, os, sys\nsys.stdout.write('parity-look:{} no newline')\natexit.register(os.abort)\n"
    )
    assert contents_of(PYTHON, pin("noisy"), importing=True).missing == ()


def test_a_framework_that_does_not_import(package_on_path):
    (package_on_path / "broken.py").write_text("raise OSError('libcudnn.so.8: cannot open shared object file')")
    assert contents_of(PYTHON, pin("broken")).missing == ()
    with pytest.raises(ProbeError, match=r"libcudnn\.so\.8: cannot open") as caught:
        contents_of(PYTHON, pin("broken"), importing=True)
    assert "Traceback" in caught.value.output


def test_a_framework_that_leaves_while_it_is_imported(package_on_path):
    (package_on_path / "leaver.py").write_text("import os\nos._exit(0)")
    with pytest.raises(ProbeError, match="printed no answer"):
        contents_of(PYTHON, pin("leaver"), importing=True)


def test_look_is_understood_by_the_oldest_python():
    source = Path(installed.__file__).read_text()
    compile(source, "installed.py", "exec")
    code = "import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))"
    subprocess.run([PYTHON, "-c", code], input=source, text=True, check=True)


def test_look_answers_in_one_line():
    question = json.dumps({"modules": ["numpy"], "distributions": ["numpy"], "imports": []})
    process = subprocess.run([PYTHON, installed.__file__, question], capture_output=True, text=True, check=True)
    assert process.stderr == ""
    assert process.stdout.strip().startswith(installed.ANSWER)


# --- finding a Python of a given release


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Empty places to look in: two folders in PATH, pyenv, a home; uv may not look at the real ones either."""
    monkeypatch.setenv("PATH", os.pathsep.join(["", str(tmp_path / "first"), str(tmp_path / "second")]))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_host_is_found_first(places):
    minor = "{}.{}".format(*sys.version_info)
    assert discover.find_python([UNKNOWN, minor]) == (minor, PYTHON)


def test_nothing_is_found(places):
    assert discover.find_python([UNKNOWN]) is None


def test_a_python_in_path_of_another_release_or_broken_is_passed_over(places):
    script(places / "first" / f"python{UNKNOWN}", "exit 127")
    python_that_says(places / "first" / "python3", "3.96.1")
    (places / "first" / "python").mkdir()
    wanted = python_that_says(places / "second" / "python3", f"{UNKNOWN}.4")
    assert discover.find_python([UNKNOWN]) == (UNKNOWN, wanted)


def test_a_shim_is_resolved_to_the_real_interpreter(places):
    script(places / "first" / "python3", f"echo {UNKNOWN}.4", "echo /real/bin/python")
    assert discover.find_python([UNKNOWN]) == (UNKNOWN, Path("/real/bin/python"))


def test_pyenv_gives_its_newest_patch_that_runs(places):
    versions = places / "pyenv" / "versions"
    for patch in (2, 9, 10):
        python_that_says(versions / f"{UNKNOWN}.{patch}" / "bin" / "python", f"{UNKNOWN}.{patch}")
    script(versions / f"{UNKNOWN}.11" / "bin" / "python", "exit 1")
    (versions / f"{UNKNOWN}.12").mkdir()
    found = discover.find_python([UNKNOWN])
    assert found == (UNKNOWN, versions / f"{UNKNOWN}.10" / "bin" / "python")


def test_pyenv_in_the_home_folder_without_its_variable(places, monkeypatch):
    monkeypatch.delenv("PYENV_ROOT")
    wanted = python_that_says(places / "home/.pyenv/versions" / f"{UNKNOWN}.1" / "bin/python", f"{UNKNOWN}.1")
    assert discover.find_python([UNKNOWN]) == (UNKNOWN, wanted)


def test_the_releases_are_tried_in_order(places):
    python_that_says(places / "first" / "python3.96", "3.96.0")
    wanted = python_that_says(places / "pyenv/versions" / f"{UNKNOWN}.1" / "bin/python", f"{UNKNOWN}.1")
    assert discover.find_python([UNKNOWN, "3.96"]) == (UNKNOWN, wanted)


def test_a_candidate_that_hangs_costs_its_timeout_only(places, monkeypatch):
    errors = []

    def recorded(python):
        try:
            return identify(python, timeout_s=0.3 if python.parent.name == "first" else 60.0)
        except ProbeError as error:
            errors.append(str(error))
            raise

    monkeypatch.setattr(discover, "identify", recorded)
    script(places / "first" / f"python{UNKNOWN}", "exec /bin/sleep 60")
    wanted = python_that_says(places / "second" / "python3", f"{UNKNOWN}.4")
    assert discover.find_python([UNKNOWN]) == (UNKNOWN, wanted)
    assert "it did not answer within 0.3 s" in errors
