"""`parity accept`: what a stored run found becomes `known` entries of the configs that it came from."""

from __future__ import annotations

import datetime
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from parity.config import ConfigError, load_plan
from parity.config.documents import Document, read_document
from parity.config.known_edit import EditError, KnownEdit, edited, entry_text
from parity.config.nodes import Problems, printable
from parity.config.plan import KnownDeviation, Overrides, Plan
from parity.errors import UserError
from parity.exit_codes import INTERRUPTED
from parity.judge.acceptance import JudgedRun, lacking, outgrown, unsupported
from parity.judge.compare.verdict import Verdict
from parity.judge.known import EntryState, matches
from parity.reporting.console.explain import case_called, choices, hint
from parity.reporting.results import record
from parity.reporting.results.cells import failing_level
from parity.reporting.results.results import read_results, write_atomically
from parity.reporting.results.resume import question
from parity.reporting.results.rows import FINDINGS, CaseRow, KnownRow, Results
from parity.reporting.text.words import plural

MAX_REASON = 160
UNFINISHED = "the run was interrupted, so only what it finished is accepted"


class AcceptError(UserError):
    """The request cannot be accepted, and nothing is written; the message says why and what to do."""


@dataclass(frozen=True)
class AcceptRequest:
    """What to accept, None for all: findings if there is a `reason`, unsupported cells, entries to drop."""

    reason: str | None
    until: datetime.date
    case: str | None = None
    backend: str | None = None
    dtype: str | None = None
    diagnosis: str | None = None
    unsupported: bool = False
    expired: bool = False

    def chosen(self, case: str, dtype: str, backend: str, cause: str | None) -> bool:
        """Whether the request covers a cell and its cause."""
        asked = (self.case, self.dtype, self.backend, self.diagnosis)
        return all(want in (None, got) for want, got in zip(asked, (case, dtype, backend, cause), strict=True))


@dataclass(frozen=True)
class FileChange:
    """A config before and after, as bytes."""

    path: Path
    before: bytes
    after: bytes
    edit: KnownEdit

    def diff(self) -> str:
        """The change as a patch."""
        before, after = (data.decode("utf-8-sig").splitlines() for data in (self.before, self.after))
        return "\n".join(difflib.unified_diff(before, after, str(self.path), str(self.path), lineterm=""))

    def write(self) -> None:
        """Replace the file as a whole, with its permissions; a link stays one. Raises OSError."""
        target = self.path.resolve()
        mode = target.stat().st_mode & 0o777
        write_atomically(target, self.after)
        target.chmod(mode)

    def lines(self) -> Iterator[str]:
        """What became of the file."""
        edit = self.edit
        counted = ((edit.added, "added"), (edit.changed, "renewed"), (edit.dropped, "dropped"))
        said = ", ".join(f"{plural(len(part), 'entry', 'entries')} {done}" for part, done in counted if part)
        yield f"{printable(str(self.path))}: {said}"
        yield from (entry_text(known, 2) for known in (*edit.added, *(new for _, new in edit.changed)))
        yield from (f"  dropped: {entry_text(known)[2:]}" for known in edit.dropped)


@dataclass(frozen=True)
class Acceptance:
    """The files that change, and notes on what is left."""

    changes: tuple[FileChange, ...]
    notes: tuple[str, ...] = field(default=())


def acceptance(run_dir: Path, request: AcceptRequest, today: datetime.date) -> Acceptance:
    """The changes that make the run pass as far as requested; raises AcceptError, ExplainError and ResultsError."""
    results = read_results(run_dir)
    request = checked(request, results)
    plan, documents = current(results)
    cannot = record.unsupported(results.outcomes)
    messages = {row.key: shortened(row.message) for row in results.outcomes if row.key in cannot}
    rows = [structs.replace(row, known=None) for row in results.comparisons]
    run = JudgedRun(plan, rows, results.diagnoses, messages, today)
    level = FINDINGS | failing_level(results)
    dropped = stale(request, plan.known, results.known) if request.expired else []
    changed = renewed(run, request)
    # An error that is no longer finite has no limit: such entries are replaced by new ones.
    dropped += [old for old, new in changed if old.error_ratio and not new.error_ratio]
    changed = [pair for pair in changed if pair[0] not in dropped]
    replaced = dict(changed)
    kept = tuple(replaced.get(known, known) for known in plan.known if known not in dropped)
    run = replace(run, plan=replace(plan, known=kept))
    added = {path: list(new_entries(run, request, level, cases)) for path, cases in owned(documents, plan).items()}
    changes = file_changes(dropped, changed, added)
    known = (*kept, *(entry for entries in added.values() for entry in entries))
    cut = [UNFINISHED] if results.summary.exit_code == INTERRUPTED else []
    return Acceptance(tuple(changes), (*cut, *notes(run, known, request, level)))


