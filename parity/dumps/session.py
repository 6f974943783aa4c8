"""`parity compare`: two dumps to the rows of a run, as they stream by."""

from __future__ import annotations

import datetime
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from parity.cases.options import differing
from parity.config.errors import ConfigError
from parity.config.known import parse_known
from parity.config.nodes import Problems, printable
from parity.config.plan import ORACLE, Asked, KnownDeviation, Plan
from parity.config.tolerance_grammar import parse_options
from parity.config.yaml_lines import read_yaml
from parity.dumps.compare import ComparedTensor, Partners, Rules, against, compared, judged, structural
from parity.dumps.hints import CORNER, MOST_IN_MEMORY, hint_of, joined, twin
from parity.dumps.matching import How, Matching, Moments, Pair, TensorSummary, Transform, match
from parity.dumps.tensors import Dump, DumpError, Stored
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import Outcome
from parity.reporting.results.directory import Losses
from parity.reporting.results.record import cpu_model
from parity.reporting.results.results import as_json, write_atomically
from parity.reporting.results.rows import FILE_NAME, BackendRow, CaseRow, OutcomeRow, Results, RunRow, SourceLocation
from parity.reporting.results.store import BACKENDS, CASES, LARGE, RUN, STORE, Store
from parity.reporting.results.summary import settle
from parity.reporting.text.evidence import FITS
from parity.reporting.text.words import grouped
from parity.version import __version__

KIND = "dump"
"""The op of the rows' cases."""
MAX_HINTS = 64
"""Limit on the differing tensors that are searched for a cause, the first in order."""
HINTED = 1 << 24
"""Limit on the elements that are searched in these together: a large tensor takes half a second."""
MAX_JOINED = 32
"""Number of unpaired tensors that are searched for in others."""
MAX_OPTIONS, MAX_TEXT = 50, 300
CALL = re.compile(r"(?:.*\.)?call\d+(?=\.)")
"""The call in a name that `parity capture` gives: `encoder.2.norm1.call0.output.0`."""


@dataclass(frozen=True)
class CompareOptions:
    """What the command line asks for; `mapping` is that of a file, `known` are the accepted deviations."""

    rules: Rules = field(default_factory=Rules)
    mapping: Mapping[str, tuple[str, Transform]] = field(default_factory=dict)
    known: tuple[KnownDeviation, ...] = ()
    fail_on: str = "degraded"


@dataclass(frozen=True)
class ComparisonJob:
    """Two dumps with their names in the report and their matching; the third judges both, if there is one.

    `truths` maps each dump's tensor names to their partners in the third, with the transform.
    """

    left: Dump
    right: Dump
    names: tuple[str, str]
    matching: Matching
    truth: Dump | None = None
    truths: tuple[Mapping[str, Partners], Mapping[str, Partners]] = ({}, {})

    @property
    def judged(self) -> tuple[str, ...]:
        """The compared dumps: both with the truth if there is one, else the left one with the right one."""
        return self.names if self.truth else self.names[:1]

    @property
    def partners(self) -> Iterator[tuple[Pair, Partners]]:
        """Every pair with its tensors; those of equal names are compared without a transform."""
        left, right = ({tensor.name: tensor for tensor in dump.tensors} for dump in (self.left, self.right))
        for pair in self.matching.pairs:
            transform = Transform() if pair.how is How.EXACT else pair.transform
            yield pair, Partners(left[pair.left], right[pair.right], transform)


def names_of(left: Path, right: Path) -> tuple[str, str]:
    """The names of the dumps: the ends of their paths in which they differ."""
    ends = [path.resolve().parts for path in (left, right)]
    for n in range(1, max(map(len, ends)) + 1):
        names = ["/".join(parts[-n:]) for parts in ends]
        if names[0] != names[1] and ORACLE not in names:
            return names[0], names[1]
    return f"{left.name} (left)", f"{right.name} (right)"


def prepared(left: Dump, right: Dump, truth: Dump | None, options: CompareOptions) -> ComparisonJob:
    """All dumps with their tensors matched; raises DumpError, and MatchingError for a mapping that does not fit."""
    matching = matched(left, right, options.mapping)
    if truth is None:
        return ComparisonJob(left, right, names_of(left.path, right.path), matching)
    by_name = {tensor.name: tensor for tensor in truth.tensors}
    partners = []
    for dump in (left, right):
        mine = {tensor.name: tensor for tensor in dump.tensors}
        pairs = matched(dump, truth, {}).pairs
        partners.append({p.left: Partners(mine[p.left], by_name[p.right], p.transform) for p in pairs})
    if not any(partners):
        raise DumpError(f"{truth.path}: none of its tensors has a partner")
    return ComparisonJob(left, right, names_of(left.path, right.path), matching, truth, (partners[0], partners[1]))


