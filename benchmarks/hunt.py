"""A hunt of a fixed time over every op of the census: what was tried, and what is beyond the error bound.

    python benchmarks/hunt.py OUT -b torch -b paddle [--seconds 12] [--op NAME ...]
    python benchmarks/hunt.py OUT -b torch -b paddle --finish

The backends start once. After each op, OUT/hunt.yaml has all findings so far, and OUT/ops.json a row per op. `--finish` looks at
the findings of such a hunt again, and reduces each that still shows, however long it takes; `parity run OUT/hunt.yaml`
then diagnoses them. Hunt JAX alone: it compiles every new shape, and others would wait for it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from parity.cases import OPS
from parity.config import load_backends, load_plan
from parity.config.plan import CasePlan
from parity.engine import EngineOptions
from parity.hunt.bench import Bench, TrialCase
from parity.hunt.hunt import DEFAULT_DTYPES, HuntRequest, searched, stored_trials
from parity.hunt.reduce import reduce_case
from parity.hunt.search import HuntFinding, Search
from parity.hunt.subject import Subject, bases_of
from parity.hunt.write import STATE, read_state, restored, write_config
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.failures import Failures
from parity.reporting.results.strict_json import spelled

CENSUS = Path(__file__).parent.parent / "configs" / "census"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("-b", "--backend", action="append", required=True)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--op", action="append", help="Default: every op of the census.")
    parser.add_argument("--finish", action="store_true")
    options = parser.parse_args()
    specs = load_backends(options.backend)
    bases = {op: tuple(bases_of(OPS[op], DEFAULT_DTYPES)) for op in options.op or ops_of_the_census()}
    options.out.mkdir(parents=True, exist_ok=True)
    whole, findings, rows = Subject("every op of the census", (), specs), [], []
    cases = [base.case for each in bases.values() for base in each]
    with Bench(specs, cases, EngineOptions(), options.out / "log.txt") as bench:
        bench.seen([drawn(cases[0])])
        if options.finish:
            for op, own in bases.items():
                findings += finished(Search(bench, own, DEFAULT_DTYPES), options.out / "ops" / op)
                write_config(options.out, whole.name, whole, findings)
            return
        for op, own in bases.items():
            began = time.monotonic()
            search, interrupted = hunted(bench, Subject(op, own, specs), options.seconds, options.out / "ops" / op)
            findings += [*search.findings, *search.crashed]
            rows.append(row_of(op, search, time.monotonic() - began))
            write_config(options.out, whole.name, whole, findings)
            (options.out / "ops.json").write_text(json.dumps(spelled(rows), indent=1))
            print(json.dumps(spelled(rows[-1])), flush=True)
            if interrupted:
                break


def ops_of_the_census() -> list[str]:
    """The ops of its configs, in their order."""
    plan = load_plan(sorted(CENSUS.glob("*.yaml")))
    return list(dict.fromkeys(case.op for case in plan.cases))


def drawn(case: CasePlan) -> TrialCase:
    """The case as it is, which waits for the backends to start."""
    return TrialCase(case, case.dtypes[0], {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors})


def hunted(bench: Bench, subject: Subject, seconds: float, folder: Path) -> tuple[Search, bool]:
    """The search over an op, within so many seconds, and whether an interrupt ended it."""
    folder.mkdir(parents=True, exist_ok=True)
    bench.n_trials, bench.until = 0, float("inf")
    search = Search(bench, subject.bases, DEFAULT_DTYPES)
    request = HuntRequest(subject.name, bench.names, minutes=seconds / 60)
    return search, searched(search, request, subject, folder, time.monotonic() + seconds)


def finished(search: Search, folder: Path) -> list[HuntFinding]:
    """The findings of an earlier search that still show, in their smallest cases."""
    if not (folder / STATE).is_file():
        return []
    restored(search, read_state(folder), stored_trials(folder))
    found = []
    for finding in search.findings:
        fault = finding.backend, finding.tensor
        for trial in (finding.trial, finding.original):
            seen = search.look_at(trial)
            ratio = seen.faults.get(fault)
            if ratio is not None:
                small = reduce_case(seen, fault, ratio, search.look_at, Failures())
                ratio = search.look_at(small).faults.get(fault, ratio)
                found.append(replace(finding, trial=small, found=small, ratio=ratio, diagnoses=()))
                break
        print(
            finding.op, finding.backend, finding.tensor, found[-1].n_numbers if ratio else "shows no more", flush=True
        )
    return found


def row_of(op: str, search: Search, seconds: float) -> dict[str, object]:
    """What was tried of an op, the largest error of each backend in error bounds, and what gave no result."""
    return {
        "op": op,
        "trials": search.bench.n_trials,
        "seconds": round(seconds, 1),
        "largest": {name: ratio / ERROR_BOUND for name, ratio in search.best.items()},
        "findings": [f"{f.backend}, {f.tensor}, {', '.join(f.causes) or 'not diagnosed'}" for f in search.findings],
        "crashed": [f"{f.backend}, {f.tensor}" for f in search.crashed],
        "failed": {f"{backend}, {what}": n for (backend, what), (n, _) in search.failed.items()},
    }


if __name__ == "__main__":
    main()
