"""Managed environments, made for real by uv from tiny wheels, without a network; what goes wrong is provoked."""

import base64
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from parity.config.plan import BackendSpec
from parity.environments import (
    EnvironmentUnavailable,
    create_environment,
    installer,
    list_environments,
    remove_environment,
    resolve,
    store,
)
from parity.environments.pins import PINS, Pin
from tests.conftest import waited_for

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MINOR = "{}.{}".format(*sys.version_info)
NAME = f"tiny-1.0-py{MINOR}"
TINY = Pin(
    modules=("tinyfw",),
    distributions=("tinyfw",),
    version="1.0",
    pythons=(MINOR,),
    extras=("numpy",),
    size="about 1 KB",
)
SPEC = BackendSpec("mine", "tiny")


def wheel(folder, name, version, source=""):
    """A wheel of one module, written by hand."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


def _digest(text):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "numpy", "1.26.4")
    wheel(folder, "tinyfw", "1.0")
    wheel(folder, "tinyfw", "1.1")
    wheel(folder, "tinyfw", "0.5", "raise OSError('libcudnn.so.8: cannot open shared object file')")
    wheel(folder, "extra", "1.0")
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch, wheels):
    """An empty PARITY_HOME, a uv that may not reach the network, and an adapter `tiny`; the home's folder `envs`."""
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    others = (
        "UV_FIND_LINKS",
        "UV_DEFAULT_INDEX",
        "UV_INDEX_URL",
        "UV_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_INDEX_STRATEGY",
    )
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", *others):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(PINS, "tiny", TINY)
    return tmp_path / "home" / "envs"


@pytest.fixture
def no_uv(monkeypatch):
    """From here on, asking for uv is an error."""

    def refuse():
        raise AssertionError("uv was asked for")

    monkeypatch.setattr(installer, "uv_executable", refuse)


def visible(envs):
    return sorted(path.name for path in envs.iterdir() if path.name not in (".locks", ".logs"))


# --- it is made, and used again


def test_it_is_made_and_says_so(home):
    lines = []
    interpreter = resolve(SPEC, progress=lines.append)
    assert interpreter.python == home / NAME / "bin" / "python"
    assert interpreter.kind == "managed"
    assert interpreter.python_version == "{}.{}.{}".format(*sys.version_info)
    assert (interpreter.numpy_version, interpreter.framework_version) == ("1.26.4", "1.0")
    assert lines[0] == f"creating environment {NAME} (about 1 KB, once)"
    assert any(line.strip().startswith("Resolved 2 packages") for line in lines)
    assert any(line.strip().startswith("Installed 2 packages") for line in lines)
    assert lines[-1].startswith(f"created environment {NAME} in ")
    assert visible(home) == [NAME]


def test_the_interpreter_works_where_it_was_moved_to(home):
    interpreter = resolve(SPEC)
    code = "import sys, tinyfw; print(sys.prefix, tinyfw.__file__)"
    prefix, module = subprocess.check_output([interpreter.python, "-c", code], text=True).split()
    assert prefix == str(home / NAME)
    assert Path(module).is_relative_to(home / NAME)
    texts = [home / NAME / "pyvenv.cfg", *(home / NAME / "bin").glob("activate*")]
    assert not [file for file in texts if store.PARTIAL in file.read_text()]


def test_it_is_used_again_without_uv_and_without_a_word(home, request):
    first = resolve(SPEC)
    request.getfixturevalue("no_uv")
    lines = []
    assert resolve(SPEC, progress=lines.append) == first
    assert resolve(SPEC, provision=False) == first
    assert lines == []


def test_without_provision_nothing_is_made(home, no_uv):
    with pytest.raises(EnvironmentUnavailable, match=r"tinyfw 1.0 is not installed here.*`parity env create tiny`"):
        resolve(SPEC, provision=False)
    with pytest.raises(EnvironmentUnavailable, match=r"`parity env create tiny==1\.1`"):
        resolve(dataclasses.replace(SPEC, version="1.1"), provision=False)
    assert not home.exists()


def test_a_version_gets_an_environment_of_its_own(home):
    assert resolve(SPEC).framework_version == "1.0"
    assert resolve(dataclasses.replace(SPEC, version="1.1")).framework_version == "1.1"
    assert visible(home) == [NAME, f"tiny-1.1-py{MINOR}"]


def test_other_requirements_make_it_anew(home, monkeypatch):
    resolve(SPEC)
    monkeypatch.setitem(PINS, "tiny", dataclasses.replace(TINY, extras=("numpy", "extra")))
    with pytest.raises(EnvironmentUnavailable):
        resolve(SPEC, provision=False)
    resolve(SPEC)
    assert list((home / NAME).rglob("extra.py"))
    assert visible(home) == [NAME]


