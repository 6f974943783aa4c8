"""How far a run is: a bar on a terminal, few lines in a log."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich.console import Console

from parity.engine import Announced, CellFinished, Judging, ModelFinished, Resumed, TrainingAdvanced, WorkBegun
from parity.engine.logs import CONTROL
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.reporting.console.progress import BarReporter, LineReporter, reporter_for
from tests.conftest import FAKES, call, three_cases, user_config


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cell(case: str = "bn", dtype: str = "float32") -> CellFinished:
    return CellFinished(SimpleNamespace(case=SimpleNamespace(id=case)), dtype, (), last_of_case=True)


def finding(**changes) -> Comparison:
    return replace(comparison_of("bn", "float32", "y", "mine", "oracle", Verdict.SEMANTIC, 0.0, 0.0), **changes)


class Log:
    """A log of a run, and what is in it."""

    def __init__(self, n_cases: int, n_models: int = 0) -> None:
        self.clock, self.file = Clock(), io.StringIO()
        self.reporter = LineReporter(Console(file=self.file, width=40), n_cases, n_models, self.clock)

    def goes_on(self, seconds: float, *events, comparisons=()) -> None:
        self.clock.now += seconds
        for event in events:
            self.reporter.on_event(event, comparisons)
        self.reporter.tick()

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_a_log_has_a_line_for_a_tenth_of_the_cells_but_not_in_ten_seconds():
    log = Log(100)
    for _ in range(100):
        log.goes_on(0.5, cell())
    assert [line.partition(" ")[0] for line in log.lines] == ["20", "40", "60", "80", "100"]
    assert log.lines[1] == "40 of 100 cases, 0:00:30 left"


def test_the_time_to_the_end_is_told_when_it_can_be_known():
    """The first case of a kernel is searched for a minute, the others repeat its answer."""
    log = Log(100)
    log.goes_on(5, cell())
    log.goes_on(70, cell())
    log.goes_on(1, *(cell() for _ in range(9)))
    assert not any("left" in line for line in log.lines)
    for _ in range(60):
        log.goes_on(2, cell())
    told = [line for line in log.lines if "left" in line]
    assert told, "told once most of the run was steady"
    assert all(int(line.partition("0:0")[2][0]) < 3 for line in told)


def test_nothing_is_told_while_one_case_takes_long():
    log = Log(20)
    for _ in range(10):
        log.goes_on(5, cell())
    assert log.lines[-1].endswith(" left")
    log.goes_on(300)
    assert log.lines[-1].startswith("10 of 20 cases")
    assert "left" not in log.lines[-1]


def test_a_slow_run_has_a_line_a_minute():
    log = Log(1000)
    for _ in range(600):
        log.goes_on(1.0)
    assert log.lines == ["0 of 1000 cases; starting the backends"] * 10


def test_a_log_names_what_runs():
    log = Log(10)
    at_hand = [("bn", "float32", "torch"), ("ln", "float64", "paddle"), ("bn", "float32", "oneflow")]
    log.goes_on(61, WorkBegun(lambda: at_hand))
    log.goes_on(61, Judging("group-norm"))
    log.goes_on(61, cell())
    at_hand += [("a", "float32", "x"), ("b", "float32", "x")]
    log.goes_on(61, TrainingAdvanced("curve", "float32", 5, 10, 3.21456, {}))
    log.goes_on(61, ModelFinished("curve", "float32"))
    assert [line.partition("; ")[2] for line in log.lines] == [
        "bn float32 on torch, oneflow; ln float64 on paddle",
        "diagnosing group-norm",
        "bn float32 on torch, oneflow; ln float64 on paddle",
        "curve float32: step 5 of 10, loss 3.215",
        "bn float32 on torch, oneflow; ln float64 on paddle; a float32 on x; ...",
    ]


def test_only_what_nobody_accepts_is_counted_as_found():
    log = Log(10)
    harmless = [
        finding(known="as agreed", tensor="a"),
        finding(verdict=Verdict.ROUNDING),
        finding(verdict=Verdict.CLOSE),
    ]
    log.goes_on(61, cell(), comparisons=harmless)
    log.goes_on(61, cell(), comparisons=[finding(), finding(expected="torch"), finding(dtype="float64")])
    assert [line.partition("; ")[2] for line in log.lines] == ["", "findings in 2 tensors"]


def test_news_are_told_at_once_and_control_characters_are_not_printed():
    log = Log(10)
    log.goes_on(0, Announced("torch:\x1b[31m installing"))
    assert log.lines == [r"torch:\x1b[31m installing"]


def test_a_resumed_run_counts_what_is_left():
    log = Log(10, 3)
    log.goes_on(0, Resumed(4, 2))
    log.goes_on(61, cell(), cell())
    assert log.lines == ["2 of 4 cases; 0 of 2 models"]


def test_trainings_have_a_time_of_their_own():
    log = Log(2, 2)
    log.goes_on(1, cell())
    log.goes_on(1, cell())
    for step in range(1, 21):
        log.goes_on(4.0, TrainingAdvanced("curve", "float32", step, 20, 1.0, {}))
    told = [line for line in log.lines if "left" in line]
    assert [line.partition(", ")[2][:7] for line in told] == ["0:01:56", "0:01:24"]
    log.goes_on(1, ModelFinished("curve", "float32"))
    log.goes_on(61, ModelFinished("curve", "float64"))
    assert log.lines[-1] == "2 of 2 cases; 2 of 2 models"


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_has_a_bar_with_what_runs_and_the_time_to_the_end(width):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    clock = Clock()
    with BarReporter(console, 9, 0, clock) as reporter:
        reporter.on_event(WorkBegun(lambda: [("x" * 200, "float32", "torch")]), ())
        reporter.on_event(Resumed(8, 0), ())
        for _ in range(4):
            clock.now += 10
            reporter.on_event(cell(), [finding()] if clock.now == 10 else ())
        reporter._progress.refresh()
        reporter.on_event(Judging("group-norm"), ())
        reporter._progress.refresh()
    lines = [CONTROL.sub("", line) for line in file.getvalue().replace("\r", "\n").splitlines()]
    assert any(line.startswith("cases ") and "4/8" in line and "eta 0:00:40" in line for line in lines)
    assert any(line.startswith("findings in 1 tensor; xxx") and line.rstrip().endswith("…") for line in lines)
    assert any(line.startswith("findings in 1 tensor; diagnosing group-norm") for line in lines)
    assert max(map(len, lines)) <= width


def test_colours_that_are_forced_make_no_terminal_of_a_log():
    console = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(reporter_for(console, 1, quiet=False), LineReporter)


def test_a_short_run_floods_no_log(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(user_config(FAKES / "honest.py", cases=three_cases()))
    done = call("run", "config.yaml", cwd=tmp_path)
    assert len(done.stderr.splitlines()) == 3
    assert call("run", "config.yaml", "-q", cwd=tmp_path).stderr == ""
