"""Many pairs: which files belong together, each pair checked by a process of its own, and what is kept of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from parity import exit_codes
from parity.check import CheckError
from parity.check.answer import not_judged

ANSWERS = "batch.jsonl"
NUMBER = re.compile(r"(\d+)(?:_|$)")
CANDIDATES = ("new.py", "submission.py", "solution.py")
"""The candidate's file in a folder that is one pair."""
REFERENCE = "reference.py"
IMPLEMENTATION = "_implementation"
"""BackendBench's files are `<op>/<op>_implementation_v1.py`."""
OPERATORS = "aten"
"""The reference of a folder as BackendBench writes it."""
MOST_NAMED = 12
ENDING_S = 5.0
FaultRow = Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """A pair of a batch, as `parity check REFERENCE NEW` takes it; `name` is the folder of what it writes."""

    name: str
    reference: str
    new: str

    @property
    def digest(self) -> str:
        """The digest of both files, of all files directly in a code that is a folder."""
        known = hashlib.sha256()
        for text in (self.reference, self.new):
            path = Path(text.rpartition(":")[0] if ".py:" in text else text)
            files = sorted(f for f in path.iterdir() if f.is_file()) if path.is_dir() else [path]
            for file in files:
                known.update(file.read_bytes() if file.is_file() else text.encode())
        return known.hexdigest()


@dataclass(frozen=True)
class Batch:
    """The pairs of two folders, and the files that belong to no pair."""

    members: Sequence[Member]
    unmatched: Sequence[str] = ()


def is_one(folder: Path) -> bool:
    """Whether a folder is one pair: a reference and a candidate."""
    return ((folder / REFERENCE).is_file() and candidate_in(folder) is not None) or implementation(folder) is not None


def candidate_in(folder: Path) -> Path | None:
    """The candidate's file in a folder that has a reference."""
    return next((folder / name for name in CANDIDATES if (folder / name).is_file()), None)


def implementation(folder: Path) -> Path | None:
    """BackendBench's file of an operator, in the folder of its name."""
    return next(iter(sorted(folder.glob(f"{folder.name}{IMPLEMENTATION}*.py"))), None)


def one_of(folder: Path) -> Member:
    """The pair that a folder is. Raises CheckError."""
    own = implementation(folder)
    if own is not None:
        return Member(folder.name, OPERATORS, str(own))
    candidate = candidate_in(folder)
    if candidate is None or not (folder / REFERENCE).is_file():
        raise CheckError(f"{folder} is no pair: it needs {REFERENCE} and one of {', '.join(CANDIDATES)}")
    is_task = (folder / "task.yml").is_file()
    return Member(folder.name, str(folder if is_task else folder / REFERENCE), str(candidate))


def batch_of(reference: str, new: str | None) -> Batch | None:
    """The pairs of a folder or of two; None where the two are one pair. Raises CheckError."""
    folder, other = Path(reference), None if new is None else Path(new)
    if other is None:
        return None if is_one(folder) else pairs_below(folder)
    if reference == OPERATORS:
        is_folder = other.is_dir() and implementation(other) is None
        return pairs_below(other) if is_folder else None
    if folder.is_dir() and other.is_dir() and not (folder / "task.yml").is_file():
        return matched(folder, other)
    return None


def pairs_below(folder: Path) -> Batch:
    """The folders of a folder that are pairs. Raises CheckError if there is none."""
    if not folder.is_dir():
        raise CheckError(f"{folder} is no folder; name two files, or a folder of pairs")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:1] not in "._")
    pairs = [path for path in folders if is_one(path)]
    if not pairs:
        raise CheckError(
            f"{folder} has no pairs: a pair is a folder with {REFERENCE} and one of {', '.join(CANDIDATES)}; "
            "or name two folders whose files have the same names"
        )
    return Batch([one_of(path) for path in pairs], [str(path) for path in folders if path not in pairs])


