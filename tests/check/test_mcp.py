"""`parity mcp` as a coding agent uses it: a real client, a real server, real checks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.check.pairs import FUNCTION
from tests.check.test_check import SCHEMA

pytestmark = [pytest.mark.frameworks, pytest.mark.process]
SCALED_TWICE = FUNCTION.replace("x * scale", "x * scale * scale")


def called(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of calls of tools, in one session."""

    async def session() -> list[Any]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "parity", "mcp"], cwd=folder, env={**os.environ}
        )
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(session())


def test_an_agent_is_told_the_line_and_finds_its_mend_right(tmp_path):
    (tmp_path / "reference.py").write_text(FUNCTION)
    (tmp_path / "new.py").write_text(SCALED_TWICE)
    (tmp_path / "mended.py").write_text(FUNCTION)
    wrong, explained, script, right = called(
        tmp_path,
        ("check", {"reference": "reference.py", "new": "new.py", "out": "answer", "diagnose_seconds": 4}),
        ("explain", {"run": "answer/run", "case": "soft-given"}),
        ("repro", {"run": "answer/run", "case": "soft-given"}),
        ("check", {"reference": "reference.py", "new": "mended.py", "settings": [], "dtypes": ["float64"]}),
    )
    for answer in (wrong, right):
        assert not [error.message for error in Draft202012Validator(SCHEMA).iter_errors(answer.structured_content)]
    assert (wrong.structured_content["verdict"], wrong.structured_content["place"]) == ("wrong", "new.py:6")
    assert explained.content[0].text.startswith("soft-given")
    path = script.content[0].text.split()[-1]
    assert subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True).returncode == 1
    assert right.structured_content["verdict"] == "right"


def test_what_cannot_be_done_is_told(tmp_path):
    no_file, no_run, no_option = called(
        tmp_path,
        ("check", {"reference": "reference.py", "new": "new.py"}),
        ("explain", {"run": "nowhere"}),
        ("check", {"reference": "reference.py", "new": "--help", "adapter": "fortran"}),
    )
    assert no_file.structured_content["verdict"] == "not-judged"
    assert no_file.structured_content["sentence"].startswith("reference.py is not a file")
    assert no_run.is_error
    assert '"nowhere" is neither a diagnosis nor a run directory' in no_run.content[0].text
    assert no_option.is_error
    assert "'fortran' is not one of" in no_option.content[0].text


def test_without_the_package_it_says_what_to_install(tmp_path):
    (tmp_path / "mcp.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "parity", "mcp"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "parity mcp needs the package mcp: pip install 'parity[mcp]'" in done.stderr


def test_its_processes_end_with_it(tmp_path):
    server = subprocess.Popen(
        [sys.executable, "-m", "parity", "mcp"], cwd=tmp_path, stdin=subprocess.PIPE, start_new_session=True
    )
    server.communicate(b"")
    assert server.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)
