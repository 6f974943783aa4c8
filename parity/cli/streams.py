"""stdout and stderr that never fail: a closed pipe, a full disk or a closed stream does not end a run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class LossyFile(io.FileIO):
    """A descriptor whose writes never fail; `lost` is the first error other than a closed pipe."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write as much as possible; what fails is counted as written."""
        n_bytes = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.lost = self.lost or error
            return n_bytes
        # None: a full non-blocking pipe.
        return n_bytes if written is None else written


def use_lossy_streams() -> None:
    """Replace this process's stdout and stderr by lossy streams, or by /dev/null if they are closed."""
    for number in (0, 1, 2):
        # The next opened file would get a closed descriptor, and frameworks would print into that file.
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    # A replaced stream, as in tests, is left alone.
    sys.stdout = lossy(sys.stdout, 1) if sys.stdout is sys.__stdout__ else sys.stdout
    sys.stderr = lossy(sys.stderr, 2) if sys.stderr is sys.__stderr__ else sys.stderr


def lossy(stream: TextIO | None, number: int) -> TextIO:
    """A lossy stream on the descriptor `number`; None is a stream that was closed when Python started."""
    raw = LossyFile(os.devnull if stream is None else number, "wb", closefd=stream is None)
    is_line_buffered = number == 2 or raw.isatty()
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=is_line_buffered)


def stdout_loss() -> OSError | None:
    """Why output on stdout is lost; None if nothing is."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, LossyFile):
        return None
    sys.stdout.flush()
    return raw.lost
