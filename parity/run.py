"""One run: from the plan through engine and judge to a written run directory. Only the command line enters here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from parity import exit_codes
from parity.clients import CLIENTS, client_of
from parity.config.nodes import printable
from parity.config.plan import Plan
from parity.engine import EngineOptions, Event, ModelFinished, Resumed, execute
from parity.reporting.results.directory import Losses, reserve
from parity.reporting.results.outputs import IN_RUN_DIR, Outputs, write_run_files
from parity.reporting.results.resume import Finished, finished
from parity.reporting.results.rows import Results
from parity.run_state import Observer, RunState, follow, judge_rest, take_in, with_lost_reports

Source = Callable[[Plan, EngineOptions, Path, Collection[str]], Iterator[Event]]
"""Runs the op cases, except the finished ones, like `engine.execute`."""


def run_and_show(
    plan: Plan,
    options: EngineOptions,
    run_dir: Path,
    *,
    command: Sequence[str],
    outputs: Outputs,
    verbosity: int = 0,
    fail_on: str = exit_codes.DEFAULT_FAIL_ON,
    exitfirst: bool = False,
    resume: bool = False,
    source: Source = execute,
) -> Results:
    """`run` with progress on stderr and the results on stdout and in files.

    Raises OSError at the end if something could not be written, and ResumeError like `run`.
    """
    from rich.console import Console

    from parity.reporting.console.progress import reporter_for
    from parity.reporting.console.run import show

    losses = Losses()
    how: dict[str, Any] = {"fail_on": fail_on, "exitfirst": exitfirst, "resume": resume, "losses": losses}
    how["source"] = source
    with outputs.silenced():
        with reporter_for(Console(stderr=True), *n_left(plan, Finished()), quiet=verbosity < 0) as reporter:
            results = run(plan, options, run_dir, reporter, command, **how)
        if not outputs.on_stdout:
            with losses.making("the tables"):
                show(results, verbosity=verbosity)
    written = [*write_run_files(results, run_dir, outputs, losses), str(run_dir)]
    results = with_lost_reports(results, losses.failures, run_dir)
    for failure in losses.failures:
        message = printable(f"warning: {failure.message}")
        Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)
    losses.check()
    if verbosity >= 0:
        message = f"written to {', '.join(written)}; for reviewers: {run_dir / IN_RUN_DIR['html']}"
        message += f"; to run the rest, repeat the command with --out {run_dir} --resume" if results.run.stopped else ""
        Console(stderr=True).print(printable(message), style="dim", highlight=False, markup=False, soft_wrap=True)
    return results


def n_left(plan: Plan, finished: Finished) -> tuple[int, int]:
    """Number of unfinished op cases, and of unfinished dtypes of clients' cases."""
    ops = [case for case in plan.cases if case.op not in CLIENTS]
    clients_cells = {(case.id, dtype) for case in plan.cases if case.op in CLIENTS for dtype in case.dtypes}
    return sum(not finished.holds(case) for case in ops), len(clients_cells - finished.cells)


def run(
    plan: Plan,
    options: EngineOptions,
    run_dir: Path,
    observer: Observer,
    command: Sequence[str] = (),
    *,
    fail_on: str = exit_codes.DEFAULT_FAIL_ON,
    exitfirst: bool = False,
    resume: bool = False,
    losses: Losses | None = None,
    source: Source = execute,
) -> Results:
    """Run `plan`, compare, judge and write; an interrupt (Ctrl-C) keeps finished results and sets exit code 130.

    With `exitfirst` it stops after the first case with a finding at the level `fail_on` that is not accepted. With
    `resume` the run in `run_dir` continues: raises ResumeError if its plan is another one. Files that cannot be
    written are noted in `losses`; without `losses`, OSError is raised at the end.
    """
    # Workers read the inputs by absolute path, since a user's op may change the directory.
    run_dir = run_dir.absolute()
    state = RunState(plan, run_dir, command, options, fail_on, exitfirst)
    state.losses = losses if losses is not None else state.losses
    if resume:
        state.resume(finished(plan, options, run_dir))
        observer.on_event(Resumed(*n_left(plan, state.finished)), ())
    state.open()
    state.write(interrupted=True)
    done = {case.id for case in plan.cases if state.finished.holds(case)}
    kept_free = reserve(run_dir, sum(len(case.dtypes) for case in plan.cases) * len(plan.backends))
    try:
        for _ in follow(state, source(plan, options, run_dir, done), observer):
            state.save()
        with state.losses.at(run_dir / "training"):
            for _ in () if state.stopped else run_clients(state, observer):
                state.save()
        is_interrupted = run_dir / "training" in state.losses.reasons and not state.is_complete
    except KeyboardInterrupt:
        judge_rest(state)
        is_interrupted = True
    except BaseException:
        kept_free.close()
        state.write(interrupted=True)
        state.store.close()
        raise
    kept_free.close()
    results = state.write(interrupted=is_interrupted)
    state.store.close()
    if losses is None:
        state.losses.check()
    return results


def run_clients(state: RunState, observer: Observer) -> Iterator[None]:
    """Run the clients' cases and record them; yields after each."""

    def observe(event: Event) -> None:
        observer.on_event(event, take_in(state, event))

    for kind in [kind for kind in CLIENTS if any(case.op == kind for case in state.plan.cases)]:
        run_cases = client_of(kind).run
        cases = run_cases(state.plan, state.options, state.run_dir, observe, state.trainings, state.finished.cells)
        with contextlib.closing(cases):  # type: ignore[type-var]
            for judged in cases:
                observer.on_event(ModelFinished(judged.case.id, judged.dtype), state.take(judged))
                yield
                if state.stopped:
                    return
