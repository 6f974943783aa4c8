"""The parameters of a case of `kind: decode`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parity.models.spec import ModelSpec

DECODE = "decode"
"""The `op` of such a case, and the `kind` by which a config asks for one."""
KEYS = ("build", "forward", "prompts", "chunk", "pad", "ways")


@dataclass(frozen=True)
class DecodeSpec(ModelSpec):
    """The names of functions, and how they are used.

    `forward(model, tokens, cache, mask, positions)` returns logits [b, n, vocabulary], or these and a cache; the last
    three arguments are optional. `prompts` is a function of the baseline's file that returns lists of token ids.
    `chunk` is the number of tokens per call in chunks, `pad` the id of padding. `ways` are names of `WAYS`, empty for
    all. `mapping` maps the parameters.
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
