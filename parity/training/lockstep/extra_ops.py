"""Asks a participant's worker for an op alone, after its steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parity.config.plan import CasePlan
from parity.engine.cells import CellQuestion
from parity.engine.extra_cells import Asking, stored
from parity.outcome import Arrays, CellOutcome
from parity.training.lockstep.participant import Participant


@dataclass
class ParticipantAsking(Asking):
    """Asks the participants of a training instead of the runners of a run."""

    participants: Mapping[str, Participant] = field(default_factory=dict)

    def outcome(
        self, backend: str, case: CasePlan, dtype: str, inputs: Arrays, *, new_process: bool = False
    ) -> CellOutcome | None:
        """The outcome of the cell; None if the backend has no worker left, if the inputs cannot be stored, and of a
        `new_process`, since a participant is in the middle of its steps."""
        participant = self.participants.get(backend)
        if participant is None or new_process:
            return None
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                question = CellQuestion(next(self.numbers), stored(case, inputs, Path(folder)), dtype, None)
                with participant.lock:
                    return participant.cell(question)
        except OSError:
            return None
