"""Annotations and the step's summary, read by the runner's own rules; nothing of others can become a command."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from parity.reporting import github
from parity.reporting.console.run import render
from parity.reporting.github import SUMMARY_LIMIT, annotations, publish, silenced
from parity.reporting.markdown import MARKER, markdown
from tests.reporting import ci_runs
from tests.reporting.stored_runs import unstable
from tests.reporting.test_markdown import problems

COMMANDS = {"add-mask", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "save-state", "set-env"}
COMMANDS |= {"set-output", "stop-commands", "warning", "add-matcher", "remove-matcher"}
UNESCAPED = (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))


def unescaped(text):
    for escape, character in UNESCAPED:
        text = text.replace(escape, character)
    return text


def command_of(line):
    """Name, properties and message of a workflow command, by the rules of the runner's ActionCommand.cs; else None."""
    new = re.match(r"\s*::(?P<info>.*?)::(?P<data>.*)", line, re.DOTALL)
    old = re.search(r"##\[(?P<info>[^\]]*)\](?P<data>.*)", line, re.DOTALL)
    for found, separator in ((new, ","), (old, ";")):
        if found:
            name, _, rest = found["info"].partition(" ")
            if name in COMMANDS:
                pairs = (part.partition("=") for part in rest.split(separator) if "=" in part)
                return name, {key: unescaped(value) for key, _, value in pairs}, unescaped(found["data"])
    return None


def obeyed(output):
    """The commands that the runner takes from an output."""
    token, found = None, []
    for line in re.split("\r\n|\n|\r", output):
        command = command_of(line)
        if token is not None:
            token = None if line.strip() == f"::{token}::" else token
        elif command and command[0] == "stop-commands":
            token = command[2]
        elif command:
            found.append(command)
    return found


def test_each_case_is_annotated_once_on_its_line():
    found = [command_of(line) for line in annotations(ci_runs.every_status())]
    assert [(level, keys["file"], keys["line"]) for level, keys, _ in found] == [
        ("error", "configs/a.yaml", "91"),
        ("error", "configs/a.yaml", "92"),
        ("error", "configs/a.yaml", "93"),
        ("error", "configs/a.yaml", "3"),
        ("error", "configs/a.yaml", "9"),
        ("error", "configs/b.yaml", "8"),
        ("warning", "configs/a.yaml", "12"),
    ]
    _, keys, message = found[3]
    assert keys["title"] == "parity: differs"
    assert (
        message == "paddle: the variance is E[x^2] - E[x]^2 (variance-naive) – in y of group_norm, float32 (1 tensor); "
        "computes var = mean(x * x), where the reference has mean(square(x - mean)); parity explain 'out dir' differs"
    )
    assert found[5][2].startswith("torch float32: not run: the run ended before it was compared; also paddle float32;")


def test_a_healthy_run_has_none():
    assert annotations(ci_runs.healthy()) == []
    assert annotations(ci_runs.below()) == []


@pytest.mark.parametrize("name", ["only_unsupported", "only_ledger", "interrupted"])
def test_whatever_fails_the_run_is_annotated(name):
    assert annotations(getattr(ci_runs, name)())


def test_a_run_is_not_silent_where_no_case_is_to_blame():
    (line,) = annotations(ci_runs.interrupted())
    assert command_of(line) == ("error", {"title": "parity"}, "INTERRUPTED  2 results kept")


@pytest.mark.parametrize(("n", "limit"), [(9, 10), (10, 10), (11, 10), (40, 10), (3, 1), (3, 0)])
def test_at_most_ten_and_the_last_counts_the_others(n, limit):
    found = annotations(ci_runs.many(n), limit=limit)
    assert len(found) == min(n, limit)
    if 0 < limit < n:
        assert (
            command_of(found[-1])[2] == f"{n - limit + 1} more are not annotated; see the job's summary and the report"
        )