def matched(left: Dump, right: Dump, mapping: Mapping[str, tuple[str, Transform]]) -> Matching:
    """The matching of two dumps, with the layouts of weights that captures know of."""
    matching = paired(left, right, mapping)
    return replace(matching, pairs=tuple(laid_out(pair, left, right) for pair in matching.pairs))


def laid_out(pair: Pair, left: Dump, right: Dump) -> Pair:
    """A pair of the same name, transposed if it is a weight that one of two captures has as [in, out]."""
    layer, weight, _ = pair.left.rpartition(".weight")
    if pair.how is How.MAPPING or pair.left != pair.right or not weight:
        return pair
    one_of_two = (layer in left.in_out) != (layer in right.in_out)
    return replace(pair, how=How.NAME, transform=Transform((1, 0)), doubt="") if one_of_two else pair


def paired(left: Dump, right: Dump, mapping: Mapping[str, tuple[str, Transform]]) -> Matching:
    """The pairs of two dumps; only tensors that names do not pair get fingerprints."""
    ours, theirs = entries(left), entries(right)
    if len(ours) == len(theirs) == 1 and not mapping:
        return Matching((only_pair(ours[0].name, theirs[0].name),), (), ())
    matching = match(ours, theirs, mapping, by_order=False)
    if not (matching.left_only and matching.right_only):
        return matching
    shared = {e.size for e in ours if e.name in set(matching.left_only)}
    shared &= {e.size for e in theirs if e.name in set(matching.right_only)}
    ours, theirs = (
        marked(ours, left, set(matching.left_only), shared),
        marked(theirs, right, set(matching.right_only), shared),
    )
    return match(ours, theirs, mapping, by_order=left.ordered and right.ordered)


def only_pair(left: str, right: str) -> Pair:
    """The pair of two dumps with one tensor each, whatever their names, without a transform."""
    return Pair(left, right, How.EXACT if left == right else How.ORDER)


def entries(dump: Dump) -> list[TensorSummary]:
    """The tensors as the matching knows them."""
    return [TensorSummary(tensor.name, tensor.shape, tensor.dtype, i) for i, tensor in enumerate(dump.tensors)]


def marked(unmarked: Sequence[TensorSummary], dump: Dump, names: set[str], sizes: set[int]) -> list[TensorSummary]:
    """The entries, with fingerprints of those with these names and sizes; raises DumpError."""
    stored = {tensor.name: tensor for tensor in dump.tensors}
    return [
        replace(entry, fingerprint=fingerprint(stored[entry.name]))
        if entry.name in names and entry.size in sizes
        else entry
        for entry in unmarked
    ]


def fingerprint(tensor: Stored) -> Any:
    """The fingerprint of a tensor, part by part; raises DumpError."""
    moments = Moments()
    for part, _ in Partners(tensor, tensor).parts():
        moments.add(part)
    return moments.fingerprint()


def parse_limits(rtol: Sequence[str], atol: Sequence[str], job_names: Sequence[str]) -> tuple[Any, ...]:
    """The tolerances of the command line; raises ConfigError."""
    problems = Problems()
    rules = [
        *parse_options("rtol", rtol, job_names, problems),
        *parse_options("atol", atol, job_names, problems),
    ]
    if len(problems):
        raise ConfigError(problems.problems)
    return tuple(rules)


def read_known(path: Path, names: Sequence[str]) -> tuple[KnownDeviation, ...]:
    """The entries of `known` of a file, in the config's grammar; raises ConfigError."""
    problems = Problems()
    file = read_yaml(path, problems, start="it must have a list `known:`")
    node = file.root.get("known") if file else None
    if file and (node is None or not node.is_list):
        problems.add(file.root, "it must have a list `known:`", key="known")
    deviations = [parse_known(item, problems, names) for item in (node.items if node else ())]
    if len(problems):
        raise ConfigError(problems.problems)
    return tuple(entry for entry in deviations if entry is not None)


