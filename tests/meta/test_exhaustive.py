"""Exhaustive tests are left out only where nothing that they can reach has changed, and never in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.exhaustive import RECORD, UPDATE, digest, imports, reached, sources

pytest_plugins = ["pytester"]

PLUGIN = """
import sys
sys.path.insert(0, {project!r})
from pathlib import Path
from tests import exhaustive

def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive")
    config.pluginmanager.register(exhaustive.Exhaustive(config, Path({root!r})))
"""
TEST = """
import pytest
from mine import answer

@pytest.mark.exhaustive
@pytest.mark.parametrize("n", range(3))
def test_each(n):
    assert answer == 42

def test_one():
    assert answer
"""
NAMES = "import pytest\n{marked}\nfrom parity.a import (\n    one,  # of b\n    two,\n)\n\ndef test_it():\n    import parity.late\n"


def test_imports_are_read_wherever_they_stand():
    assert set(imports(NAMES)) == {"pytest", "parity.a.one", "parity.a.two", "parity.late"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "tests/test_it.py": NAMES.format(marked=""),
        "parity/__init__.py": "",
        "parity/a/__init__.py": "from parity.a.two import x",
        "parity/a/two.py": "x = 1",
        "parity/late.py": "",
        "parity/other.py": "",
        "parity/cli/__init__.py": "",
        "configs/ops/one.yaml": "",
        "tests/fakes/fake.py": "",
        "pyproject.toml": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(project: Path) -> set[str]:
    return {str(path.relative_to(project)) for path in sources(project / "tests/test_it.py", project)}


OWN = {"tests/test_it.py", "parity/__init__.py", "parity/a/__init__.py", "parity/a/two.py", "parity/late.py"}
EVERYTHING = {"parity/other.py", "parity/cli/__init__.py", "tests/fakes/fake.py"}


@pytest.mark.parametrize(
    ("marked", "more"),
    [
        ("", set()),
        ("from parity.cli import main", EVERYTHING),
        ("from tests.conftest import CONFIGS", {"configs/ops/one.yaml"}),
    ],
)
def test_sources_are_what_a_file_reaches(project, marked, more):
    (project / "tests/test_it.py").write_text(NAMES.format(marked=marked))
    assert found(project) == OWN | {"pyproject.toml"} | more


@pytest.mark.parametrize("changed", ["parity/a/two.py", "tests/test_it.py", "pyproject.toml"])
def test_a_changed_source_is_another_digest(project, changed):
    test = project / "tests/test_it.py"
    before = digest(test, project)
    (project / "parity/other.py").write_text("z = 1")
    assert digest(test, project) == before
    (project / changed).write_text((project / changed).read_text() + "\ny = 2")
    assert digest(test, project) != before


def test_a_test_of_the_judge_reaches_what_the_judge_computes_with_and_no_report():
    found = {str(path.relative_to(ROOT)) for path in reached(ROOT / "tests/judge/test_diagnosis.py")}
    assert {"parity/cases/norm.py", "parity/judge/case.py", "parity/judge/diagnose/search.py"} <= found
    assert "tests/judge/judging.py" in found
    assert not [name for name in found if name.startswith(("parity/cli/", "parity/reporting/html", "parity/engine/"))]


def test_a_test_of_a_run_has_all_of_parity_and_the_configs():
    found = {str(path.relative_to(ROOT)) for path in sources(ROOT / "tests/test_shipped_configs.py")}
    assert {"parity/adapters/torch_style.py", "parity/worker/main.py", "configs/layernorm.yaml"} <= found
    assert RECORD not in found


@pytest.fixture
def session(pytester, monkeypatch):
    """Runs a project whose exhaustive tests import `mine`."""
    monkeypatch.delenv(UPDATE, raising=False)
    root = pytester.path
    pytester.makeconftest(PLUGIN.format(project=str(ROOT), root=str(root)))
    pytester.makeini("[pytest]\ntestpaths = mytests\n")
    (root / "pyproject.toml").write_text("")
    for folder in ("mytests", "tests"):
        (root / folder).mkdir()
    (root / "mytests/test_it.py").write_text(TEST)
    (root / "mine.py").write_text("answer = 42")
    monkeypatch.setenv("PYTHONPATH", str(root))

    def run(*arguments: str):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *OTHERS, *arguments)

    return run


OTHERS = [
    part for name in ("parity", "hypothesispytest", "playwright", "rerunfailures") for part in ("-p", f"no:{name}")
]
LEFT_OUT = "*3 exhaustive tests left out: they passed with these very sources*"


def test_what_is_recorded_is_left_out_and_counted(session, pytester, monkeypatch):
    monkeypatch.setenv(UPDATE, "1")
    assert session("-n0", "-m", "exhaustive", "-k", "each").parseoutcomes()["passed"] == 3
    assert not (pytester.path / RECORD).exists(), "a part of them is no record"
    assert session("-n2", "-m", "exhaustive").parseoutcomes()["passed"] == 3
    monkeypatch.delenv(UPDATE)
    done = session("-n2")
    assert done.parseoutcomes()["passed"] == 1
    done.stdout.fnmatch_lines([LEFT_OUT])
    assert session("-n0", "mytests/test_it.py").parseoutcomes()["passed"] == 4
    (pytester.path / "mytests/test_it.py").write_text(TEST + "\n# changed\n")
    assert session("-n0").parseoutcomes()["passed"] == 4


def test_what_failed_is_not_recorded(session, pytester, monkeypatch):
    monkeypatch.setenv(UPDATE, "1")
    (pytester.path / "mine.py").write_text("answer = 41")
    assert session("-n0", "-m", "exhaustive").parseoutcomes()["failed"] == 3
    assert "test_it" not in (pytester.path / RECORD).read_text()
    monkeypatch.delenv(UPDATE)
    assert session("-n0").parseoutcomes() == {"failed": 3, "passed": 1}
