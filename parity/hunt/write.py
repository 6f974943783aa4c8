"""Writes a hunt's findings as a config for `parity run`, and its state for `--resume`."""

from __future__ import annotations

import datetime
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import ValidationError, convert, to_builtins

from parity.config.plan import ORACLE, BackendSpec, KnownDeviation
from parity.engine.inputs import slug
from parity.hunt import HuntError
from parity.hunt.bench import TrialCase
from parity.hunt.reduce import literal
from parity.hunt.search import Arm, HuntFinding, Search
from parity.hunt.subject import Subject
from parity.judge.bound.envelope import ERROR_BOUND, Array
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.outcome import Outcome
from parity.reporting.results.results import write_atomically
from parity.reporting.results.strict_json import as_number, spelled
from parity.starter.write import case_lines, flow

CONFIG, STATE, INPUTS = "hunt.yaml", "hunt.json", "inputs"
FORMAT = 1
MOST_WRITTEN = 64
"""Numbers of a tensor in the config; larger ones are in `.npy` files beside it."""

LOST = (Outcome.CRASH.value, Outcome.TIMEOUT.value)
"""The outcomes that a finding names instead of a tensor if its backend returned none."""

Written = dict[str, Any]


def write_config(folder: Path, named: str, subject: Subject, findings: Sequence[HuntFinding]) -> Path:
    """The findings as a config in `folder`, the diagnosed case of each before its smallest one; raises OSError."""
    lines = []
    for number, finding in enumerate(findings, 1):
        lines += [f"  # {number}. {said(finding)}"]
        for trial, name in trials_of(finding, number):
            lines += case_lines(written(trial, name, folder))
    path = folder / CONFIG
    entries = [
        known_line(case_id(f, n), entry) for n, f in enumerate(findings, 1) if (entry := known_entry(f, subject))
    ]
    lines += ["known:", *entries] if entries else []
    lines += [f"subject: {flow(list(subject.judged))}"] if subject.judged else []
    head = f"# What `parity hunt {named}` found. Run it with: {shlex.join(['parity', 'run', str(path)])}"
    write_cases(path, [head], subject.backends, lines)
    return path


def known_entry(finding: HuntFinding, subject: Subject) -> KnownDeviation | None:
    """The entry of the hunted config that accepts this cause of this backend in other cases."""
    today = datetime.date.today()
    return next(
        (
            entry
            for entry in subject.known
            if entry.backend in (None, finding.backend)
            and finding.causes.keys() == {entry.diagnosis}
            and (entry.until is None or today <= entry.until)
        ),
        None,
    )


def known_line(name: str, entry: KnownDeviation) -> str:
    """The entry for a finding's cases."""
    until = {} if entry.until is None else {"until": entry.until}
    backend = {} if entry.backend is None else {"backend": entry.backend}
    row = {"case": f"{name}*", **backend, "diagnosis": entry.diagnosis, "reason": entry.reason, **until}
    return f"  - {flow(row)}"


def write_cases(path: Path, head: Sequence[str], backends: Sequence[BackendSpec], cases: Sequence[str]) -> None:
    """A config whose cases are these lines; raises OSError."""
    named = flow([backend_of(spec, path.parent) for spec in backends])
    lines = [*head, "version: 1", f"backends: {named}", f"baseline: {ORACLE}", "cases:", *cases]
    write_atomically(path, "\n".join(lines) + "\n")


def show_small(finding: HuntFinding, spec: BackendSpec, path: Path | None) -> str:
    """A reduced case as text, and in the config `path` if there is one; raises OSError."""
    folder = Path.cwd() if path is None else path.parent
    case = "\n".join(f" {line}" for line in case_lines(written(finding.trial, case_id(finding, 1), folder)))
    if path is None:
        return f"{said(finding)}\n{case}"
    write_cases(
        path, [f"# {said(finding)}"], [spec], list(case_lines(written(finding.trial, case_id(finding, 1), folder)))
    )
    return f"{said(finding)}\n{case}\nwritten to {path}; run it with: {shlex.join(['parity', 'run', str(path)])}"


def trials_of(finding: HuntFinding, number: int) -> Iterator[tuple[TrialCase, str]]:
    """The cases of a finding, with their ids."""
    if finding.original is not finding.trial:
        yield finding.original, f"{finding.op}-{number}-as-found"
    yield finding.trial, case_id(finding, number)


def case_id(finding: HuntFinding, number: int) -> str:
    """The id of a finding's smallest case."""
    return f"{finding.op}-{number}"


def said(finding: HuntFinding) -> str:
    """A finding in a line."""
    if finding.tensor in LOST:
        return f"{finding.backend}: {finding.tensor} in {finding.op}, {finding.trial.dtype}"
    titles = "; ".join(f"{title} ({name})" for name, title in finding.causes.items()) or "not diagnosed"
    times = (
        "NaN, an infinity or a structure"
        if finding.ratio == float("inf")
        else f"{finding.ratio / ERROR_BOUND:.3g} error bounds"
    )
    return f"{finding.backend}: {titles}, in {finding.tensor} of {finding.op}, {finding.trial.dtype}: {times}"


