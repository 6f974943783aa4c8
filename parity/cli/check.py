"""`parity check`: a reference in PyTorch or NumPy and code that should do the same."""

from __future__ import annotations

import ast
import datetime
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.check_batch import BatchOptions, check_all, passed_on
from parity.cli.crashes import crash_of_child, end_child
from parity.cli.group import MAX_THREADS, end_once_on_signals, example, main
from parity.exit_codes import DEFAULT_FAIL_ON, FAIL_ON, INCOMPLETE, INTERRUPTED, PASSED

if TYPE_CHECKING:
    from parity.check.answer import CheckAnswer
    from parity.check.lines import FaultLines
    from parity.check.prepare import PreparedCheck
    from parity.engine import EngineOptions
    from parity.engine.forking import ForkServers
    from parity.reporting.results.rows import Results

FORMATS = ("kernelbench", "robust-kbench", "gpu-mode", "backendbench", "flashinfer-bench")
"""Those of `parity.check.formats`."""
ADAPTERS = ("torch", "numpy", "jax", "tensorflow", "mlx", "paddle", "oneflow", "mindspore")
"""Those of `parity.config.backends` that call a function of a user."""
DESIGNING, LEAST_DESIGNING = 0.25, 5.0
"""The part of the time in which cases are made; at least so many seconds."""


@main.command(
    short_help="Check a pair of files: a reference in PyTorch or NumPy, and code that should do the same.",
    epilog=example(
        "parity check reference.py new.py",
        "parity check ref.py:softmax kernels.py:fast_softmax --inputs ref.py:get_inputs",
        "parity check ref.py port.py:model --adapter jax",
        "parity check level1/19_ReLU.py mine/19.py --set batch_size=64 --json",
        "parity check level1/ mine/ -j 2 --out answers --junit-xml answers.xml",
    ),
)
@click.argument("reference")
@click.argument("new", required=False)
@click.option("--inputs", metavar="FILE.py:NAME", help="The function that returns the arguments of a call.")
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="Of the files (default: found out).")
@click.option(
    "--adapter",
    type=click.Choice(ADAPTERS),
    help="The framework of NEW (default: found out from its imports); one that is not installed is not created: "
    "`parity env create NAME` does that.",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set a global of REFERENCE. Repeatable.")
@click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Repeatable (default: that of the inputs).")
@click.option("--forward-only", is_flag=True, help="Compare outputs only, no gradients.")
@click.option("--all", "everything", is_flag=True, help="Ask every case, also after the first finding.")
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, metavar="S")
@click.option(
    "--diagnose-seconds",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    metavar="S",
    help="Seconds for the search for one cause; 0 only says whether NEW is wrong.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, metavar="S")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where to write (default: reports/check-...)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one line of JSON, and nothing else.")
