"""Writes the reports of a run from its results: in the run directory and where requested."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TextIO

from parity.reporting.results.directory import Losses
from parity.reporting.results.results import read_results, write_atomically
from parity.reporting.results.rows import FILE_NAME, Results

STDOUT = "-"


@dataclass(frozen=True)
class Outputs:
    """The requested outputs besides the tables: files by format (`-` is stdout), and annotations for GitHub."""

    files: Mapping[str, str]
    github: bool = False
    fingerprints: Sequence[Path] = ()

    @property
    def on_stdout(self) -> bool:
        """Whether a document on stdout replaces the tables."""
        return STDOUT in self.files.values()

    @property
    def commands(self) -> TextIO:
        """The stream for GitHub's commands: GitHub reads both streams, but stdout may be a document."""
        return sys.stderr if self.on_stdout else sys.stdout

    def silenced(self) -> AbstractContextManager[None]:
        """Within this context, GitHub ignores commands in the output of a run."""
        from parity.reporting.github import silenced

        return silenced(self.commands) if self.github else nullcontext()


RENDERERS: Mapping[str, str] = {
    "html": "parity.reporting.html.page:html_report",
    "junit-xml": "parity.reporting.junit:junit_xml",
    "markdown": "parity.reporting.markdown:markdown",
    "json": "parity.reporting.results.results:as_json",
}
"""The file formats by option name, imported when requested."""


def rendered(name: str, results: Results, run_dir: Path, wanted: Outputs) -> str:
    """The document of a format; JSON has all rows, also of a large run."""
    render: Callable[..., str] = resolve_name(RENDERERS[name])
    if name == "json" and results.left_out:
        results = read_results(run_dir)
    return render(results, run_dir, fingerprints=wanted.fingerprints) if name == "html" else render(results)


IN_RUN_DIR = {"html": "report.html", "junit-xml": "junit.xml"}
"""The files of every run directory."""


def write_run_files(results: Results, run_dir: Path, wanted: Outputs, losses: Losses) -> Iterator[str]:
    """Write the files of every run directory and the requested ones; yields the paths of the latter. One that parity
    fails to make costs no other; `losses` has what failed."""
    documents: dict[str, str] = {}
    for name, file in IN_RUN_DIR.items():
        with losses.making(file), losses.at(run_dir / file):
            documents[name] = rendered(name, results, run_dir, wanted)
            write_atomically(run_dir / file, documents[name])
    yield from write_asked(results, run_dir, wanted, losses, documents)


def write_asked(
    results: Results, run_dir: Path, wanted: Outputs, losses: Losses, documents: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Write the requested outputs; yields the paths of files."""
    for name, path in wanted.files.items():
        text = (documents or {}).get(name)
        with losses.making(path if path != STDOUT else name):
            text = text or rendered(name, results, run_dir, wanted)
        if text is not None and written(text, path, run_dir, losses):
            yield path
    if wanted.github:
        from parity.reporting.github import publish

        with losses.making("the annotations"):
            publish(results, wanted.commands, os.environ)


def written(text: str, path: str, run_dir: Path, losses: Losses) -> bool:
    """Write a document to stdout or to a file; whether that is a file."""
    if path == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return False
    with losses.at(Path(path)):
        if Path(path).resolve() == (run_dir / FILE_NAME).resolve():
            raise FileExistsError(errno.EEXIST, "this is the file of the results themselves", path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), text)
        return True
    return False
