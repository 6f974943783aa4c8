"""The ways to run tokens through a model, as calls of the user's function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from parity.reporting.text.words import few

Tokens = Sequence[int]


@dataclass(frozen=True)
class CallRow:
    """The real tokens of a call's row: `count` tokens of `prompt`, from its token `start` on, at column `offset`."""

    prompt: int
    start: int
    count: int
    offset: int


@dataclass(frozen=True)
class DecodeCall:
    """A call of the user's function: `tokens` and `positions` [b, n], `mask` [b, past + n], 1 where a token is real.
    `fresh`: without the cache of the call before."""

    tokens: Sequence[Tokens]
    mask: Sequence[Tokens]
    positions: Sequence[Tokens]
    rows: Sequence[CallRow]
    fresh: bool


@dataclass(frozen=True)
class DecodeWay:
    """A way to decode: its name in a sentence, and the arguments of the user's function that it needs."""

    words: str
    needs: tuple[str, ...] = ()


WAYS: Mapping[str, DecodeWay] = {
    "step": DecodeWay("token by token with the cache", ("cache",)),
    "chunks": DecodeWay("in chunks with the cache", ("cache",)),
    "batch": DecodeWay("in a batch of one length"),
    "right": DecodeWay("in a batch padded right", ("mask",)),
    "left": DecodeWay("in a batch padded left", ("mask",)),
    "left-step": DecodeWay("in a batch padded left, then token by token", ("mask", "cache")),
}
ACROSS: Mapping[str, DecodeWay] = {
    "port": DecodeWay("in one pass with the baseline's weights"),
    "dtype": DecodeWay("in one pass in bfloat16"),
}
"""Comparisons of a full pass with the baseline's, and with that in float32."""
WORDS: Mapping[str, str] = {name: way.words for name, way in {**WAYS, **ACROSS}.items()}
FULL = "the full pass"


def impossible(name: str, prompts: Sequence[Tokens], takes: Collection[str], forward: str) -> str:
    """Why a way cannot be tried with the function `forward`, which `takes` these arguments, or would be the same as
    another one; "" if it can."""
    missing = [need for need in WAYS[name].needs if need not in takes]
    lengths = {len(tokens) for tokens in prompts}
    if missing:
        return f"{forward} does not take {few(missing)}"
    if len(prompts) == 1 and name not in ("step", "chunks"):
        return "there is one prompt"
    if len(lengths) == 1 and name in ("left", "right", "left-step"):
        return "all prompts have one length"
    return "the shortest prompt has one token" if name == "left-step" and min(lengths) == 1 else ""


def full(prompts: Sequence[Tokens], which: int) -> list[DecodeCall]:
    """One pass over one prompt, alone, without a cache."""
    return calls({which: prompts[which]}, [len(prompts[which])])


def calls_of(way: str, prompts: Sequence[Tokens], chunk: int, pad: int) -> list[DecodeCall]:
    """The calls of a way."""
    every, lengths = dict(enumerate(prompts)), [len(tokens) for tokens in prompts]
    if way in ("step", "chunks"):
        size = 1 if way == "step" else chunk
        return [one for i, tokens in every.items() for one in calls({i: tokens}, parts(len(tokens), size))]
    if way == "batch":
        return calls({i: tokens[: min(lengths)] for i, tokens in every.items()}, [min(lengths)])
    steps = min(lengths) - 1 if way == "left-step" else 0
    return calls(every, [max(lengths) - steps, *[1] * steps], left=way != "right", pad=pad)


def parts(length: int, size: int) -> list[int]:
    """A length in parts of a size."""
    return [min(size, length - start) for start in range(0, length, size)]


def calls(prompts: Mapping[int, Tokens], sizes: Sequence[int], *, left: bool = False, pad: int = 0) -> list[DecodeCall]:
    """Calls of `sizes` tokens over some prompts side by side, padded at their ends or on the left."""
    width = max(map(len, prompts.values()))
    first = {i: width - len(tokens) if left else 0 for i, tokens in prompts.items()}
    made = []
    for stop, size in zip(accumulate(sizes), sizes, strict=True):
        columns = range(stop - size, stop)
        rows, tokens, positions, mask = [], [], [], []
        for i, prompt in prompts.items():
            at = [column - first[i] for column in columns]
            real = [j for j in at if 0 <= j < len(prompt)]
            offset = at.index(real[0]) if real else 0
            rows.append(CallRow(i, real[0] if real else 0, len(real), offset))
            tokens.append([prompt[j] if j in real else pad for j in at])
            positions.append([j if j in real else 0 for j in at])
            mask.append([int(0 <= column - first[i] < len(prompt)) for column in range(stop)])
        made.append(DecodeCall(tokens, mask, positions, rows, fresh=stop == size))
    return made