@click.option("--hide-inputs", is_flag=True, help="Leave the inputs out of the JSON.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), default=DEFAULT_FAIL_ON, show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-j", "--jobs", type=click.IntRange(1, MAX_THREADS), default=1, metavar="N", help="Pairs at a time.")
@click.option("--resume", is_flag=True, help="Of folders: keep the answers in --out DIR, and ask for the others.")
@click.option("--shard", metavar="I/N", help="Of folders: only part I of N of the pairs.")
@click.option("--junit-xml", type=click.Path(path_type=Path), metavar="PATH", help="Of folders: a test case per pair.")
def check(
    reference: str,
    new: str | None,
    as_json: bool,
    hide_inputs: bool,
    jobs: int,
    resume: bool,
    shard: str | None,
    junit_xml: Path | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Check whether NEW computes what REFERENCE does: outputs and gradients, for inputs beyond the given ones.

    Each is FILE.py or FILE.py:NAME: a class of torch.nn.Module (Model, and ModelNew in NEW) or a function. REFERENCE
    defines get_inputs(), and get_init_inputs() for a class; it may be a function of NumPy. Both files are code that you
    choose to run: REFERENCE runs in this process, NEW in one of its own.

    NEW may be a function in JAX, TensorFlow, MLX, Paddle, OneFlow, MindSpore or NumPy: of the arguments in REFERENCE's
    order, then of weights by their names (fc_weight). It runs in the environment of its framework, which
    `parity env create NAME` makes.

    Two folders are many pairs: files of the same name, or of the same number before `_`. So is one folder of folders
    with reference.py and new.py, submission.py or solution.py. Each pair is checked by a process of its own.

    Exit code: 0 right; 1 wrong; 2 an option is wrong; 3 nothing could be concluded, as from a file that is missing; 130
    interrupted. Of many pairs: 1 if any is wrong, else 3 if any was not judged.
    """
    from parity.check.batch import batch_of, one_of

    started = time.monotonic()
    end_once_on_signals()
    try:
        batch = batch_of(reference, new)
        if batch is not None:
            options = BatchOptions(given["out"], quiet, as_json, jobs, resume, shard, junit_xml)
            passed = [*passed_on(given), *(["--hide-inputs"] if hide_inputs else [])]
            sys.exit(check_all(batch, options, passed, given["seconds"]))
        if resume or shard or junit_xml:
            raise click.UsageError("--resume, --shard and --junit-xml are for folders of pairs")
        if new is None:
            member = one_of(Path(reference))
            reference, new = member.reference, member.new
        # PyTorch is not imported yet: the child has no other threads.
        crash = crash_of_child() if owns_process() else 0
        reply = crashed(crash) if crash else checked(reference, new, as_json=as_json, quiet=quiet, **given)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, click.ClickException) and not as_json:
            raise
        reply = without_answer(error, time.monotonic() - started)
    if as_json:
        click.echo(reply.as_json(hide_inputs=hide_inputs))
    else:
        show(reply, quiet=quiet)
    if owns_process() and new is not None:
        end_child(reply.exit_code)
    sys.exit(reply.exit_code)


def owns_process() -> bool:
    """Whether this process was started for the command, not for tests or tools."""
    return getattr(click.get_current_context().find_root().command, "owns_process", False)


def crashed(number: int) -> CheckAnswer:
    """What is said where a signal has ended the process."""
    from parity.check.answer import not_judged

    why = "the memory was not enough" if number == signal.SIGKILL else "code of the reference may have crashed"
    return not_judged(f"parity's process was ended by {signal.Signals(number).name}: {why}")


def without_answer(error: BaseException, seconds: float) -> CheckAnswer:
    """What is said where a check ends with an error."""
    from parity.check.answer import not_judged
    from parity.errors import UserError

    if isinstance(error, KeyboardInterrupt):
        return not_judged("interrupted", seconds=seconds, exit_code=INTERRUPTED)
    if isinstance(error, UserError):
        return not_judged(str(error), seconds=seconds)
    if isinstance(error, click.ClickException):
        return not_judged(error.format_message(), seconds=seconds, exit_code=error.exit_code)
    if isinstance(error, BlockingIOError):
        return not_judged(f"{error.filename}: {error.strerror}; name another folder with --out", seconds=seconds)
    traceback.print_exception(error)
    text = f"parity failed: {type(error).__name__}: {error}"
    return not_judged(text, seconds=seconds, exit_code=INCOMPLETE)


def show(reply: CheckAnswer, *, quiet: bool) -> None:
    """The answer in words."""
    from parity.check.screen import screen
    from parity.reporting.console.run import stdout_console

    console = stdout_console()
    for line in screen(reply, console.width, quiet=quiet):
        console.print(line, soft_wrap=True)


def checked(reference: str, new: str, **options: Any) -> CheckAnswer:
    """Prepare a pair, run it, and answer. Raises UserError."""
    servers = fork_servers()
    try:
        servers.begin("torch", threads=1)
        with alone_in(options["out"]):
            return answered(servers, reference, new, **options)
    finally:
        servers.close()


@cache
def fork_servers() -> ForkServers:
    """Those of this process, which may have begun to import PyTorch before there is a pair."""
    from parity.engine.forking import ForkServers

    return ForkServers()


@contextmanager
def alone_in(out: Path | None) -> Iterator[None]:
    """Hold the lock of the folder that a user names. Raises CheckError where another check writes there, or where it is
    none."""
    from parity.check import CheckError
    from parity.reporting.results.directory import held, made

    with ExitStack() as stack:
        try:
            if out is not None:
                stack.enter_context(held(made(out)))
        except OSError as error:
            raise CheckError(f"{error.filename}: {error.strerror}; name another folder with --out") from error
        yield


def answered(
    servers: ForkServers,
    reference: str,
    new: str,
    *,
    as_json: bool,
    inputs: str | None,
    format_name: str | None,
    adapter: str | None,
    settings: tuple[str, ...],
    dtypes: tuple[str, ...],
    forward_only: bool,
    everything: bool,
    seconds: float,
    diagnose_seconds: float,
    timeout: float,
    out: Path | None,
    fail_on: str,
    quiet: bool,
) -> CheckAnswer:
    """The answer, from workers that are forked where they can be. Raises UserError."""
    from rich.console import Console

    from parity.check.answer import answer, of_one_reference, why_outputs_only
    from parity.check.large import is_large, large_answer
    from parity.check.limit import REFERENCE, CheckWatch, is_asked
    from parity.check.lines import FaultLines
    from parity.check.prepare import begun, of_start
    from parity.engine import EngineOptions
    from parity.judge.diagnose.patience import SECONDS, UNSEARCHED, searching
    from parity.reporting.console.progress import reporter_for
    from parity.reporting.results.claims import claimed
    from parity.reporting.results.directory import Losses
    from parity.reporting.results.outputs import Outputs, write_run_files
    from parity.reporting.results.resume import Finished
    from parity.run import n_left, run

    started = time.monotonic()
    folder = (out or Path("reports") / f"check-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}").absolute()
    console, losses = Console(stderr=True), Losses()
    SECONDS.set(diagnose_seconds)
    UNSEARCHED.set(frozenset((REFERENCE,)))
    engine = EngineOptions(timeout_s=timeout, threads=1, jobs=0, provision=False, launch=servers.launch)

    start = begun(
        reference,
        new,
        folder,
        inputs=inputs,
        format_name=format_name,
        adapter=adapter,
        given=dict(map(setting, settings)),
    )
    if is_large(start):
        own = FaultLines(start.problem.pair, servers.script)
        return timed(large_answer(start, engine, folder, started + seconds, own), started)

    def run_of(*, forward_only: bool) -> tuple[PreparedCheck, Results, FaultLines]:
        limit = max(LEAST_DESIGNING, seconds * DESIGNING)
        pair = of_start(start, folder, dtypes=dtypes, forward_only=forward_only, seconds=limit)
        lines = FaultLines(pair.pair, servers.script, pair.sizes)
        with (
            searching(lambda rows: is_asked(rows, pair.kinds, loses_digits=lines.lose_digits()), lines.locate),
            claimed(folder / "run", pair.plan) as run_dir,
            reporter_for(console, *n_left(pair.plan, Finished()), quiet=quiet or as_json) as reporter,
        ):
            lossy, until = lines.lose_digits, started + seconds
            watch = CheckWatch(reporter, pair.kinds, until, fail_on, lossy, everything=everything)
            how: dict[str, Any] = {"fail_on": fail_on, "losses": losses, "source": watch.source}
            results = run(pair.plan, engine, run_dir, watch, ["parity", *sys.argv[1:]], **how)
            write_run_files(results, run_dir, Outputs({}), losses)
        return pair, results, lines

    pair, results, lines = run_of(forward_only=forward_only)
    if not forward_only and (why := why_outputs_only(results, reference, new)):
        pair, results, lines = run_of(forward_only=True)
        pair.notes.append(why)
    reply = of_one_reference(answer(results, pair, folder / "run", time.monotonic() - started, lines), pair)
    return completed(reply, pair, servers, engine, run_dir=folder / "run", started=started, until=started + seconds)


def timed(reply: CheckAnswer, started: float) -> CheckAnswer:
    """The answer with the time since a check has begun."""
    return replace(reply, seconds=time.monotonic() - started)


def completed(
    reply: CheckAnswer,
    pair: PreparedCheck,
    servers: ForkServers,
    engine: EngineOptions,
    *,
    run_dir: Path,
    started: float,
    until: float,
) -> CheckAnswer:
    """The answer with what is shown of the formula, and at the size of the file; the check has begun at `started`, and
    has to end `until` a time of the monotonic clock."""
    from parity.check.answer import with_size
    from parity.check.at_size import SizeAnswer, asked_at_size
    from parity.check.same_formula import with_formula

    reply = with_formula(reply, pair, servers.script)
    if not pair.smaller:
        return reply
    is_right = reply.exit_code == PASSED
    size = asked_at_size(pair, engine, run_dir, until) if is_right else SizeAnswer("not run", "")
    return with_size(reply, size, pair, time.monotonic() - started)


def setting(text: str) -> tuple[str, Any]:
    """The name and value of `--set`. Raises click.UsageError."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise click.UsageError(f"--set {text}: write NAME=VALUE, for example --set batch_size=4")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
