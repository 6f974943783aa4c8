"""What the audit of a model says of its batch is what a run with a planted fault shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parity.config import Overrides, load_plan
from parity.judge.audit import Mistake
from parity.models.audit import BatchMistake, audited, of_prompts
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


GPT = (CONFIGS / "models" / "gpt_torch.py").read_text()
STARTS_AGAIN = GPT.replace(
    "(mask.cumsum(-1) - 1)", "torch.ones_like(tokens).cumsum(-1) - 1 + 0 * mask[:, -1:]"
).replace(".clamp(min=0)[:, -tokens.shape[1] :]", "")
UNMASKED = GPT.replace(" & mask[:, None, None, :].bool()", "")
PLANTED = {"ours": ("decode-position", "of the call"), "theirs": ("decode-mask", "padding")}
"""By the port: the mistake that is planted in it."""
LENGTHS = {"cached": (3, 3), "padded": (3, 1), "single": (1, 1)}
PROMPTS = {name: [list(range(n)) for n in lengths] for name, lengths in LENGTHS.items()}
"""Of prompts of these lengths the first show a cache alone, the second padding, too, the last nothing."""


def test_the_audit_of_prompts_says_what_a_run_shows(tmp_path: Path):
    cases = {}
    for name, lengths in LENGTHS.items():
        texts = (text.replace("(10, 7, 4)", str(lengths)) for text in (STARTS_AGAIN, UNMASKED))
        cases[name] = (*texts, {"kind": "decode", "ways": ["step", "left"]})
    path = config_of_cases(tmp_path, cases)
    call("run", path, "--out", tmp_path / "out")
    rows = [row for row in read_results(tmp_path / "out").comparisons if not row.tensor.startswith("port.")]
    plan = load_plan([path])
    by_case = {
        name: dict(of_each(of_prompts(PROMPTS[name], plan.cases[0].params, ("mask", "cache")))) for name in cases
    }
    for case, seen in by_case.items():
        failing = {name: any(row.fails for row in rows if (row.case, row.actual) == (case, name)) for name in PLANTED}
        assert {name: seen[mistake] for name, mistake in PLANTED.items()} == failing
        assert seen["decode-cache",] == (case != "single")
    case = next(case for case in plan.cases if case.id == "cached")
    assert dict(of_each((one, one.ratios["float32"]) for one in audited(case, plan).mistakes)) == by_case["cached"]


def of_each(mistakes: Iterable[tuple[BatchMistake | Mistake, Mapping[str, float]]]) -> Iterator[tuple[Any, bool]]:
    """Whether each mistake is seen, by its name and parameters."""
    for mistake, ratios in mistakes:
        yield (mistake.id, *mistake.parameters.values()), any(ratios.values())