def checked(request: AcceptRequest, results: Results) -> AcceptRequest:
    """The request with the case's id; raises AcceptError where the run has no such name."""
    names = {
        "backend": (request.backend, results.backend_names),
        "dtype": (request.dtype, sorted({dtype for case in results.cases for dtype in case.dtypes})),
        "diagnosis": (request.diagnosis, sorted({cause.id for cause in results.diagnoses})),
    }
    for what, (name, there) in names.items():
        if name is not None and name not in there:
            raise AcceptError(f'this run has no {what} "{printable(name)}"{hint(name, there)}{choices(there)}')
    return request if request.case is None else replace(request, case=case_called(request.case, results).id)


def current(results: Results) -> tuple[Plan, list[Document]]:
    """The plan of the run's configs as they are now, and the named configs; raises AcceptError if the plan differs."""
    paths = [Path(config.path) for config in results.run.configs]
    gone = [path for path in paths if not path.is_file()]
    if gone or not paths:
        what = f"{gone[0]}, the config of this run, is not there" if gone else "this run does not name its config"
        raise AcceptError(f"{printable(what)}; call `parity accept` from the directory in which it was run")
    documents = [read_document(path, Problems()) for path in paths]
    included = {file.path for document in documents for file in document.files[:-1]}
    named = [document for document in documents if str(document.path) not in included]
    try:
        plan = load_plan([document.path for document in named], Overrides())
    except ConfigError as error:
        raise AcceptError(f"{error}\nthe config has errors, so nothing was written") from error
    digests = {config.path: config.sha256 for config in plan.configs}
    changed = [config.path for config in results.run.configs if digests.get(config.path) != config.sha256]
    if changed and (other := next(unfit(plan, results), None)):
        raise AcceptError(f"{changed[0]} changed since the run: {other}; run it again, then accept")
    return plan, named


def unfit(plan: Plan, results: Results) -> Iterator[str]:
    """The differences between a run and its configs as they are now."""
    cases = {case.id: record.case_row(case, None) for case in plan.cases}
    for row in results.cases:
        now = cases.get(row.id)
        if now is None:
            yield f"it has no case {row.id} any more"
        elif not set(row.dtypes) <= set(now.dtypes) or asked(row) != asked(now):
            yield f"its case {row.id} is another one"
    there = {spec.name for spec in plan.backends}
    yield from (f"it has no backend {name} any more" for name in results.backend_names if name not in there)


def asked(row: CaseRow) -> object:
    """What a case computes, in whatever dtypes, and whoever is judged."""
    return question(structs.replace(row, dtypes=[], subject=[]))


def stale(request: AcceptRequest, entries: Iterable[KnownDeviation], rows: Iterable[KnownRow]) -> list[KnownDeviation]:
    """The entries whose cells no longer deviate, according to the run."""
    states = (EntryState.STALE.value, EntryState.EXPIRED.value)
    gone = {keys(row) for row in rows if row.state in states and not row.n_matched}
    entries = [known for known in entries if keys(known) in gone]
    if request.case is not None:
        entries = [known for known in entries if matches(request.case, known.case)]
    names = ("backend", "dtype", "diagnosis")
    return [known for known in entries if all(getattr(request, n) in (None, getattr(known, n)) for n in names)]


def keys(known: KnownDeviation | KnownRow) -> tuple[str | None, ...]:
    """The keys by which an entry selects cells."""
    outcome = known.unsupported if isinstance(known, KnownDeviation) else known.outcome is not None
    until = None if known.until is None else str(known.until)
    return known.case, known.backend, known.dtype, known.tensor, known.diagnosis, until, str(outcome)


