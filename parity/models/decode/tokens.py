"""The distance of each token of a way from the full pass, in units of the token's rounding error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.judge.bound.envelope import ERROR_BOUND, SMALLEST, Array, Envelope, size
from parity.models.decode.port import DecodeResult
from parity.models.measure import ReferenceRuns
from parity.models.worker.decode import aligned, cut

LOGPROBS = "logprobs"


@dataclass(frozen=True)
class TokenSlice:
    """Some tokens of a tensor, from `start` on, in the full pass's layout."""

    axis: int
    start: int
    values: Array


@dataclass
class TokenRatios:
    """The error ratios of a tensor by token. `values` are those of the first wrong token, in the way and full pass."""

    ratios: dict[int, float] = field(default_factory=dict)
    values: tuple[Array, Array] | None = None

    @property
    def wrong_tokens(self) -> list[int]:
        """The tokens that exceed the error bound."""
        return sorted(token for token, ratio in self.ratios.items() if not ratio < ERROR_BOUND)

    @property
    def largest(self) -> float:
        """The largest ratio."""
        return max(self.ratios.values(), default=0.0)


def pieces(run: DecodeResult, name: str, full: tuple[int, ...], prompt: int, length: int) -> Iterator[TokenSlice]:
    """A run's parts of a prompt's tensor, whose shape is `full` in the pass over all `length` tokens."""
    for call, tape in zip(run.calls, run.tapes, strict=True):
        for i, row in enumerate(call.rows):
            if row.prompt != prompt or not row.count or name not in tape:
                continue
            at = aligned(full, tape.shape(name), len(call.rows), len(call.tokens[0]), length)
            if at is not None:
                values = tape.load(name)[i : i + 1] if at[0] else tape.load(name)
                yield TokenSlice(at[1], row.start, values[cut(at[1], row.offset, row.count)])


def token_ratios(
    reference: ReferenceRuns, run: DecodeResult, name: str, prompt: int, length: int, theirs: str = ""
) -> TokenRatios:
    """The error ratio of each token of a tensor; `theirs` is its name in the run, if that differs.

    Empty if the run has no such tensor of this form.
    """
    result, measured = TokenRatios(), None
    for piece in pieces(run, theirs or name, reference.plain.shape(name), prompt, length):
        exact, envelope = measured = measured or reference.envelope(name)
        for j in range(piece.values.shape[piece.axis]):
            token, index = piece.start + j, cut(piece.axis, piece.start + j, 1)
            mine = piece.values[cut(piece.axis, j, 1)]
            result.ratios[token] = ratio = token_ratio(mine, exact[index], index, envelope, piece.axis)
            if result.values is None and not ratio < ERROR_BOUND:
                result.values = mine, reference.plain.load(name)[index]
    return result


def token_ratio(mine: Array, exact: Array, index: tuple[slice, ...], envelope: Envelope, axis: int) -> float:
    """The error of a token over its envelope, by root mean square and by maximum."""
    if exact.dtype.kind != "f" or envelope.errors is None:
        return 0.0 if np.array_equal(mine, exact) else float("inf")
    if not np.array_equal(np.isfinite(mine), np.isfinite(exact)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        error = size(np.where(mine == exact, 0.0, np.abs(mine - exact)))
    axes = tuple(i for i, n in enumerate(envelope.errors.shape) if n > 1 and i != axis)
    allowed = size(envelope.errors[index])
    factor = envelope.inflation.get(axes)
    # Where runs vary too much for a factor, a token may use the envelope of all.
    rms, most = (
        (max(allowed.rms, envelope.rms), max(allowed.max, envelope.max))
        if factor is None
        else (allowed.rms * factor, allowed.max * factor)
    )
    return max(over(error.rms, rms), over(error.max, most))


def over(error: float, allowed: float) -> float:
    """An error ratio; errors below the smallest normal number count as 0."""
    return 0.0 if error <= SMALLEST else error / allowed if allowed else float("inf")


def log_probabilities(
    run: DecodeResult, full: ReferenceRuns, prompt: int, length: int
) -> Mapping[int, tuple[Array, Array]]:
    """The log-probabilities of each token that a run has, of the run and of the full pass."""
    ours = full.plain.load(LOGPROBS)[0]
    by_token: dict[int, tuple[Array, Array]] = {}
    for piece in pieces(run, LOGPROBS, full.plain.shape(LOGPROBS), prompt, length):
        by_token |= {piece.start + j: (row, ours[piece.start + j]) for j, row in enumerate(piece.values[0])}
    return by_token
