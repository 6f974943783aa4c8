"""`parity check` of folders, as a command: what is printed and kept, and what an interrupt leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.check.test_formats import file

pytestmark = [pytest.mark.frameworks, pytest.mark.process]
REFERENCE = "import torch\n\ndef f(x):\n    return x + 1\n\ndef get_inputs():\n    return [torch.randn(3)]\n"
SLOW = REFERENCE.replace("return x + 1", "import time; time.sleep(60)")


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "parity", "check", "refs", "mine", "--out", "out", "--seconds", "20", *options]


def folders(folder: Path, **candidates: str) -> Path:
    for name, text in candidates.items():
        file(folder / f"refs/{name}.py", REFERENCE)
        file(folder / f"mine/{name}.py", text)
    return folder


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *options), cwd=folder, capture_output=True, text=True)


def rows_in(text: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in map(json.loads, text.splitlines())}


def test_a_batch_has_a_line_and_a_folder_per_pair_and_is_resumed(tmp_path: Path) -> None:
    wrong = REFERENCE.replace("x + 1", "x + 2")
    folders(tmp_path, right=REFERENCE, wrong=wrong, broken="def f(x):\n    return y\n\nraise ValueError('no')\n")
    done = run(tmp_path, "--json", "-j", "2", "--junit-xml", "j.xml")
    rows = rows_in(done.stdout)
    assert {name: row["exit_code"] for name, row in rows.items()} == {"right": 0, "wrong": 1, "broken": 1}, rows
    assert done.returncode == 1
    assert rows_in((tmp_path / "out/batch.jsonl").read_text()) == rows
    assert (tmp_path / "out/right/run/results.json").is_file()
    assert 'tests="3"' in (tmp_path / "j.xml").read_text()
    assert "is there; add --resume" in run(tmp_path).stderr
    file(tmp_path / "mine/wrong.py", REFERENCE)
    (tmp_path / "mine/broken.py").unlink()
    again = run(tmp_path, "--resume")
    assert again.returncode == 0, again.stderr
    assert "2 pairs, 2 right" in again.stdout
    assert "without a pair: refs/broken.py" in again.stdout


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    folders(tmp_path, **{"1_right": REFERENCE, "2_slow": REFERENCE})
    file(tmp_path / "refs/2_slow.py", SLOW)
    process = subprocess.Popen(
        command(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    answers = tmp_path / "out/batch.jsonl"
    while not (answers.is_file() and answers.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.05)
    assert process.stdout is not None
    first = process.stdout.readline()  # A row is printed after it is kept.
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate()
    assert process.returncode == 130
    assert "1_right" in first + stdout
    assert "--resume" in stdout
    assert list(rows_in(answers.read_text())) == ["1_right"]
