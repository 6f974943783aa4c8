"""`parity hunt` and `parity reduce`: the worst input, and the smallest case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from parity.cli.group import MAX_THREADS, end_once_on_signals, example, fail, main
from parity.exit_codes import INCOMPLETE


@main.command(
    short_help="Search for the input with a backend's largest error.",
    epilog=example(
        "parity hunt layer_norm -b torch -b paddle --minutes 5",
        "parity hunt softmax -b mine=torch:./my_ops.py --minutes 1",
        "parity hunt ./my_ops.py",
    ),
)
@click.argument("subject", required=False, metavar="OP|CONFIG|FILE.py")
@click.option(
    "-b",
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="NAME[==VERSION][:MODE] or NAME=ADAPTER:OPS_FILE. Repeatable (default: torch and paddle, or the config's).",
)
@click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Repeatable (default: float32 and float64).")
@click.option("--minutes", type=click.FloatRange(0.05, 1e5), default=5.0, show_default=True, metavar="N")
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Also end after this many trials.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, metavar="N")
@click.option("--adapter", metavar="NAME", help="The framework whose tensors the functions of FILE.py take.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: reports/hunt-SUBJECT-TIME.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Continue an earlier hunt.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True, metavar="N")
@click.option("--timeout", type=click.FloatRange(1e-3, 1e6), default=20.0, show_default=True, metavar="S")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
def hunt(
    subject: str | None,
    backends: tuple[str, ...],
    dtypes: tuple[str, ...],
    minutes: float,
    trials: int | None,
    seed: int,
    adapter: str | None,
    out: Path | None,
    resume: Path | None,
    threads: int,
    timeout: float,
    no_provision: bool,
) -> NoReturn:
    """Search for inputs on which a backend exceeds its error bound most: of an op, of the cases of a config, or of the
    functions of a file that are named after ops.

    Each finding is made as small as possible, diagnosed, and written to a config, with a script.

    Where there are kernels of one's own (FILE.py, a config with `ops:`), only their findings count for the exit code.

    Exit code: 0 nothing is beyond the error bound; 1 something is; 2 the command is wrong; 3 nothing could be compared,
    or a backend crashed or hung; 130 interrupted (the findings so far are written; --resume continues).
    """
    from parity.engine import EngineOptions
    from parity.hunt import check_installed

    if (subject is None) == (resume is None):
        raise click.UsageError("name an op, a config or a file of kernels, or an earlier hunt with --resume")
    if resume is not None and (backends or dtypes or out or adapter):
        raise click.UsageError("--resume takes the backends and dtypes of the earlier hunt; leave them out")
    try:
        check_installed()
        from parity.hunt.hunt import DEFAULT_DTYPES, HuntRequest, claimed, hunt_and_show, resumed

        options = EngineOptions(timeout_s=timeout, threads=threads, provision=not no_provision)
        wanted = HuntRequest(
            subject or "", backends, dtypes or DEFAULT_DTYPES, minutes, trials or 0, seed, adapter, options
        )
        state = None
        if resume is not None:
            wanted, state = resumed(resume, wanted)
        claim = claimed(resume or out, wanted, resume=resume is not None)
        folder = click.get_current_context().with_resource(claim)
    except OSError as error:
        fail(f"cannot use {error.filename or 'reports'}: {error.strerror or error}; name another --out")
    end_once_on_signals()
    try:
        sys.exit(hunt_and_show(wanted, folder, state, ["parity", *sys.argv[1:]]))
    except OSError as error:
        fail(f"cannot write {error.filename or 'the hunt'}: {error.strerror or error}", INCOMPLETE)


@main.command(
    short_help="Make a finding's case as small as possible.",
    epilog=example(
        "parity reduce RUN_DIR near-constant-pair -b paddle", "parity reduce RUN_DIR offset --out small.yaml"
    ),
)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("case", required=False)
@click.option("-b", "--backend", metavar="NAME", help="A finding of this backend (default: the largest error).")
@click.option("--dtype", metavar="NAME", help="A finding in this dtype.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.yaml", help="Write it as a config."
)
@click.option("--timeout", type=click.FloatRange(1e-3, 1e6), default=20.0, show_default=True, metavar="S")
@click.option("--no-provision", is_flag=True, help="Never create an environment.")
def reduce(
    run_dir: Path,
    case: str | None,
    backend: str | None,
    dtype: str | None,
    out: Path | None,
    timeout: float,
    no_provision: bool,
) -> None:
    """Reduce CASE (an id or a part of one) of a stored run to the smallest inputs that still show its finding.

    The backend is called again; a user's ops file is the run's copy. Exit code: 0 the case is printed or written; 2
    there is no such finding, or the backend no longer shows it; 3 it is printed or written, but a step has failed.
    """
    from parity.engine import EngineOptions
    from parity.hunt import check_installed

    end_once_on_signals()
    try:
        check_installed()
        from parity.hunt.stored import reduce_stored
        from parity.hunt.write import show_small

        options = EngineOptions(timeout_s=timeout, provision=not no_provision)
        finding, spec, failures = reduce_stored(run_dir, case, options, backend=backend, dtype=dtype)
        click.echo(show_small(finding, spec, out))
    except OSError as error:
        fail(f"cannot write {error.filename or out}: {error.strerror or error}; name another --out")
    for failure in failures:
        click.echo(f"{failure.traceback}parity failed here, {failure.doing}: {failure.error}", err=True)
    if failures:
        fail("the case above shows the finding, but may not be the smallest; please report these lines", INCOMPLETE)
