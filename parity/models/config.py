"""Reads a case of `kind: model` into a CasePlan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from parity.config.case_models import Dtypes
from parity.config.cases import BuiltCase, CaseKind, Scope, expanded, id_of, tolerance_of
from parity.config.files import existing_file
from parity.config.grammar import Text, list_of, model_of, read
from parity.config.memory import MemoryNeed
from parity.config.nodes import Node, Problems
from parity.config.plan import ORACLE, BackendSpec, CasePlan, WrittenAt
from parity.config.references import substitute
from parity.config.sweep import Combination, suffixes, sweep_of
from parity.config.tolerance_grammar import Tolerances
from parity.config.tree import without
from parity.models.spec import MODEL, ModelSpec

ROOTS = ("mode", "dtypes", "weights")
"""The parts of a case that a sweep may set."""
UNKNOWN = MemoryNeed(2**28, 2**28)
"""The assumed memory: a model's size is known only once it is built, and the host holds one layer at a time."""
COMPARED = (
    "output",
    "output.*",
    "loss",
    "grad.*",
    "buffer.*",
    "layer.*",
    "metric.*",
    "weights.*",
    "call2.*",
    "call3.*",
    "input.*",
)

Function = Annotated[str, Field(description="the name of a function of each backend's `ops:` file")]
FILE = "the path of a file"
KEYS: Mapping[str, Any] = {
    "id": (Text, ""),
    "kind": (Annotated[Any, WithJsonSchema({"const": MODEL, "description": "ports of one model"})], MODEL),
    "build": (Function, "build_model"),
    "batch": (Annotated[str, Field(description="a function of the baseline's file, or an .npz file")], "make_batch"),
    "forward": (Function, ""),
    "loss": (Function, ""),
    "metric": (Function, ""),
    "targets": (list_of(str), ()),
    "mode": (Literal["eval", "train"], "eval"),
    "weights": (Literal["moved", "own"] | None, None),
    "mapping": (Annotated[str | None, Field(description=FILE)], None),
    "dtypes": (Dtypes, ()),
    "tolerance": (Tolerances, None),
}
ModelCase = model_of("model_case", "a model", {**KEYS, "sweep": (sweep_of(ROOTS), None)}, module=__name__)


def build(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The cases of one entry of `cases`; invalid ones are reported and left out."""
    return expanded(node, ModelCase, scope, _build, roots=ROOTS, example="mode")


def shortened(built: BuiltCase, _steps: int) -> BuiltCase:
    """The case as it is: it has no steps."""
    return built


def check(built: BuiltCase, baseline: str, backends: tuple[BackendSpec, ...], report: Problems) -> None:
    """Reports a baseline or a backend that has no port."""
    if baseline == ORACLE:
        report.add(built.node, "a model is compared with a backend's: name one as the `baseline`", value=False)
    for spec in backends:
        if spec.ops is None:
            message = (
                f"{spec.name} has no port: give it a file, {{name: {spec.name}, adapter: {spec.adapter}, ops: FILE}}"
            )
            report.add(built.node, message, value=False)


MODELS = CaseKind(ModelCase, build, shortened, check)


def _build(combination: Combination, scope: Scope) -> BuiltCase | None:
    report, n_before = scope.report, len(scope.report)
    case, values = read_case(combination, scope, MODEL, ModelCase)
    if case is None or values is None:
        return None
    stored = None
    if values.batch.endswith(".npz"):
        stored = existing_file(case.mapping["batch"], report, "batch")
    mapping = existing_file(case.mapping["mapping"], report, "mapping") if values.mapping is not None else None
    for name in ("build", "batch", "forward", "loss", "metric"):
        text = getattr(values, name)
        if text and not text.isidentifier() and not (name == "batch" and stored):
            report.add(case.get(name) or case, f"{name} must be the name of a function")
    if len(report) > n_before:
        return None
    spec = ModelSpec(
        values.build, values.batch, absolute(stored), values.forward, values.loss, values.metric, values.targets,
        values.mode, values.weights, absolute(mapping),
    )  # fmt: skip
    return built_case(MODEL, spec, combination, case, values, scope, COMPARED)


def read_case(combination: Combination, scope: Scope, kind: str, grammar: Any) -> tuple[Node | None, Any]:
    """An entry of a kind, and its values; None where it is invalid."""
    report = scope.report
    written = without(scope.defaults.under(kind, without(combination.case, "sweep")), "gradients", "stress")
    case = substitute(written, report)
    values: Any = None if case is None else read(grammar, case, report)
    if case is not None and values is not None and "float16" in (values.dtypes or scope.dtypes):
        report.add(case.get("dtypes") or case, "models run in float64, float32 and bfloat16", value=False)
    return case, values


def built_case(
    kind: str,
    spec: ModelSpec,
    combination: Combination,
    case: Node,
    values: Any,
    scope: Scope,
    compared: tuple[str, ...],
) -> BuiltCase:
    """The case of a valid entry; `compared` are the names of its tensors."""
    case_id = id_of(combination, case, "-".join([kind, *suffixes(combination.swept)]), scope.report)
    dtypes, tolerance = values.dtypes or scope.dtypes, tolerance_of(kind, values, scope)
    source, gradients = WrittenAt(case.file, case.line), bool(spec.loss)
    plan = CasePlan(case_id, kind, spec, dtypes, (), tolerance, source, gradients=gradients)
    return BuiltCase(plan, combination.case, "id" in case.mapping, compared, UNKNOWN)


def absolute(path: Path | None) -> Path | None:
    """An absolute path, which is also valid in a worker."""
    return None if path is None else path.absolute()
