"""Splits a plan's op cases into shards: the tasks of a cluster, within which diagnoses remember earlier cases."""

from __future__ import annotations

from collections.abc import Iterator

from parity.clients import CLIENTS
from parity.config.plan import CasePlan, Plan

SHARD_CELLS = 256
"""A shard is full once it has so many cells; a case with all its dtypes and backends is in one shard. Losing one costs
seconds, and the overhead of its task (about 10 ms) is negligible."""

Shard = tuple[tuple[int, CasePlan], ...]
"""Cases, each with its position in the plan."""


def shards(plan: Plan) -> Iterator[Shard]:
    """The op cases in the order of the plan; the shards depend on the plan alone."""
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
