"""The command line: parse, call, exit code. Everything but click is imported where it is used, so --help is quick."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity import __version__
from parity.fingerprint import DTYPES, FINGERPRINTED
from parity.gate import FAIL_ON, INCOMPLETE, INTERRUPTED, USAGE

if TYPE_CHECKING:
    from parity.config.plan import Plan

MAX_THREADS = 256
"""More threads or workers than this start a fork storm on any machine that tests run on."""


def example(*lines: str) -> str:
    """An epilog that shows a command as it is typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class InterruptibleGroup(click.Group):
    """Ends with 130 where click would end with 1, which says that something differs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            # A fault of ours must not look like a difference, which is exit code 1.
            traceback.print_exc()
            ctx.exit(INCOMPLETE)


@click.group(
    cls=InterruptibleGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example("parity run configs/layernorm.yaml", "parity run configs/*.yaml -b torch -b paddle --dtype float32"),
)
@click.version_option(__version__, prog_name="parity")
def main() -> None:
    """Check whether machine-learning frameworks compute the same thing, and say who is off and by how much."""
    # Read by OpenBLAS when NumPy is imported; a second thread in the host only takes the cores from the workers.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def plan_options(command: Any) -> Any:
    """The options that choose what of a config is run."""
    options = (
        click.argument("configs", nargs=-1, required=True, type=click.Path(path_type=Path)),
        click.option(
            "-b", "--backend", "backends", multiple=True, metavar="NAME", help="Only this backend. Repeatable."
        ),
        click.option("-k", "keyword", metavar="EXPR", help="Only cases whose id matches, e.g. 'pair or offset'."),
        click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Only this dtype. Repeatable."),
        click.option(
            "--rtol", multiple=True, metavar="V|TENSOR:V", help="Override rtol, of all tensors or of one. Repeatable."
        ),
        click.option(
            "--atol", multiple=True, metavar="V|TENSOR:V", help="Override atol, of all tensors or of one. Repeatable."
        ),
        click.option("--baseline", metavar="NAME", help="Who is `expected`: a backend, or oracle."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command(
    epilog=example(
        "parity run configs/layernorm.yaml",
        "parity run configs/linear.yaml -b torch -b paddle -k 768 --rtol 1e-5 --rtol grad.weight:1e-4",
    )
)
@plan_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory (default: reports/CONFIG-TIME)."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, MAX_THREADS),
    metavar="N",
    help="How many cells compute at once (default: one per backend).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for one cell.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    show_default=True,
    metavar="N",
    help="Threads of each worker; results change with it.",
)
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default=FAIL_ON[0],
    show_default=True,
    help="Exit with 1 from this verdict on; NaN on one side and another structure always do.",
)
@click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout instead of tables.")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def run(
    configs: tuple[Path, ...],
    out: Path | None,
    jobs: int | None,
    timeout: float,
    threads: int,
    fail_on: str,
    as_json: bool,
    no_provision: bool,
    quiet: bool,
    verbose: bool,
    **selection: Any,
) -> NoReturn:
    """Run the cases of CONFIGS, compare every backend with the baseline and the oracle, write a run directory.

    Exit code: 0 all agree, 1 something differs, 2 the command or a config is wrong, 3 nothing differs but something
    could not be compared, 130 interrupted (what was finished is kept).
    """
    from parity.engine import EngineOptions
    from parity.run import claim, run_and_show

    if not math.isfinite(timeout):
        raise click.BadParameter(f"{timeout} is not a number of seconds", param_hint="--timeout")
    plan = load(configs, selection)
    options = EngineOptions(timeout_s=timeout, threads=threads, jobs=jobs or 0, provision=not no_provision)
    try:
        run_dir = claim(out, plan)
    except OSError as error:
        fail(f"cannot use {error.filename or out or 'reports'}: {error.strerror or error}; name another --out")
    end_once_on_signals()
    try:
        results = run_and_show(
            plan,
            options,
            run_dir,
            command=["parity", *sys.argv[1:]],
            as_json=as_json,
            verbosity=verbose - quiet,
            fail_on=fail_on,
        )
    except OSError as error:
        fail(f"cannot write {error.filename or run_dir}: {error.strerror or error}", INCOMPLETE)
    sys.exit(results.summary["exit_code"])


@main.command(
    epilog=example("parity validate configs/*.yaml", "parity validate --audit configs/layernorm.yaml --dtype float32")
)
@plan_options
@click.option("--audit", is_flag=True, help="Also tell which mistakes the inputs cannot show or tell apart (advice).")
def validate(configs: tuple[Path, ...], audit: bool, **selection: Any) -> None:
    """Check CONFIGS without running anything; all errors at once, exit code 2 if there are any."""
    plan = load(configs, selection)
    n_cells = sum(len(case.dtypes) for case in plan.cases)
    names = ", ".join(spec.name for spec in plan.backends)
    click.echo(f"ok: {len(plan.cases)} cases, {n_cells} cells on each of {names}; baseline {plan.baseline}")
    if audit:
        from parity.reporting.audit import audit_and_show

        audit_and_show(plan)


@main.command(epilog=example("parity schema > parity.schema.json"))
def schema() -> None:
    """Print the JSON schema of a config, for editors that complete and check YAML."""
    import json

    from parity.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command(epilog=example("parity report reports/layernorm-20261121-101500", "parity report RUN_DIR --json"))
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Print every tensor, with the values at its worst element.")
def report(run_dir: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show a stored run again. The exit code is 0 whatever the run found."""
    from parity.reporting.results import ResultsError, read_results
    from parity.run import show

    try:
        show(read_results(run_dir), as_json=as_json, verbosity=verbose - quiet)
    except ResultsError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot print the results: {error.strerror}")


