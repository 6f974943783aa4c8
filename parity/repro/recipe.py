"""The content of a script: the op with its params, the arrays, and the comparisons that show the difference."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters import adapter_class
from parity.cases import OPS
from parity.cases.dtypes import as_dtype
from parity.cases.layout import LAYOUTS, Placement
from parity.cases.op import GRADIENT, Input, Op, TensorShapes, call_params, default_params
from parity.config.backends import ADAPTERS
from parity.config.nodes import printable
from parity.config.plan import ORACLE
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, Envelope, error_ratio
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.new_process import RIGHT
from parity.reporting.kinds import report_of
from parity.reporting.results.cells import CellResult, ratio_of
from parity.reporting.results.rows import BackendRow, BroughtRow, Results
from parity.reporting.results.stored_tensors import KeptError, backend_folders, input_paths, kept_path, load
from parity.reporting.results.strict_json import as_number
from parity.reporting.text.reasons import CaseRows
from parity.repro import ReproError
from parity.repro.part import CarefulRuns, Part
from parity.repro.source import bound_names, has_method

EXACT = "exact"
"""The oracle's name in a script."""

SHOWN_OUTCOMES = frozenset(("error", "crash", "timeout"))
"""Outcomes without a result whose call a script repeats."""

BY_SIZE = frozenset(v.value for v in Verdict) - {Verdict.NONFINITE.value, Verdict.STRUCTURE.value}
"""Verdicts on a finite error."""

MAX_THREADS = 256

Array = NDArray[Any]


@dataclass(frozen=True)
class Accuracy:
    """A careful implementation's error (root mean square, maximum), the backend's error ratio, and the error bound.

    They are those of a part of the tensor if only that exceeds the bound.
    """

    rms: float
    max: float
    ratio: float
    limit: float
    part: Part = ()

    @property
    def where(self) -> str:
        """`[3, :]`; empty for the whole tensor."""
        return f"[{', '.join(':' if i is None else str(i) for i in self.part)}]" if self.part else ""


