"""Reads a case of `kind: decode` into a CasePlan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from parity.config.case_models import Dtypes
from parity.config.cases import BuiltCase, CaseKind, Scope, expanded
from parity.config.files import existing_file
from parity.config.grammar import Text, list_of, model_of
from parity.config.nodes import Node
from parity.config.sweep import Combination, sweep_of
from parity.config.tolerance_grammar import Tolerances
from parity.models import config as models
from parity.models.decode.spec import DECODE, DecodeSpec
from parity.models.decode.ways import WAYS, WORDS

ROOTS = ("dtypes", "chunk")
"""The parts of a case that a sweep may set."""
COMPARED = tuple(f"{way}.*" for way in WORDS)

KEYS: Mapping[str, Any] = {
    "id": (Text, ""),
    "kind": (Annotated[Any, WithJsonSchema({"const": DECODE, "description": "ways to decode"})], DECODE),
    "build": (models.Function, DecodeSpec.build),
    "forward": (models.Function, DecodeSpec.forward),
    "prompts": (Annotated[str, Field(description="a function of the baseline's file")], DecodeSpec.prompts),
    "chunk": (Annotated[int, Field(ge=1, description="tokens of a call in chunks")], DecodeSpec.chunk),
    "pad": (Annotated[int, Field(ge=0, description="the token id of padding")], DecodeSpec.pad),
    "ways": (list_of(Literal[*WAYS]), ()),
    "mapping": (Annotated[str | None, Field(description=models.FILE)], None),
    "dtypes": (Dtypes, ()),
    "tolerance": (Tolerances, None),
}
DecodeCase = model_of(
    "decode_case", "a model that decodes", {**KEYS, "sweep": (sweep_of(ROOTS), None)}, module=__name__
)


def build(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The cases of one entry of `cases`; invalid ones are reported and left out."""
    return expanded(node, DecodeCase, scope, _build, roots=ROOTS, example="chunk")


DECODINGS = CaseKind(DecodeCase, build, models.shortened, models.check)


def _build(combination: Combination, scope: Scope) -> BuiltCase | None:
    report, n_before = scope.report, len(scope.report)
    case, values = models.read_case(combination, scope, DECODE, DecodeCase)
    if case is None or values is None:
        return None
    mapping = existing_file(case.mapping["mapping"], report, "mapping") if values.mapping is not None else None
    for name in ("build", "forward", "prompts"):
        if not getattr(values, name).isidentifier():
            report.add(case.get(name) or case, f"{name} must be the name of a function")
    if len(report) > n_before:
        return None
    spec = DecodeSpec(
        build=values.build, forward=values.forward, prompts=values.prompts, chunk=values.chunk, pad=values.pad,
        ways=tuple(values.ways), mapping=models.absolute(mapping),
    )  # fmt: skip
    return models.built_case(DECODE, spec, combination, case, values, scope, COMPARED)