def test_paths_are_those_of_the_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, shown in (
        ("configs/a.yaml", "sub/configs/a.yaml"),
        (str(tmp_path / "sub" / "b.yaml"), "sub/b.yaml"),
        ("/elsewhere/c.yaml", "/elsewhere/c.yaml"),
        ("../../../d.yaml", "../../../d.yaml"),
    ):
        (tmp_path / "sub").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "sub")
        assert github.inside(file, tmp_path) == shown


def test_no_text_can_be_more_than_a_part_of_its_command():
    lines = annotations(ci_runs.hostile(), limit=1_000)
    assert len(lines) > len(ci_runs.HOSTILE)
    for line in lines:
        assert len(obeyed(line)) == 1
        level, keys, message = command_of(line)
        assert level in ("error", "warning")
        assert set(keys) <= {"file", "line", "title"}
        assert "\n" not in line
        assert len(message) <= github.MESSAGE_LIMIT


def test_the_properties_come_back_as_they_were():
    note = github.Annotation("error", "a,b:c%.yaml", 3, "t:1,2%0A", "m%0A::error::x")
    assert command_of(note.command(None)) == (
        "error",
        {"file": "a,b:c%.yaml", "line": "3", "title": "t:1,2%0A"},
        "m%0A::error::x",
    )


def console_output(results):
    out = io.StringIO()
    render(results, Console(file=out, width=140), verbosity=1)
    return out.getvalue()


def test_the_console_alone_could_be_read_as_commands():
    name = "::error::forged"
    forged = ci_runs.run_of([ci_runs.case(name)], ci_runs.compared(name, unstable(case=name)), [])
    assert obeyed(console_output(forged))


def test_no_command_is_taken_from_what_is_silenced():
    out = io.StringIO()
    with pytest.raises(KeyError), silenced(out):
        out.write(console_output(ci_runs.hostile()) + "\n::error::x\n##[add-mask]y and no end of line")
        raise KeyError
    assert obeyed(out.getvalue()) == []
    out.write("::notice::later\n")
    assert obeyed(out.getvalue()) == [("notice", {}, "later")]


def test_no_token_can_be_guessed():
    tokens = set()
    for _ in range(3):
        out = io.StringIO()
        with silenced(out):
            pass
        tokens.add(out.getvalue().splitlines()[0])
    assert len(tokens) == 3


@pytest.mark.slow
def test_the_summary_is_bounded_and_safe():
    text = markdown(ci_runs.many(4_000), limit=SUMMARY_LIMIT)
    assert 100_000 < len(text.encode()) <= 1024 * 1024
    assert problems(markdown(ci_runs.hostile(), limit=SUMMARY_LIMIT)) == []


def test_publish_prints_and_appends(tmp_path):
    out, file = io.StringIO(), tmp_path / "summary.md"
    file.write_text("# before\n")
    publish(ci_runs.every_status(), out, {"GITHUB_STEP_SUMMARY": str(file)})
    assert len(obeyed(out.getvalue())) == 7
    assert file.read_text().startswith(f"# before\n\n{MARKER}\n### parity: FAIL\n")


def test_publish_outside_of_a_job_prints_only():
    out = io.StringIO()
    publish(ci_runs.healthy(), out, {})
    assert out.getvalue() == ""


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path):
    out = io.StringIO()
    publish(ci_runs.healthy(), out, {"GITHUB_STEP_SUMMARY": str(tmp_path)})
    ((level, _, message),) = obeyed(out.getvalue())
    assert (level, message) == ("warning", f"cannot write the step's summary to {tmp_path}: Is a directory")


def test_a_summary_never_makes_the_file_too_large(tmp_path):
    file = tmp_path / "summary.md"
    for size, fits in ((github.SUMMARY_LIMIT - 20_000, True), (github.SUMMARY_LIMIT - 100, False)):
        out = io.StringIO()
        file.write_bytes(b"x" * size)
        publish(ci_runs.many(300), out, {"GITHUB_STEP_SUMMARY": str(file)})
        assert size + fits <= file.stat().st_size <= github.SUMMARY_LIMIT
        assert ("no room for a summary" in out.getvalue()) is not fits