@dataclass(frozen=True)
class ArrayLayout:
    """Shape and dtype of a tensor; `str()` is the text that a script prints."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"shape {list(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Check:
    """A comparison that a script repeats: one tensor is computed, the other one was recorded.

    `live` is the one of `row` that is computed, `actual` or `expected`; `label` is the other one's name in the data.
    `accuracy` is set if the backend exceeds the error bound, on the last comparison of the tensor: a tolerance that
    hides the error, or that no careful implementation meets, cannot show whether it is fixed. `shown` has the shape and
    dtype of the live tensor, `expected` those of the other; None if there is no such tensor. `first` is the value of
    the first call at the worst element of a later one.
    """

    row: Comparison
    live: str
    label: str
    shown: ArrayLayout | None
    expected: ArrayLayout | None
    accuracy: Accuracy | None = None
    first: float | None = None

    @property
    def structural(self) -> bool:
        """Whether the two differ in shape or dtype, or one of them lacks the tensor."""
        return self.row.verdict == Verdict.STRUCTURE

    @property
    def other(self) -> str:
        """The field of `row` that names the recorded one."""
        return "expected" if self.live == "actual" else "actual"


@dataclass(frozen=True)
class ScriptRecipe:
    """Everything that a script is made of.

    `params` are those that are passed, `droppable` those that a user's op may omit. `data` has arrays as `inputs/x`,
    `exact/y`, `torch/y`; `label` is the backend's own name there. `ops` is the user's file, if any, and `own` whether
    it must define the op. `patience_s` is how long the run waited for an answer. `n_calls` is the number of the call
    that differs; the inputs of call 2 are `inputs/2/x`.
    """

    cell: CellResult
    rows: CaseRows
    backend: BackendRow
    op: Op
    params: Mapping[str, Any]
    droppable: Sequence[str]
    data: Mapping[str, Array]
    checks: Sequence[Check]
    threads: int
    patience_s: float
    label: str
    ops: Path | None
    own: bool
    n_calls: int = 1

    @property
    def inputs(self) -> list[str]:
        """The tensors that the op takes."""
        names = [name for key in self.data if (name := after("inputs/", key)) and "/" not in name]
        return [name for name in names if self.op.input(name)]

    @property
    def placements(self) -> dict[str, Placement]:
        """The memory layouts of tensors that are not contiguous, by their names in the data."""
        rows = {f"inputs/{name}": row for name, row in self.cell.case.inputs.items() if row.layout in LAYOUTS}
        placed = {name: LAYOUTS[row.layout](tuple(row.shape)) for name, row in rows.items()}
        return {name: placement for name, placement in placed.items() if placement is not None and name in self.data}

    @property
    def aliases(self) -> dict[str, str]:
        """The inputs that share the memory of another."""
        return {name: row.alias for name, row in self.cell.case.inputs.items() if row.alias}

    @property
    def leaf(self) -> str:
        """The adapter's method that makes its tensors."""
        return "strided_leaf" if self.placements else "leaf"

    @property
    def grad_outputs(self) -> list[str]:
        """The outputs with a grad_output; none of a framework that is forward only."""
        given = [name for name in self.op.grad_outputs if f"inputs/grad.{name}" in self.data]
        return given if adapter_class(self.framework).differentiable else []

    @property
    def differentiable(self) -> list[str]:
        """The inputs whose gradients are computed."""
        return [name for name in self.op.differentiable if name in self.inputs] if self.grad_outputs else []

    @property
    def passed(self) -> list[str]:
        """The op's arguments and their inputs."""
        return [item.name for item in self.op.inputs if {item.name, f"{item.name}.0"} & set(self.inputs)]

    @property
    def absent(self) -> list[str]:
        """The optional inputs that are switched off."""
        return [item.name for item in self.op.inputs if item.optional and item.name not in self.passed]

    @property
    def framework(self) -> str:
        """The adapter's name."""
        return self.backend.framework

    @property
    def mode(self) -> str:
        """The mode of execution."""
        return self.backend.mode or "eager"

    @property
    def adapter(self) -> str:
        """The framework with its mode, unless that is eager: `torch:compile`."""
        return self.framework if self.mode == "eager" else f"{self.framework}:{self.mode}"


def after(prefix: str, text: str) -> str:
    """What follows the prefix; empty if there is none."""
    return text[len(prefix) :] if text.startswith(prefix) else ""


def shown(cell: CellResult) -> bool:
    """Whether a script can show something about a cell: a difference, or a call without a result."""
    return cell.finding or cell.outcome in SHOWN_OUTCOMES


def recipe(cell: CellResult, rows: CaseRows, results: Results, run_dir: Path) -> ScriptRecipe:
    """The recipe for a cell, from its case in the run; raises ReproError."""
    if report_of(cell.op).no_script:
        raise ReproError(f"{name_of(cell)}: {report_of(cell.op).no_script}")
    if any(row.storage for row in cell.case.inputs.values()):
        raise ReproError(f"{name_of(cell)}: scripts do not support operands of 8 bits")
    backend = next(row for row in results.backends if row.name == cell.backend)
    op = known_op(cell, backend)
    brought = cell.case.brought
    params = known_params(op, cell.case.params)
    ops = ops_file(backend, run_dir)
    own = ops is not None and takes_from(ops, op.name, {case.op for case in results.cases})
    if not own and not has_method(backend.framework, op.name):
        raise ReproError(
            f"{name_of(cell)}: {printable(cell.backend)} computed it with parity's own reference; "
            "there is no call of a framework to show"
        )
    labels = backend_labels(results)
    try:
        n_calls = max((row.call or 1 for row in wanted_rows(cell)), default=1)
        if n_calls == 1 and any(row.evidence.get("seen") == RIGHT for row in cell.diagnoses):
            raise ReproError(f"{name_of(cell)}: {RIGHT}, and a script makes a first call")
        data = dict(inputs(cell, op, run_dir))
        for number in range(2, n_calls + 1):
            data |= dict(inputs(cell, op, run_dir, number))
        prefix = inputs_of(n_calls)
        given = {name: values for key, values in data.items() if "/" not in (name := after(prefix, key)) and name}
        careful = CarefulRuns(cell.id, op, params, cell.dtype, given) if brought is None else None
        checks = tuple(checks_of(cell, run_dir, labels, data, careful)) if cell.finding else ()
    except KeptError as error:
        raise ReproError(f"{name_of(cell)}: {printable(str(error))}; run it again to store its tensors") from error
    if not checks and cell.outcome not in SHOWN_OUTCOMES:
        raise ReproError(f"{name_of(cell)}: none of its tensors can be compared again")
    return ScriptRecipe(
        cell=cell,
        rows=rows,
        backend=backend,
        op=op,
        params=call_params(params),
        droppable=sorted(default_params(params)) if brought is None else brought.droppable,
        data=data,
        checks=checks,
        threads=threads_of(results),
        patience_s=patience_of(results),
        label=labels[cell.backend],
        ops=ops,
        own=own,
        n_calls=n_calls,
    )