def test_it_is_made_anew_when_its_python_is_gone(home):
    python = resolve(SPEC).python
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert [environment.ready for environment in list_environments()] == [False]
    with pytest.raises(EnvironmentUnavailable):
        resolve(SPEC, provision=False)
    assert os.access(resolve(SPEC).python, os.X_OK)


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"format": 1}', "\xff", None])
def test_without_a_whole_marker_it_is_not_used(home, marker):
    resolve(SPEC)
    file = home / NAME / store.MARKER
    file.unlink() if marker is None else file.write_text(marker, encoding="latin-1")
    with pytest.raises(EnvironmentUnavailable):
        resolve(SPEC, provision=False)
    resolve(SPEC)
    assert json.loads(file.read_text())["version"] == "1.0"


def test_a_marker_of_another_format_is_not_trusted(home):
    resolve(SPEC)
    file = home / NAME / store.MARKER
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(EnvironmentUnavailable):
        resolve(SPEC, provision=False)


def test_paritys_own_pythonpath_does_not_leak_into_the_check(home, tmp_path, monkeypatch):
    """A framework that only the host's PYTHONPATH has would be missing in the worker."""
    (tmp_path / "tinyfw.py").write_text("raise AssertionError('the host leaks')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    create_environment("tiny")


# --- list, create, remove


def test_create_list_remove(home):
    lines = []
    made = create_environment("tiny", None, lines.append)
    assert made.ready
    assert (made.name, made.adapter, made.version, made.path) == (NAME, "tiny", "1.0", home / NAME)
    assert made.python.startswith(MINOR)
    assert made.size_bytes > 1000
    assert made.created.startswith("20")
    assert made.created.endswith("+00:00")
    assert list_environments() == [made]
    assert create_environment("tiny", "1.0", lines.append) == made
    assert lines[-1] == f"environment {NAME} already exists"
    remove_environment(NAME)
    assert list_environments() == []
    assert visible(home) == []


def test_list_shows_what_is_not_ready(home):
    (home / "tiny-0.7-py3.10").mkdir(parents=True)
    (home / "tiny-0.7-py3.10" / "file").write_text("12345")
    (found,) = list_environments()
    assert (found.adapter, found.version, found.python, found.ready) == ("tiny", "0.7", "3.10", False)
    assert found.size_bytes == 5


def test_list_without_a_folder(home):
    assert list_environments() == []


@pytest.mark.parametrize("name", ["nothing", "..", ".", ".locks", "", "../envs"])
def test_remove_only_what_is_an_environment(home, name):
    create_environment("tiny")
    with pytest.raises(EnvironmentUnavailable, match=f"there are: {NAME}"):
        remove_environment(name)
    assert visible(home) == [NAME]


def test_the_numpy_adapter_has_an_environment_only_for_a_release(home, no_uv):
    with pytest.raises(EnvironmentUnavailable, match="name a release"):
        create_environment("numpy", None)


# --- it cannot be made


def failure(*, version=None):
    with pytest.raises(EnvironmentUnavailable) as caught:
        resolve(dataclasses.replace(SPEC, version=version))
    message = str(caught.value)
    assert Path(message.rpartition(" ")[2]).is_file(), "the last word is the log"
    return message


def test_a_release_that_does_not_exist(home):
    message = failure(version="9.9")
    assert "there is no version of tinyfw==9.9" in message
    assert "Ask for a release that exists" in message
    assert visible(home) == []


def test_a_framework_that_does_not_load(home):
    message = failure(version="0.5")
    assert "tinyfw==0.5 is installed but does not load" in message
    assert "libcudnn.so.8" in message
    assert "Ask for another release" in message
    assert "Traceback" in Path(message.rpartition(" ")[2]).read_text()
    assert visible(home) == []


def test_a_package_that_does_not_hold_the_framework(home, monkeypatch):
    monkeypatch.setitem(PINS, "tiny", dataclasses.replace(TINY, distributions=("extra",)))
    message = failure()
    assert "No module named 'tinyfw'" in message


def test_an_installation_without_numpy(home, monkeypatch):
    monkeypatch.setitem(PINS, "tiny", dataclasses.replace(TINY, extras=()))
    assert "it lacks numpy" in failure()


def test_an_index_that_cannot_be_reached(home, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert "Check the network" in failure()


def test_no_network(home, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert "Check the network" in failure()


def test_no_python_of_that_release(home, monkeypatch):
    monkeypatch.setitem(PINS, "tiny", dataclasses.replace(TINY, pythons=("3.97",)))
    message = failure()
    assert "3.97" in message
    assert "Install that Python, or name an interpreter with `python:`" in message


def test_a_folder_that_cannot_be_written(home, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentUnavailable, match=r"cannot be written .*Set PARITY_HOME"):
        resolve(SPEC)


def test_after_a_failure_it_can_be_made(home, wheels, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert "not found in the provided package locations" in failure()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    assert resolve(SPEC).framework_version == "1.0"


# --- interrupted, and at the same time

RESOLVE = """
    import dataclasses, sys
    from parity.config.plan import BackendSpec
    from parity.environments import resolve
    from parity.environments.pins import PINS, Pin

    PINS["tiny"] = Pin(("tinyfw",), ("tinyfw",), "1.0", ("{minor}",), ("numpy",))
    print(resolve(BackendSpec("mine", "tiny"), progress=lambda line: print(line, flush=True)).python)
"""


CREATE = """
    from parity.cli import main
    from parity.environments.pins import PINS, Pin

    PINS["tiny"] = Pin(("tinyfw",), ("tinyfw",), "1.0", ("{minor}",), ("numpy",))
    main(["env", "create", "tiny"])
"""


@contextmanager
def resolving(*folders, code=RESOLVE):
    """Another parity that resolves `tiny`, which is killed at the end; `folders` go before everything on its path."""
    code = textwrap.dedent(code).format(minor=MINOR)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT]))}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def slow_uv(tmp_path):
    """A folder with a package `uv` whose uv makes the venv and then installs for ten minutes; its pid is in `pid`."""
    package = tmp_path / "slow" / "uv"
    package.mkdir(parents=True)
    script = package / "slow_uv"
    script.write_text(
        f'#!/bin/sh\n[ "$3" = venv ] && exec "{installer.uv_executable()}" "$@"\n'
        f'echo $$ > "{tmp_path}/pid.new"\nmv "{tmp_path}/pid.new" "{tmp_path}/pid"\nexec sleep 600\n'
    )
    script.chmod(0o755)
    (package / "__init__.py").write_text(f"def find_uv_bin():\n    return {str(script)!r}\n")
    return package.parent


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def interrupted(home, tmp_path, slow_uv):
    """Send a signal to a parity in the middle of an installation; gives its exit code and uv's pid."""

    def interrupt(with_signal, code=RESOLVE):
        with resolving(slow_uv, code=code) as process:
            waited_for((tmp_path / "pid").exists)
            uv_pid = int((tmp_path / "pid").read_text())
            pids.append(uv_pid)
            assert is_running(uv_pid)
            process.send_signal(with_signal)
            process.communicate()
        return process.returncode, uv_pid

    pids = []
    yield interrupt
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_ctrl_c_kills_uv_and_leaves_nothing(home, interrupted, capfd):
    code, uv_pid = interrupted(signal.SIGINT)
    assert code != 0
    assert "KeyboardInterrupt" in capfd.readouterr().err
    assert not is_running(uv_pid)
    assert visible(home) == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_ends_on_signals_and_leaves_nothing(home, interrupted, with_signal, capfd):
    code, uv_pid = interrupted(with_signal, CREATE)
    assert code == 130
    assert capfd.readouterr().err == "interrupted\n"
    assert not is_running(uv_pid)
    assert visible(home) == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_a_killed_creation_is_never_used_and_removed_by_the_next(home, interrupted):
    code, uv_pid = interrupted(signal.SIGKILL)
    assert code == -signal.SIGKILL
    # Else it would go on writing into the folder that the next one removes.
    waited_for(lambda: not is_running(uv_pid))
    (leftover,) = visible(home)
    assert leftover.startswith(store.PARTIAL)
    assert list_environments() == []
    with pytest.raises(EnvironmentUnavailable):
        resolve(SPEC, provision=False)
    resolve(SPEC)
    assert visible(home) == [NAME]


