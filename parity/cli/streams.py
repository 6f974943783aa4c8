"""stdout and stderr that take everything, so that a reader who leaves, a full disk or a closed stream ends no run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class LossyFile(io.FileIO):
    """A descriptor whose writes never fail; `lost` is the first error, unless it is that the reader has left."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write what can be written; what cannot be is counted as written."""
        n_bytes = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.lost = self.lost or error
            return n_bytes
        # None: a full pipe that does not block.
        return n_bytes if written is None else written


def use_lossy_streams() -> None:
    """Put lossy streams in the place of this process's stdout and stderr, and /dev/null where they are closed."""
    for number in (0, 1, 2):
        # A closed descriptor would be the next file's, and what frameworks print would land in it.
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    # A stream that somebody has replaced, as tests do, is left alone.
    sys.stdout = lossy(sys.stdout, 1) if sys.stdout is sys.__stdout__ else sys.stdout
    sys.stderr = lossy(sys.stderr, 2) if sys.stderr is sys.__stderr__ else sys.stderr


def lossy(stream: TextIO | None, number: int) -> TextIO:
    """A stream like this one on a descriptor; None is one that was closed when Python began."""
    raw = LossyFile(os.devnull if stream is None else number, "wb", closefd=stream is None)
    is_line_buffered = number == 2 or raw.isatty()
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=is_line_buffered)


def stdout_loss() -> OSError | None:
    """Why something printed on stdout is lost; None where nothing is."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, LossyFile):
        return None
    sys.stdout.flush()
    return raw.lost
