"""One port's ways to decode, each compared with the full pass over each prompt: where they diverge, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.metrics import compare
from parity.judge.compare.verdict import Comparison, EnvelopeRow, ErrorRatios, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import FAILED, Failure, Failures, with_failures
from parity.models import steps
from parity.models.call_traces import EQUAL_VALUES, ROUGHLY
from parity.models.decode.parts import NO_PART, PassComparison, View
from parity.models.decode.port import Decoder, DecodeResult
from parity.models.decode.spec import DecodeSpec
from parity.models.decode.tokens import LOGPROBS, TokenRatios, log_probabilities, token_ratios
from parity.models.decode.ways import FULL, WAYS, WORDS, DecodeCall, Tokens, calls_of, full, impossible
from parity.models.findings import CODE, Boundary
from parity.models.measure import RUNS, TRUTH, ReferenceRuns
from parity.models.ports import ModelError
from parity.models.worker.tape import Recorded
from parity.outcome import Outcome
from parity.reporting.text.words import few, number

MOST_SEEN = 6
"""The number of tokens of a prompt that are changed to test whether another one depends on them."""


@dataclass
class Origin:
    """The origin of a difference: the first tensor that is wrong in step (`what`), and its token.

    `locations` are the layers, or the code of layers, that compute wrong tensors, that of the origin first.
    `boundaries` are these tensors. `layer` is the one whose code is the origin; None for a framework's layer.
    """

    locations: Sequence[str]
    what: str
    token: int
    ratios: TokenRatios
    boundaries: Sequence[str]
    layer: str | None = None


@dataclass
class Divergence:
    """A way that differs: its first and last wrong token, the origin and the cause.

    `left` is the error ratio that remains once the origin is fixed. `failures` are parity's own in the search.
    """

    way: str
    prompt: int
    token: int
    last: int
    tensors: Sequence[str]
    origin: Origin | None = None
    id: str = "unexplained"
    cause: str = "the search for its origin has not ended"
    left: float | None = None
    failures: Failures = field(default_factory=Failures)


@dataclass
class Prompt:
    """A way on one prompt: the error ratio of each token, its KL divergence from the full pass, and the tokens whose
    greedy choice is another one (`changed`)."""

    ratios: TokenRatios
    kl: dict[int, float]
    changed: Sequence[int]
    logprobs: tuple[Any, Any]


@dataclass
class Decoding:
    """A port and its prompts, in all ways to decode.

    `state` has the weights. `base` is the baseline, if this port is another, and `partners` maps its layers to the
    baseline's. `ran` has the results of each way by prompt, `against` what they are compared with if that is not
    `full`. `failed` and `notes` say why a way has no results, `failures` where parity itself failed at a way.
    """

    case: CasePlan
    dtype: str
    port: Decoder
    prompts: Sequence[Tokens]
    state: Path
    base: Decoding | None
    partners: Mapping[str, str]
    say: Callable[[str], None]
    takes: Sequence[str] = ()
    passes: list[DecodeResult] = field(default_factory=list)
    full: list[ReferenceRuns] = field(default_factory=list)
    ran: dict[str, list[Prompt | None]] = field(default_factory=dict)
    against: dict[str, tuple[Sequence[ReferenceRuns], str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def spec(self) -> DecodeSpec:
        """The case's functions."""
        assert isinstance(self.case.params, DecodeSpec)  # noqa: S101 - for the type checker
        return self.case.params

    # Runs

    def run(self, calls: Sequence[DecodeCall], **how: Any) -> DecodeResult:
        """Run some calls."""
        return self.port.decode(self.state, calls, self.prompts, **how)

    def alone(self, which: int, **how: Any) -> DecodeResult:
        """The full pass over a prompt."""
        return self.run(full(self.prompts, which), layers=self.layers, **how)

    @property
    def layers(self) -> list[str]:
        """All layers."""
        return list(self.port.layers)

    def reference_runs(self, which: int, plain: Recorded, **how: Any) -> ReferenceRuns:
        """The full pass over a prompt: plain, perturbed, and in a wider dtype, which is taken as exact."""
        runs = [self.alone(which, seed=seed, **how).tapes[0] for seed in range(1, RUNS + 1)]
        wide = TRUTH.get(self.dtype)
        return ReferenceRuns(plain, self.alone(which, dtype=wide, **how).tapes[0] if wide else plain, runs, self.dtype)

    def judged(self) -> None:
        """Run all ways, and find the origin of each difference; a way at which parity fails is left out.

        Raises ModelError.
        """
        self.say(f"runs {self.port.name} without a cache")
        self.passes = [self.alone(i) for i in self._numbers]
        self.full = [self.reference_runs(i, run.tapes[0]) for i, run in enumerate(self.passes)]
        if self.base is not None:
            base = self.base
            self._contained("port", lambda: self._across("port", base.full, base.port.name))
        if self.dtype == "bfloat16":
            self._contained("dtype", lambda: self._across("dtype", list(map(self._shaken, self._numbers)), "float32"))
        for name, way in WAYS.items():
            if self.spec.ways and name not in self.spec.ways:
                continue
            why = impossible(name, self.prompts, self.passes[0].takes, self.spec.forward)
            if why:
                self.notes.append(f"{name} is not run: {why}")
            else:
                self.say(f"runs {self.port.name} {way.words}")
                try:
                    self._contained(name, partial(self._way, name))
                except ModelError as error:
                    if error.outcome is not Outcome.ERROR:
                        raise
                    self.failed[name] = str(error)

    @property
    def _numbers(self) -> range:
        """The prompts by number."""
        return range(len(self.prompts))

    def _contained(self, name: str, measure: Callable[[], None]) -> None:
        """Measure a way; an error of parity itself costs its verdicts. Raises ModelError."""
        failures = Failures()
        with failures.contained(f"comparing the results {WORDS[name]}", passing=(ModelError,)):
            measure()
        if failures:
            self.failures[name] = failures

    def _searched(self, divergence: Divergence, search: Callable[[], None]) -> None:
        """Search for the origin of a divergence; what ends the search leaves it unexplained, and is said."""
        try:
            with divergence.failures.contained("searching for the origin of the difference", passing=(ModelError,)):
                search()
        except ModelError as error:
            self.notes.append(f"the search for the origin of the difference {WORDS[divergence.way]} ended: {error}")

    def _shaken(self, which: int) -> ReferenceRuns:
        """The full pass in float32, with the tensors at layers' boundaries perturbed by an ulp of bfloat16."""
        plain = self.alone(which, dtype="float32").tapes[0]
        runs = [self.alone(which, dtype="float32", seed=s, shaken="bfloat16").tapes[0] for s in range(1, RUNS + 1)]
        return ReferenceRuns(plain, plain, runs, "float32")

    def _across(self, name: str, references: Sequence[ReferenceRuns], other: str) -> None:
        """Compare the full passes with those of another port or dtype."""
        measured = [
            self._prompt(run, i, reference)
            for i, (run, reference) in enumerate(zip(self.passes, references, strict=True))
        ]
        self.ran[name], self.against[name] = measured, (references, other)
        known = [one for one in measured if one is not None]
        changed, tokens = (sum(map(len, parts)) for parts in zip(*((p.changed, p.kl) for p in known), strict=True))
        kl = max(value for one in known for value in one.kl.values())
        self.notes.append(
            f"{WORDS[name]}, {changed} of {tokens} greedy choices are not {other}'s; KL {number(kl)} at most"
        )
        wrong = {i: one.ratios.wrong_tokens for i, one in enumerate(known) if one.ratios.wrong_tokens}
        if wrong:
            which = min(wrong, key=lambda i: wrong[i][0])
            cause = f"differs from {other} in one pass"
            tensors = [f"{name}.{i}" for i in wrong]
            divergence = Divergence(name, which, wrong[which][0], wrong[which][-1], tensors, cause=cause)
            self.divergences.append(divergence)
            if name == "port" and self.base is not None:
                divergence.cause += "; a case of `kind: model` says why"
                self._searched(divergence, partial(self._explain_across, divergence, self.base))

    def _explain_across(self, divergence: Divergence, base: Decoding) -> None:
        """Find the origin of a difference in one pass, with the baseline's values at the layers' boundaries."""
        which = divergence.prompt
        theirs, mine = base.full[which].plain, self.passes[which].tapes[0]
        partners = steps.fitting(self.port, self.partners, theirs, mine, None)
        keys = steps.aligned(theirs, mine, partners, {})
        run = self.run(full(self.prompts, which), layers=list(partners), partner={which: theirs}, keys=keys)
        divergence.origin = self._origin(run, which, base.step[which], partners, keys)

    def _way(self, name: str) -> None:
        """Run a way; where it differs, find the origin."""
        calls = calls_of(name, self.prompts, self.spec.chunk, self.spec.pad)
        run = self.run(calls)
        measured = [self._prompt(run, i) for i in self._numbers]
        self.ran[name] = measured
        wrong = {
            i: one.ratios.wrong_tokens for i, one in enumerate(measured) if one is not None and one.ratios.wrong_tokens
        }
        if wrong:
            which = min(wrong, key=lambda i: wrong[i][0])
            token, last = wrong[which][0], wrong[which][-1]
            divergence = Divergence(name, which, token, last, [f"{name}.{i}" for i in wrong])
            self.divergences.append(divergence)
            self.say(f"searches for the origin of the difference in {self.port.name}, {WAYS[name].words}")
            self._searched(divergence, partial(self._explain, divergence, calls, run))

    def _prompt(self, run: DecodeResult, which: int, reference: ReferenceRuns | None = None) -> Prompt | None:
        """A prompt's result, compared with its full pass, or with another one."""
        length, reference = len(self.prompts[which]), reference or self.full[which]
        pairs = log_probabilities(run, reference, which, length)
        if not pairs:
            return None
        ratios = token_ratios(reference, run, LOGPROBS, which, length)
        with np.errstate(invalid="ignore", over="ignore"):
            kl = {token: float(np.sum(np.exp(ours) * (ours - row))) for token, (row, ours) in pairs.items()}
        changed = [token for token, (row, ours) in pairs.items() if np.argmax(row) != np.argmax(ours)]
        both = tuple(np.stack(rows) for rows in zip(*pairs.values(), strict=True))
        return Prompt(ratios, kl, changed, (both[0], both[1]))

    # Origins of differences

    @cached_property
    def step(self) -> list[ReferenceRuns]:
        """The full passes in step with themselves."""
        return [self.reference_runs(i, one.plain, partner={i: one.plain}) for i, one in enumerate(self.full)]

    def _explain(self, divergence: Divergence, calls: Sequence[DecodeCall], run: DecodeResult) -> None:
        """Find the origin and the cause of a divergence, and whether fixing the origin is enough."""
        plain = {i: one.plain for i, one in enumerate(self.full)}
        upto = only(calls, divergence.prompt, divergence.last)
        in_step = self.run(upto, layers=self.layers, partner=plain)
        divergence.origin = origin = self._origin(
            in_step, divergence.prompt, self.step[divergence.prompt], {name: name for name in self.layers}
        )
        in_step.forget()
        caches = [cache for call, cache in zip(run.calls, run.caches, strict=True) if reads(call, divergence.prompt)]
        why = None if origin is None else position(origin)
        if origin is not None and why is not None:
            # The other locations follow from this integer where it cannot be replaced.
            origin.locations = origin.locations[:1]
        why = why or self._sees(divergence, calls) or kept(caches, self.dtype)
        if origin is not None and (why is None or why[0] == "decode-mask"):
            why = self._divergence(origin, divergence.prompt, upto, why)
        if origin is not None:
            fixed = self.run(upto, layers=self.layers, partner=plain, replace=origin.boundaries)
            divergence.left = self._largest(fixed, divergence.prompt)
            fixed.forget()
            divergence.id, divergence.cause = why or ("layer-code", differs(origin))
        else:
            divergence.id, divergence.cause = why or ("unexplained", "no layer differs when given the same inputs")

    def _origin(
        self,
        run: DecodeResult,
        which: int,
        reference: ReferenceRuns,
        partners: Mapping[str, str],
        keys: Mapping[str, str] | None = None,
    ) -> Origin | None:
        """The origin of a difference in step: the first tensor that is wrong at the first wrong token.

        `keys` maps the run's tensors to the reference's names, if they differ.
        """
        wrong: dict[Boundary, TokenRatios] = {}
        for name in dict.fromkeys(name for tape in run.tapes for name in tape):
            at, theirs = Boundary.of(name), name if keys is None else keys.get(name, "")
            if at is not None and theirs in reference.plain:
                ratios = token_ratios(reference, run, theirs, which, len(self.prompts[which]), name)
                wrong |= {at: ratios} if ratios.wrong_tokens else {}
        if not wrong:
            return None
        # A wrong tensor that is only cached follows from the wrong tensors that are read, if there are any.
        wrong = {at: ratios for at, ratios in wrong.items() if at.role == "in" or not at.index} or wrong
        first = min(wrong, key=lambda at: wrong[at].wrong_tokens[0])
        owners = dict.fromkeys(steps.owner(self.port, at, partners) for at in wrong)
        locations = [
            f"the code of {layer or 'the model'}" if kind == CODE else f"layer {layer}" for kind, layer in owners
        ]
        own = steps.owner(self.port, first, partners)
        location = locations[list(owners).index(own)]
        what = first.words()
        if first.role == "in" and first.index < len(run.words.get(first.layer, ())):
            what = f"`{run.words[first.layer][first.index]}` of {first.layer or 'the model'}"
        rest = [other for other in locations if other != location]
        layer = own[1] if own[0] == CODE else None
        return Origin([location, *rest], what, wrong[first].wrong_tokens[0], wrong[first], [*map(str, wrong)], layer)

    def _divergence(
        self, origin: Origin, which: int, calls: Sequence[DecodeCall], why: tuple[str, str] | None
    ) -> tuple[str, str] | None:
        """The cause, extended by what the code at the origin computes differently than in one pass."""
        layer = origin.layer
        behind = [k for k, call in enumerate(calls) if tokens_after(call, which, origin.token)]
        if layer is None or not behind:
            return why
        clear = (k for k in behind if View.of(calls[k], which).is_clear)
        difference, k = None, 0
        try:
            for k in dict.fromkeys((next(clear, behind[0]), behind[0])):
                difference = difference or self._part(layer, which, calls[: k + 1]).difference(origin.boundaries)
                if difference is not None:
                    break
        except (ModelError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            self.notes.append(f"what {layer or 'the model'} calls is not compared: {error}")
            return why
        if difference is None:
            return why
        text, is_cache = difference
        message = f"from token {View.of(calls[k], which).start} on, {text}" if k else text
        if why:
            return why[0], f"{why[1]}: {message}"
        return ("layer-code" if message.endswith(NO_PART) else "decode-cache" if is_cache else "decode-code"), message

    def _part(self, layer: str, which: int, calls: Sequence[DecodeCall]) -> PassComparison:
        """The calls of a layer's code in the last of some calls, and in one pass, in a wider dtype if it runs there."""
        rows, length = {row.prompt for call in calls for row in call.rows}, full(self.prompts, which)

        def comparison(dtype: str, near: float) -> PassComparison:
            plain = {i: self.run(full(self.prompts, i), layers=self.layers, dtype=dtype).tapes[0] for i in rows}
            whole, step = (
                self.run(some, layers=self.layers, partner=plain, dtype=dtype, listen=layer) for some in (length, calls)
            )
            return PassComparison(
                step.trail(-1), whole.trail(0), View.of(calls[-1], which), cached(whole.tapes[0]), near
            )

        try:
            return comparison(TRUTH.get(self.dtype, self.dtype), EQUAL_VALUES)
        except ModelError:
            return comparison(self.dtype, ROUGHLY)

    def _largest(self, run: DecodeResult, which: int) -> float:
        """The largest error ratio of a prompt's tokens in a run."""
        return token_ratios(self.full[which], run, LOGPROBS, which, len(self.prompts[which])).largest

    def _sees(self, divergence: Divergence, every: Sequence[DecodeCall]) -> tuple[str, str] | None:
        """The cause if a token depends on tokens that it must not see, or not on those that it must: these are changed,
        and its log-probabilities are compared."""
        which, token = divergence.prompt, divergence.token
        calls = only(every, which, token)
        before = self._row(calls, which, token)
        envelope = self.full[which].envelope(LOGPROBS)[1].errors
        allowed = ERROR_BOUND * float(np.max(envelope[0, token])) if envelope is not None else 0.0
        vocabulary = len(before)

        def differs(calls: Sequence[DecodeCall]) -> bool:
            apart = np.abs(self._row(calls, which, token) - before)
            return bool(np.max(apart) > allowed or not np.isfinite(apart).all())

        def unseen(token: int, calls: Sequence[DecodeCall]) -> list[int]:
            """The tokens on which a token depends in the full pass only."""
            row, alone = self._row(calls, which, token), self.full[which].plain.load(LOGPROBS)[0, token]
            whole = full(self.prompts, which)

            def depends(on: int, calls: Sequence[DecodeCall], row: Any) -> bool:
                other = [changed(call, [which], [on], vocabulary) for call in calls]
                return bool(np.max(np.abs(self._row(other, which, token) - row)) > allowed)

            return [j for j in chosen(token) if depends(j, whole, alone) and not depends(j, calls, row)]

        others = [i for i in self._numbers if i != which]
        if differs([changed(call, others, None, vocabulary) for call in calls]):
            return "decode-mask", f"token {token} depends on the other rows of its batch"
        if differs([padded(call, vocabulary) for call in calls]):
            return "decode-mask", f"token {token} depends on the padding"
        later = range(token + 1, len(self.prompts[which]))
        if differs([changed(call, [which], later, vocabulary) for call in calls]):
            return "decode-mask", f"token {token} depends on later tokens"
        for at in dict.fromkeys((token, divergence.last)):
            missed = unseen(at, only(every, which, at))
            if missed:
                return "decode-mask", f"token {at} does not depend on {tokens_of(missed)}"
        return None

    def _row(self, calls: Sequence[DecodeCall], which: int, token: int) -> Any:
        """The log-probabilities of a token in some calls."""
        run = self.run(calls)
        row = log_probabilities(run, self.full[which], which, len(self.prompts[which]))[token][0]
        run.forget()
        return row

    # Rows

    def comparisons(self) -> Iterator[Comparison]:
        """The log-probabilities of each prompt in each way."""
        for way, measured in self.ran.items():
            references, other = self.against.get(way, (self.full, FULL))
            for i, one in enumerate(measured):
                if one is not None:
                    yield self._comparison(f"{way}.{i}", other, one, references[i])
        for way, failures in self.failures.items():
            yield from self._not_compared(way, failures[-1])
        for way, message in self.failed.items():
            yield comparison_of(
                self.case.id, self.dtype, f"{way}.0", self.port.name, FULL, Verdict.STRUCTURE, 0.0, 0.0,
                message=f"it does not run: {message}", culprit=(self.port.name,),
            )  # fmt: skip

    def _comparison(self, tensor: str, other: str, one: Prompt, reference: ReferenceRuns) -> Comparison:
        envelope = reference.envelope(LOGPROBS)[1]
        metrics, is_wrong = compare(*one.logprobs, 0.0, envelope.max), bool(one.ratios.wrong_tokens)
        verdict = Verdict.SEMANTIC if is_wrong else Verdict.EQUAL if metrics.equal else Verdict.CLOSE
        name = self.port.name
        return comparison_of(
            self.case.id, self.dtype, tensor, name, other,
            Verdict.NONFINITE if metrics.n_nonfinite_mismatched else verdict, 0.0, 0.0, metrics=metrics,
            error_ratio=ErrorRatios(one.ratios.largest, None), envelope=EnvelopeRow(envelope.rms, envelope.max),
            culprit=(name,) if is_wrong else (),
        )  # fmt: skip

    def _not_compared(self, way: str, failure: Failure) -> Iterator[Comparison]:
        """The prompts in a way at which parity failed before it measured them."""
        other = FULL if self.base is None or way != "port" else self.base.port.name
        for i in self._numbers if way not in self.ran else ():
            of = (self.case.id, self.dtype, f"{way}.{i}", self.port.name, other)
            yield comparison_of(*of, Verdict.NOT_COMPARED, 0.0, 0.0, message=failure.message)

    def diagnoses(self) -> Iterator[Diagnosis]:
        """One for each way that differs, and one for each at which parity failed."""
        cell = (self.case.id, self.dtype, self.port.name)
        for way, failures in self.failures.items():
            yield from with_failures(cell, (), failures, tuple(f"{way}.{i}" for i in self._numbers))
        for one in self.divergences:
            measured = [prompt for prompt in self.ran[one.way] if prompt is not None]
            kl = [value for prompt in measured for value in prompt.kl.values()]
            location = few(list(one.origin.locations)) if one.origin else "no layer is named"
            evidence = {
                "way": one.way, "prompt": one.prompt, "token": one.token, "place": location, "cause": one.cause,
                "layer": None if one.origin is None else one.origin.what,
                "at_token": None if one.origin is None else one.origin.token,
                "tokens": sum(len(prompt.kl) for prompt in measured),
                "off": sum(len(prompt.ratios.wrong_tokens) for prompt in measured),
                "changed": sum(len(prompt.changed) for prompt in measured),
                "kl": max(kl), "mean_kl": float(np.mean(kl)), "left": one.left, **one.failures.evidence,
            }  # fmt: skip
            explained = one.left is not None and one.left < ERROR_BOUND and one.id != "layer-code"
            largest = max(prompt.ratios.largest for prompt in measured)
            nameless = FAILED if one.failures and one.id == "unexplained" else one.id
            yield Diagnosis(
                *cell, nameless, f"{WORDS[one.way]}: {location}: {one.cause}",
                tuple(one.tensors), explained, largest, one.left, evidence,
            )  # fmt: skip


def cached(tape: Recorded) -> dict[str, Any]:
    """The cached tensors of a run, named after the layer's output that they equal, if any."""
    outputs = [at for at in map(Boundary.of, tape) if at is not None and at.role == "out" and at.layer]
    tensors = {}
    for name in (name for name in tape if name.startswith("cache.")):
        value = tape.load(name)
        alike = (at for at in outputs if tape.shape(str(at)) == value.shape)
        output = next((at for at in alike if np.array_equal(tape.load(str(at)), value)), None)
        tensors[f"tensor {name.partition('.')[2]} of the cache" if output is None else output.words()] = value
    return tensors


def only(calls: Sequence[DecodeCall], which: int, token: int) -> list[DecodeCall]:
    """The calls of a prompt up to a token."""
    mine = [call for call in calls if any(row.prompt == which for row in call.rows)]
    last = next(k for k, call in enumerate(mine) if has(call, which, token))
    return mine[: last + 1]


def reads(call: DecodeCall, which: int) -> bool:
    """Whether a prompt is in a call."""
    return any(row.prompt == which for row in call.rows)


def has(call: DecodeCall, which: int, token: int) -> bool:
    """Whether a token is in a call."""
    return any(row.prompt == which and row.start <= token < row.start + row.count for row in call.rows)


def tokens_after(call: DecodeCall, which: int, token: int) -> bool:
    """Whether a token of a prompt, or a later one, is in a call."""
    return any(row.prompt == which and row.count and token < row.start + row.count for row in call.rows)


def changed(call: DecodeCall, prompts: Collection[int], tokens: Collection[int] | None, vocabulary: int) -> DecodeCall:
    """The call with other ids for these tokens of some prompts, or for all tokens."""
    rows = [list(row) for row in call.tokens]
    for i, row in enumerate(call.rows):
        for j in range(row.count) if row.prompt in prompts else ():
            if tokens is None or row.start + j in tokens:
                rows[i][row.offset + j] = (rows[i][row.offset + j] + 1) % vocabulary
    return replace(call, tokens=rows)


def padded(call: DecodeCall, vocabulary: int) -> DecodeCall:
    """The call with another id for padding."""
    rows = [[(token + 1) % vocabulary for token in tokens] for tokens in call.tokens]
    for i, row in enumerate(call.rows):
        rows[i][row.offset : row.offset + row.count] = call.tokens[i][row.offset : row.offset + row.count]
    return replace(call, tokens=rows)


def chosen(token: int) -> list[int]:
    """The tokens up to a token: all, or some at both ends."""
    every = list(range(token + 1))
    return every if len(every) <= MOST_SEEN else [*every[: MOST_SEEN // 2], *every[-MOST_SEEN // 2 :]]


def tokens_of(numbers: Sequence[int]) -> str:
    """`token 2`, `tokens 2, 3`."""
    return f"token{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def position(origin: Origin) -> tuple[str, str] | None:
    """The cause of an origin that is an integer: a position, or a token id."""
    values = origin.ratios.values
    if values is None or values[0].dtype.kind not in "iu" or values[0].size != 1:
        return None
    theirs, ours = (int(value.ravel()[0]) for value in values)
    return "decode-position", f"{origin.what} for token {origin.token} is {theirs} (should be {ours})"


def kept(caches: Sequence[Sequence[Any]], dtype: str) -> tuple[str, str] | None:
    """The cause if all numbers of the cache fit into a narrower dtype."""
    if dtype == "bfloat16" or not any(len(cache) for cache in caches):
        return None
    formats = {tensor["narrow"] for cache in caches for tensor in cache}
    if len(formats) != 1 or formats == {""}:
        return None
    return "decode-cache-dtype", f"the cache holds numbers of {formats.pop()}, the model computes in {dtype}"


def differs(origin: Origin) -> str:
    """What is known about a difference without a cause."""
    message = f"given the full pass's values before it, {origin.what} for token {origin.token} differs"
    if origin.ratios.values is None or origin.ratios.values[0].dtype.kind != "f":
        return message
    mine, ours = (value.astype(np.float64) for value in origin.ratios.values)
    scale = float(np.sqrt(np.mean(ours**2))) or 1.0
    return f"{message} by {number(float(np.sqrt(np.mean((mine - ours) ** 2))) / scale)} of its size"
