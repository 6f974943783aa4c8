"""The tolerance of a tensor: by its dtype, its name, and the caller's arguments."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity.config.errors import nearest
from parity.config.tolerance_grammar import sane_number
from parity.config.tolerances import DEFAULT_TOLERANCES, Tolerance, ToleranceRule, ToleranceTable
from parity.library.arrays import Tensor

EXACT = "exact"
TOLERANCES = ToleranceTable((ToleranceRule(dtype=EXACT, rtol=0.0, atol=0.0), *DEFAULT_TOLERANCES.rules))
"""The command line's; integers and bools are compared exactly."""

COARSENESS = ("bfloat16", "float16", "float32", "float64", EXACT)
"""The rows from the coarsest to the finest; integers are exact, so a float compared with them decides."""

ROWS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Complex numbers have the rows of their parts."""


@dataclass(frozen=True)
class Limits:
    """The caller's tolerances; None keeps the table's value. Raises ValueError for invalid ones."""

    rtol: float | None
    atol: float | None
    by_name: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        given = {"rtol": self.rtol, "atol": self.atol}
        for glob, pair in self.by_name.items():
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(f"tolerances[{glob!r}] must be a pair (rtol, atol), not {pair!r}")
            given |= {f"tolerances[{glob!r}] {key}": value for key, value in zip(("rtol", "atol"), pair, strict=True)}
        for name, value in given.items():
            if value is not None and not (isinstance(value, numbers.Real) and sane_number(float(value))):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")

    def lookup(self, path: str, tensors: Iterable[Tensor]) -> Tolerance:
        """The tolerance for a tensor, by the coarsest dtype that takes part."""
        rules = [ToleranceRule(rtol=self.rtol, atol=self.atol)]
        rules += [ToleranceRule(rtol=r, atol=a) for glob, (r, a) in self.by_name.items() if meant(glob, path)]
        row = min((row_of(tensor) for tensor in tensors), key=COARSENESS.index)
        return TOLERANCES.extended(rules).lookup(row, path)

    def check_names(self, paths: Iterable[str]) -> None:
        """Raise ValueError if a name or glob matches no tensor: its tolerance would have no effect."""
        known = tuple(dict.fromkeys(paths))
        for glob in self.by_name:
            if not any(meant(glob, path) for path in known):
                near = nearest(glob, known)
                hint = f'; did you mean "{near}"?' if near else ""
                raise ValueError(f'tolerances: no tensor matches "{glob}"{hint}')


def meant(glob: str, path: str) -> bool:
    """Whether a name or glob matches a tensor; `layers[2].weight` is a name, although [2] has a meaning in globs."""
    return glob == path or fnmatchcase(path, glob)


def row_of(tensor: Tensor) -> str:
    """The table's row for a tensor; if the dtype has none, that of the dtype in which the values are compared."""
    for name in (tensor.dtype, tensor.values.dtype.name):
        row = ROWS.get(name, name)
        if row in COARSENESS:
            return row
    return EXACT if tensor.values.dtype.kind in "iub" else "float64"
