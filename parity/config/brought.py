"""An op that a case brings: `reference: FILE[:NAME]` names a NumPy function, or a class or function of PyTorch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from parity.cases.brought import Brought, ReferenceFile, arguments, op_of, outputs_of, where
from parity.cases.op import GRADIENT, CaseError
from parity.cases.user_code import BroughtError
from parity.config.backends import ADAPTERS
from parity.config.case_models import OP_KEYS, parts_of
from parity.config.files import beside, existing_file
from parity.config.grammar import model_of
from parity.config.inputs import WrittenInputs, add_at
from parity.config.nodes import Node, Problems
from parity.program.torch_reference import is_torch, torch_reference
from parity.program.worker.user_module import AFTER, ARGUMENTS

REFERENCE = "reference"
NAMED = re.compile(r"\.py:\w+$")
"""The end of a path with the name of a class or function."""


@cache
def case_model(brought: Brought) -> Any:
    """The model of a case of the op."""
    return model_of(f"{brought.name}-case", "a case", {**OP_KEYS, **parts_of(op_of(brought))})


def read_brought(case: Node, name: str, report: Problems) -> Brought | None:
    """The op of a case, without its outputs; None and a report if its function does not fit the case."""
    node = case.mapping[REFERENCE]
    if node.text in ADAPTERS:
        report.add(node, "a reference is a NumPy function in a file; a backend has no exact answer to judge others by")
        return None
    file, _, own = node.text.rpartition(":") if NAMED.search(node.text) else (node.text, "", name)
    path = existing_file(replace(node, value=file, text=file), report, REFERENCE)
    if path is None:
        return None
    try:
        # Links are kept, as for the files of backends.
        source = ReferenceFile(Path(os.path.abspath(path)), path.read_bytes())  # noqa: PTH100
        if is_torch(source, own):
            return of_torch(case, source, own, name, report)
        given = arguments(source, name)
        location = where(source, name)
    except (BroughtError, OSError) as error:
        if not report.has(str(error)):  # All cases of a file that cannot be run have this problem.
            report.add(node, str(error))
        return None
    n_before = len(report)
    inputs, params = (entry.mapping if (entry := case.get(key)) else {} for key in ("inputs", "params"))
    tensors = [key for key in inputs if not key.startswith(GRADIENT)]
    for key in tensors:
        if key not in given:
            report.add(inputs[key], f'{location} takes no "{key}"', allowed=given, near=key, value=False)
    left = [n for n, argument in given.items() if n not in inputs]
    wanted = [n for n in left if given[n].default is given[n].empty and n not in params]
    if wanted:
        names = ", ".join(wanted)
        report.add(case, f"{location} takes {names}: a tensor goes under inputs, a number under params", value=False)
    integers = tuple((key, *bounded) for key in tensors if (bounded := bounds_of(inputs[key])) is not None)
    if len(report) > n_before:
        return None
    floating = tuple(key for key in tensors if key not in {key for key, _, _ in integers})
    return Brought(
        source,
        name,
        tuple(tensors),
        integers,
        differentiable_of(case, floating, report),
        tuple(n for n in left if n in params or given[n].default is not None),
        tuple(key.removeprefix(GRADIENT) for key in inputs if key.startswith(GRADIENT)),
        (ARGUMENTS,) if ARGUMENTS in params and ARGUMENTS not in given else (),
    )


def of_torch(case: Node, source: ReferenceFile, entry: str, name: str, report: Problems) -> Brought:
    """The op `name` that a class or function of PyTorch is. Raises BroughtError where its file cannot be run."""
    inputs, params = (tuple(node.mapping) if (node := case.get(key)) else () for key in ("inputs", "params"))
    tensors = tuple(key for key in inputs if not key.startswith(GRADIENT))
    written = case.mapping["inputs"].mapping if tensors else {}
    integers = tuple((key, *bounded) for key in tensors if (bounded := bounds_of(written[key])) is not None)
    floating = tuple(key for key in tensors if key not in {key for key, _, _ in integers})
    return Brought(
        torch_reference(source, entry, tensors, integers, params),
        name,
        tensors,
        integers,
        differentiable_of(case, floating, report),
        params,
        tuple(key.removeprefix(GRADIENT) for key in inputs if key.startswith(GRADIENT)),
    )


def bounds_of(tensor: Node) -> tuple[int, int] | None:
    """The bounds of a tensor of integers, which may be in a file; None for one of floating-point numbers."""
    if "integers" in tensor.mapping:
        return bounds(tensor)
    file = tensor.mapping.get("file")
    try:
        values = None if file is None else np.load(beside(file), allow_pickle=False)
    except (OSError, ValueError):  # The model of the tensor reports it.
        return None
    if values is None or values.dtype.kind not in "iub" or not values.size:
        return None
    return int(values.min()), int(values.max()) + 1


def bounds(tensor: Node) -> tuple[int, int]:
    """The smallest integer of a tensor, and the largest plus one; the model of the tensor reports wrong ones."""
    written = tensor.mapping["integers"].mapping
    low, high = (written[key].value if key in written else 0 for key in ("low", "high"))
    return (low, high) if type(low) is int and type(high) is int else (0, 1)


def differentiable_of(case: Node, floating: tuple[str, ...], report: Problems) -> tuple[str, ...]:
    """The inputs with a gradient: those that the case names, else all that hold no integers."""
    wanted, node = case.get("gradients"), case.get("differentiable")
    if wanted is not None and wanted.value is False:
        return ()
    if node is None:
        return floating
    for item in node.items:
        if item.text not in floating:
            report.add(item, "this is no floating-point input of the case", allowed=floating, near=item.text)
    return tuple(item.text for item in node.items)


def with_outputs(brought: Brought, params: Any, inputs: WrittenInputs, report: Problems) -> Brought | None:
    """The op with the outputs that its function returns for these shapes; None and a report if it fails."""
    shapes: Mapping[str, Any] = {n: s.shape for n, (s, _) in inputs.specs.items() if s.shape is not None}
    try:
        op_of(brought).infer_shapes(params, shapes)
        given = tuple((name, shapes[name]) for name in brought.tensors)
        outputs = outputs_of(brought, params, given)
    except CaseError as error:
        add_at(inputs.case, error.key, error.message, report)
        return None
    floats = [name for name, (_, dtype) in outputs.items() if dtype.kind == "f"]
    grad_outputs = tuple(name for name in floats if not name.startswith(AFTER))
    for name in brought.grad_outputs:
        if name not in grad_outputs:
            message = f"{brought.name} has no floating-point output {name}, only {', '.join(grad_outputs) or 'none'}"
            add_at(inputs.case, f"inputs.{GRADIENT}{name}", message, report)
            return None
    return replace(brought, grad_outputs=grad_outputs)
