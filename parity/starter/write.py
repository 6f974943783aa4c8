"""Writes the config of a user's file."""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from parity import environments
from parity.adapters import ADAPTERS, adapter_class
from parity.cases import OPS
from parity.cases.dtypes import COARSENESS
from parity.config.plan import ORACLE, BackendSpec
from parity.starter import StarterError
from parity.starter.design import Designed, Written, design
from parity.starter.source import UserFile, adapter_of, read_source

DEFINITIONS = (ast.ClassDef, ast.FunctionDef)
EXAMPLE = """\
  def layer_norm(x, weight, bias, normalized_shape, eps):
      ...
      return y"""
WIDTH = 100


@dataclass(frozen=True)
class Starter:
    """A config as text, with its summary and notes."""

    text: str
    summary: str
    notes: tuple[str, ...]


def starter(
    path: Path, config: Path, adapter: str | None, announce: Callable[[str], None], dtypes: Sequence[str] = ()
) -> Starter:
    """The config for the ops of a user's file; raises StarterError with what is wrong and what to do.

    `announce` is called with each op before its inputs are chosen, which takes seconds. `dtypes` replaces the file's.
    """
    unknown = [name for name in dtypes if name not in COARSENESS]
    if unknown:
        raise StarterError(f"--dtype {unknown[0]}: no such dtype; allowed: {', '.join(COARSENESS)}")
    if not f"{path}{config}".isprintable():
        raise StarterError("a file name has control characters, which a config cannot contain: rename the file")
    source = read_source(path)
    source = replace(source, constants={**source.constants, "DTYPES": dtypes}) if dtypes else source
    if not source.ops:
        raise StarterError(without_ops(source))
    adapter = adapter or adapter_of(source)
    if adapter not in ADAPTERS:
        raise StarterError(f"there is no adapter {adapter}; choose one of {', '.join(ADAPTERS)}")
    cases, refused = design(source, adapter, announce)
    ops = list(dict.fromkeys(designed.case["op"] for designed in cases))
    peer = framework_itself(adapter, ops)
    near = (f"{path}: {name} is not an op of parity; did you mean {op}?" for name, op in source.nearly.items())
    notes = (*(f"left out: {message}" for message in refused), *near)
    summary = f"{', '.join(ops)} of {path.name} against {f'{adapter} and ' if peer else ''}the exact answer"
    return Starter(config_text(source, config, adapter, peer, cases), summary, notes)


def without_ops(source: UserFile) -> str:
    """The message for a file that defines no op."""
    near = [f"  {name} (line {source.functions[name].line}): did you mean {op}?" for name, op in source.nearly.items()]
    lines = [
        f"{source.path}: no function has the name of an op",
        *near,
        f"A function replaces the op of the same name. Ops: {', '.join(OPS)}.",
        "It must take the tensors and the op's params by keyword, for example:",
        EXAMPLE,
        "`parity ops` lists the params and tensors of each.",
        "An op that parity does not know needs a `reference:` in the config: docs/own-kernel.md.",
        *pair_lines(source),
    ]
    return "\n".join(lines)


def pair_lines(source: UserFile) -> list[str]:
    """How the file is checked as one of a pair, where it has such code."""
    names = {node.name for node in ast.parse(source.path.read_bytes()).body if isinstance(node, DEFINITIONS)}
    if {"get_inputs", "get_init_inputs"} & names:
        return [f"It defines inputs, as a reference of a pair does: parity check {source.path} NEW.py"]
    return [f"To compare it with code in PyTorch that is right: parity check REFERENCE.py {source.path}"]


def framework_itself(adapter: str, ops: list[str]) -> bool:
    """Whether to compare with the framework's own kernels: whether it is available and has all of these ops.

    NumPy is excluded, since its kernels are the oracle's.
    """
    if adapter == "numpy" or not all(adapter_class(adapter).offers(op) for op in ops):
        return False
    try:
        environments.resolve(BackendSpec(adapter, adapter), provision=False)
    except environments.EnvironmentUnavailable:
        return False
    return True


def config_text(source: UserFile, config: Path, adapter: str, peer: bool, cases: list[Designed]) -> str:
    """The YAML."""
    # A run resolves the path from the config's folder.
    ops = os.path.relpath(source.path, config.parent)
    ops = ops if ops.startswith(("./", "../")) else f"./{ops}"
    differentiable = any(designed.case.get("gradients", True) for designed in cases)
    beside = f"; what {adapter} itself does wrong is a warning" if peer else ""
    mine = {"name": "mine", "adapter": adapter, "ops": ops}
    lines = [
        f"# Does {source.path.name} compute what it should? Run it with: {shlex.join(['parity', 'run', str(config)])}",
        f"# `mine` is judged by the exact answer{beside}. `parity explain NAME` explains the names below.",
        "version: 1",
        f"backends: {flow([adapter, mine] if peer else [mine])}",
        *([] if peer else [f"baseline: {ORACLE}"]),
        *([f"dtypes: {flow(list(source.dtypes))}"] if source.dtypes else []),
        *([] if differentiable else ["defaults: {gradients: false}"]),
        "cases:",
    ]
    why = ""
    for designed in cases:
        case = {key: value for key, value in designed.case.items() if differentiable or key != "gradients"}
        lines += [*([f"  # {designed.why}"] if designed.why not in ("", why) else []), *case_lines(case)]
        why = designed.why
    return "\n".join(lines) + "\n"


def case_lines(case: Written) -> Iterator[str]:
    """A case on one line, or one line per key."""
    whole = flow(case)
    if len(whole) <= WIDTH:
        yield f"  - {whole}"
        return
    for number, (key, value) in enumerate(case.items()):
        yield f"  {' ' if number else '-'} {key}: {flow(value)}"


def flow(value: Any) -> str:
    """YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")
