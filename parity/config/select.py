"""What the command line keeps of a draft, and the last checks: it must leave something, and fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.cases.draw import COARSENESS
from parity.config.case_filter import KeywordError, keyword_matcher, nearest_first
from parity.config.cases import BuiltCase
from parity.config.kinds import OP, case_kind
from parity.config.memory import GIB
from parity.config.nodes import Problems
from parity.config.plan import ORACLE, Asked, BackendSpec, ConfigFile, KnownDeviation, Overrides, Plan
from parity.config.tolerances import parse_options


@dataclass(frozen=True)
class Draft:
    """All that the files ask for; `baseline` is None where none of them names one.

    `backends_ok`: none of them was left out for being wrong, so an unknown name is unknown indeed.
    """

    name: str
    configs: tuple[ConfigFile, ...]
    backends: tuple[BackendSpec, ...]
    backends_ok: bool
    baseline: str | None
    seed: int
    cases: tuple[BuiltCase, ...]
    known: tuple[KnownDeviation, ...]


def select(draft: Draft, overrides: Overrides, report: Problems) -> Plan | None:
    """The plan that is left, or None after reporting what is wrong."""
    backends = _backends(draft, overrides.backends, report)
    baseline = _baseline(draft, backends, overrides, report)
    cases = _with_dtypes(_with_tolerances(draft.cases, overrides, report), overrides.dtypes, report)
    cases = _shortened(_matching(cases, overrides.keyword, report), overrides.steps, report)
    for built in cases:
        if built.plan.kind != OP:
            case_kind(built.plan.kind).check(built, baseline, backends, report)
    _check_memory(cases, len(backends), report)
    if len(report) or not backends or not cases:
        return None
    plans = tuple(built.plan for built in cases)
    asked = _asked(draft, baseline, overrides)
    return Plan(draft.name, draft.configs, backends, baseline, draft.seed, plans, draft.known, asked)


def _asked(draft: Draft, baseline: str, overrides: Overrides) -> Asked:
    """The draft before anything was chosen from it."""
    names = tuple(spec.name for spec in draft.backends)
    altered = bool(overrides.rtol or overrides.atol or overrides.steps)
    altered = altered or baseline != (draft.baseline or names[0])
    return Asked(tuple((built.plan.id, built.plan.dtypes) for built in draft.cases), names, altered)


def _backends(draft: Draft, wanted: Sequence[str], report: Problems) -> tuple[BackendSpec, ...]:
    names = [spec.name for spec in draft.backends]
    for name in wanted:
        if draft.backends_ok and name not in names:
            report.add_command_line(f"--backend {name}", "the config has no such backend", names, name)
    return tuple(spec for spec in draft.backends if not wanted or spec.name in wanted)


def _baseline(draft: Draft, backends: tuple[BackendSpec, ...], overrides: Overrides, report: Problems) -> str:
    """The command line's, else the config's as long as it is kept (the oracle stands in for it), else the first."""
    names = [spec.name for spec in backends]
    if overrides.baseline is not None:
        if draft.backends_ok and overrides.baseline not in (*names, ORACLE):
            option = f"--baseline {overrides.baseline}"
            report.add_command_line(option, "no backend of this run", (*names, ORACLE), overrides.baseline)
        return overrides.baseline
    if draft.baseline is not None:
        return draft.baseline if draft.baseline in names else ORACLE
    return names[0] if names else ORACLE


def _with_tolerances(cases: tuple[BuiltCase, ...], overrides: Overrides, report: Problems) -> tuple[BuiltCase, ...]:
    tensors = tuple(dict.fromkeys(name for built in cases for name in built.compared))
    rules = parse_options("rtol", overrides.rtol, tensors, report)
    rules += parse_options("atol", overrides.atol, tensors, report)
    if not rules:
        return cases
    return tuple(built.with_plan(tolerance=built.plan.tolerance.extended(rules)) for built in cases)


def _with_dtypes(cases: tuple[BuiltCase, ...], wanted: Sequence[str], report: Problems) -> tuple[BuiltCase, ...]:
    """The cases with only the wanted dtypes; a case that has none of them goes."""
    for name in wanted:
        if name not in COARSENESS:
            report.add_command_line(f"--dtype {name}", "no such dtype", COARSENESS, name)
    if not wanted or not set(wanted) & set(COARSENESS):
        return cases
    left = []
    for built in cases:
        dtypes = tuple(dtype for dtype in built.plan.dtypes if dtype in wanted)
        if dtypes:
            left.append(built.with_plan(dtypes=dtypes))
    if cases and not left:
        had = [name for name in COARSENESS if any(name in built.plan.dtypes for built in cases)]
        report.add_command_line(f"--dtype {' --dtype '.join(wanted)}", "no case has this dtype", had)
    return tuple(left)


def _matching(cases: tuple[BuiltCase, ...], keyword: str | None, report: Problems) -> tuple[BuiltCase, ...]:
    if keyword is None:
        return cases
    ids = [built.plan.id for built in cases]
    try:
        matches = keyword_matcher(keyword, ids)
    except KeywordError as error:
        report.add_command_line(f"-k {keyword}", str(error))
        return cases
    left = tuple(built for built in cases if matches(built.plan.id))
    if cases and not left:
        listed, alike = nearest_first(keyword, ids)
        hint = f'; did you mean "{listed[0]}"?' if alike else ""
        report.add_command_line(f"-k {keyword}", f"no case matches{hint}", listed)
    return left


def _shortened(cases: tuple[BuiltCase, ...], steps: int | None, report: Problems) -> tuple[BuiltCase, ...]:
    """The cases with the first `steps` steps of each training; its schedule is that of the whole training."""
    if steps is None:
        return cases
    if steps < 1:
        report.add_command_line(f"--steps {steps}", "--steps takes a whole number, 1 or more")
    elif cases and not any(built.plan.is_training for built in cases):
        report.add_command_line(f"--steps {steps}", "no case is a training")
    return tuple(
        built if built.plan.kind == OP else case_kind(built.plan.kind).shortened(built, steps) for built in cases
    )


def _check_memory(cases: tuple[BuiltCase, ...], n_backends: int, report: Problems) -> None:
    """Refuses cases whose tensors, held by every backend and by the oracle, exceed the machine's memory."""
    if not cases:
        return
    import psutil

    limit = int(psutil.virtual_memory().total)
    for built in cases:
        n_bytes = built.memory.total(n_backends)
        if n_bytes > limit:
            need = f"{n_bytes / GIB:.1f} GiB for {n_backends} backends and the oracle"
            message = f"the case {built.plan.id} needs {need}; this machine has {limit / GIB:.1f} GiB"
            report.add(built.node.get("inputs") or built.node.get("model") or built.node, message, value=False)