def test_leftovers_of_another_environment_are_removed_unless_it_is_being_made(home):
    (home / f"{store.PARTIAL}tiny-0.7-py3.9.abc").mkdir(parents=True)
    (home / f"{store.PARTIAL}tiny-0.8-py3.9.abc").mkdir(parents=True)
    with store.locked("tiny-0.8-py3.9"):
        create_environment("tiny")
        assert visible(home) == [f"{store.PARTIAL}tiny-0.8-py3.9.abc", NAME]
    remove_environment(NAME)
    assert visible(home) == []


def test_two_at_the_same_time_make_it_once(home):
    with resolving() as first, resolving() as second:
        said = [process.communicate()[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert [text.splitlines()[-1] for text in said] == [str(home / NAME / "bin/python")] * 2
    assert "".join(said).count("created environment") == 1
    assert visible(home) == [NAME]


def test_the_second_waits_and_says_so(home):
    with ExitStack() as stack:
        with store.locked(NAME):
            process = stack.enter_context(resolving())
            line = process.stdout.readline()
            assert line == f"waiting for another process that is changing environment {NAME}\n"
            assert process.poll() is None
        said, _ = process.communicate()
    assert said.splitlines()[-1] == str(home / NAME / "bin/python")


# --- pip's settings reach uv


def test_pip_settings_in_uvs_words(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    handed = installer.uv_environment(
        {
            "PIP_FIND_LINKS": f"{first} {tmp_path}/missing\n{second} file://{tmp_path}/page.html",
            "PIP_INDEX_URL": "https://mirror.test/simple",
            "PIP_EXTRA_INDEX_URL": "https://one.test/simple\n https://two.test/simple",
            "PIP_CERT": "/certificates.pem",
            "PYTHONPATH": "/host",
            "UV_SYSTEM_PYTHON": "1",
            "OTHER": "stays",
        }
    )
    assert handed["UV_FIND_LINKS"] == f"{first},{second},file://{tmp_path}/page.html"
    assert handed["UV_DEFAULT_INDEX"] == "https://mirror.test/simple"
    assert handed["UV_INDEX"] == "https://one.test/simple https://two.test/simple"
    assert handed["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert handed["SSL_CERT_FILE"] == "/certificates.pem"
    assert handed["OTHER"] == "stays"
    assert not {"PYTHONPATH", "UV_SYSTEM_PYTHON"} & handed.keys()


@pytest.mark.parametrize(
    "own",
    [
        {"UV_FIND_LINKS": "/mine"},
        {"UV_DEFAULT_INDEX": "https://mine.test"},
        {"UV_INDEX_URL": "https://mine.test"},
        {"UV_INDEX": "https://mine.test"},
        {"UV_EXTRA_INDEX_URL": "https://mine.test"},
        {"UV_INDEX_STRATEGY": "first-index"},
        {"SSL_CERT_FILE": "/mine.pem"},
    ],
)
def test_uvs_own_settings_win(own):
    pip = {
        "PIP_FIND_LINKS": "/",
        "PIP_INDEX_URL": "https://a.test",
        "PIP_EXTRA_INDEX_URL": "https://b.test",
        "PIP_CERT": "/a.pem",
    }
    kinds = [
        ("UV_FIND_LINKS",),
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
        ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
        ("UV_INDEX_STRATEGY",),
        ("SSL_CERT_FILE",),
    ]
    handed = installer.uv_environment(pip | own)
    (name,) = own
    (kind,) = [kind for kind in kinds if name in kind]
    assert {key: handed[key] for key in kind if key in handed} == own


def test_nothing_is_handed_on_where_pip_has_no_settings():
    assert installer.uv_environment({"PIP_FIND_LINKS": " ", "PIP_INDEX_URL": ""}) == {
        "PIP_FIND_LINKS": " ",
        "PIP_INDEX_URL": "",
    }


def test_uv_takes_several_find_links(home, tmp_path, wheels, monkeypatch):
    """The wheels lie in two folders, and a third is missing, which pip forgives."""
    other = tmp_path / "other"
    other.mkdir()
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(wheels / "tinyfw-1.0-py3-none-any.whl", other)
    shutil.copy(wheels / "numpy-1.26.4-py3-none-any.whl", alone)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{other} {tmp_path}/missing {alone}")
    assert resolve(SPEC).framework_version == "1.0"


def index(folder, *wheels):
    """A package index of these wheels as a folder of pages."""
    for path in wheels:
        page = folder / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as sink:
            sink.write(f'<a href="{path.as_uri()}">{path.name}</a>\n')
    return folder.as_uri()


def test_uv_takes_the_best_of_all_indexes_as_pip_does(home, tmp_path, wheels, monkeypatch):
    """The extra index knows an older tinyfw only; uv alone would stop there."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    older = wheels / "tinyfw-0.5-py3-none-any.whl"
    main = index(tmp_path / "main", wheels / "tinyfw-1.0-py3-none-any.whl")
    monkeypatch.setenv("PIP_INDEX_URL", main)
    monkeypatch.setenv(
        "PIP_EXTRA_INDEX_URL",
        f"{index(tmp_path / 'one', older)} {index(tmp_path / 'two', wheels / 'numpy-1.26.4-py3-none-any.whl')}",
    )
    assert resolve(SPEC).framework_version == "1.0"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["Resolved", "error: No", "  cause: Because", "", "hint: x", "y", "z"], "No cause: Because hint: x y"),
        (["Using Python", "  × No solution found:", "  ╰─▶ Because"], "No solution found: Because"),
        (["one", "two", "three", "four", "five"], "two three four five"),
        ([], ""),
    ],
)
def test_last_words(lines, words):
    assert installer.last_words(lines) == words
