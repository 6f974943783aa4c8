"""What is hunted: the base cases and backends of an op, of a config, or of a user's file with kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from parity.cases import OPS
from parity.cases.dtypes import COARSENESS
from parity.cases.op import Op
from parity.config import ConfigError, Overrides, load_backends, load_plan
from parity.config.errors import nearest
from parity.config.plan import BackendSpec, CasePlan, KnownDeviation, own_kernels
from parity.hunt import HuntError
from parity.hunt.descriptors import Base
from parity.starter import StarterError
from parity.starter.design import (
    SHAPES,
    SPARE,
    CaseEvaluator,
    Written,
    base_case,
    case_of,
    first_of,
    fitted,
    in_order,
    stated,
    with_shape,
)
from parity.starter.source import adapter_of, read_source
from parity.starter.write import framework_itself, without_ops

DEFAULT_BACKENDS = ("torch", "paddle")
MOST_BASES = 4
"""Numbers of axes of an op's first input that are tried."""


@dataclass(frozen=True)
class Subject:
    """The name of what is hunted, its base cases, its backends, deviations that are known, and the backends whose
    findings count: if none is named, all of them, as in a run."""

    name: str
    bases: tuple[Base, ...]
    backends: tuple[BackendSpec, ...]
    known: tuple[KnownDeviation, ...] = ()
    judged: tuple[str, ...] = ()

    def judges(self, backend: str) -> bool:
        """Whether the findings of a backend count."""
        return not self.judged or backend in self.judged

    @property
    def cases(self) -> tuple[CasePlan, ...]:
        """The base cases."""
        return tuple(base.case for base in self.bases)


def subject_of(text: str, backends: Sequence[str], dtypes: Sequence[str], adapter: str | None = None) -> Subject:
    """The op, config or file of the command line; raises HuntError, ConfigError and StarterError."""
    unknown = [name for name in dtypes if name not in COARSENESS]
    if unknown:
        raise HuntError(f"--dtype {unknown[0]}: no such dtype; allowed: {', '.join(COARSENESS)}")
    subject = named_subject(text, backends, dtypes, adapter)
    if not subject.bases:
        raise HuntError(f"{text}: it has no case to start from in {', '.join(dtypes)}")
    return subject


def named_subject(text: str, backends: Sequence[str], dtypes: Sequence[str], adapter: str | None) -> Subject:
    """What the text names."""
    path = Path(text)
    if text in OPS:
        specs = load_backends(backends or DEFAULT_BACKENDS)
        bases = tuple(bases_of(OPS[text], dtypes, gradients=have_gradients(text, specs)))
        return Subject(text, bases, specs, judged=own_kernels(specs))
    if path.suffix in (".yaml", ".yml"):
        return configured(path, backends, dtypes)
    if path.suffix == ".py":
        return kernels(path, backends, dtypes, adapter)
    near = nearest(text, OPS)
    hint = f"; did you mean {near}?" if near else ""
    raise HuntError(
        f"{text} is no op, no config (.yaml) and no file with kernels (.py){hint}; `parity ops` lists the ops"
    )


def have_gradients(op: str, specs: Sequence[BackendSpec]) -> bool:
    """Whether all users' files among the backends have gradients of an op."""
    sources = ((read_source(spec.ops), spec.adapter) for spec in specs if spec.ops is not None)
    return all(source.differentiable(op, adapter) for source, adapter in sources if op in source.ops)


def bases_of(op: Op, dtypes: Sequence[str], *, gradients: bool = True) -> Iterator[Base]:
    """A case for every number of axes that the op accepts, with its optional inputs and without."""
    shapes = [shape for shape in SHAPES.values() if fitted(op, shape, {})]
    shapes = shapes or [shape for shape in SPARE if fitted(op, shape, {})][:1]
    for shape in shapes[:MOST_BASES]:
        params, _ = fitted(op, shape, {}) or ({}, None)
        plain = in_order(op, case_of(op, params, stated(op, shape))) | ({} if gradients else {"gradients": False})
        yield from planned([plain, *switched(op, plain)], dtypes)


def switched(op: Op, case: Written) -> Iterator[Written]:
    """The case with all its optional inputs the other way."""
    other: Written = {item.name: {} if item.opt_in else None for item in op.inputs if item.optional}
    if other:
        yield {**case, "inputs": {**case["inputs"], **other}}


def planned(cases: Sequence[Written], dtypes: Sequence[str]) -> Iterator[Base]:
    """The written cases that the op accepts."""
    with TemporaryDirectory(prefix="parity-hunt-") as folder:
        path = Path(folder) / "case.yaml"
        for case in cases:
            path.write_text(
                yaml.safe_dump({"version": 1, "backends": ["numpy"], "dtypes": list(dtypes), "cases": [case]})
            )
            try:
                yield Base(load_plan([path]).cases[0])
            except ConfigError:
                continue


def kernels(path: Path, backends: Sequence[str], dtypes: Sequence[str], adapter: str | None) -> Subject:
    """The kernels of a user's file, beside the framework's own where it is installed, as `parity init` has them."""
    source = read_source(path)
    if not source.ops:
        raise StarterError(without_ops(source))
    adapter = adapter or adapter_of(source)
    bases: list[Base] = []
    with TemporaryDirectory(prefix="parity-hunt-") as folder:
        trial = CaseEvaluator(Path(folder), source.dtypes or tuple(dtypes))
        for name in source.ops:
            case = base_case(trial, source, name, adapter)
            bases += planned([case, *of_other_ranks(OPS[name], case)], trial.dtypes)
    peers = (adapter,) if framework_itself(adapter, list(source.ops)) else ()
    specs = load_backends([f"mine={adapter}:{path}", *(backends or peers)])
    return Subject(path.stem, tuple(bases), specs, judged=own_kernels(specs))


def of_other_ranks(op: Op, case: Written) -> Iterator[Written]:
    """The case with other numbers of axes of its first input."""
    for shape in SHAPES.values():
        fit = fitted(op, shape, {}) if len(shape) != len(first_of(op, case)) else None
        if fit is not None:
            yield in_order(op, with_shape(op, case, fit[0], shape))


def configured(path: Path, backends: Sequence[str], dtypes: Sequence[str]) -> Subject:
    """The cases of ops of a config, and its backends."""
    plan = load_plan([path], Overrides(backends=tuple(backends), dtypes=tuple(dtypes)))
    cases = [replace(case, backends=(), baseline="", subject=()) for case in plan.cases if case.is_op]
    if not cases:
        raise HuntError(f"{path} has no case of an op; trainings cannot be hunted")
    return Subject(path.stem, tuple(map(Base, cases)), plan.backends, plan.known, plan.subject)