@dataclass
class Session:
    """A comparison under way: its rows go to the store of the run directory."""

    job: ComparisonJob
    options: CompareOptions
    run_dir: Path
    command: Sequence[str]
    advance: Callable[[str, int], None] = lambda name, n_bytes: None  # noqa: ARG005
    losses: Losses = field(default_factory=Losses)
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    clock: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.store = Store(self.run_dir / STORE, self.lose)
        self.failing: list[tuple[Comparison, Partners]] = []
        self.cases = cases_of(self.job)
        self.rows: dict[str, CaseRow] = {case.id: case for case in self.cases}
        self.done: dict[tuple[str, str], None] = {}

    def lose(self, error: OSError) -> None:
        """Note that the store could not be written."""
        self.losses.reasons[self.run_dir / STORE] = error

    def run(self) -> Results:
        """Compare everything and look for causes; Ctrl-C keeps what was compared. Raises DumpError."""
        self.store.put(CASES, self.cases)
        interrupted = False
        try:
            self.stream()
            self.explain()
        except KeyboardInterrupt:
            interrupted = True
        return self.finished(interrupted=interrupted)

    def stream(self) -> None:
        """Compare every pair in the order of the left dump, then report tensors without a partner."""
        for _, pair in self.job.partners:
            self.take(pair)
            self.advance(pair.left.name, pair.left.nbytes + pair.right.nbytes)
        left, right = self.lonely()
        names = self.job.names
        for index, (mine, theirs, dump) in enumerate(((left, right, self.job.left), (right, left, self.job.right))):
            for i, tensor in enumerate(mine):
                words = [f"{names[1 - index]} does not have it"]
                if i < MAX_JOINED:
                    owner_first = names[index], names[1 - index]
                    words += [joined(tensor, theirs, owner_first, self.options.rules) or twin(tensor, dump.tensors)]
                lonely_names = ComparedTensor(case_of(tensor.name), tensor.name, *names)
                self.add([structural(lonely_names, tensor.dtype, "; ".join(filter(None, words)))])

    def lonely(self) -> tuple[list[Stored], list[Stored]]:
        """The tensors of both dumps without a partner."""
        job, only = self.job, (set(self.job.matching.left_only), set(self.job.matching.right_only))
        left, right = (
            [tensor for tensor in dump.tensors if tensor.name in names]
            for dump, names in zip((job.left, job.right), only, strict=True)
        )
        return left, right

    def take(self, pair: Partners) -> None:
        """Compare two tensors, and both with the truth if it has them."""
        names = ComparedTensor(case_of(pair.left.name), pair.left.name, *self.job.names)
        try:
            both, _ = compared(names, pair, self.options.rules)
            mine, theirs = self.job.truths[0].get(pair.left.name), self.job.truths[1].get(pair.right.name)
            if mine is None or theirs is None:
                made = [both]
            else:
                both = structs.replace(both, oracle_value=mine.right_at(both.worst_index))
                with_truth = zip((mine, theirs), self.job.names, strict=True)
                rules = self.options.rules
                (left, size), (right, _) = (against(names, one, rules, name) for one, name in with_truth)
                made = list(judged(both, left, right, size))
        except DumpError as error:
            unread = comparison_of(
                names.case, pair.dtypes[0], names.tensor, names.left, names.right, Verdict.NOT_COMPARED, 0.0, 0.0
            )
            made = [structs.replace(unread, message=printable(str(error)))]
        self.add(made)
        if made[0].verdict.fails:
            self.failing.append((made[0], pair))

    def add(self, comparisons: Sequence[Comparison]) -> None:
        """Rows of one tensor."""
        self.store.add(map(row_of, comparisons))
        for comparison in comparisons:
            self.done.setdefault((comparison.case, comparison.dtype))

    def explain(self) -> None:
        """Store diagnoses of the first tensors that differ."""
        left = HINTED
        for i, (comparison, _) in enumerate(self.failing[:MAX_HINTS]):
            culprit = comparison.culprit[0] if comparison.culprit else ""
            peers = [self.suspect(other, culprit) for _, other in self.failing]
            pair = peers[i]
            left -= pair.left.size if pair.left.size <= MOST_IN_MEMORY else CORNER
            if left < 0:
                break
            names = (culprit, "the truth") if culprit else self.job.names
            try:
                hint = hint_of(pair, peers, names, self.options.rules)
            except (DumpError, MemoryError):
                continue
            if hint is None:
                continue
            if comparison.verdict is Verdict.STRUCTURE:
                self.store.change(
                    MESSAGE, f"the shapes differ; {hint.text}; {REMEDY}", comparison.case, comparison.tensor
                )
                continue
            diagnosis = Diagnosis(
                comparison.case,
                comparison.dtype,
                culprit or comparison.actual,
                hint.diagnosis or "unexplained",
                hint.text,
                (comparison.tensor,),
                explained=hint.diagnosis not in UNFIT,
                evidence={} if hint.diagnosis in UNFIT else {FITS: fitted(pair)},
            )
            self.store.add([diagnosis])

    def suspect(self, pair: Partners, culprit: str) -> Partners:
        """The culprit's tensor and the truth's, if a culprit is known; else the pair itself."""
        if not culprit:
            return pair
        index = self.job.names.index(culprit)
        return self.job.truths[index].get((pair.left, pair.right)[index].name, pair)

    def finished(self, *, interrupted: bool) -> Results:
        """The run's own rows, and its results."""
        outcomes = [
            OutcomeRow(case=case, dtype=dtype, backend=name, outcome=Outcome.OK.value, message="")
            for case, dtype in self.done
            for name in self.job.judged
        ]
        self.store.add(outcomes)
        dumps = zip((self.job.left, self.job.right), self.job.names, strict=True)
        rows = [backend(dump, name) for dump, name in dumps]
        rows[0].flags["options"] = list(itertools.islice(differing_options(self.job), MAX_OPTIONS))
        self.store.put(BACKENDS, rows)
        self.store.put(RUN, [self.run_row()])
        asked = Asked(tuple((case.id, tuple(case.dtypes)) for case in self.cases), self.job.judged)
        plan = Plan("", (), (), self.job.names[1], 0, (), self.options.known, asked)
        settle(self.store, plan, self.options.fail_on, interrupted=interrupted)
        results = self.store.shown()
        if len(outcomes) < LARGE:
            with self.losses.at(self.run_dir / FILE_NAME):
                write_atomically(self.run_dir / FILE_NAME, as_json(results))
        self.store.close()
        return results

    def run_row(self) -> RunRow:
        """The `run` object."""
        return RunRow(
            id=self.run_dir.name,
            started=self.started.isoformat(),
            parity=__version__,
            command=list(self.command),
            baseline=self.job.names[1],
            host={"cpu": cpu_model(), "cores": os.cpu_count()},
            fail_on=self.options.fail_on,
            seconds=round(time.monotonic() - self.clock, 3),
        )


