"""The pictures of a finding, from the tensors that the run directory keeps; a sentence where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from parity.config.plan import ORACLE
from parity.reporting.plots.figures import histograms, mismatch
from parity.reporting.plots.tensors import (
    MAX_ELEMENTS,
    Errors,
    PictureError,
    axis_for,
    errors,
    histogram,
    mismatch_map,
)
from parity.reporting.results.cells import CellResult
from parity.reporting.results.rows import CaseRow, Results
from parity.reporting.results.stored_tensors import KeptError, backend_folders, kept_path, load

MAX_BACKENDS = 6

NOTHING = Markup()


@dataclass(frozen=True)
class Picture:
    """A tensor's histogram and map; both are empty where `note` says why there are none."""

    tensor: str
    histogram: Markup = NOTHING
    map: Markup = NOTHING
    rows: str = ""
    columns: str = ""
    note: str = ""


class Gallery:
    """The errors of a run's tensors, each computed once."""

    def __init__(self, results: Results, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.backends = results.backend_names
        self.folders = backend_folders(self.backends)
        self._cache: dict[tuple[str, str, str, str, int | None], Errors | str] = {}

    def picture(self, cell: CellResult, tensor: str, ratios: Mapping[str, float], unit: float | None) -> Picture:
        """What is shown of a tensor of a cell; `unit` is the envelope, None where it is not known."""
        if reason := next((row.not_stored for row in cell.rows if row.tensor == tensor and row.not_stored), ""):
            return Picture(tensor, note=f"No picture: {reason}.")
        call = next((row.call for row in cell.rows if row.tensor == tensor and row.call is not None), None)
        own = self.errors(cell.case, cell.dtype, cell.backend, tensor, call)
        if isinstance(own, str):
            return Picture(tensor, note=f"No picture: {own}.")
        others = [name for name in self.backends if name != cell.backend][: MAX_BACKENDS - 1]
        names = [name for name in self.backends if name == cell.backend or name in others]
        by_backend = {name: self.errors(cell.case, cell.dtype, name, tensor, call) for name in names}
        many = {name: one for name, one in by_backend.items() if isinstance(one, Errors)}
        size, measured = unit or 1.0, unit is not None
        axis = axis_for(list(many.values()), size)
        counted = {name: (histogram(one, size, axis), ratios.get(name)) for name, one in many.items()}
        drawn = mismatch_map(own)
        return Picture(
            tensor=tensor,
            histogram=histograms(counted, axis, cell.backend, measured=measured),
            map=mismatch(drawn, size, measured=measured),
            rows=drawn.rows,
            columns=drawn.columns,
            note=notes(own, measured=measured),
        )

    def errors(self, case: CaseRow, dtype: str, backend: str, tensor: str, call: int | None = None) -> Errors | str:
        """|actual − oracle| of a tensor of one backend in a call, or why it cannot be computed."""
        key = (case.id, dtype, backend, tensor, call)
        if key not in self._cache:
            self._cache[key] = self.read(case, dtype, backend, tensor, call)
        return self._cache[key]

    def read(self, case: CaseRow, dtype: str, backend: str, tensor: str, call: int | None) -> Errors | str:
        """The same, from the files."""
        try:
            paths = (kept_path(case, dtype, name, tensor, self.folders, call) for name in (backend, ORACLE))
            return errors(*(load(self.run_dir, path) for path in paths))
        except (KeptError, PictureError) as error:
            return str(error)


def notes(errors: Errors, *, measured: bool) -> str:
    """The note beside a picture."""
    said = []
    if errors.sampled:
        said.append(
            f"{errors.values.size:,} of its {errors.n_elements:,} elements, evenly spaced, were read "
            f"(at most {MAX_ELEMENTS:,})."
        )
    if not measured:
        said.append("The envelope was not kept, so the errors are shown as they are.")
    return " ".join(said)
