"""Loads configs for the tests of parity.config."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parity.cases.draw import TensorPlan
from parity.config import ConfigError, Overrides, Plan, json_schema, load_plan
from parity.config.plan import CasePlan

CONFIGS = Path(__file__).parent
HEAD = "version: 1\nbackends: [torch, paddle, oneflow]\n"
CASE = "  - {op: layer_norm, params: {normalized_shape: [4]}, inputs: {x: {shape: [2, 4]}}}\n"


@cache
def schema() -> dict[str, Any]:
    """The JSON schema, made by the tests that use it: a second's work that collecting them need not do."""
    return json_schema()


def load(tmp_path: Path, text: str, **overrides: Any) -> Plan:
    """The plan of a config given as text; `version` and `backends` are put before it where they are missing."""
    path = tmp_path / "config.yaml"
    path.write_text(text if text.startswith("version") else HEAD + text)
    return load_plan([path], Overrides(**overrides))


def load_case(tmp_path: Path, case: str, before: str = "") -> CasePlan:
    """The only case of a config, given as the flow mapping that the case is."""
    (plan,) = load(tmp_path, f"{before}cases:\n  - {case}\n").cases
    return plan


def refused(tmp_path: Path, text: str, **overrides: Any) -> str:
    """The rendered error of a config that must not load."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


def tensor(case: CasePlan, name: str) -> TensorPlan:
    """A tensor of a case by name."""
    return next(t for t in case.tensors if t.name == name)