def name_of(cell: CellResult) -> str:
    """`near-constant-pair float64 on paddle`, for messages."""
    return printable(f"{cell.id} {cell.dtype} on {cell.backend}")


def known_op(cell: CellResult, backend: BackendRow) -> Op:
    """The op; raises ReproError for an unknown op, adapter, device or dtype."""
    traits = ADAPTERS.get(backend.framework)
    known = traits is not None and backend.device in traits.devices and cell.dtype in UNIT_ROUNDOFF
    known = known and traits is not None and (backend.mode or "eager") in traits.modes
    brought = cell.case.brought
    if (cell.op not in OPS and brought is None) or not known:
        asked = f"{cell.op} on {backend.framework}, {backend.device}, {cell.dtype}"
        raise ReproError(f"{name_of(cell)}: this parity does not know {printable(asked)}")
    return OPS[cell.op] if brought is None else brought_op(cell, brought)


def brought_op(cell: CellResult, brought: BroughtRow) -> Op:
    """A user's own op as far as a script needs it, without running its reference; raises ReproError for bad names."""
    names, grad_outputs = (
        [name for name in cell.case.inputs if is_gradient(name) == wanted] for wanted in (False, True)
    )
    if not all(name.isidentifier() for name in (cell.op, *names, *cell.case.params)):
        raise ReproError(f"{name_of(cell)}: the names of an op, its tensors and its params must be identifiers")
    return Op(
        name=cell.op,
        summary="",
        params=make_dataclass("Params", list(cell.case.params), frozen=True),
        inputs=tuple(Input(name, differentiable=name in brought.differentiable) for name in names),
        infer_shapes=lambda *_: TensorShapes({}, {}),
        reference=lambda *_: {},
        grad_outputs=tuple(name.removeprefix(GRADIENT) for name in grad_outputs),
    )


def is_gradient(name: str) -> bool:
    """Whether an input is the gradient of an output."""
    return name.startswith(GRADIENT)


def known_params(op: Op, given: Mapping[str, Any]) -> Any:
    """The params, checked by the op; raises ReproError for invalid ones."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in as_number(given).items()}
    flat = [item for value in values.values() for item in (value if isinstance(value, tuple) else (value,))]
    try:
        if any(not isinstance(item, (bool, int, float, str, type(None))) for item in flat):
            raise TypeError("a param is a number, a text or a list of them")
        return op.params(**values)
    except (TypeError, ValueError) as error:
        raise ReproError(f"{op.name}: invalid params: {printable(str(error))}") from error


def ops_file(backend: BackendRow, run_dir: Path) -> Path | None:
    """The copy of the user's file in the run directory; raises ReproError if it is missing or lies elsewhere."""
    if backend.ops is None:
        return None
    path = run_dir / backend.ops
    if not path.is_file() or not path.resolve().is_relative_to(run_dir.resolve()):
        raise ReproError(f"{printable(str(path))}: the copy of the user's ops is not in the run directory")
    return path


def takes_from(path: Path, op: str, ops: Set[str]) -> bool:
    """Whether a user's file must define the op: it does so at the top level, or none of the run's ops is seen there."""
    try:
        names = {name for node in ast.parse(path.read_bytes()).body for name in bound_names(node)}
    except (SyntaxError, ValueError):
        return True
    return op in names or not names & ops


