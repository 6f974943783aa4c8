"""A run's directory: locked by one run at a time, and written as far as the disk allows."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parity.judge.failures import Failures
from parity.reporting.results.rows import FILE_NAME

LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT)
RESERVED_BYTES = 8 << 10
"""Bytes per outcome, twice the size in results.json: 4.3 KiB in configs/layernorm.yaml."""
MAX_RESERVED_BYTES = 64 << 20
LOCK_SECONDS = 2.0
"""How long to wait for the lock: a process that a killed run was just starting has it until its exec."""


def made(folder: Path) -> Path:
    """The folder, which is created if it is missing; raises OSError, which says what is there instead."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        what = "it is a file" if folder.exists() else f"it is a link to {folder.readlink()}, which does not exist"
        raise FileExistsError(errno.EEXIST, what, str(folder)) from error
    return folder


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a directory; it is released when its process ends.

    Raises BlockingIOError if another process holds it, and OSError if the directory cannot be written.
    """
    import filelock

    lock = filelock.FileLock(run_dir / LOCK, timeout=LOCK_SECONDS)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout:
            raise BlockingIOError(errno.EAGAIN, "another run is writing there", str(run_dir)) from None
        except OSError as error:
            if error.errno not in FULL:
                raise
        yield


def reserve(run_dir: Path, n_outcomes: int) -> contextlib.ExitStack:
    """Reserve disk space for the results, which are written last; it is freed on exit or when the process ends."""
    wanted = min(RESERVED_BYTES * n_outcomes, MAX_RESERVED_BYTES)
    for n_bytes in (wanted, wanted // 2, wanted // 4):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(dir=run_dir))
            os.posix_fallocate(file.fileno(), 0, n_bytes)
            return stack.pop_all()
    return contextlib.ExitStack()


class LostFilesError(OSError):
    """Files of a run, whose results are complete otherwise, could not be written."""


@dataclass
class Losses:
    """The files that could not be written, with the reasons; the run continues without them.

    `failures` are parity's own, where it failed to make what a file should have.
    """

    reasons: dict[Path, OSError] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)

    @contextlib.contextmanager
    def at(self, path: Path) -> Iterator[None]:
        """Whether this file was written."""
        try:
            yield
        except OSError as error:
            self.reasons[path] = error
        else:
            self.reasons.pop(path, None)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Within it, an error of parity itself costs the document of this name; raises OSError."""
        with self.failures.contained(f"making {name}", passing=(OSError,)):
            yield

    def check(self) -> None:
        """Raise LostFilesError for results.json or the first lost file, with its reason, if any file is lost."""
        if not self.reasons:
            return
        first = min(self.reasons, key=lambda path: path.name != FILE_NAME)
        error = self.reasons[first]
        more = f" and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        raise LostFilesError(error.errno or errno.EIO, error.strerror or str(error), f"{first}{more}")
