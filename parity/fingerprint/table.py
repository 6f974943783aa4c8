"""A fingerprint on the console: one table, aspect by aspect, with one line for backends that share an answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity import exit_codes
from parity.fingerprint.claims import KernelClaim
from parity.fingerprint.precision import PRECISIONS
from parity.fingerprint.study import FingerprintRequest, KernelFingerprint, Study, conduct
from parity.reporting.console.progress import reporter_for
from parity.reporting.console.run import stdout_console


def fingerprint_and_show(request: FingerprintRequest, *, as_json: bool = False) -> int:
    """Fingerprint with progress on stderr and the answer on stdout; the exit code. Raises OSError."""
    n_probes = sum(len(list(request.experiment.probes(PRECISIONS[dtype]))) for dtype in request.dtypes)
    study = conduct(request, reporter_for(Console(stderr=True), n_probes, quiet=False))
    if as_json:
        print(json.dumps(study.document, indent=2))  # noqa: T201 - the document is the output
    else:
        render(study, stdout_console())
    note = f"written to {request.run_dir}"
    Console(stderr=True).print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
    return study.exit_code


def render(study: Study, console: Console) -> None:
    """Print the result."""
    console.print(headline(study), soft_wrap=True)
    console.print(Text(lineup(study), style="dim"), soft_wrap=True)
    for line in remarks(study):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(table(study))
    console.print(
        Text("cannot tell: the data do not decide; fingerprint.json has the numbers", style="dim"), soft_wrap=True
    )


def headline(study: Study) -> Text:
    """How many answers there are."""
    counts = study.document["summary"]
    label, style = {
        exit_codes.PASSED: ("FINGERPRINT", "bold green"),
        exit_codes.INTERRUPTED: ("INTERRUPTED", "bold yellow"),
    }.get(study.exit_code, ("INCOMPLETE", "bold yellow"))
    missing = f", {counts['not measured']} not measured" if counts["not measured"] else ""
    text = f"  {study.request.op}: {counts['decided']} answers, {counts['cannot tell']} cannot tell{missing}"
    return Text.assemble((label, style), text)


def lineup(study: Study) -> str:
    """The backends and their versions."""
    return " · ".join(f"{row['name']} {row['version']}".strip() for row in study.document["backends"])


def remarks(study: Study) -> Iterator[Text]:
    """One line for each reason why probes have no result."""
    reasons = Counter((p["backend"], p["outcome"], p["message"]) for p in study.document["problems"])
    for (backend, outcome, message), n in reasons.most_common():
        where = f"{backend}: {outcome} in {n} probe{'' if n == 1 else 's'}"
        yield Text.assemble((where, "yellow"), ": ", message.replace("\n", " | "))


def table(study: Study) -> Table:
    """Aspects, backends, answers and reasons."""
    answers = Table(box=None, pad_edge=False, header_style="bold")
    answers.add_column("aspect", no_wrap=True)
    for name, ratio in (("backend", 3), ("answer", 4), ("because", 5)):
        answers.add_column(name, overflow="fold", ratio=ratio)
    for aspect in dict.fromkeys(c.aspect for f in study.fingerprints for c in f.claims):
        for i, (who, claim) in enumerate(shared(study, aspect)):
            style = "" if claim.decided else "dim"
            answers.add_row(
                Text("" if i else aspect), Text(who), Text(claim.answer, style=style), Text(claim.reason, style="dim")
            )
    return answers


def shared(study: Study, aspect: str) -> Iterator[tuple[str, KernelClaim]]:
    """The different answers for one aspect, each with its backends."""
    groups: dict[str, list[tuple[KernelFingerprint, KernelClaim]]] = {}
    for fingerprint in study.fingerprints:
        for claim in displayed(fingerprint):
            if claim.aspect == aspect:
                # Two reasons for `cannot tell` are two answers.
                groups.setdefault(claim.answer if claim.decided else f"- {claim.reason}", []).append(
                    (fingerprint, claim)
                )
    for members in groups.values():
        yield named([fingerprint for fingerprint, _ in members], len(study.request.dtypes)), members[0][1]


def displayed(fingerprint: KernelFingerprint) -> Sequence[KernelClaim]:
    """The claims; if a backend returned nothing, without the reason, which is printed above the table."""
    if any(claim.measured for claim in fingerprint.claims):
        return fingerprint.claims
    return [replace(claim, answer="not measured", reason="") for claim in fingerprint.claims]


def named(members: Sequence[KernelFingerprint], n_dtypes: int) -> str:
    """`torch, paddle float32`: a backend without a dtype stands for all of them."""
    dtypes: dict[str, list[str]] = {}
    for fingerprint in members:
        dtypes.setdefault(fingerprint.backend, []).append(fingerprint.dtype)
    return ", ".join(
        name if len(listed) == n_dtypes else f"{name} {' '.join(listed)}" for name, listed in dtypes.items()
    )
