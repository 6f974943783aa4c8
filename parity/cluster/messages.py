"""The messages: a run's order to every worker, a shard's cases to one, and its rows and tensors back."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from parity.cases.draw import File
from parity.config.plan import BackendSpec, CasePlan, Plan
from parity.engine import EngineOptions
from parity.engine.inputs import folder_name
from parity.engine.shards import Shard
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import BackendRow, OutcomeRow
from parity.reporting.results.strict_json import escaped
from parity.version import __version__

MAX_FILE_BYTES = 64 << 20
"""Larger files of a case with a finding are not sent; all files of a shard may have four times this size."""
MAX_DEPTH = 5
"""tensors/CASE/DTYPE/BACKEND/TENSOR.npy"""
PART = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]*")

Versions = Mapping[str, str]
Files = Mapping[Path, bytes]
"""The user's files by their path on the host."""


def versions() -> Versions:
    """The versions that must be the same on the host and all workers, since rows depend on them."""
    return {"parity": __version__, "numpy": np.__version__}


@dataclass(frozen=True)
class Order:
    """A run, sent once to each worker: the plan, with only one case per op and set of backends."""

    name: str
    plan: Plan
    options: EngineOptions
    versions: Versions
    files: Files


def order_of(name: str, plan: Plan, options: EngineOptions, *, with_files: bool) -> Order:
    """The order for a plan; `with_files` if the workers may lack the user's files."""
    few = {(case.op, case.backends): portable(case) for case in plan.cases}
    files = contents(spec.ops for spec in plan.backends) if with_files else {}
    return Order(name, replace(plan, cases=tuple(few.values()), known=(), asked=None), options, versions(), files)


@dataclass(frozen=True)
class Work:
    """The task of a shard: its cases, and the `.npy` files that they name."""

    cases: Shard
    files: Files


def work_of(shard: Shard, *, with_files: bool) -> Work:
    """The task of these cases."""
    cases = tuple((index, portable(case)) for index, case in shard)
    draws = (tensor.draw for _, case in shard for tensor in case.tensors)
    return Work(cases, contents(draw.path for draw in draws if isinstance(draw, File)) if with_files else {})


def contents(paths: Iterable[Path | None]) -> dict[Path, bytes]:
    """The content of each file; raises OSError."""
    return {path: path.read_bytes() for path in set(paths) if path is not None}


def portable(case: CasePlan) -> CasePlan:
    """The case to send: a user's op's params as a dict, since their class is created on each machine."""
    return case if case.brought is None else replace(case, params=dict(vars(case.params)))


def restored(case: CasePlan, files: Files, folder: Path) -> CasePlan:
    """The original case, with the paths of its files on this machine."""
    if case.brought is not None:
        case = replace(case, params=case.definition.params(**case.params))
    if not any(isinstance(tensor.draw, File) for tensor in case.tensors):
        return case
    tensors = tuple(
        replace(tensor, draw=File(placed(tensor.draw.path, files, folder))) if isinstance(tensor.draw, File) else tensor
        for tensor in case.tensors
    )
    return replace(case, tensors=tensors)


def backend_here(spec: BackendSpec, files: Files, folder: Path) -> BackendSpec:
    """The backend, with the path of the user's file on this machine."""
    return spec if spec.ops is None else replace(spec, ops=placed(spec.ops, files, folder))


def placed(path: Path, files: Files, folder: Path) -> Path:
    """The path on this machine of a host's file: the same path, as on a shared disk, else a copy in `folder`."""
    content = files.get(path)
    if content is None or (path.is_file() and path.read_bytes() == content):
        return path
    copy = folder / sha256(bytes(path.parent) + content).hexdigest()[:16] / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content)
    return copy


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's reply to a shard. `tensors` are files by name; `folders` has the folder of each case with tensors."""

    worker: str
    host: str = msgspec.field(default_factory=socket.gethostname)
    backends: list[BackendRow]
    outcomes: list[OutcomeRow]
    comparisons: list[Comparison]
    diagnoses: list[Diagnosis]
    folders: dict[str, str]
    tensors: dict[str, bytes]
    lost: dict[str, str]
    judge_seconds: float
    log: bytes


