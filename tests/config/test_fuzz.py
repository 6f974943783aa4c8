"""Whatever a file holds, loading gives a Plan or a ConfigError whose every problem names a message."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.cases import OPS
from parity.config import ConfigError, Overrides, Plan, load_plan
from parity.config.grammar import option_keys
from parity.config.nodes import Problems
from parity.config.plan import CasePlan
from parity.config.yaml_lines import read_yaml
from tests.configs.loading import CONFIGS

pytestmark = pytest.mark.slow

TEXTS = [path.read_bytes() for path in sorted(CONFIGS.glob("*/*.yaml")) if path.stat().st_size < 5000]


def fuzz(n_examples: int) -> settings:
    """No limits on time: the machine may be busy."""
    return settings(max_examples=n_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load(data: bytes, overrides: Overrides | None = None) -> Plan | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.yaml"
        path.write_bytes(data)
        try:
            plan = load_plan([path], overrides)
        except ConfigError as error:
            assert error.problems
            assert all(problem.message and problem.file for problem in error.problems)
            assert all(line.isprintable() for line in str(error).split("\n"))
            return None
    assert plan.cases
    assert plan.backends
    for case in plan.cases:
        draw_and_look_up(plan, case)
    return plan


def draw_and_look_up(plan: Plan, case: CasePlan) -> None:
    """What has been accepted can be drawn, and every tensor of it has a tolerance."""
    for planned in case.tensors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            drawn = planned.sample(plan.seed, case.id, *case.dtypes)
        assert drawn.shape == planned.shape
        assert case.tolerance.lookup(case.dtypes[0], planned.name).rtol >= 0


# Text

yaml_text = st.text(
    alphabet=st.sampled_from(list("ab01.-+:,#&*!|>%@`'\"{}[]?~<=\\ \n\t\r\0é\u2028\ufeff")), max_size=60
)


@given(st.one_of(st.text(max_size=200), yaml_text))
@fuzz(400)
def test_any_text(text: str) -> None:
    load(text.encode("utf-8", "surrogatepass"))


@pytest.mark.exhaustive
@given(st.binary(max_size=200))
@fuzz(200)
def test_any_bytes(data: bytes) -> None:
    load(data)


@pytest.mark.exhaustive
@given(
    yaml_text,
    st.sampled_from(["version: 1\nbackends: [torch]\ncases:\n  - ", "version: 1\ncases: [{op: linear, inputs: "]),
)
@fuzz(300)
def test_any_text_in_a_config(text: str, head: str) -> None:
    load((head + text).encode("utf-8", "surrogatepass"))


@given(st.data())
@fuzz(300)
def test_damaged_configs(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    if data.draw(st.booleans()):
        load(text[:start] + text[end:])
    else:
        load(text[:start] + data.draw(st.sampled_from(TEXTS))[start:end] + text[start:])


# Structure

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.sampled_from([10**30, 2**31, 2**63, -(10**400)]),
    st.floats(),
    st.sampled_from(
        ["", "x", "float32", "torch", "oracle", "layer_norm", "${params.eps}", "${inputs.x.shape}", "${", "a\nb"]
    ),
    st.text(max_size=5),
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def maybe(keys: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """A mapping with some of the keys, mostly with fitting values."""
    fitting = st.fixed_dictionaries(
        {}, optional={key: st.one_of(value, value, value, anything) for key, value in keys.items()}
    )
    return st.one_of(fitting, fitting, fitting, anything)


numbers = st.one_of(st.integers(-2, 5), st.floats(-10, 10), leaves)
shapes = st.lists(st.one_of(st.integers(1, 5), leaves), max_size=4)
tensors = maybe(
    {
        "shape": shapes,
        "normal": maybe({"mean": numbers, "std": numbers}),
        "uniform": maybe({"low": numbers, "high": numbers}),
        "log_uniform": maybe({"low": numbers, "high": numbers, "signed": st.booleans()}),
        "near_constant": maybe({"value": numbers, "relative": numbers}),
        "constant": numbers,
        "values": st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=6),
        "file": st.sampled_from(["fuzz.yaml", ".", "none.npy", "a\0b", "~", "~nobody/x"]),
        "scale": numbers,
        "offset": numbers,
        "special": maybe({"values": st.lists(numbers, max_size=3), "count": st.integers(-1, 3)}),
    }
)
dtypes = st.lists(st.sampled_from(["float16", "float32", "float64", "int8"]), max_size=3)
tables = st.dictionaries(
    st.sampled_from(["float32", "float64", "float8"]), maybe({"rtol": numbers, "atol": numbers}), max_size=2
)
tolerances = maybe(
    {
        "float32": maybe({"rtol": numbers, "atol": numbers}),
        "gradients": tables,
        "tensors": st.dictionaries(st.text(max_size=3), tables),
    }
)
PARAMS = sorted({name for op in OPS.values() for name in option_keys(op.params)})
INPUTS = sorted({item.name for op in OPS.values() for item in op.inputs} | {"grad.y", "grads.0"})
params = maybe({name: st.one_of(numbers, shapes, leaves) for name in PARAMS})
inputs = maybe({name: st.one_of(tensors, st.lists(tensors, max_size=3)) for name in INPUTS})
PATHS = [
    "params.eps",
    "params",
    "inputs.x.shape",
    "inputs.x.normal.mean",
    "inputs.grads.0.shape",
    "op",
    "dtypes",
    "id",
    "a..b",
    "",
]
sweeps = st.dictionaries(st.sampled_from(PATHS), st.lists(st.one_of(leaves, shapes, params), max_size=3), max_size=3)
cases = maybe(
    {
        "id": leaves,
        "op": st.sampled_from([*OPS, "layernorm"]),
        "params": params,
        "inputs": inputs,
        "sweep": sweeps,
        "dtypes": dtypes,
        "tolerance": tolerances,
        "gradients": st.booleans(),
    }
)
backends = st.one_of(
    st.sampled_from(["torch", "torch==2.4.1", "paddle:eager", "oracle", "x"]),
    maybe({"name": leaves, "adapter": leaves, "ops": leaves, "python": leaves, "version": leaves, "mode": leaves}),
)
configs = maybe(
    {
        "version": st.just(1),
        "backends": st.lists(backends, max_size=3),
        "baseline": st.sampled_from(["torch", "oracle", "x"]),
        "dtypes": dtypes,
        "seed": numbers,
        "tolerance": tolerances,
        "defaults": maybe({"dtypes": dtypes, "tolerance": tolerances, "ops": maybe(dict.fromkeys(OPS, cases))}),
        "include": st.lists(st.sampled_from(["fuzz.yaml", "none.yaml", "\0"]), max_size=2),
        "cases": st.lists(cases, max_size=3),
        "known": st.lists(maybe({"case": leaves, "reason": leaves, "until": leaves}), max_size=2),
    }
)


def to_yaml(value: Any) -> str:
    """Flow YAML, in which every JSON value is one."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_yaml(str(k))}: {to_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    if isinstance(value, str):
        escaped = (f"\\U{ord(c):08x}" if not 32 <= ord(c) < 127 or c in '"\\' else c for c in value)
        return f'"{"".join(escaped)}"'
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if not isinstance(value, int) or isinstance(value, bool)
        else str(value)
    )


