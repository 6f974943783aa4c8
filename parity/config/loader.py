"""Loads config files into one Plan: each file by itself, then all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parity.cases import OPS
from parity.config.backends import ADAPTERS, parse_backends
from parity.config.cases import BuiltCase, Scope, build_cases
from parity.config.defaults import parse_defaults
from parity.config.documents import Document, read_document
from parity.config.errors import ConfigError
from parity.config.known import parse_known
from parity.config.nodes import Node, Problems
from parity.config.plan import ORACLE, BackendSpec, CasePlan, KnownDeviation, Overrides, Plan, own_kernels
from parity.config.select import Draft, select
from parity.config.tolerance_grammar import check_tensor_names

DEFAULT_DTYPES = ("float32", "float64")
ONE_RUN = "or run the configs one by one: several are read as one run"


@dataclass(frozen=True)
class FilePlan:
    """The content of one config file with its includes."""

    document: Document
    backends: tuple[tuple[BackendSpec, Node], ...]
    backends_ok: bool
    seed: int
    cases: tuple[BuiltCase, ...]
    known: tuple[KnownDeviation, ...]


def load_plan(paths: Sequence[Path], overrides: Overrides) -> Plan:
    """The plan of all files together; raises ConfigError with every problem of all of them."""
    report = Problems()
    unique = list(dict.fromkeys(Path(path) for path in paths))
    if not unique:
        report.add_command_line("CONFIG", "no config file is named")
    files = [file for path in unique if (file := _read_file(path, report)) is not None]
    plan = select(_draft(files, report), overrides, report) if files else None
    if plan is None or len(report):
        raise ConfigError(report.problems)
    return plan


def _read_file(path: Path, report: Problems) -> FilePlan | None:
    document = read_document(path, report)
    return _file_plan(document, report) if document.files else None


def _file_plan(document: Document, report: Problems) -> FilePlan:
    n_before = len(report)
    backends = _backends(document, report)
    backends_ok = len(report) == n_before and bool(backends)
    defaults = parse_defaults(document.get("defaults"), OPS, report)
    settings = document.keys(report)
    rules = () if settings.tolerance is None else settings.tolerance.all_rules()
    scope = Scope(OPS, settings.dtypes or DEFAULT_DTYPES, rules, defaults, report)
    if not document.cases and document.complete:
        report.add_file(str(document.path), 'nothing to compare: the config needs "cases"')
    cases = tuple(built for node in document.cases for built in build_cases(node, scope))
    compared = _compared_by_op(cases)
    if cases:
        defaults.check_tensor_names(compared, report)
        check_tensor_names(document.get("tolerance"), (n for names in compared.values() for n in names), report)
    known = _known(document, [spec.name for spec, _ in backends] if backends_ok else [], report)
    baseline = _baseline(document.get("baseline"), [spec.name for spec, _ in backends] if backends_ok else [], report)
    subject = _subject(document.get("subject"), [spec for spec, _ in backends] if backends_ok else [], report)
    own = {"backends": tuple(spec.name for spec, _ in backends), "baseline": baseline, "subject": subject}
    named = _able([built.with_plan(**own) for built in _named(cases, report)], [spec for spec, _ in backends])
    return FilePlan(document, backends, backends_ok, settings.seed, named, known)


def _able(cases: Iterable[BuiltCase], backends: Sequence[BackendSpec]) -> tuple[BuiltCase, ...]:
    """The cases, those of `stress` with layouts on the backends whose tensors have strides."""
    strided = tuple(spec.name for spec in backends if ADAPTERS[spec.adapter].strided)
    if len(strided) == len(backends):
        return tuple(cases)
    laid = [built.with_plan(backends=strided) if built.plan.is_laid_out else built for built in cases]
    return tuple(built for built in laid if strided or not built.plan.is_laid_out)


def _baseline(node: Node | None, backends: Sequence[str], report: Problems) -> str:
    """The baseline that a file names, empty if none; `backends`: the allowed ones, empty for no check."""
    if node is None:
        return ""
    if node.text and backends and node.text not in (*backends, ORACLE):
        report.add(node, f'there is no backend "{node.text}"', allowed=(*backends, ORACLE), near=node.text)
    return node.text


def _subject(node: Node | None, backends: Sequence[BackendSpec], report: Problems) -> tuple[str, ...]:
    """The backends that a file judges: those that it names, by default those with a user's ops; none if it judges all.

    `backends`: the allowed ones, empty for no check.
    """
    names = [spec.name for spec in backends]
    given = () if node is None else node.items if node.is_list else (node,)
    for item in given:
        if item.text and names and item.text not in names:
            report.add(item, f'there is no backend "{item.text}"', allowed=names, near=item.text)
    return tuple(item.text for item in given) or own_kernels(backends)


def _backends(document: Document, report: Problems) -> tuple[tuple[BackendSpec, Node], ...]:
    node = document.get("backends")
    if node is None:
        if document.complete:
            message = 'the config needs "backends", for example backends: [torch, paddle]'
            report.add_file(str(document.path), message)
        return ()
    return parse_backends(node, report)


def _known(document: Document, backends: Sequence[str], report: Problems) -> tuple[KnownDeviation, ...]:
    """The `known` entries; an included one may name a backend that the including file leaves out."""
    entries = []
    for node in document.known:
        own = node.file == str(document.path)
        entries.append(parse_known(node, report, backends if own else ()))
    return tuple(entry for entry in entries if entry is not None)


def _compared_by_op(cases: Iterable[BuiltCase]) -> dict[str, tuple[str, ...]]:
    compared: dict[str, dict[str, None]] = {}
    for built in cases:
        compared.setdefault(built.plan.op, {}).update(dict.fromkeys(built.compared))
    return {op: tuple(names) for op, names in compared.items()}


def _named(cases: tuple[BuiltCase, ...], report: Problems) -> tuple[BuiltCase, ...]:
    """The cases of a file with unique ids: automatic ones get a number, duplicate written ones are reported."""
    taken: dict[str, BuiltCase] = {}
    for built in cases:
        if built.named and built.plan.id:
            _claim(built, taken, report)
    n_wanted: Counter[str] = Counter()
    named = []
    for built in cases:
        case_id = wanted = built.plan.id
        while not built.named and case_id in taken:
            n_wanted[wanted] += 1
            case_id = f"{wanted}-{n_wanted[wanted] + 1}"
        renamed = built if case_id == wanted else built.with_plan(id=case_id)
        taken.setdefault(case_id, renamed)
        named.append(renamed)
    return tuple(named)


def _claim(built: BuiltCase, taken: dict[str, BuiltCase], report: Problems) -> bool:
    """Claim an id; if it is taken, report both locations and return False."""
    first = taken.setdefault(built.plan.id, built)
    if first is built:
        return True
    node = built.node.get("id") or built.node
    other = first.node.get("id") or first.node
    if other == node:
        makes = "an alias lists the case twice, which makes" if built.node.get("sweep") is None else "the sweep makes"
        report.add(node, f'{makes} two cases with the id "{built.plan.id}"', value=False)
        return False
    if other.file == node.file:
        report.add(node, f'duplicate id "{built.plan.id}": the case in line {other.line} has it, too')
        return False
    location = f"{other.file}:{other.line}"
    report.add(
        node, f'duplicate id "{built.plan.id}": the case in {location} has it, too; rename one of them, {ONE_RUN}'
    )
    return False


def _draft(files: Sequence[FilePlan], report: Problems) -> Draft:
    stems = [file.document.path.stem for file in files]
    name = stems[0] if len(stems) == 1 else f"{stems[0]}-and-{len(stems) - 1}-more"
    configs = dict.fromkeys(config for file in files for config in file.document.files)
    backends = _united_backends(files, report)
    return Draft(
        name=name,
        configs=tuple(configs),
        backends=tuple(backends),
        backends_ok=all(file.backends_ok for file in files),
        seed=_united_seed(files, report),
        cases=_united_cases(files, report),
        known=_united_known(files),
    )


def _united_known(files: Sequence[FilePlan]) -> tuple[KnownDeviation, ...]:
    """The entries of all files, each for the cases of its own file, or of those that include it."""
    if len(files) == 1:
        return files[0].known
    cases: dict[KnownDeviation, frozenset[str]] = {}
    for file in files:
        ids = frozenset(built.plan.id for built in file.cases)
        for entry in file.known:
            cases[entry] = cases.get(entry, frozenset()) | ids
    return tuple(replace(entry, config_cases=ids) for entry, ids in cases.items())


def _united_backends(files: Sequence[FilePlan], report: Problems) -> list[BackendSpec]:
    united: dict[str, tuple[BackendSpec, Node]] = {}
    for file in files:
        for spec, node in file.backends:
            first, first_node = united.setdefault(spec.name, (spec, node))
            if first != spec:
                location = f"{first_node.file}:{first_node.line}"
                report.add(node, f'"{spec.name}" is a different backend in {location}; rename one of them, {ONE_RUN}')
    return [spec for spec, _ in united.values()]


def _united_seed(files: Sequence[FilePlan], report: Problems) -> int:
    first = files[0]
    for file in files[1:]:
        if file.seed != first.seed:
            message = f"different seeds in one run: {file.seed} here, {first.seed} in {first.document.path}"
            message += f"; use one seed, {ONE_RUN}"
            node = file.document.get("seed")
            report.add_file(str(file.document.path), message, node.line if node is not None else 0)
    return first.seed


def _united_cases(files: Sequence[FilePlan], report: Problems) -> tuple[BuiltCase, ...]:
    """The cases of all files, each with its file's backends, baseline and subject.

    A case that two files include is taken once, with the backends of both.
    """
    taken: dict[str, BuiltCase] = {}
    for file in files:
        ids = set()
        for built in file.cases:
            case_id, same = built.plan.id, taken.get(built.plan.id)
            if case_id in ids:
                continue
            if same is not None and _question(same) == _question(built):
                both = tuple(dict.fromkeys(same.plan.backends + built.plan.backends))
                judged = (same.plan.subject, built.plan.subject)
                subject = tuple(dict.fromkeys(judged[0] + judged[1])) if all(judged) else ()
                taken[case_id] = same.with_plan(backends=both, subject=subject)
                continue
            ids.add(case_id)
            _claim(built, taken, report)
    return tuple(taken.values())


def _question(built: BuiltCase) -> CasePlan:
    """A case without its backends, baseline and subject."""
    return built.with_plan(backends=(), baseline="", subject=()).plan
