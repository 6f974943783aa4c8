"""Runs uv: finds it, passes on pip's settings, relays its output, keeps its log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from parity.environments.interpreter import EnvironmentUnavailable, isolated_environment

# With these, uv would not install into the given environment.
_MISLEADING = ("UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES", "UV_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX")


_UNTIL_WE_END = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9);"
    " os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
"""A command that Linux kills with its parent (PR_SET_PDEATHSIG), so that installing ends with parity."""


class UvError(Exception):
    """uv failed; the message is its last output."""


def uv_executable() -> Path:
    """The uv executable from the wheel that parity depends on."""
    import uv

    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise EnvironmentUnavailable(f"uv is not installed ({error}); `pip install uv`.") from None


def run_uv(arguments: Sequence[str | Path], log: Path, relay: Callable[[str], None]) -> None:
    """Run uv, sending its lines to `log` and `relay`; it ends with this process, an exception or Ctrl-C."""
    command = [str(uv_executable()), "--color", "never", *map(str, arguments)]
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-c", _UNTIL_WE_END, str(os.getpid()), *command]
    lines: list[str] = []
    with (
        log.open("a", encoding="utf-8") as sink,
        subprocess.Popen(
            command,
            env=uv_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                sink.write(line)
                lines.append(line.strip())
                relay(line.strip())
        except BaseException:
            _stop(process)
            raise
    if process.returncode != 0:
        raise UvError(last_words(lines) or f"uv exited with {process.returncode} without a message")


def known_pythons(minor: str) -> Iterator[Path]:
    """The interpreter of this minor release that uv finds, without a download."""
    command = [str(uv_executable()), "python", "find", "--no-python-downloads", "--no-project", minor]
    process = subprocess.run(
        command, env=uv_environment(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if process.returncode == 0 and process.stdout.strip():
        yield Path(process.stdout.strip())


def pip_arguments(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Options that pip reads from variables but uv only from the command line."""
    forbids_index = environment.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on", "y", "t")
    return ("--no-index",) if forbids_index else ()


def uv_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for uv: pip's settings passed on unless uv's own are set, without misleading variables."""
    variables = {name: value for name, value in isolated_environment(environment).items() if name not in _MISLEADING}
    for names, value in _pip_settings(environment):
        if value and not any(environment.get(name) for name in names):
            variables[names[0]] = value
    return variables


def _pip_settings(environment: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """uv's variables (the first is set; any of them overrides pip's) and their values from pip's settings."""
    yield ("UV_FIND_LINKS",), ",".join(_find_links(environment))
    yield ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), environment.get("PIP_INDEX_URL", "").strip()
    extra = environment.get("PIP_EXTRA_INDEX_URL", "").split()
    yield ("UV_INDEX", "UV_EXTRA_INDEX_URL"), " ".join(extra)
    # pip takes the best release of all indexes; uv by default stops at the first index that has the name.
    yield ("UV_INDEX_STRATEGY", "UV_INDEX", "UV_EXTRA_INDEX_URL"), "unsafe-best-match" if extra else ""
    yield ("SSL_CERT_FILE",), environment.get("PIP_CERT", "")


def _find_links(environment: Mapping[str, str]) -> list[str]:
    """PIP_FIND_LINKS for uv: pip splits at spaces and skips missing folders; uv 0.13 splits at commas and fails."""
    links = [os.path.expanduser(link) for link in environment.get("PIP_FIND_LINKS", "").split()]  # noqa: PTH111
    return [link for link in links if "://" in link or Path(link).exists()]


def last_words(lines: Sequence[str], limit: int = 4) -> str:
    """The part of uv's output that says why it failed, on one line."""
    words = [line.strip(" │╰╭─▶×") for line in lines if line.strip()]
    starts = [index for index, line in enumerate(words) if line.lower().startswith(("error", "no solution"))]
    return " ".join(words[starts[0] :][:limit] if starts else words[-limit:]).removeprefix("error: ")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
