"""The JSON schema of a config says what loading says, as far as one can without shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from parity.cases import OPS
from parity.config.nodes import Node, Problems
from parity.config.yaml_lines import read_yaml
from tests.configs.loading import CONFIGS, schema

ROOT = CONFIGS.parent.parent
GOOD = sorted([*(CONFIGS / "valid").glob("*.yaml"), *(ROOT / "configs").glob("*.yaml")])


def parsed(path: Path) -> Any:
    read = read_yaml(path, Problems())
    return None if read is None else as_json(read.root)


def as_json(node: Node) -> Any:
    if node.is_mapping:
        return {key: as_json(entry) for key, entry in node.mapping.items()}
    return [as_json(item) for item in node.items] if node.is_list else node.value


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema(), allow_nan=False)) == schema()


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good_configs_fit(path: Path) -> None:
    Draft202012Validator(schema()).validate(parsed(path))


@pytest.mark.parametrize(
    "name",
    [
        "key-unknown", "version-other", "version-text", "seed-negative", "seed-text", "dtypes-unknown",
        "dtypes-not-a-list", "dtypes-twice", "backends-not-a-list", "backends-empty", "backend-unknown",
        "backend-grammar", "backend-mode", "case-key-unknown", "case-not-a-mapping", "op-unknown", "param-unknown",
        "param-choice", "param-item-type", "params-not-a-mapping", "input-unknown", "input-not-a-mapping",
        "input-not-optional", "tensor-key-unknown", "two-distributions", "distribution-key", "constant-text",
        "shape-text", "shape-entry", "shape-zero", "scale-text", "listed-not-a-list",
        "sweep-not-a-mapping", "sweep-not-a-list", "sweep-empty", "sweep-path", "sweep-path-typo", "tolerance-half",
        "tolerance-number", "tolerance-dtype", "tolerance-key", "tolerance-tensor-flat", "defaults-key",
        "defaults-op", "defaults-param", "include-not-a-list", "known-key", "known-without-reason",
        "known-not-a-list", "known-diagnosis", "known-dtype", "known-error-ratio", "known-outcome", "gradients-text", "upstream-unknown",
    ],
)  # fmt: skip
def test_broken_configs_do_not_fit(name: str) -> None:
    assert not Draft202012Validator(schema()).is_valid(parsed(CONFIGS / "broken" / f"{name}.yaml"))


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_its_params(op: str) -> None:
    assert set(schema()["$defs"][f"{op}-params"]["properties"]) == set(OPS[op].params.__dataclass_fields__)
    assert schema()["$defs"][f"{op}-params"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        ({"outcome": "unsupported"}, True),
        ({"outcome": "unsupported", "backend": "torch", "until": "2027-06-30"}, True),
        ({"outcome": None, "tensor": "y"}, True),
        ({"tensor": "y"}, True),
        ({"outcome": "unsuported"}, False),
        ({"outcome": "crash"}, False),
        ({"outcome": "unsupported", "tensor": "y"}, False),
        ({"outcome": "unsupported", "error_ratio": 2}, False),
    ],
)
def test_entries_for_unsupported(keys: dict[str, Any], fits: bool) -> None:
    config = {"version": 1, "known": [{"case": "*", "reason": "because", **keys}]}
    assert Draft202012Validator(schema()).is_valid(config) is fits
