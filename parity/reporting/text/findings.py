"""The findings of a run: differences of one op that have the same cause, in all backends, cases and dtypes, are one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.text import Text

from parity.config.nodes import printable
from parity.config.plan import ORACLE
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.causes import NARROW
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.kinds import CaseReport, report_of
from parity.reporting.results.cells import Status, failing_level, tensor_statuses
from parity.reporting.results.rows import FINDINGS, SEVERITY, CaseRow, CellKey, Results
from parity.reporting.text.evidence import CHOICES, HARMLESS, called, evidence_text
from parity.reporting.text.releases import Releases, history, releases_of
from parity.reporting.text.words import few, grouped, listed, number, plural

EDIT = "reference-edit"
MUTATED = "input-mutated"
STATEFUL = "stateful"
OPEN = frozenset(("unexplained", "judge-failed"))
"""Diagnoses without a cause."""
UNNAMED = frozenset((*OPEN, EDIT, "not-identifiable"))
"""Diagnoses that are not the name of a cause."""
LONGEST = 240
"""Characters of an expression in one line; `explain` has all of it."""
MAX_TENSORS = 5
MAX_DIGITS = 17
SWEPT = re.compile(r"(?:^|-)([A-Za-z_][\w.]*)=(.*?)(?=-[A-Za-z_][\w.]*=|$)")
"""What a case id says about a swept key: `offset=100` of `group-norm-offset=100`."""

WITHOUT_CAUSE: Mapping[str, str] = {
    "rounding": "rounding alone: the tolerance is tighter than the dtype allows",
    "choice": "another valid result where several are right",
    "nonfinite": "NaN or infinity in one backend only",
    "structure": "shape, dtype or set of outputs differs",
}
"""The sentence for differences without a diagnosis, by verdict."""
NO_CAUSE = "unexplained"
NONFINITE = "nonfinite"
STRUCTURE = "structure"
"""The verdict whose message is the cause: values were not compared."""

Cause = tuple[str, str]
"""The id of a diagnosis, and what distinguishes it from others with that id."""


@dataclass(frozen=True)
class Difference:
    """A comparison of which one backend is the culprit, with one of the causes that were found for it."""

    row: Comparison
    backend: str
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Finding:
    """All differences of one op that have the same cause.

    `cases` are all of this op, in the order of the config, `others` the comparisons of each tensor, `alike` the
    diagnoses with this cause anywhere in the run, `releases` the frameworks of which the run has several, and `above`
    the tensors of the findings before this one.
    """

    op: str
    id: str
    title: str
    differences: tuple[Difference, ...]
    cases: tuple[CaseRow, ...]
    others: Mapping[tuple[str, str, str], Sequence[Comparison]]
    alike: Sequence[Diagnosis] = ()
    releases: Sequence[Releases] = ()
    composed: Collection[CellKey] = frozenset()
    """The cells that are parity's own compositions of the framework's calls."""
    above: Collection[tuple[str, str, str]] = frozenset()

    @property
    def backends(self) -> list[str]:
        """The backends that differ."""
        return list(dict.fromkeys(d.backend for d in self.differences))

    @property
    def dtypes(self) -> list[str]:
        """The dtypes in which they occur."""
        return sorted({d.row.dtype for d in self.differences})

    @property
    def tensors(self) -> list[str]:
        """The names of the tensors that differ, the worst first."""
        return list(dict.fromkeys(d.row.tensor for d in self.differences))

    @property
    def n_tensors(self) -> int:
        """The number of tensors; one in two cases or dtypes counts twice."""
        return len(self.tensor_keys)

    @property
    def tensor_keys(self) -> frozenset[tuple[str, str, str]]:
        """The tensors by case, dtype and name."""
        return frozenset(d.row.tensor_key for d in self.differences)

    @property
    def report(self) -> CaseReport:
        """The report of this kind of case."""
        return report_of(self.op)

    @cached_property
    def worst(self) -> Difference:
        """The difference with the worst verdict, and of these the one that exceeds its tolerance most."""
        return self.differences[0]

    @property
    def named(self) -> bool:
        """Whether its id is the name of a cause."""
        return self.id.partition(" ")[0] not in UNNAMED and any(d.diagnosis for d in self.differences)

    @cached_property
    def with_short_axes(self) -> set[str]:
        """The cases with an axis of one element, along which formulas degenerate."""
        return {case.id for case in self.cases if any(1 in item.shape for item in case.inputs.values())}

    def sentence(self) -> Text:
        """`paddle: the variance is E[x^2] - E[x]^2 (variance-naive)`."""
        who = (printable(f"{listed(map(self.composer, self.backends))}: "), "bold")
        return Text.assemble(who, printable(self.title), *((" (", (printable(self.id), "red"), ")") if self.id else ()))

    def composer(self, backend: str) -> str:
        """The backend, or that parity composes its calls in all cells that differ."""
        cells = {(d.row.case, d.row.dtype, d.backend) for d in self.differences if d.backend == backend}
        return f"parity's own composition of {backend} calls" if cells <= set(self.composed) else backend

    def scope(self) -> str:
        """`in y and grad.x of group_norm, float32 and float64, from offset=100 on (7 tensors, 2 of them above)`: what
        is not above adds up to the tensors of all findings."""
        having = list(dict.fromkeys(d.row.case for d in self.differences))
        dtypes = self.dtypes if len(self.dtypes) < 4 else [f"{len(self.dtypes)} dtypes"]
        since = self.report.since(self.worst.diagnosis) or condition(having, self.cases)
        where = [f"in {few(self.tensors, MAX_TENSORS)} of {self.op}", listed(dtypes), since]
        n_above = len(self.tensor_keys & frozenset(self.above))
        shared = f", {n_above} of them above" if n_above else ""
        return printable(f"{', '.join(filter(None, where))} ({plural(self.n_tensors, 'tensor')}{shared})")

    def line(self) -> Text:
        """Sentence and scope in one line."""
        return Text.assemble(self.sentence(), (f" – {self.scope()}", "dim"))

    def history(self) -> str:
        """`paddle: came between 2.6.2 and 3.0.0`, or nothing if the run has one release of each framework."""
        if not self.releases:
            return ""
        having = {*self.backends, *(row.backend for row in self.alike)}
        keys = {d.row.tensor_key for d in self.differences}
        return history(self.releases, having, set.intersection(*(right(self.others[key]) for key in keys)))

    def formula(self) -> str:
        """`computes var = ..., where the reference has ...`, or the fitted parameters, or the wrong rates."""
        plain = sorted(self.differences, key=lambda d: (d.row.verdict == NONFINITE, d.row.case in self.with_short_axes))
        diagnoses = sorted((d.diagnosis for d in plain if d.diagnosis is not None), key=lambda row: not row.explained)
        evidences = [row.evidence for row in diagnoses]
        evidences += [row.evidence for row in self.alike]
        for key in ("expression", "parameters", "rates", "alone", "seen"):
            value = next((evidence[key] for evidence in evidences if evidence.get(key)), None)
            if value:
                return printable(short(evidence_text(key, value)))
        return ""

    def values(self) -> str:
        """`group-norm-offset=10000 float32 grad.x [2, 5, 3, 2]: paddle -633870.8, exact 0.026, torch 0.024`."""
        row, backend = self.beside(), self.worst.backend
        location = " ".join(filter(None, (*row.tensor_key, self.report.part(row, self.worst.diagnosis))))
        if row.worst_index is None:
            return printable(f"{location}: {row.message or 'nothing to compare'}")
        numbers = {row.actual: row.actual_value, row.expected: row.expected_value}
        exact = numbers.pop(ORACLE, row.oracle_value)
        digits = telling(numbers[backend], exact)
        texts = [f"{backend} {number(numbers.pop(backend, None), digits)}"]
        texts += [f"exact {number(exact, digits)}"] if exact is not None else []
        texts += [f"{name} {number(value, digits)}" for name, value in numbers.items()]
        at = " ".join(filter(None, (location, self.report.location(row), row.message)))
        return printable(f"{at}: {', '.join(texts)}")

    def beside(self) -> Comparison:
        """The worst comparison with a backend that is right in this tensor, if there is one: it has both values."""
        worst = self.worst
        mine = [row for row in self.others.get(worst.row.tensor_key, ()) if worst.backend in (row.actual, row.expected)]
        right = [
            row
            for row in mine
            if row.worst_index is not None
            and not row.with_oracle
            and set(row.culprit) <= {worst.backend}
            and row.message == worst.row.message  # the same call
        ]
        return max(right, key=self.report.excess, default=worst.row)

    def advice(self) -> str:
        """Where to look, if no cause has a name."""
        if self.worst.row.verdict not in FINDINGS or self.named or self.id == EDIT:
            return ""
        return printable(next(iter(self.report.advice([d.row for d in self.differences])), ""))


def findings(results: Results) -> list[Finding]:
    """The findings that fail the run, those with a cause first, then the worst."""
    level = failing_level(results)
    return by_cause(results, [row for row in failing(results, level) if row.counts])


def of_others(results: Results) -> list[Finding]:
    """What backends do wrong that the run does not judge."""
    return by_cause(results, [row for row in failing(results, failing_level(results)) if row.is_of_others])


def failing(results: Results, level: Collection[str]) -> Iterator[Comparison]:
    """The comparisons that fail at a level and are not accepted."""
    return (row for row in results.comparisons if row.verdict in level and row.known is None)


def tolerated(results: Results) -> list[Finding]:
    """The findings that only a loose tolerance hides: a backend exceeds the error bound."""
    statuses = tensor_statuses(results)
    hidden = [row for row in results.comparisons if row.hides and row.counts]
    hidden = [row for row in hidden if statuses[row.tensor_key] is Status.SUSPECT]
    ops = {case.id: case.op for case in results.cases}
    return by_cause(results, [row for row in hidden if not (row.message and report_of(ops[row.case]).drifts(row))])


def by_cause(results: Results, rows: Iterable[Comparison]) -> list[Finding]:
    """These comparisons as findings."""
    ops = {case.id: case.op for case in results.cases}
    diagnoses = diagnoses_of(results)
    own = {(*row.tensor_key, row.actual): row for row in results.comparisons if row.with_oracle}
    compared = {row.case for row in results.comparisons}
    groups = grouped(
        ((ops[row.case], *cause_of(own_structure(row, backend, own), diagnosis)), Difference(row, backend, diagnosis))
        for row in rows
        for backend in to_blame(row, own)
        for diagnosis in causes_among(diagnoses.get((*row.tensor_key, backend), ())) or (None,)
    )
    cases = grouped((case.op, case) for case in results.cases if case.id in compared)
    others = grouped((row.tensor_key, row) for row in results.comparisons)
    alike = grouped(((ops.get(row.case), *cause_named(row)), row) for row in results.diagnoses)
    releases, composed = releases_of(results.backends), {row.key for row in results.outcomes if row.composed}
    made = []
    for key, differences in groups.items():
        op = key[0]
        report = report_of(op)
        differences.sort(key=lambda d: (SEVERITY[d.row.verdict], report.excess(d.row)), reverse=True)
        title, same, name = title_of_all(differences), alike.get(key, ()), name_of(key[1], differences)
        made.append(Finding(op, name, title, tuple(differences), tuple(cases[op]), others, same, releases, composed))
    return in_order(made)


def in_order(made: Iterable[Finding]) -> list[Finding]:
    """The findings by rank, each with the tensors of those before it."""
    ordered, above = [], frozenset[tuple[str, str, str]]()
    for finding in sorted(made, key=rank):
        ordered.append(replace(finding, above=above & finding.tensor_keys))
        above |= finding.tensor_keys
    return ordered


def name_of(id_: str, differences: Iterable[Difference]) -> str:
    """The id of a finding: `norm-type in part` where its cause explains none of its differences wholly."""
    names = {called(d.diagnosis) for d in differences if d.diagnosis is not None}
    return id_ if not id_ or not names or id_ in names else min(names)


def causes_among(diagnoses: Sequence[Diagnosis]) -> Sequence[Diagnosis]:
    """The diagnoses of one tensor, with one for all digits that are lost in one narrow format: narrow sums and narrow
    steps are one cause. It is the diagnosis of most tensors."""
    by_format = grouped((lossy_format(row), row) for row in diagnoses)
    kept = {name: max(rows, key=lambda row: len(row.tensors)) for name, rows in by_format.items() if name}
    return [row for row in diagnoses if (name := lossy_format(row)) == "" or kept[name] is row]


def lossy_format(diagnosis: Diagnosis) -> str:
    """The narrow format in which digits are lost; empty for other causes."""
    parameters = diagnosis.evidence.get("parameters") or {}
    return str(parameters.get("format", "")) if diagnosis.id in NARROW else ""


def rank(finding: Finding) -> tuple[int, ...]:
    """Sort key: what depends on earlier calls first, since others may follow from it; then what has a cause, then the
    worst, then what most tensors, dtypes and cases show."""
    cases = {d.row.case for d in finding.differences}
    support = finding.n_tensors, len(finding.dtypes), len(cases)
    return (finding.id != STATEFUL, finding.id in OPEN, -SEVERITY[finding.worst.row.verdict], *(-n for n in support))


def right(rows: Iterable[Comparison]) -> set[str]:
    """The backends that are right in a tensor, among those of its comparisons."""
    compared = [row for row in rows if row.compared]
    wrong = {name for row in compared if row.fails or row.hides for name in row.owners}
    return {name for row in compared for name in (row.actual, row.expected)} - wrong


def to_blame(row: Comparison, own: Mapping[tuple[str, str, str, str], Comparison]) -> Sequence[str]:
    """The backends to which a difference belongs: of several, those that also differ from the oracle, if any does.

    `own`: the comparisons with the oracle, by case, dtype, tensor and backend.
    """
    differ = [name for name in row.owners if (other := own.get((*row.tensor_key, name))) is not None and other.fails]
    return (differ if row.fails else []) or row.owners


def diagnoses_of(results: Results) -> Mapping[tuple[str, str, str, str], Sequence[Diagnosis]]:
    """The diagnoses by case, dtype, tensor and backend."""
    return grouped(
        ((row.case, row.dtype, tensor, row.backend), row)
        for row in results.diagnoses
        if row.id not in HARMLESS or row.id in CHOICES
        for tensor in row.tensors
    )


def cause_of(row: Comparison, diagnosis: Diagnosis | None) -> Cause:
    """The key that groups differences: the diagnosis, else the verdict."""
    if row.verdict == STRUCTURE and not is_of_cause(diagnosis):
        dtypes = OTHER_DTYPE.fullmatch(row.message)
        return "", row.message if dtypes is None else f"{dtypes['who']} has dtype {SIZE.sub('', dtypes['own'])}"
    if diagnosis is None:
        return ("" if row.verdict in WITHOUT_CAUSE else NO_CAUSE), row.verdict
    return cause_named(diagnosis)


OTHER_DTYPE = re.compile(r"(?P<who>.+) has dtype (?P<own>.+), .+ (?P<wanted>\S+)")
"""The message about a tensor whose dtype alone differs."""
SIZE = re.compile(r"\d+")


def own_structure(row: Comparison, backend: str, own: Mapping[tuple[str, str, str, str], Comparison]) -> Comparison:
    """The comparison with the oracle, if the structure of a backend's tensor differs from that of the op: the same
    difference from another backend is no other finding."""
    exact = own.get((*row.tensor_key, backend))
    return exact if row.verdict == STRUCTURE and exact is not None and exact.verdict == STRUCTURE else row


def is_of_cause(diagnosis: Diagnosis | None) -> bool:
    """Whether a diagnosis explains why an output is missing or has another shape, as one of a part of a model does, or
    that it is so in later calls only."""
    return diagnosis is not None and (diagnosis.id in (MUTATED, STATEFUL) or "place" in diagnosis.evidence)


def cause_named(diagnosis: Diagnosis) -> Cause:
    """A diagnosis by its id, an edit without a name by its expression, too, and what is in a part of a model by its
    title, which names all locations of it."""
    title = diagnosis.title if "place" in diagnosis.evidence else ""
    return diagnosis.id, str(diagnosis.evidence.get("expression", "")) if diagnosis.id == EDIT else title


def title_of_all(differences: Sequence[Difference]) -> str:
    """What the cause of some differences is, in words; of other dtypes than the case's, with all of them."""
    first = min(differences, key=lambda d: d.row.call is None) if is_stateful(differences) else differences[0]
    own = [d for d in differences if d.row.with_oracle] or differences
    matches = [OTHER_DTYPE.fullmatch(d.row.message) for d in own if d.row.verdict == STRUCTURE]
    dtypes = grouped(dict.fromkeys((match["own"], match["wanted"]) for match in matches if match is not None))
    if not dtypes or title_of(first) != first.row.message:
        return title_of(first)
    return f"returns {listed(f'{had} instead of {listed(wanted)}' for had, wanted in dtypes.items())}"


