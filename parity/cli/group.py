"""The command `parity` itself, and helpers that its commands share."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity.cli.ending import at_once
from parity.cli.streams import stdout_loss, use_lossy_streams
from parity.errors import UserError
from parity.exit_codes import INCOMPLETE, INTERRUPTED, USAGE
from parity.version import __version__

if TYPE_CHECKING:
    from parity.reporting.results.outputs import Outputs

MAX_THREADS = 256
"""More threads or workers than this start a fork storm on any machine that tests run on."""

AGAIN_S = 0.01


def example(*lines: str) -> str:
    """An epilog with example commands."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def first_steps() -> str:
    """What to do next if no config is named: check your own kernel, or run a config of this directory."""
    configs = configs_here()
    here = shlex.quote(str(configs[0])) if configs else "my_kernel.yaml"
    lines = [
        "Check a kernel of your own:  parity init my_kernel.py",
        f"Run a config:                parity run {here}",
        "List the ops and params:     parity ops",
        "All commands:                parity --help",
    ]
    if len(configs) > 1:
        more = f" and {len(configs) - MAX_CONFIGS} more" if len(configs) > MAX_CONFIGS else ""
        lines += ["", f"Configs here: {', '.join(map(str, configs[:MAX_CONFIGS]))}{more}"]
    return "\n".join(lines)


MAX_CONFIGS = 12


def configs_here() -> list[Path]:
    """The configs in the working directory and in `configs/`: YAML files with top-level `backends` and `cases`."""
    paths = [*sorted(Path().glob("*.yaml")), *sorted(Path("configs").glob("*.yaml"))]
    return [path for path in paths if is_config(path)]


def is_config(path: Path) -> bool:
    """Whether a file looks like a config, by its first 64 KiB."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    return all(re.search(rf"^{key}:", head, re.MULTILINE) for key in ("backends", "cases"))


class InterruptibleGroup(click.Group):
    """Exits with 130 when interrupted; click would exit with 1, which means findings.

    Losing stdout or stderr changes the exit code only of commands whose output is their only result.
    """

    owns_process = False
    """Whether this process was started for the command."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line of this process, which ends with it."""
        self.owns_process = True
        with at_once():
            return super().__call__(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        use_lossy_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and report lost output."""
        try:
            result = self.invoke_interruptible(ctx)
        finally:
            loss = stdout_loss()
            if loss is not None:
                click.echo(f"stdout is incomplete: {loss.strerror}", err=True)
        if loss is not None:
            ctx.exit(USAGE)
        return result

    def invoke_interruptible(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except click.MissingParameter as error:
            if error.param is None or error.param.name != "configs":
                raise
            raise click.UsageError(f"no config is named.\n\n{first_steps()}", error.ctx) from None
        except UserError as error:
            fail(str(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            # A bug of parity must not look like a finding, which is exit code 1.
            traceback.print_exc()
            ctx.exit(INCOMPLETE)


@click.group(
    invoke_without_command=True,
    cls=InterruptibleGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example("parity init my_kernel.py", "parity run configs/*.yaml -b torch -b paddle --dtype float32"),
)
@click.version_option(__version__, prog_name="parity")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Check whether machine-learning frameworks compute the same thing; report which is wrong, by how much, and why."""
    # OpenBLAS reads it when NumPy is imported; more threads in the host would only take cores from the workers.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if ctx.invoked_subcommand is None:
        click.echo("parity checks whether a kernel or a framework computes what it should, and if not, why.\n")
        click.echo(first_steps())


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order of the help."""
    return lambda command: functools.reduce(lambda rest, option: option(rest), reversed(decorators), command)


FILES = {
    "html": "Write the report for reviewers as one HTML file.",
    "junit-xml": "Write JUnit XML: a test case per case, dtype and backend.",
    "markdown": "Write a comment for a pull request (below 60 kB).",
}
"""The formats that are written to a file, with what their options' help says."""

DOCUMENT = click.Path(allow_dash=True, dir_okay=False)
OUTPUT_OPTIONS = options(
    click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout instead of tables."),
    *(click.option(f"--{name}", type=DOCUMENT, metavar="PATH", help=text) for name, text in FILES.items()),
    click.option("--github", is_flag=True, help="Print annotations for GitHub and write the job's step summary."),
    click.option(
        "--fingerprint",
        "fingerprints",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A directory of `parity fingerprint` to show in the HTML report. Repeatable.",
    ),
)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for output besides the tables, of which the command gets the `Outputs` as `wanted`."""

    @functools.wraps(command)
    def with_outputs(as_json: bool, github: bool, fingerprints: tuple[Path, ...], **given: Any) -> Any:
        files = {name: given.pop(name.replace("-", "_")) for name in FILES}
        return command(wanted=outputs(files, fingerprints, as_json=as_json, github=github), **given)

    decorated: Callable[..., Any] = OUTPUT_OPTIONS(with_outputs)
    return decorated


def outputs(files: Mapping[str, str | None], fingerprints: tuple[Path, ...], *, as_json: bool, github: bool) -> Outputs:
    """What `output_options` request; `files` maps formats to paths.

    Raises:
        click.UsageError: two documents go to stdout or to one file, or a file has no name.
    """
    from parity.reporting.results.outputs import STDOUT, Outputs

    asked = {name: path for name, path in files.items() if path is not None}
    asked |= {"json": STDOUT} if as_json else {}
    paths = [path if path == STDOUT else str(Path(path).absolute()) for path in asked.values()]
    if paths.count(STDOUT) > 1:
        raise click.UsageError("only one document can go to stdout; give the others a file")
    if len(set(paths)) < len(paths):
        raise click.UsageError("two documents would be written to the same file")
    if "" in asked.values():
        raise click.UsageError("a file name is empty")
    for folder in fingerprints:
        if not (folder / "fingerprint.json").is_file():
            raise click.BadParameter(f"{folder} holds no fingerprint.json", param_hint="--fingerprint")
    return Outputs(asked, github, fingerprints)


def end_once_on_signals() -> None:
    """Let the first of Ctrl-C, SIGTERM and SIGHUP interrupt the run, and no second one interrupt its end.

    One that comes in `__del__` or in a callback of the garbage collector, where Python drops it, is repeated.
    """
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and a shell's background jobs ignore some of them on purpose.
    numbers = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def listen() -> None:
        for number in numbers:
            signal.signal(number, interrupt)

    def again(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(lost)
            return
        listen()
        threading.Timer(AGAIN_S, signal.raise_signal, numbers[:1]).start()

    listen()
    sys.unraisablehook = again


def fail(message: str, code: int = USAGE) -> NoReturn:
    """Print what is wrong and exit with `code`."""
    click.echo(message, err=True)
    sys.exit(code)
