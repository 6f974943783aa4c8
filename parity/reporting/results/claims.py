"""Which directory a run may use: a new one, or that of an earlier run, which it empties."""

from __future__ import annotations

import contextlib
import datetime
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from parity.config.plan import Plan
from parity.engine.inputs import slug
from parity.judge.failures import LOG
from parity.reporting.results.directory import LOCK, held, made
from parity.reporting.results.outputs import IN_RUN_DIR
from parity.reporting.results.results import REPORTS, new_directory, read_results
from parity.reporting.results.resume import stored
from parity.reporting.results.rows import FILE_NAME, ResultsError
from parity.reporting.results.store import RUN, STORE, remove


@contextlib.contextmanager
def claimed(out: Path | None, plan: Plan, *, resume: bool = False) -> Iterator[Path]:
    """The run directory, locked within the context: `out`, or one named after the plan and the time.

    An earlier run's directory is emptied unless it is resumed. Raises OSError if the directory cannot be used or holds
    other files, and BlockingIOError if another run is using it.
    """
    if out is None:
        out = new_directory(REPORTS / f"{slug(plan.name)}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    elif not resume:
        check_ours(made(out))
    with held(out) if out.is_dir() else contextlib.nullcontext():
        if not resume:
            empty(out)
        yield out


def check_ours(run_dir: Path) -> None:
    """Raise FileExistsError if a directory holds anything other than a run."""
    if any(path.name != LOCK for path in run_dir.iterdir()):
        try:
            with stored(run_dir) as store:
                store.one(RUN)
        except ResultsError as error:
            if (run_dir / FILE_NAME).is_file():
                with contextlib.suppress(ResultsError):
                    read_results(run_dir)
                    return
            what = f"its {STORE} is broken" if (run_dir / STORE).is_file() else "it is not a run directory of parity"
            raise FileExistsError(errno.EEXIST, f"it is not empty, and {what}", str(run_dir)) from error


def empty(run_dir: Path) -> None:
    """Remove the files that a run writes; raises OSError."""
    for name in (FILE_NAME, LOG, *IN_RUN_DIR.values()):
        (run_dir / name).unlink(missing_ok=True)
    remove(run_dir / STORE)
    for name in ("tensors", "training", "ops", "repro"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