def is_stateful(differences: Iterable[Difference]) -> bool:
    """Whether the worst difference is of the structure and depends on earlier calls."""
    worst = next(iter(differences))
    return worst.row.verdict == STRUCTURE and worst.diagnosis is not None and worst.diagnosis.id == STATEFUL


def title_of(difference: Difference) -> str:
    """What the cause is, in words."""
    row, diagnosis = difference.row, difference.diagnosis
    if row.verdict == STRUCTURE and row.message and not (diagnosis and "place" in diagnosis.evidence):
        return row.message
    if diagnosis is None:
        return WITHOUT_CAUSE.get(row.verdict, "no cause was found")
    return "several causes explain it equally well" if diagnosis.id == "not-identifiable" else diagnosis.title


def short(text: str) -> str:
    """A text of at most `LONGEST` characters; two expressions are cut to where they differ."""
    if len(text) <= LONGEST:
        return text
    changed, beside, whole = text.partition(INSTEAD)
    if not beside:
        return f"{text[: LONGEST - 3]}..."
    name, equals, changed = changed.partition(" = ") if IS_NAMED.match(changed) else ("", "", changed)
    most = (LONGEST - len(name + equals + beside)) // 2
    one, other = (item if len(item) <= most else f"{item[: most - 3]}..." for item in parted(changed, whole))
    return f"{name}{equals}{one}{beside}{other}"