def renewed(run: JudgedRun, request: AcceptRequest) -> list[tuple[KnownDeviation, KnownDeviation]]:
    """Entries that are outgrown or out of date, each with its replacement."""
    old = [e for e in outgrown(run, request.chosen) if (request.unsupported if e.unsupported else request.reason)]
    new = [replace(e, reason=request.reason or e.reason, until=request.until) for e in old]
    return list(zip(old, run.sized(new), strict=True))


def owned(documents: Sequence[Document], plan: Plan) -> dict[Path, set[str]]:
    """The cases of each named config, including those of its includes."""
    cases: dict[Path, set[str]] = {document.path: set() for document in documents}
    for case in plan.cases:
        files = ((document.path, {file.path for file in document.files}) for document in documents)
        cases[next(path for path, names in files if case.source.file in names)].add(case.id)
    return cases


def new_entries(
    run: JudgedRun, request: AcceptRequest, level: frozenset[str], cases: set[str]
) -> Iterator[KnownDeviation]:
    """The entries that the cases of one config lack, with reason and date."""

    def chosen(case: str, dtype: str, backend: str, cause: str | None) -> bool:
        return case in cases and request.chosen(case, dtype, backend, cause)

    for known in lacking(run, chosen, level) if request.reason else ():
        yield replace(known, reason=request.reason or "", until=request.until)
    for known in unsupported(run, chosen) if request.unsupported else ():
        yield replace(known, until=request.until)


def shortened(message: str) -> str:
    """The first line of a framework's message, as a reason."""
    line = printable(message.strip().partition("\n")[0].strip()) or "the backend cannot compute it"
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."


def file_changes(
    dropped: Sequence[KnownDeviation],
    changed: Sequence[tuple[KnownDeviation, KnownDeviation]],
    added: dict[Path, list[KnownDeviation]],
) -> Iterator[FileChange]:
    """The files with their new text; raises AcceptError where one cannot be changed."""
    paths = [*(Path(known.source.file) for known in dropped), *(Path(old.source.file) for old, _ in changed)]
    for path in dict.fromkeys([*paths, *(path for path, entries in added.items() if entries)]):
        edit = KnownEdit(
            tuple(known for known in dropped if Path(known.source.file) == path),
            tuple((old, new) for old, new in changed if Path(old.source.file) == path),
            tuple(added.get(path, ())),
        )
        try:
            if not os.access(path, os.W_OK) or not path.stat().st_mode & 0o222:
                raise AcceptError(f"{printable(str(path))} is read-only; nothing was written")
            before = path.read_bytes()
            mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
            after = mark + edited(before.decode("utf-8-sig"), edit).encode()
        except OSError as error:
            raise AcceptError(f"cannot read {printable(str(path))}: {error.strerror or error}") from error
        except EditError as error:
            entries = "\n".join(entry_text(known, 2) for known in (*edit.added, *(new for _, new in edit.changed)))
            raise AcceptError(f"{printable(str(path))}: {error}\n{entries}") from error
        yield FileChange(path, before, after, edit)


def notes(
    run: JudgedRun, known: Iterable[KnownDeviation], request: AcceptRequest, level: frozenset[str]
) -> Iterator[str]:
    """What would still fail a run with these entries, and how to accept it."""
    held = run.held(known)
    judged = [c for c in held.comparisons if c.known is None and c.counts]
    left = {(c.case, c.dtype, c.tensor) for c in judged if c.verdict in level}
    if left:
        more = "" if request.reason else "; --reason TEXT accepts them"
        yield f"{plural(len(left), 'tensor')} still {'differs' if len(left) == 1 else 'differ'}{more}"
    absent = [c for c in judged if c.verdict is Verdict.NOT_COMPARED]
    cannot = [c for c in absent if any((c.case, c.dtype, n) in run.unsupported for n in (c.actual, c.expected))]
    for group, what in ((cannot, "unsupported"), ([c for c in absent if c not in cannot], "not compared")):
        if tensors := len({(c.case, c.dtype, c.tensor) for c in group}):
            more = "" if request.unsupported else "; --unsupported accepts them"
            if group is not cannot:
                more = f", which is never accepted ({shortened(group[0].message)})"
            yield f"{plural(tensors, 'tensor')} {what}{more}"
    for entry in held.entries:
        if entry.state.fails:
            yield entry.message + ("" if request.expired or entry.n_matched else "; --expired drops it")
