"""One hunt: the search within its time, its files, a run of what it found, and the answer."""

from __future__ import annotations

import contextlib
import datetime
import errno
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity.config import ConfigError, load_plan
from parity.config.nodes import printable
from parity.config.plan import CasePlan
from parity.engine import BackendStarted, CasePrepared, EngineOptions
from parity.engine.inputs import prepare, slug
from parity.exit_codes import INCOMPLETE, INTERRUPTED, MISMATCH, PASSED
from parity.hunt import HuntError, check_installed
from parity.hunt.bench import Bench, TrialCase
from parity.hunt.search import HuntFinding, Search
from parity.hunt.subject import Subject, subject_of
from parity.hunt.write import (
    CONFIG,
    STATE,
    case_id,
    known_entry,
    read_state,
    restored,
    said,
    trials_of,
    write_config,
    write_state,
    written,
)
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import Failures, of_failed_case
from parity.reporting.results.claims import empty
from parity.reporting.results.directory import held, made
from parity.reporting.results.outputs import Outputs, write_run_files
from parity.reporting.results.results import REPORTS, new_directory
from parity.reporting.text.words import plural
from parity.repro import ReproError
from parity.repro.write import write_scripts
from parity.run_state import RunState, keep, take_in
from parity.starter.write import case_lines

DEFAULT_DTYPES = ("float32", "float64")
SHARE, LAST_S = 0.1, 10.0
"""The share of the time, at most ten seconds, reserved for the fault that is being followed when the search ends."""
LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class HuntRequest:
    """What the command line asks for; `trials` bounds the search beside the time (0: the time alone)."""

    subject: str
    backends: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    minutes: float = 5.0
    trials: int = 0
    seed: int = 0
    adapter: str | None = None
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def stored(self) -> dict[str, Any]:
        """What `--resume` takes from the first command."""
        return {
            "subject": self.subject,
            "backends": list(self.backends),
            "dtypes": list(self.dtypes),
            "seed": self.seed,
            "adapter": self.adapter,
        }


