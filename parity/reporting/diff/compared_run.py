"""The two runs of `parity diff`: the state of every tensor of every cell, under the second run's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from parity import exit_codes
from parity.config.errors import nearest
from parity.config.nodes import printable
from parity.errors import UserError
from parity.judge.compare.verdict import Comparison
from parity.reporting.results.cells import CellResult, Status, cells, ratio_of, status_of
from parity.reporting.results.measures import measures_of
from parity.reporting.results.rows import NOT_COMPARED, SEVERITY, BackendRow, CaseRow, CellKey, Results
from parity.reporting.text.words import grouped

Pair = tuple[str, str, str, frozenset[str]]
"""Case, dtype, tensor and the names of both backends."""

MISSING = frozenset((Status.ERROR, Status.NOT_RUN, Status.UNSUPPORTED))
"""The tensors of a cell that was not compared."""

MAX_MESSAGE = 160
SINGLE = re.compile(r"(?<!=)=(?!=)")
"""An equals sign that is not a part of `==`."""


class DiffError(UserError):
    """Two runs that cannot be compared as requested; the message says why and lists the backends."""


@dataclass(frozen=True)
class TensorState:
    """A tensor of a cell in one run.

    `excess` and `ratio` are the largest of its comparisons, `is_wrong` whether the backend is a culprit in one of them,
    `limits` their rtol and atol. `reason` says why it was not compared. `unowned` are the pairs of backends that differ
    although neither exceeds its error bound.
    """

    status: Status
    verdict: str
    excess: float = 0.0
    ratio: float | None = None
    is_wrong: bool = False
    causes: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    limits: tuple[tuple[float, float], ...] = ()
    reason: str = ""
    unowned: tuple[frozenset[str], ...] = ()

    @property
    def compared(self) -> bool:
        """Whether there is a verdict."""
        return self.status not in MISSING


@dataclass(frozen=True)
class ComparedRun:
    """A run to compare: its cells by case, dtype and backend, under the backend's name in the second run.

    `pairs` maps comparisons (case, dtype, tensor, both backends) to their severity, 0 if they do not fail the run.
    `paired` are the names that were matched with a backend of the second run.
    """

    run_dir: Path
    results: Results
    names: Mapping[str, str]
    cells: Mapping[CellKey, CellResult]
    pairs: Mapping[Pair, int]
    level: str
    paired: frozenset[str] = frozenset()

    @property
    def interrupted(self) -> bool:
        """Whether the run did not finish."""
        return bool(self.results.summary.exit_code == exit_codes.INTERRUPTED)

    @property
    def cases(self) -> dict[str, CaseRow]:
        """The cases by their ids."""
        return {case.id: case for case in self.results.cases}

    @property
    def backends(self) -> dict[str, BackendRow]:
        """The compared backends, by their common names."""
        return {self.names[row.name]: row for row in self.results.backends if row.name in self.names}

    def tensor_states(self, key: CellKey) -> dict[str, TensorState]:
        """The tensors of a cell by name; empty if the run lacks the cell."""
        cell = self.cells.get(key)
        if cell is None:
            return {}
        by_tensor = grouped((row.tensor, row) for row in cell.rows)
        return {tensor: self.tensor_state(cell, tensor, rows) for tensor, rows in by_tensor.items()}

    def tensor_state(self, cell: CellResult, tensor: str, rows: Sequence[Comparison]) -> TensorState:
        """A tensor of a cell; `rows` are its comparisons, the worst first."""
        status = status_of(rows, cell.ended, exit_codes.FAILING[self.level])
        compared = [row for row in rows if row.compared]
        if status in MISSING or not compared:
            # An accepted `unsupported` has no result.
            return self.absent(cell, status if status in MISSING else Status.UNSUPPORTED)
        ratios = [ratio for row in compared if (ratio := ratio_of(row, cell.backend)) is not None]
        alone = [row for row in compared if row.fails and not row.culprit]
        return TensorState(
            status=status,
            verdict=compared[0].verdict,
            excess=max(map(measures_of(cell.op).excess, compared)),
            ratio=max(ratios, default=None),
            is_wrong=any(cell.backend in row.culprit for row in compared),
            causes=tuple(dict.fromkeys(d.id for d in cell.diagnoses if tensor in d.tensors)),
            known=tuple(dict.fromkeys(row.known for row in compared if row.known is not None)),
            limits=tuple(sorted({(row.rtol, row.atol) for row in compared})),
            unowned=tuple(dict.fromkeys(self.pair(row) for row in alone)),
        )

    def absent(self, cell: CellResult, status: Status) -> TensorState:
        """The state of a tensor without a result, with the reason."""
        if cell.outcome not in ("", "ok"):
            reason = f"{cell.outcome}: {shortened(cell.message)}" if cell.message else cell.outcome
        else:
            reason = "the run was interrupted before it" if self.interrupted else "it was not compared with anything"
        return TensorState(status, NOT_COMPARED, reason=reason)

    def pair(self, row: Comparison) -> frozenset[str]:
        """The two backends of a comparison, under the second run's names."""
        return frozenset(self.names.get(name, name) for name in (row.actual, row.expected))


