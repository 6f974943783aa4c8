"""The inner loop: what `-m quick` selects needs no framework and starts no process, and what claims so and lies is red."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.markers import FRAMEWORKS, imports_framework

pytest_plugins = ["pytester"]

WITHOUT_FRAMEWORKS = (
    f"import sys; sys.modules.update(dict.fromkeys({sorted(FRAMEWORKS)})); import pytest; sys.exit(pytest.main())"
)
PLUGIN = """
import sys
sys.path.insert(0, {root!r})
from tests import markers

def pytest_configure(config):
    config.pluginmanager.register(markers.Guard())

def pytest_collection_modifyitems(items):
    for item in items:
        markers.mark(item)
"""


def test_quick_tests_are_collected_where_there_is_no_framework():
    command = [
        sys.executable,
        "-c",
        WITHOUT_FRAMEWORKS,
        "-m",
        "quick",
        "--collect-only",
        "-n0",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/config/test_broken.py::" in done.stdout
    assert "test_trainer_torch" not in done.stdout


def test_a_file_imports_a_framework_through_another_one():
    assert imports_framework(ROOT / "tests/training/torch_models.py")
    assert imports_framework(ROOT / "tests/training/test_model.py")
    assert not imports_framework(ROOT / "tests/config/test_broken.py")


@pytest.fixture
def session(pytester):
    """Runs test modules in a session that has this project's markers and guard."""

    def run(texts, *arguments):
        pytester.makeconftest(PLUGIN.format(root=str(ROOT)))
        pytester.makepyfile(**{f"test_{number}": text for number, text in enumerate(texts)})
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


LIES = {
    "a quick test starts a process (os.system)": "def test_it():\n    __import__('os').system('true')\n",
    "a quick test starts a process (subprocess.Popen)": "def test_it():\n    __import__('sub' + 'process').run('true')\n",
    "a quick test imports torch": "def test_it():\n    __import__('tor' + 'ch')\n",
}


def test_what_only_looks_quick_is_red(session):
    done = session(LIES.values())
    done.assert_outcomes(failed=len(LIES))
    assert [said for said in LIES if f"Failed: {said}" not in done.stdout.str()] == []


NOT_QUICK = [
    "import subprocess\n\ndef test_it():\n    assert subprocess.run('true').returncode == 0\n",
    "def call():\n    import subprocess\n    return subprocess.run('true')\n\ndef test_it():\n    assert call().returncode == 0\n",
    "import subprocess, pytest\n\n@pytest.fixture\ndef done():\n    return subprocess.run('true')\n\ndef test_it(done):\n    assert done.returncode == 0\n",
    "import pytest\n\n@pytest.mark.process\ndef test_it():\n    __import__('os').system('true')\n",
    "def test_it():\n    try:\n        import torch\n    except ImportError:\n        pass\n",
]


def test_what_is_not_quick_is_left_out_by_its_code(session):
    session(NOT_QUICK, "-m", "quick").assert_outcomes(deselected=len(NOT_QUICK))
    session(NOT_QUICK).assert_outcomes(passed=len(NOT_QUICK))
