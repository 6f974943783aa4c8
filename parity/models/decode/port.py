"""The host's view of a model that decodes, which lives in a worker."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parity.models.call_traces import Trail
from parity.models.decode.spec import DecodeSpec
from parity.models.decode.ways import DecodeCall, Tokens
from parity.models.ports import RemotePort
from parity.models.worker.tape import Recorded


@dataclass(frozen=True)
class DecodeResult:
    """The result of some calls: a tape for each, and the shapes of cached tensors with the narrower format that holds
    them.

    `takes` are the optional arguments of the user's function, `words` the names of each layer's tensor arguments;
    `heard` are the calls of one layer's code.
    """

    calls: Sequence[DecodeCall]
    tapes: Sequence[Recorded]
    caches: Sequence[Sequence[Mapping[str, Any]]]
    takes: Sequence[str]
    words: Mapping[str, Sequence[str]]
    heard: Sequence[Mapping[str, Any]] = ()

    def trail(self, k: int) -> Trail:
        """The recorded calls of a layer's code in call `k`."""
        stored = Recorded(f"{self.tapes[k].folder}-calls")
        return Trail.of(self.heard[k], {name: stored.load(name) for name in stored})

    def forget(self) -> None:
        """Remove its files."""
        shutil.rmtree(Path(self.tapes[0].folder).parent, ignore_errors=True)


class Decoder(RemotePort):
    """A port whose function `forward` decodes."""

    def prompts(self) -> list[list[int]]:
        """The token ids of the user's function. Raises ModelError."""
        assert isinstance(self.model, DecodeSpec)  # noqa: S101 - for the type checker
        return list(self._ask("model.prompts", prompts=self.model.prompts)["prompts"])

    def decode(
        self,
        state: Path,
        calls: Sequence[DecodeCall],
        prompts: Sequence[Tokens],
        *,
        layers: Collection[str] = (),
        partner: Mapping[int, Recorded] | None = None,
        keys: Mapping[str, str] | None = None,
        replace: Collection[str] | None = None,
        dtype: str = "",
        seed: int = 0,
        shaken: str = "",
        listen: str | None = None,
    ) -> DecodeResult:
        """Run some calls with the boundaries of `layers` on the tapes.

        `partner` is the full pass of each prompt, whose values replace those of the calls (only of the tensors in
        `replace`, if given); `keys` maps tensors to its names, if they differ. `seed` perturbs the weights and the
        replacements by an ulp; with `shaken`, all tensors at the boundaries by an ulp of that dtype. With the layer
        `listen`, the calls of its code are recorded, and the caches are on the tapes, too. Raises ModelError.
        """
        record = self.folder / f"run-{next(self._numbers)}"
        reply = self._ask(
            "model.decode",
            state=str(state),
            record=str(record),
            calls=[asdict(call) for call in calls],
            lengths=[len(tokens) for tokens in prompts],
            layers=list(layers),
            partner={str(i): full.folder for i, full in (partner or {}).items()},
            keys=None if keys is None else dict(keys),
            replace=None if replace is None else list(replace),
            dtype=dtype or self.dtype,
            seed=seed,
            shaken=shaken,
            listen=listen,
        )
        tapes = [Recorded(str(record / str(k))) for k in range(len(calls))]
        return DecodeResult(calls, tapes, reply["caches"], reply["takes"], reply["words"], reply["heard"])