def matched(references: Path, candidates: Path) -> Batch:
    """The files of two folders that belong together: those of the same name, else of the same number before `_`."""
    theirs, ours = files_of(references), files_of(candidates)
    members, left = [], set(ours)
    for name, path in theirs.items():
        own = name if name in ours else same_number(name, theirs, ours)
        if own is not None and own in left:
            left.discard(own)
            members.append(Member(name, str(path), str(ours[own])))
    if not members:
        raise CheckError(
            f"no file of {references} has its pair in {candidates}: give them the same names, such as 19_ReLU.py, or "
            "the same numbers before `_`"
        )
    matches = {member.name for member in members}
    unmatched = [str(path) for name, path in theirs.items() if name not in matches]
    return Batch(members, [*unmatched, *(str(ours[name]) for name in sorted(left))])


def files_of(folder: Path) -> dict[str, Path]:
    """The Python files of a folder by name, in the order of their numbers; folders with a candidate, too."""
    matches = {p.stem: p for p in folder.glob("*.py") if p.is_file() and p.name[:1] not in "._"}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in matches:
            own = candidate_in(path)
            matches |= {path.name: own} if own is not None else {}
    return {name: matches[name] for name in sorted(matches, key=order)}


def order(name: str) -> tuple[int, str]:
    """Names with numbers are in the order of these."""
    number = number_of(name)
    return (sys.maxsize if number is None else number), name


def number_of(name: str) -> int | None:
    """19 of `19_ReLU` and of `19`."""
    match = NUMBER.match(name)
    return int(match[1]) if match else None


def same_number(name: str, theirs: Iterable[str], ours: Iterable[str]) -> str | None:
    """The only name with the same number, if no other reference has it."""
    number = number_of(name)
    if number is None or [number_of(other) for other in theirs].count(number) != 1:
        return None
    same = [other for other in ours if number_of(other) == number]
    return same[0] if len(same) == 1 else None


def part(members: Sequence[Member], shard: str | None) -> Sequence[Member]:
    """Part I of N of the pairs, in turn. Raises CheckError."""
    if shard is None:
        return members
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, n = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= n:
        raise CheckError(f"--shard {shard}: write I/N with I from 1 to N, for example 2/4")
    return members[index - 1 :: n]


