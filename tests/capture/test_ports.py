"""The shipped ports of a small BERT to three frameworks, each in its own idiom, are aligned."""

from __future__ import annotations

import pytest

from tests.conftest import CONFIGS, call


@pytest.mark.process
@pytest.mark.frameworks
def test_three_ports_are_aligned(tmp_path):
    done = call("run", CONFIGS / "models" / "ports" / "bert.yaml", "-k", "bert-train", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("aligned with torch") == 2
