"""What a case of `kind: model` is: the functions of the users' files, and how they are used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

MODEL = "model"
"""The `op` of such a case, and the `kind` by which a config asks for one."""


@dataclass(frozen=True)
class ModelSpec:
    """Every backend's file has a function `build`, which returns its port of the model, and the others that are named.

    `batch` is a function of the baseline's file, or with `batch_file` the path of an .npz file. `forward(model, batch)`
    runs a port; without one it is called with the batch's tensors in order, but for `targets`. `loss(output, batch)`
    is differentiated, `metric(output, batch)` takes and returns NumPy. `mapping`: a file that says which parameter is
    which. `weights`: the baseline's are moved to the others, or everyone has its `own`; if it is left out, a port
    that was converted from another one has its own.
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
        """What is not left out, as results.json has it."""
        given = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v}
