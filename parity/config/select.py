"""Applies the command line's selection, and makes the last checks: something is left, and it fits into memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parity.cases.dtypes import COARSENESS
from parity.config.backend_options import described, describes
from parity.config.case_filter import KeywordError, keyword_matcher, nearest_first
from parity.config.cases import BuiltCase, case_kind
from parity.config.kinds import OP
from parity.config.memory import GIB
from parity.config.nodes import Problems
from parity.config.plan import ORACLE, Asked, BackendSpec, ConfigFile, KnownDeviation, Overrides, Plan, own_kernels
from parity.config.tolerance_grammar import parse_options


@dataclass(frozen=True)
class Draft:
    """Everything in the files; each case has its file's backends, baseline (empty: the first) and subject (empty: all).

    `backends_ok`: no invalid backend was left out, so an unknown name is really unknown.
    """

    name: str
    configs: tuple[ConfigFile, ...]
    backends: tuple[BackendSpec, ...]
    backends_ok: bool
    seed: int
    cases: tuple[BuiltCase, ...]
    known: tuple[KnownDeviation, ...]


def select(draft: Draft, overrides: Overrides, report: Problems) -> Plan | None:
    """The selected plan; None and a report if anything is wrong."""
    draft, overrides = _widened(draft, overrides, report)
    backends = _backends(draft, overrides, report)
    cases = _with_dtypes(_with_tolerances(draft.cases, overrides, report), overrides.dtypes, report)
    cases = _shortened(_matching(cases, overrides.keyword, report), overrides.steps, report)
    cases = _placed(cases, backends, overrides, report)
    cases = _sharded(cases, overrides.shard, report)
    for built in cases:
        if built.plan.kind != OP:
            own = tuple(spec for spec in backends if built.plan.runs_on(spec.name))
            case_kind(built.plan.kind).check(built, built.plan.baseline, own, report)
    _check_memory(cases, report)
    return None if len(report) or not cases else _plan(draft, backends, cases, overrides)


def _plan(draft: Draft, backends: Sequence[BackendSpec], cases: Sequence[BuiltCase], overrides: Overrides) -> Plan:
    """The plan of these cases, with the backends that they need, and the baseline and the subject of the first case."""
    specs = tuple(spec for spec in backends if any(built.plan.runs_on(spec.name) for built in cases))
    names, baseline, subject = {spec.name for spec in specs}, cases[0].plan.baseline, cases[0].plan.subject
    plans = []
    for built in cases:
        own = () if set(built.plan.backends) == names else built.plan.backends
        other = "" if built.plan.baseline == baseline else built.plan.baseline
        mine = () if built.plan.subject == subject else built.plan.subject or built.plan.backends
        plans.append(replace(built.plan, backends=own, baseline=other, subject=mine))
    asked = _asked(draft, cases, overrides)
    return Plan(draft.name, draft.configs, specs, baseline, draft.seed, tuple(plans), draft.known, asked, subject)


def _asked(draft: Draft, cases: Sequence[BuiltCase], overrides: Overrides) -> Asked:
    """The draft before selection; `cases` are the selected ones."""
    names = tuple(spec.name for spec in draft.backends)
    stated = {built.plan.id: _baseline(built, built.plan.backends, None) for built in draft.cases}
    altered = bool(overrides.rtol or overrides.atol or overrides.steps)
    altered = altered or any(built.plan.baseline != stated[built.plan.id] for built in cases)
    narrower = {built.plan.id: built.plan.backends for built in draft.cases if set(built.plan.backends) != set(names)}
    return Asked(tuple((built.plan.id, built.plan.dtypes) for built in draft.cases), names, altered, narrower)


def _widened(draft: Draft, overrides: Overrides, report: Problems) -> tuple[Draft, Overrides]:
    """The draft with the backends that only the command line describes, in every case; and their names as overrides."""
    names = {spec.name for spec in draft.backends}
    texts = [text for text in overrides.backends if text not in names and describes(text)]
    added = described(texts, report)
    more = tuple(spec.name for spec in added)
    mine = own_kernels(added)
    cases = tuple(
        built.with_plan(backends=(*built.plan.backends, *more), subject=(*built.plan.subject, *mine))
        for built in draft.cases
    )
    wanted = (*(text for text in overrides.backends if text not in texts), *more)
    return replace(draft, backends=(*draft.backends, *added), cases=cases), replace(overrides, backends=wanted)


def _backends(draft: Draft, overrides: Overrides, report: Problems) -> tuple[BackendSpec, ...]:
    """The selected backends; unknown names of backends and of a baseline are reported."""
    names, wanted = [spec.name for spec in draft.backends], overrides.backends
    for name in wanted:
        if draft.backends_ok and name not in names:
            report.add_command_line(f"--backend {name}", "the config has no such backend", names, name)
    kept = tuple(spec for spec in draft.backends if not wanted or spec.name in wanted)
    baseline, allowed = overrides.baseline, (*(spec.name for spec in kept), ORACLE)
    if baseline is not None and draft.backends_ok and baseline not in allowed:
        report.add_command_line(f"--baseline {baseline}", "not a backend of this run", allowed, baseline)
    return kept


def _placed(
    cases: tuple[BuiltCase, ...], backends: Sequence[BackendSpec], overrides: Overrides, report: Problems
) -> tuple[BuiltCase, ...]:
    """The cases with their selected backends, baselines and subjects, without those that run on none of either.

    Where no backend of the subject is selected, all are judged.
    """
    wanted = {spec.name for spec in backends}
    placed = []
    for built in cases:
        own = tuple(name for name in built.plan.backends if name in wanted)
        asked = () if overrides.fail_on_others else tuple(name for name in built.plan.subject if name in wanted)
        mine = tuple(name for name in own if name in asked)
        if own and (mine or not asked):
            mine = () if mine == own else mine
            baseline = _baseline(built, own, overrides.baseline)
            placed.append(built.with_plan(backends=own, baseline=baseline, subject=mine))
    if cases and wanted and not placed:
        report.add_command_line(f"--backend {' --backend '.join(overrides.backends)}", "no case runs on it")
    return tuple(placed)


def _baseline(built: BuiltCase, kept: Sequence[str], named: str | None) -> str:
    """The command line's baseline, else the config's (the oracle if that is deselected), else the first backend."""
    baseline = named or built.plan.baseline
    return kept[0] if not baseline else baseline if baseline in kept else ORACLE


def _with_tolerances(cases: tuple[BuiltCase, ...], overrides: Overrides, report: Problems) -> tuple[BuiltCase, ...]:
    tensors = tuple(dict.fromkeys(name for built in cases for name in built.compared))
    rules = parse_options("rtol", overrides.rtol, tensors, report)
    rules += parse_options("atol", overrides.atol, tensors, report)
    if not rules:
        return cases
    return tuple(built.with_plan(tolerance=built.plan.tolerance.extended(rules)) for built in cases)


def _with_dtypes(cases: tuple[BuiltCase, ...], wanted: Sequence[str], report: Problems) -> tuple[BuiltCase, ...]:
    """The cases with only the wanted dtypes, without cases that have none of them."""
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
    """The cases with the first `steps` steps of each training; schedules stay those of the whole training."""
    if steps is None:
        return cases
    if steps < 1:
        report.add_command_line(f"--steps {steps}", "--steps must be a whole number, 1 or more")
    elif cases and all(built.plan.is_op for built in cases):
        report.add_command_line(f"--steps {steps}", "there is no training among the cases")
    return tuple(
        built if built.plan.kind == OP else case_kind(built.plan.kind).shortened(built, steps) for built in cases
    )


def _sharded(cases: tuple[BuiltCase, ...], shard: str | None, report: Problems) -> tuple[BuiltCase, ...]:
    """The cases of shard `I/N`: every N-th from the I-th on, so that a family of slow cases is spread."""
    if shard is None or not cases:
        return cases
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", shard, re.ASCII)
    index, count = map(int, match.groups()) if match else (1, 0)
    problem = ""
    if index > count:
        problem = "write I/N, shard I of N, such as 1/4, 2/4, 3/4 and 4/4"
    elif index > len(cases):
        problem = f"only {len(cases)} cases are left, and this shard has none; make at most {len(cases)} shards"
    if problem:
        report.add_command_line(f"--shard {shard}", problem)
    return cases if problem else cases[index - 1 :: count]


def _check_memory(cases: tuple[BuiltCase, ...], report: Problems) -> None:
    """Reports cases whose tensors, in every backend and in the oracle, exceed the machine's memory."""
    if not cases:
        return
    import psutil

    limit = int(psutil.virtual_memory().total)
    for built in cases:
        n_backends = len(built.plan.backends)
        n_bytes = built.memory.total(n_backends)
        if n_bytes > limit:
            need = f"{n_bytes / GIB:.1f} GiB for {n_backends} backends and the oracle"
            message = f"the case {built.plan.id} needs {need}; this machine has {limit / GIB:.1f} GiB"
            report.add(built.node.get("inputs") or built.node.get("model") or built.node, message, value=False)
