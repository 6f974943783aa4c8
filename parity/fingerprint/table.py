"""What `parity fingerprint` prints: the verdict, the backends, and the answers aspect by aspect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from msgspec import convert
from rich.console import Console

from parity import exit_codes
from parity.fingerprint.precision import PRECISIONS
from parity.fingerprint.study import FingerprintRequest, Study, conduct
from parity.reporting.blocks import Block, BlockReport, Sentence
from parity.reporting.blocks.console import show
from parity.reporting.console.progress import reporter_for
from parity.reporting.console.run import stdout_console
from parity.reporting.fingerprints import FingerprintFile, claims_grid
from parity.reporting.text.words import plural

LABELS = {exit_codes.PASSED: ("FINGERPRINT", "well"), exit_codes.INTERRUPTED: ("INTERRUPTED", "doubtful")}


def fingerprint_and_show(request: FingerprintRequest, *, as_json: bool = False) -> int:
    """Fingerprint with progress on stderr and the answer on stdout; the exit code. Raises OSError."""
    n_probes = sum(len(list(request.experiment.probes(PRECISIONS[dtype]))) for dtype in request.dtypes)
    study = conduct(request, reporter_for(Console(stderr=True), n_probes, quiet=False))
    if as_json:
        print(json.dumps(study.document, indent=2))  # noqa: T201 - the document is the output
    else:
        show(study_report(study), stdout_console(), verbosity=1)
    note = f"written to {request.run_dir}"
    Console(stderr=True).print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
    return study.exit_code


def study_report(study: Study) -> BlockReport:
    """How many answers there are, and the answers."""
    counts = study.document["summary"]
    label, style = LABELS.get(study.exit_code, ("INCOMPLETE", "doubtful"))
    missing = f", {counts['not measured']} not measured" if counts["not measured"] else ""
    text = f"{study.request.op}: {counts['decided']} answers, {counts['cannot tell']} cannot tell{missing}"
    return BlockReport("parity fingerprint", label, style, text, list(blocks(study)))


def blocks(study: Study) -> Iterator[Block]:
    """The backends and their versions, why probes have no result, the answers."""
    lineup = (f"{row['name']} {row['version']}".strip() for row in study.document["backends"])
    yield Sentence(" · ".join(lineup), "quiet")
    reasons = Counter((p["backend"], p["outcome"], p["message"]) for p in study.document["problems"])
    for (backend, outcome, message), n in reasons.most_common():
        yield Sentence(message.replace("\n", " | "), "warning", f"{backend}: {outcome} in {plural(n, 'probe')}")
    yield Sentence("")
    yield claims_grid(convert(study.document, FingerprintFile, strict=False).fingerprints)
    yield Sentence("cannot tell: the data do not decide; fingerprint.json has the numbers", "quiet")