INSTEAD = ", where the reference has "
IS_NAMED = re.compile(r"[\w. ]+ = ")
"""`new param = param - update`."""
BESIDE = 12
"""How many common characters are shown before and after the difference of two expressions."""


def n_shared(one: str, other: str) -> int:
    """The length of the common beginning of two texts."""
    least = min(len(one), len(other))
    return next((i for i in range(least) if one[i] != other[i]), least)


def parted(one: str, other: str) -> tuple[str, str]:
    """Two expressions without what both begin and end with."""
    start = n_shared(one, other)
    end = min(n_shared(one[::-1], other[::-1]), len(one) - start, len(other) - start)
    first = next((i for i in range(max(0, start - BESIDE), 0, -1) if not one[i - 1].isalnum()), 0)
    behind = max(0, end - BESIDE)
    before, after = "..." if first else "", "..." if behind else ""
    return f"{before}{one[first : len(one) - behind]}{after}", f"{before}{other[first : len(other) - behind]}{after}"


def telling(value: float | None, other: float | None) -> int:
    """How many digits show that two values differ, and by how much."""
    return next((n + 2 for n in range(4, MAX_DIGITS - 2) if number(value, n) != number(other, n)), MAX_DIGITS)


def condition(having: Collection[str], cases: Sequence[CaseRow]) -> str:
    """When it occurs: `from offset=100 on`, `only with nesterov=true`, `in 2 of 9 cases`; empty for one case.

    Compares cases whose ids differ only in a swept key.
    """
    if len(cases) < 2:
        return ""
    if len(having) == len(cases):
        return f"in all {len(cases)} cases"
    swept = {case.id: dict(SWEPT.findall(case.id)) for case in cases}
    stems = {SWEPT.sub("", name) for name in having}
    alike = [name for name in swept if SWEPT.sub("", name) in stems]
    keys = dict.fromkeys(key for name in alike for key in swept[name])
    return next(separating(having, alike, swept, keys), f"in {len(having)} of {len(cases)} cases")


def separating(
    having: Collection[str], alike: Sequence[str], swept: Mapping[str, Mapping[str, str]], keys: Iterable[str]
) -> Iterator[str]:
    """The keys of a sweep whose values separate the cases that have it from the others."""
    for key in keys:
        inside = {swept[name].get(key, "") for name in having if name in alike}
        outside = {swept[name][key] for name in alike if name not in having and key in swept[name]}
        if not outside or inside & outside or "" in inside:
            continue
        try:
            within, without = sorted(map(float, inside)), sorted(map(float, outside))
        except ValueError:
            within = without = []
        if len(inside) == 1 and (not within or without[0] < within[0] < without[-1]):
            yield f"only with {key}={min(inside)}"
        elif within and within[0] > without[-1]:
            yield f"from {key}={min(inside, key=float)} on"
        elif within and within[-1] < without[0]:
            yield f"up to {key}={max(inside, key=float)}"
