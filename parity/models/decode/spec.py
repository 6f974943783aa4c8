"""What a case of `kind: decode` is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parity.models.spec import ModelSpec

DECODE = "decode"
"""The `op` of such a case, and the `kind` by which a config asks for one."""
KEYS = ("build", "forward", "prompts", "chunk", "pad", "ways")


@dataclass(frozen=True)
class DecodeSpec(ModelSpec):
    """`forward(model, tokens, cache, mask, positions)` returns logits [b, n, vocabulary], or these and a cache; it has
    those of the last three that it needs. `prompts` is a function of the baseline's file that returns lists of token
    ids. `chunk`: tokens of a call in chunks. `pad`: the id at padded places. `ways`: names of `WAYS`, empty for all.
    Weights are moved by `mapping`.
    """

    forward: str = "decode"
    prompts: str = "prompts"
    chunk: int = 3
    pad: int = 0
    ways: tuple[str, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of the users' files."""
        return self.build, self.forward, self.prompts

    def recorded(self) -> dict[str, Any]:
        """As results.json has it."""
        given = {name: getattr(self, name) for name in KEYS}
        given |= {} if self.mapping is None else {"mapping": str(self.mapping)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v != ()}