@main.command(
    epilog=example(
        "parity explain --list", "parity explain variance-naive", "parity explain RUN_DIR group-norm --tensor 'grad.*'"
    )
)
@click.argument("subject", required=False, metavar="ID|RUN_DIR")
@click.argument("case", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the diagnoses.")
@click.option("--dtype", metavar="NAME", help="Of the case, only this dtype.")
@click.option("--tensor", metavar="GLOB", help="Of the case, only these tensors.")
def explain(subject: str | None, case: str | None, as_list: bool, dtype: str | None, tensor: str | None) -> None:
    """Tell what a diagnosis means, or all that the run in RUN_DIR knows about CASE (an id, or a part of one)."""
    from parity.reporting.console import stdout_console
    from parity.reporting.explain import ExplainError, explain_case, explain_id, explain_list
    from parity.reporting.results import ResultsError

    if (subject is None) != as_list or (case is not None and as_list):
        raise click.UsageError("name a diagnosis, or a run directory and a case, or give --list")
    console = stdout_console()
    try:
        if subject is None:
            explain_list(console)
        elif case is None and not Path(subject).is_dir():
            explain_id(subject, console)
        else:
            explain_case(Path(subject), case, console, dtype=dtype, tensor=tensor)
    except (ExplainError, ResultsError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot print: {error.strerror or error}")


@main.command(
    epilog=example(
        "parity fingerprint layer_norm",
        "parity fingerprint batch_norm -b torch -b mine=torch:./my_ops.py --dtype float32",
    )
)
@click.argument("op", type=click.Choice(FINGERPRINTED))
@click.option(
    "-b",
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="NAME[==VERSION][:MODE], NAME=ADAPTER:OPS_FILE, or a name in --config. Repeatable (default: all adapters).",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A config whose backends are meant.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="Only this dtype. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: reports/fingerprint-OP-TIME.")
@click.option("--json", "as_json", is_flag=True, help="Print fingerprint.json on stdout instead of a table.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True, metavar="N")
@click.option("--timeout", type=click.FloatRange(1e-3, 1e6), default=60.0, show_default=True, metavar="S")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
def fingerprint(op: str, as_json: bool, **asked: Any) -> NoReturn:
    """Find out which algorithm each backend uses for OP, by probes made to tell; stores the evidence and a plot.

    Exit code: 0 everything was measured, 2 the command is wrong, 3 something could not be measured, 130 interrupted.
    """
    from parity.config import ConfigError
    from parity.fingerprint.study import fingerprint_and_show, request

    try:
        wanted = request(op, **asked)
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot use {error.filename or 'reports'}: {error.strerror or error}; name another --out")
    end_once_on_signals()
    try:
        sys.exit(fingerprint_and_show(wanted, as_json=as_json))
    except OSError as error:
        fail(f"cannot write {error.filename or wanted.run_dir}: {error.strerror or error}", INCOMPLETE)


@main.command(epilog=example("parity ops"))
def ops() -> None:
    """List the ops, their params and the backends that have a method for them."""
    from parity.listing import ops_table

    ops_table()


@main.command(epilog=example("parity backends"))
def backends() -> None:
    """List the backends: what is installed, where, in which version."""
    from parity.listing import backends_table

    backends_table()


@main.group(epilog=example("parity env list", "parity env create oneflow", "parity env create paddle==2.6.2"))
def env() -> None:
    """The managed environments, in which backends run that do not fit into this interpreter."""


@env.command("list", epilog=example("parity env list"))
def env_list() -> None:
    """List the managed environments."""
    from parity.listing import environments_table

    environments_table()


@env.command("create", epilog=example("parity env create oneflow", "parity env create paddle==2.6.2"))
@click.argument("backend", metavar="NAME[==VERSION]")
def env_create(backend: str) -> None:
    """Create the environment of a backend, pinned unless a version is given."""
    from parity import environments

    adapter, _, version = backend.partition("==")
    try:
        made = environments.create_environment(adapter, version or None, click.echo)
    except environments.EnvironmentUnavailable as error:
        fail(str(error))
    click.echo(f"ready: {made.name} ({made.path})")


@env.command("remove", epilog=example("parity env remove oneflow-0.9.0-py3.10"))
@click.argument("name")
def env_remove(name: str) -> None:
    """Remove an environment by the name that `parity env list` shows."""
    from parity import environments

    try:
        environments.remove_environment(name)
    except environments.EnvironmentUnavailable as error:
        fail(str(error))
    click.echo(f"removed: {name}")


def load(configs: tuple[Path, ...], selection: dict[str, Any]) -> Plan:
    """The plan, or all that is wrong with it and exit code 2; `selection` are the values of `plan_options`."""
    from parity.config import ConfigError, Overrides, load_plan

    try:
        return load_plan(configs, Overrides(**selection))
    except ConfigError as error:
        fail(str(error))


def end_once_on_signals() -> None:
    """Let the first of Ctrl-C, SIGTERM and SIGHUP interrupt the run, and no second one interrupt its end."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and background jobs of a shell ignore some of them, and mean it.
    numbers = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def fail(message: str, code: int = USAGE) -> NoReturn:
    """Say what is wrong and leave with the exit code for it."""
    click.echo(message, err=True)
    sys.exit(code)