def row_of(row: Comparison) -> Comparison:
    """A row of `comparisons`; a screened tensor lacks some numbers."""
    unmeasured = [name for name in ("max_rel_diff", "required_rtol") if str(getattr(row, name)) == "nan"]
    return structs.replace(row, **dict.fromkeys(unmeasured)) if unmeasured else row


REMEDY = "--write-mapping writes the transform, and --mapping applies it"


UNFIT = ("", "localized")
"""Hints that say where or how values differ, but do not predict them."""


def fitted(pair: Partners) -> str:
    """What a hint holds for."""
    where = "" if pair.left.size <= MOST_IN_MEMORY else f" of a corner of {CORNER:,} elements"
    return f"every element{where}, within the tolerance"


MESSAGE = "UPDATE comparisons SET message = ? WHERE case_id = ? AND tensor = ?"


def backend(dump: Dump, name: str) -> BackendRow:
    """A dump as a row of `backends`."""
    flags = {"tensors": len(dump.tensors), "bytes": dump.nbytes, "notes": list(dump.notes)}
    return BackendRow(name=name, framework=dump.path.suffix.removeprefix(".") or "folder", version="", flags=flags)


def differing_options(job: ComparisonJob) -> Iterator[str]:
    """The options in which a layer of both captures differs: `norm1: eps 1e-05, 0.001`."""
    for layer, mine in job.left.options.items():
        differences = differing(mine, job.right.options.get(layer, {}))
        apart = [f"{key} {ours}, {theirs}" for key, (ours, theirs) in differences.items()]
        if apart:
            yield printable(f"{layer or 'the model'}: {'; '.join(apart)}"[:MAX_TEXT])


def case_of(name: str) -> str:
    """The layer that a tensor belongs to: its name without the last part, or the whole name; the call of a layer, in a
    capture."""
    call = CALL.match(name)
    if call:
        return call[0]
    return name.rpartition(".")[0] or name.rpartition("/")[0] or name


def cases_of(job: ComparisonJob) -> list[CaseRow]:
    """The layers in order, with the pairs of them that were not found by their names."""
    left, right = ({tensor.name: tensor for tensor in dump.tensors} for dump in (job.left, job.right))
    dtypes = {pair.left: partners.dtypes[0] for pair, partners in job.partners}
    listed = [(name, dtypes.get(name, left[name].dtype)) for name in left]
    listed += [(name, right[name].dtype) for name in job.matching.right_only]
    by_left = {pair.left: pair for pair in job.matching.pairs}
    ordered = job.left.ordered
    cases = []
    for case, tensors in grouped((case_of(name), (name, dtype)) for name, dtype in listed).items():
        pairs = [by_left[name] for name, _ in tensors if name in by_left and by_left[name].how is not How.EXACT]
        params = {"ordered": ordered, "pairs": {pair.left: pairing_row(pair) for pair in pairs}}
        own = list(dict.fromkeys(dtype for _, dtype in tensors))
        cases.append(CaseRow(case, KIND, params, own, {}, SourceLocation(str(job.left.path), 1), list(job.judged)))
    return cases


def pairing_row(pair: Pair) -> dict[str, str]:
    """How a pair was found."""
    row = {"right": pair.right, "how": pair.how.value, "transform": str(pair.transform), "doubt": pair.doubt}
    return {key: value for key, value in row.items() if value}