@dataclass
class Runner:
    """Checks pairs, `jobs` at a time, each with the options `arguments`, and appends its answer to `batch.jsonl`."""

    folder: Path
    arguments: Sequence[str]
    jobs: int
    most_s: float
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    ended: bool = False

    def answers(self, members: Sequence[Member]) -> Iterator[FaultRow]:
        """The answers as they come. If the iterator is closed or interrupted, the checks that still run are ended, and
        what was answered is in `batch.jsonl`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pool = ThreadPoolExecutor(self.jobs)
        try:
            left: set[Future[FaultRow | None]] = {pool.submit(self.one, member) for member in members}
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for row in filter(None, (future.result() for future in done)):
                    with (self.folder / ANSWERS).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    yield row
        finally:
            self.end()
            pool.shutdown(cancel_futures=True)

    def one(self, member: Member) -> FaultRow | None:
        """The answer to one pair; None if it was interrupted."""
        if self.ended:
            return None
        out = self.folder / member.name
        if (out / "run").is_dir():  # of a check that was interrupted
            shutil.rmtree(out)
        started, digest = time.monotonic(), member.digest
        parity = [sys.executable, "-P", "-m", "parity"]
        command = [*parity, "check", member.reference, member.new, "--json", "--out", str(out)]
        process = subprocess.Popen(
            [*command, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.running.add(process)
        try:
            stdout, stderr = process.communicate(timeout=self.most_s)
        except subprocess.TimeoutExpired:
            ended(process)
            stdout, stderr = "", f"no answer within {self.most_s:g} s"
        finally:
            self.running.discard(process)
        if self.ended:
            return None
        answer = answer_in(stdout, stderr, process.returncode, time.monotonic() - started)
        names = {"name": member.name, "reference": member.reference, "new": member.new, "digest": digest}
        return {**names, **answer}

    def end(self) -> None:
        """End the checks that still run, with what they have started."""
        self.ended = True
        for process in list(self.running):
            ended(process)


def ended(process: subprocess.Popen[str]) -> None:
    """End a check: it ends its own workers when it is asked to."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def answer_in(stdout: str, stderr: str, code: int | None, seconds: float) -> FaultRow:
    """The answer that a check has printed; one that says how it ended if there is none."""
    for line in reversed(stdout.splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "verdict" in row:
            return row
    last = next(filter(None, reversed(stderr.splitlines())), "nothing was said")
    text = f"the check ended with exit code {code} and no answer: {last}"
    row = json.loads(not_judged(text, seconds=seconds).as_json())
    return dict(row)


def answered(folder: Path, members: Iterable[Member]) -> dict[str, FaultRow]:
    """The answers of an earlier run to pairs that are as they were then, by name."""
    digests = {member.name: member.digest for member in members}
    path = folder / ANSWERS
    rows = map(parsed, path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()
    return {row["name"]: row for row in rows if row and row.get("digest") == digests.get(row.get("name", ""))}


def parsed(line: str) -> dict[str, Any]:
    """A line of `batch.jsonl`; nothing of one that was cut off."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def worst(rows: Iterable[FaultRow]) -> int:
    """The exit code of a batch: 1 if any pair is wrong, else 3 if any was not judged, else 0."""
    codes = {row["exit_code"] for row in rows}
    if exit_codes.MISMATCH in codes:
        return exit_codes.MISMATCH
    return exit_codes.PASSED if codes <= {exit_codes.PASSED} else exit_codes.INCOMPLETE


def cells(row: FaultRow) -> tuple[str, str, str, str, str]:
    """A row of the table: name, verdict, cause, seconds, sentence."""
    return row["name"], row["verdict"], row["cause"] or "-", f"{row['seconds']:.1f} s", row["sentence"]


def summary(rows: Sequence[FaultRow], n: int, unmatched: Sequence[str]) -> list[str]:
    """How many pairs ended how, and what had no pair."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    lines = [", ".join([f"{n} pairs", *(f"{count} {verdict}" for verdict, count in counts.items())])]
    if unmatched:
        more = f" and {len(unmatched) - MOST_NAMED} more" if len(unmatched) > MOST_NAMED else ""
        lines.append(f"without a pair: {', '.join(unmatched[:MOST_NAMED])}{more}")
    return lines


def junit(rows: Sequence[FaultRow]) -> str:
    """JUnit XML with a test case per pair: a failure where it is wrong, an error where it was not judged."""
    failures = [row for row in rows if row["exit_code"] == exit_codes.MISMATCH]
    errors = [row for row in rows if row["exit_code"] not in (exit_codes.MISMATCH, exit_codes.PASSED)]
    counts = {"tests": len(rows), "failures": len(failures), "errors": len(errors)}
    suite = Xml.Element("testsuite", {"name": "parity check", **{key: str(n) for key, n in counts.items()}})
    for row in rows:
        attributes = {"classname": "parity.check", "name": row["name"], "time": f"{row['seconds']:.3f}"}
        case = Xml.SubElement(suite, "testcase", attributes)
        if row in failures or row in errors:
            kind = "failure" if row in failures else "error"
            shown = {"type": row["cause"] or row["verdict"], "message": clean(row["sentence"])}
            Xml.SubElement(case, kind, shown).text = clean(f"{row['new']} {row['place']}")
    document = Xml.Element("testsuites")
    document.append(suite)
    Xml.indent(document)
    return Xml.tostring(document, "unicode", xml_declaration=True) + "\n"


def clean(text: str) -> str:
    """The text without characters that XML has not."""
    return "".join(c if c.isprintable() else " " for c in text)