def patience_of(results: Results) -> float:
    """How many seconds the run waited for a cell; 60 if unknown."""
    waited = results.run.timeout_s
    return float(waited) if waited is not None and 0 < waited < threading.TIMEOUT_MAX else 60.0


def threads_of(results: Results) -> int:
    """How many threads each worker had."""
    threads = results.run.host.get("threads", 1)
    return threads if type(threads) is int and 0 < threads <= MAX_THREADS else 1


def backend_labels(results: Results) -> dict[str, str]:
    """The names of the recorded backends in a script."""
    folders = backend_folders(backend.name for backend in results.backends)
    labels = {name: f"{folder}_" if folder in (EXACT, "inputs") else folder for name, folder in folders.items()}
    return labels | {ORACLE: EXACT}


def inputs_of(call: int) -> str:
    """What the names of a call's inputs begin with in the data."""
    return "inputs/" if call == 1 else f"inputs/{call}/"


def inputs(cell: CellResult, op: Op, run_dir: Path, call: int = 1) -> Iterator[tuple[str, Array]]:
    """The inputs and grad_outputs of a call in the cell's dtype; integers stay integers."""
    paths = {} if call == 1 else input_paths(cell.case, call)
    for name, item in cell.case.inputs.items():
        if op.input(name) is None and name not in {f"grad.{output}" for output in op.grad_outputs}:
            raise ReproError(f"{name_of(cell)}: {op.name} has no input {printable(name)}")
        if not item.file:
            raise ReproError(f"{name_of(cell)}: its inputs were not stored, because the run ended before it")
        path = paths.get(name, item.file)
        values = real(load(run_dir, path), path)
        yield f"{inputs_of(call)}{name}", as_dtype(values, cell.dtype) if values.dtype.kind == "f" else values


def real(values: Array, name: str) -> Array:
    """An array that can be compared; raises KeptError for another."""
    if values.dtype.kind not in "fiub":
        raise KeptError(f"{name} has dtype {values.dtype}, not real numbers")
    return values


def checks_of(
    cell: CellResult, run_dir: Path, labels: Mapping[str, str], data: dict[str, Array], careful: CarefulRuns | None
) -> Iterator[Check]:
    """The comparisons of a cell's tensors; what they need is added to `data`."""
    folders = backend_folders(name for name in labels if name != ORACLE)
    for row in wanted_rows(cell):
        if row.not_stored:
            raise ReproError(f"{name_of(cell)}: {row.not_stored}")
        live = "actual" if row.actual == cell.backend else "expected"
        other = row.expected if live == "actual" else row.actual
        tensor, structural = row.tensor, row.verdict == Verdict.STRUCTURE
        stored = {
            name: kept(run_dir, kept_path(cell.case, cell.dtype, name, tensor, folders, row.call), optional)
            for name, optional in ((cell.backend, True), (ORACLE, structural), (other, structural))
        }
        if stored[other] is None and not lacks(row, other):
            continue  # NumPy has no such dtype, so there is nothing to compare with
        for name in (ORACLE, other):
            values = stored[name]
            if values is not None:
                data[f"{labels[name]}/{tensor}"] = values
        yield Check(
            row,
            live,
            labels[other],
            layout(stored[cell.backend], cell.dtype),
            layout(stored[other], cell.dtype, exact=other == ORACLE),
            accuracy(cell, row, stored[cell.backend], stored[ORACLE], careful) if decides(cell, row) else None,
            first_value(cell, row, run_dir, folders),
        )


def first_value(cell: CellResult, row: Comparison, run_dir: Path, folders: dict[str, str]) -> float | None:
    """The backend's value in the first call at the worst element of a later one; None if that is not known."""
    if row.call is None or row.worst_index is None:
        return None
    values = kept(run_dir, kept_path(cell.case, cell.dtype, cell.backend, row.tensor, folders), optional=True)
    index = tuple(row.worst_index)
    known = values is not None and len(index) == values.ndim and all(map(int.__lt__, index, values.shape))
    return float(values[index]) if known and values is not None else None


