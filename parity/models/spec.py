"""The parameters of a case of `kind: model`: the functions of the users' files, and how they are used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

MODEL = "model"
"""The `op` of such a case, and the `kind` by which a config asks for one."""


@dataclass(frozen=True)
class ModelSpec:
    """The names of functions in the backends' files, and how they are used.

    `build` returns a backend's port of the model. `batch` is a function of the baseline's file; with `batch_file`, the
    batch is an .npz file. `forward(model, batch)` runs a port; without it, the model is called with the batch's tensors
    in order, except `targets`. `loss(output, batch)` is differentiated, `metric(output, batch)` takes and returns NumPy
    arrays. `mapping` is a file that maps parameters. `weights`: the baseline's are `moved` to the other ports, or each
    port keeps its `own`; by default only converted ports keep theirs.
    """

    build: str = "build_model"
    batch: str = "make_batch"
    batch_file: Path | None = None
    forward: str = ""
    loss: str = ""
    metric: str = ""
    targets: tuple[str, ...] = ()
    mode: Literal["eval", "train"] = "eval"
    weights: Literal["moved", "own"] | None = None
    mapping: Path | None = None

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of the users' files."""
        return tuple(
            filter(None, (self.build, "" if self.batch_file else self.batch, self.forward, self.loss, self.metric))
        )

    def recorded(self) -> dict[str, Any]:
        """The values that are set, as in results.json."""
        given = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v}