@pytest.mark.exhaustive
@given(configs)
@fuzz(500)
def test_any_structure(config: Any) -> None:
    load(to_yaml(config).encode())


@pytest.mark.exhaustive
@given(st.lists(cases, min_size=1, max_size=2))
@fuzz(500)
def test_any_cases(entries: Any) -> None:
    load(f"version: 1\nbackends: [torch]\ncases: {to_yaml(entries)}\n".encode())


@pytest.mark.exhaustive
@given(inputs, params, st.sampled_from(sorted(OPS)))
@fuzz(500)
def test_any_inputs_and_params(tensors_of_case: Any, params_of_case: Any, op: str) -> None:
    case = {"op": op, "params": params_of_case, "inputs": tensors_of_case}
    load(f"version: 1\nbackends: [torch]\ncases: {to_yaml([case])}\n".encode())


# Nearly right


def some(value: st.SearchStrategy[Any], instead: st.SearchStrategy[Any] = leaves) -> st.SearchStrategy[Any]:
    """Mostly `value`."""
    return st.integers(0, 15).flatmap(lambda n: instead if n == 0 else value)


sizes = st.lists(some(st.integers(1, 6)), min_size=2, max_size=5)
finite = st.one_of(st.floats(0.1, 10), st.integers(1, 5))
draws = st.sampled_from(
    [
        {},
        {"normal": {"mean": 1e4}},
        {"uniform": {"low": -1}},
        {"log_uniform": {}},
        {"constant": -0.0},
        {"near_constant": {"value": 1e-300}},
        {"special": {"values": [float("nan"), -0.0], "count": 7}},
    ]
)
modifiers = st.fixed_dictionaries({}, optional={"scale": some(finite), "offset": some(st.floats(-1e30, 1e30))})
drawn = st.builds(lambda draw, more: {**draw, **more}, draws, modifiers)
shaped = st.builds(lambda tensor, shape: {**tensor, "shape": shape}, drawn, sizes)
literal = st.sampled_from([{"values": [[1, 2], [3, 4]]}, {"values": 3}, {"values": [[[1], [2]]], "offset": 1}])

