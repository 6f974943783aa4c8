"""The census's bugs: each is there in the release that it is told of, shown without parity."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity.environments.managed import create
from parity.environments.pins import pin_of
from parity.environments.store import python_of

pytestmark = [pytest.mark.frameworks, pytest.mark.exhaustive]

SCRIPTS = {
    path.stem.removesuffix("_bugs"): path
    for path in sorted((Path(__file__).parents[2] / "reports" / "census" / "bugs").glob("*_bugs.py"))
}
IN_THIS_ENVIRONMENT = ("torch", "paddle")


@pytest.mark.parametrize("framework", SCRIPTS)
def test_every_bug_is_still_there(framework, tmp_path):
    here = framework in IN_THIS_ENVIRONMENT
    python = sys.executable if here else python_of(create(pin_of(framework), lambda _: None))
    done = subprocess.run([python, SCRIPTS[framework]], cwd=tmp_path, capture_output=True, text=True, check=False)
    verdicts = re.findall(r"^(\w+): (wrong|right): computed ", done.stdout, re.MULTILINE)
    assert done.returncode == 1, done.stderr
    assert verdicts
    assert {verdict for _, verdict in verdicts} == {"wrong"}, done.stdout
