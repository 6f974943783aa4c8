"""What `parity fingerprint` prints: the verdict, the backends, and the answers aspect by aspect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import convert

from parity import exit_codes
from parity.fingerprint.study import Study
from parity.reporting.blocks import Block, BlockReport, Sentence
from parity.reporting.fingerprints import FingerprintFile, claims_grid
from parity.reporting.text.words import plural

LABELS = {exit_codes.PASSED: ("FINGERPRINT", "well"), exit_codes.INTERRUPTED: ("INTERRUPTED", "doubtful")}


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
