"""The kinds of cases that are no ops: found by their names, and only where a config has one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parity.cases import OPS
from parity.config.cases import case_kind
from parity.config.kinds import KINDS, OP
from parity.training.spec import TRAIN
from tests.configs.loading import CONFIGS


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_there(name: str) -> None:
    kind = case_kind(name)
    assert {"id", "kind", "sweep", "dtypes", "tolerance"} <= set(kind.model.model_fields)
    assert all(map(callable, (kind.build, kind.shortened, kind.check)))


def test_no_kind_has_the_name_of_an_op() -> None:
    assert TRAIN in KINDS
    assert not {OP, *OPS} & set(KINDS)


def test_cases_of_ops_load_no_training() -> None:
    code = (
        "import sys; from pathlib import Path; from parity.config import load_plan; "
        f"plan = load_plan([Path({str(CONFIGS / 'valid' / 'contract.yaml')!r})]); "
        "print(len(plan.cases) > 0, any(name.startswith('parity.training') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
