"""What all tests share: the command line, in this process and in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from parity.cli import main
from parity.config.plan import KnownDeviation
from tests import exhaustive, forking, markers

ROOT = Path(__file__).parent.parent
# A busy machine fails no test.
settings.register_profile("parity", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parity")
FAKES = Path(__file__).parent / "fakes"
CONFIGS = ROOT / "configs"


def pytest_configure(config: pytest.Config) -> None:
    # As in a run of the command line: OpenBLAS reads it when NumPy is imported, and there is a worker per core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Hundreds of workers and commands would each compile what they import.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    servers = forking.ServersOfTests()
    servers.install()
    config.pluginmanager.register(servers)
    config.pluginmanager.register(markers.Guard())
    config.pluginmanager.register(exhaustive.Exhaustive(config))
    # A shell in the background, or nohup, ignores them, and so would the commands that tests interrupt.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` does not even import the files that import a framework, so that it works where there is none."""
    is_test = collection_path.match("test_*.py")
    return True if is_quick(config) and is_test and markers.imports_framework(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what a test needs, and puts the files that take longest first and the tests of SPREAD first, so that no worker
    starts one at the end; MANAGED, whose frameworks may still be installed in the background, come after other long ones."""
    for item in items:
        markers.mark(item)
    effort: dict[Path, int] = {}
    for item in items:
        effort[item.path] = effort.get(item.path, 0) + markers.effort(item)
    items.sort(key=lambda item: (_turn(item, effort[item.path]), -effort[item.path]))


def _turn(item: pytest.Item, effort: int) -> int:
    if item.nodeid.startswith(SPREAD):
        return 0
    if item.nodeid.startswith(MANAGED):
        return 2
    return 1 if effort > LONG else 3


LONG = 200
"""The effort of a file that takes long, of ten processes or so."""
MANAGED = (
    "tests/adapters/test_census_bugs.py",
    "tests/adapters/test_managed_frameworks.py",
    "tests/capture/test_scripts.py",
    "tests/library/test_frameworks.py",
    "tests/models/test_exports.py",
    "tests/models/test_keras.py",
    "tests/test_shipped_configs.py",
)
"""Files that use frameworks in environments of their own, besides OneFlow."""


SPREAD = (
    "tests/benchmarks/test_fuzz.py",
    "tests/judge/test_inquiry.py",
    "tests/judge/test_kinds.py",
    "tests/starter/test_starter.py",
)
"""Files of long searches that share no fixture: their tests go wherever a worker is free."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, except for the files in SPREAD."""
    from xdist.scheduler import LoadFileScheduling

    class FilesOrTests(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SPREAD) else super()._split_scope(nodeid)

    return FilesOrTests(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as the cores that this process may use, and one more where tests also wait for processes that start or are
    killed; more than eight would mostly wait for memory and for each other."""
    return min(len(os.sched_getaffinity(0)) + (not is_quick(config)), 8)


def is_quick(config: pytest.Config) -> bool:
    """Whether only quick tests are selected."""
    return bool(config.getoption("markexpr") == "quick")


@dataclass(frozen=True)
class Finished:
    """A finished `parity run`."""

    code: int
    stdout: str
    stderr: str
    run_dir: Path

    @cached_property
    def results(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "results.json").read_text())

    def outcomes(self, backend: str) -> dict[tuple[str, str], str]:
        return {(o["case"], o["dtype"]): o["outcome"] for o in self.results["outcomes"] if o["backend"] == backend}

    def message(self, backend: str) -> str:
        return next(o["message"] for o in self.results["outcomes"] if o["backend"] == backend and o["message"])

    def failing(self, **wanted: str) -> list[dict[str, Any]]:
        rows = self.select(**wanted)
        return [row for row in rows if row["verdict"] not in ("equal", "close", "not-compared")]

    def select(self, **wanted: str) -> list[dict[str, Any]]:
        return [row for row in self.results["comparisons"] if all(row[k] == v for k, v in wanted.items())]


def waited_for(condition: Callable[[], Any]) -> None:
    """Returns once this holds; AssertionError where it does not within two minutes, however busy the machine is."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def processes_with(variable: str, value: str) -> list[int]:
    """The processes that live and have an environment variable; one that is just being started may not show it yet."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable) == value:
                found.append(process.pid)
    return found


def ended(process: psutil.Process) -> bool:
    """Whether a process is no more; who adopts orphans may leave a zombie."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def parity_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "parity", *map(str, arguments)]


@contextmanager
def started(*arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`parity` in a process of its own, with pipes; what still runs at the end is killed, so that no test leaves it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(parity_command(*arguments), **pipes, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def call(
    *arguments: str | Path, cwd: Path = Path(), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`parity` in this process, which spares the second that its imports take; the workers are processes all the same.

    A test of signals, descriptors or the process itself starts `parity_command`.
    """
    words = [str(argument) for argument in arguments]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with chdir(cwd), patch.object(sys, "argv", ["parity", *words]):
        try:
            done = CliRunner().invoke(main, words, prog_name="parity", env=env)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def run_in(folder: Path, config: str | Path, *arguments: str, env: Mapping[str, str] | None = None) -> Finished:
    """`parity run` in a folder, on YAML text or on a config file."""
    if isinstance(config, str):
        path = folder / "config.yaml"
        path.write_text(config)
        config = path
    run_dir = folder / "run"
    done = call("run", config, "--out", run_dir, *arguments, cwd=folder, env=env)
    return Finished(done.returncode, done.stdout, done.stderr, run_dir)


@contextmanager
def without_searches() -> Iterator[None]:
    """Runs within are judged in full, but nobody looks for the causes: for tests that ask for verdicts alone."""
    from parity import run_state

    with patch.object(run_state, "judge", partial(run_state.judge, diagnose=False)):
        yield


@contextmanager
def without_causes() -> Iterator[None]:
    """`without_searches`, and an entry of `known` that names a diagnosis accepts what it is for, whatever the cause."""
    from parity.judge import known

    covered = known.covered_parts

    def of_any_cause(entry: KnownDeviation, *rest: Any) -> Any:
        return covered(replace(entry, diagnosis=None), *rest)

    with without_searches(), patch.object(known, "covered_parts", of_any_cause):
        yield


@pytest.fixture
def started_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started, not forked, for tests of their processes; `/proc` shows the environment of a start only."""
    monkeypatch.setattr("parity.engine.process.launched", forking.LAUNCHED)


@pytest.fixture
def parity_run(tmp_path: Path) -> Callable[..., Finished]:
    """Runs `parity run` on YAML text or on a config file."""
    return partial(run_in, tmp_path)


def user_config(
    ops: str | Path, *, cases: Sequence[str] = (), backends: Sequence[str] = ("numpy",), adapter: str = "numpy"
) -> str:
    """A config in which the backend `mine` runs the user ops of a file, beside others."""
    mine = f"{{name: mine, adapter: {adapter}, ops: {ops}}}"
    lines = cases or ["{id: one, op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}"]
    listed = "\n".join(f"  - {line}" for line in lines)
    return f"version: 1\nbackends: [{', '.join([*backends, mine])}]\ncases:\n{listed}\n"


def three_cases(op: str = "layer_norm") -> list[str]:
    """Cases `before`, `bad` and `after`; fakes misbehave where the last axis has length 13."""
    sizes = {"before": 6, "bad": 13, "after": 7}
    return [
        f"{{id: {i}, op: {op}, params: {{normalized_shape: [{n}]}}, inputs: {{x: {{shape: [4, {n}]}}}}}}"
        for i, n in sizes.items()
    ]