def resumed(folder: Path, request: HuntRequest) -> tuple[HuntRequest, Mapping[str, Any]]:
    """The request of an earlier hunt, with the time and options of this one, and its state; raises HuntError."""
    state = read_state(folder)
    kept = state["request"]
    try:
        earlier = HuntRequest(
            str(kept["subject"]),
            tuple(map(str, kept["backends"])),
            tuple(map(str, kept["dtypes"])),
            request.minutes,
            request.trials,
            int(kept["seed"]),
            kept["adapter"],
            request.options,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HuntError(f"{folder / STATE} cannot be read: {error!r}") from error
    return earlier, state


@contextlib.contextmanager
def claimed(out: Path | None, request: HuntRequest, *, resume: bool) -> Iterator[Path]:
    """The folder of the hunt, locked within the context; raises OSError if it cannot be used or holds other files."""
    if out is None:
        name = slug(Path(request.subject).stem)
        out = new_directory(REPORTS / f"hunt-{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    if any(made(out).iterdir()) and not (out / STATE).is_file():
        raise FileExistsError(errno.EEXIST, "it is not empty and holds no hunt", str(out))
    with held(out):
        empty(out)
        for name in () if resume else (STATE, CONFIG):
            (out / name).unlink(missing_ok=True)
        yield out


def hunt_and_show(request: HuntRequest, folder: Path, state: Mapping[str, Any] | None, command: Sequence[str]) -> int:
    """Hunt with progress on stderr and the answer on stdout; the exit code.

    Raises HuntError, ConfigError, StarterError, and OSError if the findings cannot be written.
    """
    check_installed()
    began = time.monotonic()
    subject = subject_of(request.subject, request.backends, request.dtypes, request.adapter)
    deadline = began + 60 * request.minutes
    with Bench(subject.backends, subject.cases, request.options, folder / "log.txt") as bench:
        search = Search(bench, subject.bases, request.dtypes, request.seed)
        if state is not None:
            restored(search, state, stored_trials(folder))
        interrupted = searched(search, request, subject, folder, deadline)
        if search.findings or search.crashed:
            record_findings(bench, [*search.findings, *search.crashed], folder, request.options, command)
    answer(search, request, subject, folder)
    if interrupted:
        return INTERRUPTED
    if any(counts(finding, subject) for finding in search.findings):
        return MISMATCH
    crashed = any(subject.judges(finding.backend) for finding in search.crashed)
    return INCOMPLETE if crashed or search.judge_failed or not any(map(subject.judges, search.best)) else PASSED


def searched(search: Search, request: HuntRequest, subject: Subject, folder: Path, deadline: float) -> bool:
    """Search, and write what was found as it is found; whether an interrupt ended it."""
    bench = search.bench
    kept: list[HuntFinding] = []
    search.until = deadline
    bench.until = deadline - min(LAST_S, SHARE * (deadline - time.monotonic()))
    bench.most_trials = bench.n_trials + request.trials if request.trials else float("inf")

    def save() -> None:
        findings = [*search.findings, *search.crashed]
        if [*map(id, findings)] != [*map(id, kept)]:
            write_config(folder, request.subject, subject, findings)
            kept[:] = findings
        write_state(folder, request.stored, search)

    with Progress(search, deadline) as progress:
        search.observe, search.concluded = progress.show, save
        try:
            search.run()
            bench.until, bench.most_trials = deadline, float("inf")
            search.follow_pending()
        except KeyboardInterrupt:
            search.keep_pending()
            save()
            return True
        except Exception:
            # What was found is on the disk, whatever fails.
            search.keep_pending()
            save()
            raise
    save()
    return False


def stored_trials(folder: Path) -> dict[str, TrialCase]:
    """The cases of an earlier hunt's config by id; none if it found nothing. Raises HuntError."""
    if not (folder / CONFIG).is_file() or not read_state(folder)["findings"] + read_state(folder)["crashed"]:
        return {}
    try:
        cases: Sequence[CasePlan] = load_plan([folder / CONFIG]).cases
    except ConfigError as error:
        raise HuntError(f"the findings so far cannot be read: {error}") from error
    return {
        case.id: TrialCase(
            case, case.dtypes[0], {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
        )
        for case in cases
    }


def record_findings(
    bench: Bench, findings: Sequence[HuntFinding], folder: Path, options: EngineOptions, command: Sequence[str]
) -> None:
    """Compute the cases of the config once more, and write them as a run, with the diagnoses; raises OSError."""
    plan = load_plan([folder / CONFIG])
    state = RunState(plan, folder.absolute(), command, options)
    state.open()
    bench.until, n_trials = math.inf, bench.n_trials
    for info in bench.infos.values():
        take_in(state, BackendStarted(info))
    diagnoses = {name: f.diagnoses for number, f in enumerate(findings, 1) for _, name in trials_of(f, number)}
    for index, case in enumerate(plan.cases):
        failures = Failures()
        with failures.contained("recording a finding"):
            record_finding(bench, state, index, case, diagnoses[case.id])
        for dtype in case.dtypes if failures else ():
            state.take_judged(case, *of_failed_case(case, dtype, bench.names, failures))
    bench.n_trials = n_trials
    results = state.write()
    state.store.close()
    list(write_run_files(results, folder, Outputs({}), state.losses))
    state.losses.check()


def record_finding(bench: Bench, state: RunState, index: int, case: CasePlan, diagnoses: Sequence[Diagnosis]) -> None:
    """Compute a finding's case once more, and record it with its diagnoses."""
    prepared = prepare(case, index, state.plan.seed, state.run_dir / "tensors", bench.spare)
    take_in(state, CasePrepared(prepared, bench.ask()))
    judge = state.judges.pop(case.id)
    for seen in bench.seen([TrialCase(case, dtype, prepared.arrays) for dtype in case.dtypes]):
        state.take_outcomes(seen.outcomes)
        judge.take(seen.trial.dtype, seen.outcomes)
    mine = tuple(replace(d, case=case.id) for d in diagnoses if d.dtype in case.dtypes)
    judged = judge.judged(diagnose=False)
    keep(state, judge, replace(judged, diagnoses=(*mine, *judged.diagnoses)))


class Progress:
    """A line on stderr: on a terminal it is renewed, in a log there is one every ten seconds."""

    def __init__(self, search: Search, deadline: float) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._search, self._deadline, self._due = search, deadline, 0.0
        self._status = self._console.status("starting the backends") if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, search: Search) -> None:
        """The trials, the largest error of each backend, and the time that is left."""
        if self._status is not None:
            self._status.update(printable(self.text(search)))
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + LINE_EVERY_S
            self._console.print(printable(self.text(search)), highlight=False, markup=False, soft_wrap=True)

    def text(self, search: Search) -> str:
        """The line."""
        left = max(0, round(self._deadline - time.monotonic()))
        findings = f"; {plural(len(search.findings), 'finding')}" if search.findings else ""
        return (
            f"{plural(search.bench.n_trials, 'trial')}; {nearest(search)}{findings}; {left // 60}:{left % 60:02} left"
        )


def nearest(search: Search) -> str:
    """The largest error of each backend in error bounds."""
    every = (f"{name} {search.best.get(name, 0.0) / ERROR_BOUND:.2g}" for name in search.bench.names)
    return f"largest error in error bounds: {', '.join(every)}"


def answer(search: Search, request: HuntRequest, subject: Subject, folder: Path) -> None:
    """Print what was found, each with its smallest case, or that nothing was, and what was tried."""
    findings = [*search.findings, *search.crashed]
    ops = dict.fromkeys(base.case.op for base in search.bases)
    trials = f"{plural(search.bench.n_trials, 'trial')} of {', '.join(ops)}"
    counted = [finding for finding in findings if counts(finding, subject)]
    aside = f"; {plural(len(findings) - len(counted), 'other')} not counted" if len(findings) > len(counted) else ""
    if counted:
        say(f"FOUND  {plural(len(counted), 'finding')} in {trials}{aside}")
    elif findings:
        say(f"nothing that counts in {trials}; {plural(len(findings), 'finding')} not counted")
    else:
        most = max(search.best.values(), default=0.0) / ERROR_BOUND
        say(
            f"nothing beyond {most:.2g} error bounds in {trials}"
            if search.best
            else f"nothing could be compared in {trials}"
        )
    versions = (f"{name} {info.version}" for name, info in search.bench.infos.items())
    say(f"{' · '.join(versions)} · {', '.join(request.dtypes)} · seed {request.seed}")
    scripts = dict(scripts_of(folder, findings))
    for number, finding in enumerate(findings, 1):
        say(f"\n{number}. {said(finding)}")
        for line in case_lines(written(finding.trial, case_id(finding, number), folder)):
            say(f" {line}")
        if (entry := known_entry(finding, subject)) is not None:
            say(f"   known: {entry.reason}")
        if not subject.judges(finding.backend):
            say(f"   not counted: this hunt is for {', '.join(subject.judged)}")
        if number in scripts:
            say(f"   {scripts[number]}")
    tried = ", ".join(f"{kind} {n}" for kind, n in search.tried.most_common())
    say(f"\ntried: {tried}; {nearest(search)}" if findings else f"tried: {tried}; {nearest(search)}")
    for (backend, what), (n, message) in search.failed.items():
        say(f"{backend}: {what} in {plural(n, 'trial')}, for example: {message.splitlines()[0] if message else ''}")
    if findings:
        say(f"run it again: {shlex.join(['parity', 'run', str(folder / CONFIG)])}")
    say(f"continue: {shlex.join(['parity', 'hunt', '--resume', str(folder)])}")


def counts(finding: HuntFinding, subject: Subject) -> bool:
    """Whether a finding is of a backend that the hunt judges, and is not known."""
    return subject.judges(finding.backend) and known_entry(finding, subject) is None


def scripts_of(folder: Path, findings: Sequence[HuntFinding]) -> Iterator[tuple[int, str]]:
    """How to run the script of each finding, by its number, or why it has none."""
    for number, finding in enumerate(findings, 1):
        failures = Failures()
        try:
            with failures.contained("writing its script", passing=(ReproError,)):
                name = case_id(finding, number)
                made = list(write_scripts(folder, name, backend=finding.backend, dtype=finding.trial.dtype))
                yield number, str(made[0]).splitlines()[-1].strip() if made else "it has no script"
        except ReproError as error:
            yield number, f"no script: {error}"
        if failures:
            yield number, f"no script: {failures[-1].message}"


def say(text: str) -> None:
    """A line on stdout."""
    import click

    click.echo(printable(text) if "\n" not in text else "\n".join(map(printable, text.split("\n"))))