def backend_of(spec: BackendSpec, folder: Path) -> Any:
    """A backend as a config names it: in short, or a mapping."""
    short = (
        spec.adapter + (f"=={spec.version}" if spec.version else "") + (f":{spec.mode}" if spec.mode != "eager" else "")
    )
    if spec.name == short and spec.ops is None and spec.python is None and spec.device == "cpu" and spec.ranks == 1:
        return short
    paths = {key: relative(path, folder) for key, path in (("ops", spec.ops), ("python", spec.python)) if path}
    usual = BackendSpec(spec.name, spec.adapter)
    rest = {
        key: getattr(spec, key) for key in ("version", "mode", "device") if getattr(spec, key) != getattr(usual, key)
    }
    return {"name": spec.name, "adapter": spec.adapter, **rest, **paths}


def relative(path: Path, folder: Path) -> str:
    """A path as a config in `folder` names it."""
    text = os.path.relpath(path, folder)
    return text if text.startswith(("./", "../")) else f"./{text}"


def written(trial: TrialCase, name: str, folder: Path) -> Written:
    """A case of a config with the trial's numbers; raises OSError where they go into files that cannot be written."""
    case = trial.case
    params = {
        field.name: plain(getattr(case.params, field.name))
        for field in fields(case.params)
        if field.default is MISSING or getattr(case.params, field.name) != field.default
    }
    inputs: Written = {}
    for tensor, values in trial.inputs.items():
        item = case.definition.input(tensor)
        number = numbers(values, case.dtypes, folder / INPUTS / f"{slug(name)}-{slug(tensor)}.npy", folder)
        if item is not None and item.listed:
            inputs.setdefault(item.name, []).append(number)
        else:
            inputs[tensor] = number
    absent = [
        item.name
        for item in case.definition.inputs
        if item.optional and item.name not in trial.inputs and not item.opt_in
    ]
    brought = {"reference": relative(case.brought.source.path, folder)} if case.brought is not None else {}
    return {
        "id": name,
        "op": case.op,
        **brought,
        **({"params": params} if params else {}),
        "inputs": {**inputs, **dict.fromkeys(absent)},
        "dtypes": list(case.dtypes),
        **({} if case.gradients else {"gradients": False}),
    }


def plain(value: Any) -> Any:
    """A param as YAML has it."""
    return list(map(plain, value)) if isinstance(value, tuple) else value


def numbers(values: Array, dtypes: tuple[str, ...], path: Path, folder: Path) -> Written:
    """A tensor's values, or its file."""
    if values.size <= MOST_WRITTEN:
        return {"values": literal(values, dtypes)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=False)
    return {"file": relative(path, folder)}


def write_state(folder: Path, request: Mapping[str, Any], search: Search) -> None:
    """Write the state of a hunt for `--resume`; raises OSError."""
    state = {
        "format": FORMAT,
        "request": request,
        "rounds": search.n_rounds,
        "trials": search.bench.n_trials,
        "repeated": search.n_repeated,
        "arms": [vars(arm) for arm in search.arms],
        "tried": dict(search.tried),
        "best": search.best,
        "failed": [[*key, *value] for key, value in search.failed.items()],
        "findings": [finding_row(finding) for finding in search.findings],
        "crashed": [finding_row(finding) for finding in search.crashed],
    }
    write_atomically(folder / STATE, json.dumps(spelled(state), indent=1))


def finding_row(finding: HuntFinding) -> Written:
    """A finding without its tensors, which are in the config."""
    return {
        "backend": finding.backend,
        "tensor": finding.tensor,
        "ratio": finding.ratio,
        "dtype": finding.trial.dtype,
        "diagnoses": to_builtins(finding.diagnoses),
    }


def read_state(folder: Path) -> Mapping[str, Any]:
    """The state of a hunt; raises HuntError."""
    if not (folder / STATE).is_file():
        raise HuntError(f"{folder} holds no hunt to continue: it has no {STATE}")
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise HuntError(f"{folder / STATE} was written by another version of parity")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise HuntError(f"{folder / STATE} is broken ({error}); start the hunt anew") from error
    return dict(state)


def restored(search: Search, state: Mapping[str, Any], trials: Mapping[str, TrialCase]) -> None:
    """Set a search to a state; `trials` are the cases of the config by id. Raises HuntError."""
    try:
        search.n_rounds, search.bench.n_trials = int(state["rounds"]), int(state["trials"])
        search.n_repeated = int(state["repeated"])
        search.arms = [Arm(**row) for row in state["arms"]]
        search.tried.update(state["tried"])
        search.best = {name: as_number(ratio) for name, ratio in state["best"].items()}
        search.failed = {(backend, what): (n, message) for backend, what, n, message in state["failed"]}
        for number, row in enumerate(state["findings"] + state["crashed"], 1):
            op = next(trial.case.op for name, trial in trials.items() if name.endswith(f"-{number}"))
            small = trials[f"{op}-{number}"]
            original = replace(trials.get(f"{op}-{number}-as-found", small), dtype=row["dtype"])
            trial = original if f"{op}-{number}-as-found" not in trials else replace(small, dtype=row["dtype"])
            diagnoses = tuple(convert(as_number(diagnosis), Diagnosis) for diagnosis in row["diagnoses"])
            finding = HuntFinding(trial, original, row["backend"], row["tensor"], as_number(row["ratio"]), diagnoses)
            (search.crashed if row["tensor"] in LOST else search.findings).append(finding)
    except (KeyError, TypeError, ValueError, StopIteration, ValidationError) as error:
        raise HuntError(f"{STATE} and {CONFIG} do not fit together: {error!r}") from error
