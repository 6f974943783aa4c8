"""`parity run`, `parity validate` and `parity schema`."""

from __future__ import annotations

import datetime
import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity.cli.group import MAX_THREADS, end_once_on_signals, example, fail, main, options, output_options
from parity.cli.streams import stdout_loss
from parity.exit_codes import DEFAULT_FAIL_ON, FAIL_ON, MISMATCH, USAGE

if TYPE_CHECKING:
    from parity.config.plan import Plan
    from parity.reporting.results.outputs import Outputs
    from parity.run import Source

LIMIT_HELP = "for all tensors or for one. Repeatable."


plan_options = options(
    click.argument("configs", nargs=-1, required=True, type=click.Path(path_type=Path)),
    click.option(
        "-b",
        "--backend",
        "backends",
        multiple=True,
        metavar="NAME",
        help="Only this backend, of the config or NAME[==VERSION][:MODE]. Repeatable.",
    ),
    click.option(
        "-k", "keyword", metavar="EXPR", help="Only cases whose id matches, e.g. 'offset and not (large or pair)'."
    ),
    click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Only this dtype. Repeatable."),
    *(
        click.option(f"--{limit}", multiple=True, metavar="V|TENSOR:V", help=f"Override {limit}, {LIMIT_HELP}")
        for limit in ("rtol", "atol")
    ),
    click.option("--baseline", metavar="NAME", help="The backend to compare with, or oracle for the exact answer."),
    click.option(
        "--steps",
        type=click.IntRange(1),
        metavar="N",
        help="Run only the first N steps of trainings; schedules do not change.",
    ),
    click.option(
        "--shard", metavar="I/N", help="Only part I of N of the cases, for N machines; `parity merge` joins them."
    ),
)
"""The options that select and override parts of a config."""


@main.command(
    short_help="Run configs, compare, judge, write a report.",
    epilog=example(
        "parity run configs/layernorm.yaml",
        "parity run configs/linear.yaml -b torch -b paddle -k 768 --rtol 1e-5 --rtol grad.weight:1e-4",
        "parity run configs/layernorm.yaml --last-failed -x",
        "parity run configs/ops/*.yaml --shard 2/4 --out shard-2",
        "parity run configs/ops/*.yaml --cluster local:4",
        "parity run configs/*.yaml --fail-on mismatch --out parity-run --junit-xml parity.xml --github",
    ),
)
@plan_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory (default: reports/CONFIG-TIME)."
)
@click.option("--resume", is_flag=True, help="Continue the interrupted run in --out DIR.")
@click.option(
    "--jobs",
    type=click.IntRange(1, MAX_THREADS),
    metavar="N",
    help="Number of workers that compute at once (default: one per backend; for trainings, one per core).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds per case, dtype and backend, or per training step (the first gets 60 s more); a model gets ten times "
    "as many for each run.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Run on Dask: local:N processes, or the scheduler at tcp://HOST:PORT. Needs parity[cluster].",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    show_default=True,
    metavar="N",
    help="Threads per worker; they change results.",
)
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default=DEFAULT_FAIL_ON,
    show_default=True,
    help="The mildest verdict that exits with 1. `mismatch` is strict: rounding fails too. One-sided NaN always fails.",
)
@click.option("--fail-on-others", is_flag=True, help="Also judge the backends that are not the config's subject.")
@click.option("-x", "--exitfirst", is_flag=True, help="Stop after the first case with a finding; --resume continues.")
@click.option(
    "--lf",
    "--last-failed",
    "last_failed",
    is_flag=True,
    help="Only cases that failed or were not compared in the last run of CONFIGS (the one in --out, else the newest in "
    "reports/). Without such a run, all cases.",
)
@output_options
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def run(
    configs: tuple[Path, ...],
    out: Path | None,
    resume: bool,
    jobs: int | None,
    timeout: float,
    cluster: str | None,
    threads: int,
    fail_on: str,
    fail_on_others: bool,
    exitfirst: bool,
    last_failed: bool,
    no_provision: bool,
    quiet: bool,
    verbose: bool,
    wanted: Outputs,
    **selection: Any,
) -> NoReturn:
    """Run the cases of CONFIGS, compare every backend with the baseline and the exact answer, write a run directory.

    Judged is the config's `subject`: by default the backends with `ops:`, by the exact answer, whatever the baseline
    returns; without any, every backend. What others do wrong is a warning.

    Exit code: 0 no findings; 1 findings, or an outdated `known` entry; 2 the command or a config is wrong, or not
    everything could be written; 3 no findings, but something could not be compared; 130 interrupted (finished results
    are kept; --resume continues).
    """
    from parity.cluster import ClusterError
    from parity.engine import EngineOptions
    from parity.preflight import remarks
    from parity.reporting.results import last
    from parity.reporting.results.claims import claimed
    from parity.run import run_and_show

    if not math.isfinite(timeout):
        raise click.BadParameter(f"{timeout} is not a number of seconds", param_hint="--timeout")
    plan = load(configs, {**selection, "fail_on_others": fail_on_others})
    engine = EngineOptions(timeout_s=timeout, threads=threads, jobs=jobs or 0, provision=not no_provision)
    if resume and out is None:
        raise click.UsageError("--resume needs --out DIR, the directory of the interrupted run")
    if last_failed:
        plan, message = last.last_failed(plan, out, resume=resume)
        click.echo(message, err=True)
    for remark in remarks(plan) if not quiet else ():
        click.echo(f"warning: {remark}", err=True)
    replaces = (
        out is not None and not resume and any((out / name).is_file() for name in ("results.json", "results.sqlite"))
    )
    end_once_on_signals()
    source = on_cluster(cluster)
    try:
        run_dir = click.get_current_context().with_resource(claimed(out, plan, resume=resume))
    except BlockingIOError as error:
        fail(f"cannot use {error.filename}: {error.strerror}; wait until it has finished, or name another --out")
    except OSError as error:
        fail(f"cannot use {error.filename or out or 'reports'}: {error.strerror or error}; name another --out")
    if replaces:
        click.echo(f"replacing the earlier run in {out}", err=True)
    try:
        results = run_and_show(
            plan,
            engine,
            run_dir,
            command=["parity", *sys.argv[1:]],
            outputs=wanted,
            verbosity=verbose - quiet,
            fail_on=fail_on,
            exitfirst=exitfirst,
            resume=resume,
            source=source,
        )
    except ClusterError as error:
        fail(f"{error}. What was finished is in {run_dir}; repeat the command with --out {run_dir} --resume")
    except OSError as error:
        fail(refused(error, run_dir))
    sys.exit(results.summary.exit_code or (USAGE if "json" in wanted.files and stdout_loss() is not None else 0))


