"""Runs with findings, each made once for all tests."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import call, user_config
from tests.repro.scripts import LINEAR


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory):
    """Gives the run directory of a user's file beside other backends; made once for all tests."""

    @cache
    def run(text: str, case: str, adapter: str, backends: tuple[str, ...], arguments: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("stored")
        (folder / "ops.py").write_text(text)
        (folder / "config.yaml").write_text(user_config("ops.py", cases=[case], adapter=adapter, backends=backends))
        call("run", folder / "config.yaml", "--out", folder / "run", "-q", *arguments)
        return folder / "run"

    return run


@pytest.fixture
def finding(stored_run, tmp_path):
    """Gives a copy of the run directory of a user's file."""

    def copy(text: str, case: str = LINEAR, *, adapter="numpy", backends=("numpy",), arguments=()) -> Path:
        return Path(shutil.copytree(stored_run(text, case, adapter, backends, arguments), tmp_path / "run"))

    return copy
