"""The files that a run is shown in, written from its results: in the run directory, and wherever they are asked for."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from parity.reporting.results.results import FILE_NAME, write_atomically
from parity.reporting.results.results import as_json as results_json
from parity.reporting.results.rows import Results

STDOUT = "-"


@dataclass(frozen=True)
class Outputs:
    """What is asked for besides the tables: files by format (`-` is stdout), and annotations for GitHub."""

    files: Mapping[str, str]
    github: bool = False
    fingerprints: Sequence[Path] = ()

    @property
    def on_stdout(self) -> bool:
        """Whether a format takes the place of the tables."""
        return STDOUT in self.files.values()

    @property
    def commands(self) -> TextIO:
        """Where GitHub is spoken to: both streams are read for commands, and stdout may be a document."""
        return sys.stderr if self.on_stdout else sys.stdout

    def silenced(self) -> AbstractContextManager[None]:
        """While this lasts, GitHub takes nothing that a run prints for a command."""
        from parity.reporting.github import silenced

        return silenced(self.commands) if self.github else nullcontext()


def as_html(results: Results, run_dir: Path, wanted: Outputs) -> str:
    """One page that stands alone."""
    from parity.reporting.html.page import html_report

    return html_report(results, run_dir, fingerprints=wanted.fingerprints)


def as_junit(results: Results, _run_dir: Path, _wanted: Outputs) -> str:
    """JUnit XML."""
    from parity.reporting.junit import junit_xml

    return junit_xml(results)


def as_markdown(results: Results, _run_dir: Path, _wanted: Outputs) -> str:
    """A comment for a pull request."""
    from parity.reporting.markdown import markdown

    return markdown(results)


def as_json(results: Results, _run_dir: Path, _wanted: Outputs) -> str:
    """results.json."""
    return results_json(results)


RENDERERS: Mapping[str, Callable[[Results, Path, Outputs], str]] = {
    "html": as_html,
    "junit-xml": as_junit,
    "markdown": as_markdown,
    "json": as_json,
}
"""Every format that can be a file, by its option's name."""

IN_RUN_DIR = {"html": "report.html", "junit-xml": "junit.xml"}
"""What every run directory has."""


def write_run_files(results: Results, run_dir: Path, wanted: Outputs) -> Iterator[str]:
    """Write the files that every run directory has and those asked for; yields where the latter are. Raises OSError."""
    rendered = {name: RENDERERS[name](results, run_dir, wanted) for name in IN_RUN_DIR}
    for name, file in IN_RUN_DIR.items():
        write_atomically(run_dir / file, rendered[name])
    yield from write_asked(results, run_dir, wanted, rendered)


def write_asked(
    results: Results, run_dir: Path, wanted: Outputs, rendered: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Write what was asked for; yields the paths of files. Raises OSError."""
    for name, path in wanted.files.items():
        text = (rendered or {}).get(name) or RENDERERS[name](results, run_dir, wanted)
        if path == STDOUT:
            print_document(text)
        else:
            if Path(path).resolve() == (run_dir / FILE_NAME).resolve():
                raise FileExistsError(errno.EEXIST, "these are the results themselves", path)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(path), text)
            yield path
    if wanted.github:
        from parity.reporting.github import publish

        publish(results, wanted.commands, os.environ)


def print_document(text: str) -> None:
    """Print a document; whoever reads only its beginning is no error. Raises OSError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer must not be an error at the end of the program either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