def decides(cell: CellResult, row: Comparison) -> bool:
    """Whether a comparison is the last one of a tensor in which the backend has a finite error beyond the bound."""
    rows = [other for other in wanted_rows(cell) if other.tensor == row.tensor]
    by_size = all(cell.backend in other.culprit and other.verdict in BY_SIZE for other in rows)
    known = row.envelope is not None or Verdict(row.verdict).passes
    return row is rows[-1] and by_size and known


def lacks(row: Comparison, backend: str) -> bool:
    """Whether the message of a comparison says that a backend lacks the tensor."""
    beyond_op = row.message.endswith(" does not have") and not row.message.startswith(f"{backend} returns ")
    return beyond_op or row.message.startswith(f"{backend} has no ")


def wanted_rows(cell: CellResult) -> list[Comparison]:
    """For each tensor the comparisons that fail, or the one in which the tolerance hides that the backend is wrong;
    only those of a later call, if there are any."""
    rows: list[Comparison] = []
    for tensor in cell.tensors:
        failing = [row for row in cell.failing if row.tensor == tensor]
        hidden = [row for row in cell.hidden if row.tensor == tensor]
        rows += failing or sorted(hidden, key=lambda row: row.expected != ORACLE)[:1]
    return [row for row in rows if row.call is not None] or rows


def kept(run_dir: Path, name: str, optional: bool) -> Array | None:
    """A stored tensor; None if there is none and none is needed."""
    return None if optional and not (run_dir / name).exists() else real(load(run_dir, name), name)


def is_integer(values: Array | None) -> bool:
    """Whether a stored tensor holds integers."""
    return values is not None and values.dtype.kind == "i"


def layout(values: Array | None, dtype: str, *, exact: bool = False) -> ArrayLayout | None:
    """Shape and dtype of a stored tensor of a cell in `dtype`; float32 holds those of bfloat16."""
    if values is None:
        return None
    is_held = (exact and not is_integer(values)) or (dtype == "bfloat16" and values.dtype == np.float32)
    return ArrayLayout(values.shape, dtype if is_held else str(values.dtype))


def accuracy(
    cell: CellResult, row: Comparison, live: Array | None, exact: Array | None, careful: CarefulRuns | None
) -> Accuracy:
    """The error from which on the backend counts as wrong, whatever the tolerance.

    Raises ReproError if only an unknown part of the tensor exceeds the error bound.
    """
    envelope, ratio = row.envelope, ratio_of(row, cell.backend)
    if envelope is None or ratio is None or exact is None:
        raise ReproError(f"{name_of(cell)}: the run has no error bound for it; run it again")
    rms, largest = envelope.rms, envelope.max
    # The exact values are stored in float64, so that a float64 error is known up to a unit roundoff.
    measured = ratio if live is None else error_ratio(np.asarray(live), np.asarray(exact), Envelope(rms, largest))
    if measured >= ERROR_BOUND - 1 or live is None:
        return Accuracy(rms, largest, measured, ERROR_BOUND if measured >= ERROR_BOUND else ERROR_BOUND - 1)
    try:
        part, local = careful.worst(row.tensor, live, exact) if careful else ((), 0.0)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ReproError(f"{name_of(cell)}: the reference fails: {printable(str(error))}") from error
    if local < ERROR_BOUND - 1:
        raise ReproError(
            f"{name_of(cell)}: only a part of {printable(row.tensor)} exceeds the error bound, "
            "and that part's bound is not known"
        )
    index = tuple(slice(None) if i is None else i for i in part)
    errors = np.asarray(np.abs(np.subtract(live, exact, dtype=np.float64))[index])
    errors = errors[np.isfinite(errors)]
    # So that the script's ratio is the judge's, which knows the envelope of every element.
    rms, largest = (float(error / local) for error in (np.sqrt(np.mean(np.square(errors))), errors.max()))
    return Accuracy(rms, largest, local, ERROR_BOUND if local >= ERROR_BOUND else ERROR_BOUND - 1, part)
