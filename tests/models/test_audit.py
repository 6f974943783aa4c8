"""What the audit of a model says of its batch is what a run with a planted fault shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.config import Overrides, load_plan
from parity.models.audit import audited
from parity.models.pair import PortPair
from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call
from tests.models.ports import config_of_cases

pytestmark = [pytest.mark.process, pytest.mark.frameworks]

ENCODER = (CONFIGS / "models" / "encoder_torch.py").read_text()
LINE = "    def forward(self, ids, mask):\n"
PLAIN = ENCODER.replace("mask[1, 6:] = 0\n    mask[3, 4:] = 0", "mask[:] = 1").replace(
    "rng.integers(0, VOCABULARY, (4, LENGTH)), ", "np.full((4, LENGTH), 7), "
)
"""The same with a batch of one word, without padding, which shows no mistake but a mask that means the opposite."""
FAULTS = {
    ("mask-ignored", "mask"): "mask = torch.ones_like(mask)",
    ("mask-alignment", "mask"): "mask = mask.flip(-1)",
    ("repeated-rows", "ids"): "ids = ids[:1].expand_as(ids)",
    ("position-offset", "ids"): "ids = ids.flip(1)",
}
"""By the mistake and its tensor: a line in which a port makes it."""


def faulty(text: str, line: str) -> str:
    assert LINE in text
    return text.replace(LINE, f"{LINE}        {line}\n")


def test_the_audit_says_what_a_run_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PortPair, "_diagnose", PortPair._undiagnosed)  # verdicts alone are asked for
    options = {"targets": ["labels"]}
    cases = {name.replace("-", "_"): (ENCODER, faulty(ENCODER, line), options) for (name, _), line in FAULTS.items()}
    cases["plain"] = (PLAIN, faulty(PLAIN, "; ".join(FAULTS.values())), options)
    path = config_of_cases(tmp_path, cases)
    own, plain = (said(path, case) for case in ("mask_ignored", "plain"))
    assert {place: own[place] for place in FAULTS} == dict.fromkeys(FAULTS, True)
    assert {place: plain[place] for place in FAULTS} == dict.fromkeys(FAULTS, False)
    done = call("run", path, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    rows = [row for row in read_results(tmp_path / "out").comparisons if row.tensor == "output"]
    assert {row.case: row.fails for row in rows} == {case: case != "plain" for case in cases}


def said(path: Path, case: str) -> dict[tuple[str, str], bool]:
    """Whether the audit of a case says that a run fails, by the mistake and its tensor."""
    plan = load_plan([path], Overrides(keyword=case))
    return {(one.id, one.parameters["of"]): bool(one.fails_in) for one in audited(plan.cases[0], plan).mistakes}
