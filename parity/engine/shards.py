"""Splits a plan's cases of ops into shards: the tasks of a cluster, and how far a diagnosis remembers earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

from parity.clients import CLIENTS
from parity.config.plan import CasePlan, Plan

SHARD_CELLS = 256
"""A case with all its dtypes and backends goes to one shard, which is full from so many cells on. Small enough that a
lost one costs seconds, large enough that its task (about 10 ms) does not count."""

Shard = tuple[tuple[int, CasePlan], ...]
"""Cases, each with its place in the plan."""


def shards(plan: Plan) -> Iterator[Shard]:
    """The cases of ops in the order of the plan, on which alone the shards depend."""
    shard: list[tuple[int, CasePlan]] = []
    n_cells = 0
    for index, case in enumerate(plan.cases):
        if case.op in CLIENTS:
            continue
        shard.append((index, case))
        n_cells += len(case.dtypes) * len(case.backends or plan.backends)
        if n_cells >= SHARD_CELLS:
            yield tuple(shard)
            shard, n_cells = [], 0
    if shard:
        yield tuple(shard)