def shortened(text: str, limit: int = MAX_MESSAGE) -> str:
    """The first line of a text, cut to `limit` characters."""
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def compared_run(run_dir: Path, results: Results, names: Mapping[str, str], level: str) -> ComparedRun:
    """A run under the names of the second one, judged at the level `level` of `--fail-on`."""
    levelled = structs.replace(results, run=structs.replace(results.run, fail_on=level))
    shown = {(c.id, c.dtype, names[c.backend]): c for c in cells(levelled) if c.backend in names}
    bare = ComparedRun(run_dir, results, names, shown, {}, level)
    pairs: dict[Pair, int] = {}
    for row in results.comparisons:
        if row.compared:
            fails = row.known is None and row.counts and row.verdict in exit_codes.FAILING[level]
            pairs[*row.tensor_key, bare.pair(row)] = SEVERITY[row.verdict] if fails else 0
    return replace(bare, pairs=pairs)


def compared_runs(
    dirs: tuple[Path, Path], results: tuple[Results, Results], maps: Sequence[str], level: str
) -> list[ComparedRun]:
    """Both runs; if they are the same directory, only the mapped backends. Raises DiffError."""
    names_a, names_b = (run.backend_names for run in results)
    renamed = dict(pair for text in maps for pair in [mapping(text, names_a, names_b)])
    if len(renamed) < len(maps) or len(set(renamed.values())) < len(maps):
        raise DiffError("--map names a backend twice; a backend can be compared with only one other")
    if renamed and dirs[0].resolve() == dirs[1].resolve():
        kept = {name: name for name in renamed.values()}
        return [compared_run(dirs[0], results[0], renamed, level), compared_run(dirs[1], results[1], kept, level)]
    paired = releases(results, renamed)
    taken = {*renamed.values(), *paired.values()}
    as_is = {name: name for name in names_a if name not in renamed and name not in paired and name not in taken}
    first = compared_run(dirs[0], results[0], {**as_is, **paired, **renamed}, level)
    second = compared_run(dirs[1], results[1], {name: name for name in names_b}, level)
    return [replace(first, paired=frozenset(paired)), second]


def releases(results: tuple[Results, Results], renamed: Mapping[str, str]) -> dict[str, str]:
    """Backends that only the first run has, each with the only backend of its framework and mode in the second run.

    Backends with user ops are not matched, since their ops make them different.
    """
    common = set(results[0].backend_names) & set(results[1].backend_names)
    left, right = (
        grouped(
            ((row.framework, row.mode, row.device), row.name)
            for row in run.backends
            if row.ops is None and row.name not in common and row.name not in mapped
        )
        for run, mapped in zip(results, (set(renamed), set(renamed.values())), strict=True)
    )
    return {left[key][0]: right[key][0] for key in left if len(left[key]) == len(right.get(key, ())) == 1}


def mapping(text: str, names_a: Sequence[str], names_b: Sequence[str]) -> tuple[str, str]:
    """OLD and NEW of `OLD=NEW`, split so that both are backends; names may contain `=`. Raises DiffError."""
    splits = [(text[:i], text[i + 1 :]) for i, sign in enumerate(text) if sign == "="]
    readings = [(old, new) for old, new in splits if old in names_a and new in names_b]
    if len(readings) == 1:
        return readings[0]
    if readings:
        raise DiffError(
            f'--map "{printable(text)}" is ambiguous: it can be read in {len(readings)} ways; rename a backend'
        )
    sign = SINGLE.search(text)
    if sign is None:
        raise DiffError(f'--map "{printable(text)}" is not OLD=NEW, for example paddle==2.6.2=paddle')
    old, new = text[: sign.start()], text[sign.end() :]
    wrong = [unknown(old, names_a, "RUN_A")] if old not in names_a else []
    wrong += [unknown(new, names_b, "RUN_B")] if new not in names_b else []
    raise DiffError(f'--map "{printable(text)}": {"; ".join(wrong)}')


def unknown(name: str, names: Iterable[str], run: str) -> str:
    """`RUN_A has no backend "padle"; did you mean "paddle"? It has torch, paddle`."""
    near = nearest(name, names)
    meant = f'; did you mean "{printable(near)}"?' if near else ";"
    return f'{run} has no backend "{printable(name)}"{meant} It has {", ".join(map(printable, names))}'