PARAMS_OF = {
    "layer_norm": {"normalized_shape": some(st.just("${inputs.x.shape.1}"), sizes), "eps": some(finite)},
    "group_norm": {"num_groups": some(st.just("${inputs.x.shape.1}"), st.integers(0, 3)), "eps": some(finite)},
    "instance_norm": {"eps": some(finite)},
    "batch_norm": {"momentum": some(st.floats(0, 1)), "training": some(st.booleans())},
    "linear": {"out_features": some(st.integers(1, 6)), "in_features": some(st.just("${inputs.x.shape.1}"))},
    "clip_grad_norm": {"max_norm": some(finite), "norm_type": some(st.sampled_from([1, 2.0, float("inf")]))},
    "clip_grad_value": {"clip_value": some(finite)},
}


def inputs_of(op: str) -> st.SearchStrategy[Any]:
    first, *others = OPS[op].inputs
    named = {item.name: some(drawn | st.none() if item.optional else drawn, shaped) for item in others}
    x = st.one_of(shaped, shaped, shaped, literal)
    grad_outputs = {"grad.y": some(drawn, shaped)} if OPS[op].differentiable else {}
    return st.fixed_dictionaries(
        {first.name: st.lists(x, max_size=3) if first.listed else x}, optional=named | grad_outputs
    )


def case_of(op: str) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"op": st.just(op), "params": st.fixed_dictionaries(PARAMS_OF[op]), "inputs": inputs_of(op)},
        optional={
            "dtypes": some(st.just(["float16"])),
            "gradients": some(st.booleans()),
            "id": some(st.text(max_size=3), leaves),
        },
    )


@given(st.sampled_from(sorted(PARAMS_OF)).flatmap(case_of))
@fuzz(500)
def test_nearly_right_cases(case: Any) -> None:
    load(f"version: 1\nbackends: [torch]\ncases: {to_yaml([case])}\n".encode())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a config."""
    found = [path]
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += places(value[key], (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The config with another value at `path`."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def untupled(value: Any) -> Any:
    if isinstance(value, tuple):
        return [untupled(item) for item in value]
    return {key: untupled(item) for key, item in value.items()} if isinstance(value, dict) else value


def plain(path: Path) -> Any:
    read = read_yaml(path, Problems())
    assert read is not None
    return untupled(read.root.plain())


GOOD = [plain(CONFIGS / "valid" / "contract.yaml"), plain(CONFIGS / "valid" / "sweeps.yaml")]


@pytest.mark.exhaustive
@given(st.data())
@fuzz(600)
def test_good_configs_with_one_value_changed(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(GOOD))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(places(config)))
        config = changed(config, path, data.draw(anything))
    load(to_yaml(config).encode())


@given(
    st.builds(
        Overrides,
        backends=st.lists(st.sampled_from(["torch", "paddle", "x\n"]), max_size=2).map(tuple),
        keyword=st.none() | st.text(max_size=10) | st.sampled_from(["a and (b", "not", "near or bn"]),
        dtypes=st.lists(st.sampled_from(["float32", "float16", ""]), max_size=2).map(tuple),
        rtol=st.lists(st.text(max_size=6) | st.sampled_from(["1", "y:1", "grad.*:2"]), max_size=2).map(tuple),
        atol=st.lists(st.text(max_size=6), max_size=2).map(tuple),
        baseline=st.none() | st.sampled_from(["torch", "oracle", "x"]),
    )
)
@fuzz(300)
def test_any_options(overrides: Overrides) -> None:
    load((CONFIGS / "valid" / "contract.yaml").read_bytes(), overrides)


@given(anything)
@fuzz(300)
def test_values_come_back_as_written(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.yaml"
        path.write_text(f"a: {to_yaml(value)}\n")
        read = read_yaml(path, Problems())
    if read is None:  # a key twice
        return
    assert repr(read.root.plain()["a"]) == repr(tupled(value))


def tupled(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(tupled, value))
    if isinstance(value, dict):
        return {key: tupled(item) for key, item in value.items()}
    return float(f"{value}") if isinstance(value, int) and abs(value) > 10**399 else value


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"%YAML 3.0\n---\na: 1", b"- \t- x", b"? [a]\n: b", b"a: *a", b"&a", b"<<: 1"]
)
def test_known_oddities(text: bytes) -> None:
    assert load(text) is None