def encoded(reply: Reply) -> bytes:
    """The reply as MessagePack, which can hold NaN and bytes."""
    try:
        return msgspec.msgpack.encode(reply)
    except UnicodeEncodeError:  # lone surrogates
        return msgspec.msgpack.encode(escaped(msgspec.to_builtins(reply, builtin_types=(bytes,))))


class InvalidReplyError(ValueError):
    """The reply cannot come from a worker of parity; the message says why."""


def decoded(data: bytes, plan: Plan, shard: Shard) -> Reply:
    """The reply to a shard of a plan; raises InvalidReplyError if it is invalid or has rows or files of other cases."""
    try:
        reply = msgspec.msgpack.decode(data, type=Reply)
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidReplyError(f"not a reply: {error}") from error
    folders = {case.id: f"tensors/{folder_name(index, case)}" for index, case in shard}
    own = {case.id: [spec.name for spec in plan.of(case).backends] for _, case in shard}
    asked = sorted((case.id, dtype, name) for _, case in shard for dtype in case.dtypes for name in own[case.id])
    if sorted(row.key for row in reply.outcomes) != asked:
        raise InvalidReplyError("its outcomes are not those of its cases")
    if not {*(row.case for row in reply.comparisons), *(row.case for row in reply.diagnoses)} <= own.keys():
        raise InvalidReplyError("its rows are not those of its cases")
    if not {row.name for row in reply.backends} <= {spec.name for spec in plan.backends}:
        raise InvalidReplyError("its backends are not those of the run")
    if not all(is_inside(name) for name in reply.lost):
        raise InvalidReplyError("its files are not those of a run")
    for case, folder in reply.folders.items():
        if folders.get(case) != folder:
            raise InvalidReplyError(f"{folder!r} is not the folder of {case!r}")
    for name in reply.tensors:
        parts = PurePosixPath(name).parts
        is_ours = "/".join(parts[:2]) in reply.folders.values() and 2 < len(parts) <= MAX_DEPTH
        if not is_ours or not is_inside(name) or not name.endswith(".npy"):
            raise InvalidReplyError(f"{name[:200]!r} is not a file of its cases")
    return reply


def is_inside(name: str) -> bool:
    """Whether a relative path from a worker stays within its folder."""
    return all(map(PART.fullmatch, PurePosixPath(name).parts))


@dataclass
class ShardRows:
    """Collects the rows of a shard, in place of a run's store."""

    by_type: dict[type, list[Any]] = field(default_factory=dict)

    def add(self, rows: Iterable[Any]) -> None:
        """Keep rows."""
        for row in rows:
            self.by_type.setdefault(type(row), []).append(row)

    def of(self, kind: type) -> list[Any]:
        """The rows of a type, in order."""
        return self.by_type.get(kind, [])

    def change(self, statement: str, *values: Any) -> None:
        """Nothing: the host writes the cases' rows."""

    def revise(self, cell: tuple[str, str, str], ids: Iterable[str], rows: Iterable[Diagnosis]) -> None:
        """Replace the diagnoses of a case, dtype and backend that have these ids."""
        given, named = self.of(Diagnosis), frozenset(ids)
        kept = [row for row in given if (row.case, row.dtype, row.backend) != cell or row.id not in named]
        self.by_type[Diagnosis] = [*kept, *rows]

    def flush_if_due(self) -> None:
        """Nothing to flush."""


def tensors_of(run_dir: Path, folders: Iterable[str]) -> tuple[dict[str, bytes], Iterator[str]]:
    """The files below these folders by name, and the names of those that are too large to send."""
    contents: dict[str, bytes] = {}
    left, too_large = 4 * MAX_FILE_BYTES, []
    for path in sorted(path for folder in folders for path in (run_dir / folder).rglob("*.npy")):
        name, size = path.relative_to(run_dir).as_posix(), path.stat().st_size
        if size > min(MAX_FILE_BYTES, left):
            too_large.append(name)
            continue
        left -= size
        contents[name] = path.read_bytes()
    return contents, iter(too_large)
