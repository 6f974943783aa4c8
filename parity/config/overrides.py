"""What the command line may override."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overrides:
    """Options as they were typed: `-b`, `-k`, `--dtype`, `--rtol`, `--atol`, `--baseline`, `--steps`."""

    backends: tuple[str, ...] = ()
    keyword: str | None = None
    dtypes: tuple[str, ...] = ()
    rtol: tuple[str, ...] = ()
    atol: tuple[str, ...] = ()
    baseline: str | None = None
    steps: int | None = None