def refused(error: OSError, run_dir: Path) -> str:
    """What the system refused, and where the results are."""
    from parity.reporting.results.directory import LostFilesError

    name, reason = error.filename or run_dir, error.strerror or error
    if isinstance(error, LostFilesError):
        return f"cannot write {name}: {reason}; the results are shown above"
    return f"cannot use {name}: {reason}; no results can be shown; to run the rest, add --out {run_dir} --resume"


def on_cluster(address: str | None) -> Source:
    """What runs the cases of ops: the engine, or a cluster, which is left at the end of the command."""
    from parity.engine import execute

    if address is None:
        return execute
    from parity.cluster import connected

    cluster = click.get_current_context().with_resource(connected(address))
    from parity.cluster.source import events

    return partial(events, cluster)


@main.command(
    short_help="Check configs without running them.",
    epilog=example("parity validate configs/*.yaml", "parity validate --audit configs/layernorm.yaml --dtype float32"),
)
@plan_options
@click.option(
    "--audit", is_flag=True, help="Also list the mistakes that the inputs cannot reveal or distinguish (advice)."
)
def validate(configs: tuple[Path, ...], audit: bool, **selection: Any) -> None:
    """Check CONFIGS without running anything.

    Exit code: 0 valid; 1 valid, but no run can pass (a `known` entry has expired or matches no case, or an `ops` file
    defines none of the ops); 2 invalid. All errors are reported at once.
    """
    from parity.preflight import audit_of_client, foreseen, remarks
    from parity.reporting.text.words import plural

    plan = load(configs, selection)
    n_models = sum(not case.is_op for case in plan.cases)
    models = f" (of which {plural(n_models, 'model')})" if n_models else ""
    parts = [
        f"{plural(n, 'cell')} on each of {', '.join(names)}; baseline {base}{judged}"
        for (names, base, judged), n in asked(plan)
    ]
    problems = list(foreseen(plan, datetime.date.today()))
    answer = "no run of these cases can pass" if problems else "ok"
    click.echo(f"{answer}: {plural(len(plan.cases), 'case')}{models}, " + "\n  and ".join(parts))
    for problem in problems:
        click.echo(problem, err=True)
    for remark in remarks(plan):
        click.echo(f"warning: {remark}", err=True)
    if audit:
        from parity.reporting.console.audit import audit_and_show

        audit_and_show(plan, audit_of_client)
    if problems:
        sys.exit(MISMATCH)


def asked(plan: Plan) -> list[tuple[tuple[tuple[str, ...], str, str], int]]:
    """Number of cells per set of backends, baseline and subject in words, since each of several configs has its own."""
    n_cells: Counter[tuple[tuple[str, ...], str, str]] = Counter()
    for case in plan.cases:
        own = plan.of(case)
        names = tuple(spec.name for spec in own.backends)
        judged = "" if {*own.subject} in (set(), {*names}) else f"; judged: {', '.join(own.subject)}"
        n_cells[names, own.baseline, judged] += len(case.dtypes)
    return list(n_cells.items())


@main.command(short_help="Print the JSON schema of a config.", epilog=example("parity schema > parity.schema.json"))
def schema() -> None:
    """Print the JSON schema of a config, for editors that complete and check YAML."""
    import json

    from parity.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def load(configs: tuple[Path, ...], selection: dict[str, Any]) -> Plan:
    """The plan; raises ConfigError with all errors. `selection` are the values of `plan_options`."""
    from parity.config import Overrides, load_plan

    return load_plan(configs, Overrides(**selection))
