"""Random references and kernels that are edits of them: does anything in the judge raise?

    python benchmarks/fuzz.py [--count N] [--seed N]

A reference is a random program of a few NumPy calls (several outputs, booleans, integers, empty axes, size 1, branches,
top-k, scatter, gather, reductions, products); the kernel is the same program with one or two of its calls changed,
computed in this process in the case's dtype, or a right one that returns something strange. The judge's containment is
switched off. Every exception is printed with the smallest program that still raises it.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.brought import ReferenceFile, op_of
from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.oracle import evaluate
from parity.config import ConfigError, load_plan
from parity.config.plan import ORACLE, CasePlan
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.judge.failures import uncontained
from parity.outcome import CellOutcome, Outcome, Output

ELEMENTWISE = (
    "np.exp({0})", "np.tanh({0})", "np.abs({0})", "np.sqrt(np.abs({0}))", "np.log(np.abs({0}) + 1.0)", "-{0}",
    "{0} * {0}", "np.sin({0})", "np.maximum({0}, 0.0)", "np.where({0} > 0, {0}, 0.1 * {0})", "np.sign({0})",
    "np.floor({0})", "1.0 / (1.0 + np.exp(-{0}))", "np.clip({0}, -0.5, 0.5)", "{0} / 0.7", "2.0 * {0} + 1.0",
    "{0} * scale", "{0} / scale", "np.log1p(np.exp({0} * scale))",
)  # fmt: skip
"""Each of one floating-point array, with its shape."""
PAIRED = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / (1.0 + np.abs({1}))", "np.maximum({0}, {1})", "np.minimum({0}, {1})",
    "np.where({0} > {1}, {0}, {1} * {1})", "np.where({0} < 0.2, {1}, 0.0)", "np.arctan2({0}, {1} + 3.0)",
    "np.power(np.abs({0}) + 0.5, {1})",
)  # fmt: skip
"""Each of two arrays that broadcast."""
REDUCED = (
    "np.sum({0}, axis={a}, keepdims={k})", "np.mean({0}, axis={a}, keepdims={k})", "np.max({0}, axis={a}, keepdims={k})",
    "np.min({0}, axis={a}, keepdims={k})", "np.prod({0}, axis={a}, keepdims={k})", "np.var({0}, axis={a}, keepdims={k})",
    "np.std({0}, axis={a}, keepdims={k})", "np.log(np.sum(np.exp({0}), axis={a}, keepdims={k}))",
)  # fmt: skip
ALONG = (
    "np.exp({0} - np.max({0}, axis={a}, keepdims=True)) / np.sum(np.exp({0} - np.max({0}, axis={a}, keepdims=True)), axis={a}, keepdims=True)",
    "{0} - np.mean({0}, axis={a}, keepdims=True)", "np.cumsum({0}, axis={a})", "np.sort({0}, axis={a})",
    "np.flip({0}, axis={a})", "np.roll({0}, 1, axis={a})", "np.concatenate([{0}, {0}], axis={a})",
    "np.take_along_axis({0}, np.argsort({0}, axis={a}), axis={a})", "np.expand_dims({0}, {a})",
    "{0} / np.sqrt(np.sum({0} * {0}, axis={a}, keepdims=True) + 1e-5)", "np.stack([{0}, -{0}], axis={a})",
    "np.repeat({0}, 2, axis={a})",
)  # fmt: skip
"""Each along one axis `a`."""
SHAPED = (
    "{0}.reshape(-1)", "np.transpose({0})", "{0}[..., 1:]", "{0}[..., ::2]", "{0}[:1]", "{0}[None]",
    "np.swapaxes({0}, 0, -1)", "np.tril({0})", "np.triu({0}, 1)", "np.reshape({0}, (1, -1))",
    "np.matmul({0}, np.swapaxes({0}, -1, -2))", "np.einsum('...i,...i->...', {0}, {0})",
)  # fmt: skip
INTEGER = (
    "np.argmax({0}, axis={a})", "np.argmin({0}, axis={a})", "np.argsort({0}, axis={a})", "np.argsort(-{0}, axis={a})[..., :2]",
    "np.sum({0} > 0, axis={a})", "({0} > 0) * 3", "np.cumsum({0} > 0, axis={a})",
)  # fmt: skip
"""Each gives integers."""
BOOLEAN = (
    "{0} > 0",
    "{0} <= {1}",
    "np.any({0} > 0.5, axis={a})",
    "np.all({0} < 0.5, axis={a})",
    "np.logical_not({0} > 0)",
)
CHOSEN = (
    "np.where(np.expand_dims({i}, -1) == np.arange(3), 1.0, 0.0)", "{0}[{i} % max(len({0}), 1)]",
    "np.take({0}, {i} % max({0}.shape[0], 1), axis=0)", "1.0 * {i}",
    "np.sum(np.where(np.expand_dims({i}, -1) == np.arange(3), 1.0, 0.0), axis=0)",
)  # fmt: skip
"""Each reads integers `i`: one-hot, gather, scatter, histogram."""
MASKED = ("np.where({b}, {0}, 0.0)", "np.where({b}, {0}, {1})", "np.where({b}, {0}, -1e9)", "{0} * {b}")
"""Each reads booleans `b`, where the shapes allow it."""
FAMILIES = (ELEMENTWISE, PAIRED, REDUCED, ALONG, SHAPED, INTEGER, BOOLEAN, CHOSEN, MASKED)
WEIGHTS = (5, 4, 3, 3, 2, 2, 1, 2, 2)
SIZES = (0, 1, 1, 2, 3, 3, 4, 5)
DTYPES = (("float32",), ("float64",), ("float32", "float64"), ("float16",), ("bfloat16",), ("float64", "bfloat16"))
TRIES = 60
"""How often a call is drawn again until it computes."""
LARGEST, MOST_AXES = 200, 4
"""The elements and axes of a value of a program."""
STRANGELY = 0.15
"""The share of kernels that return something strange."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One line of a program: a template of a family, with the names and numbers that fill it."""

    family: int
    template: str
    one: str
    other: str
    ids: str
    mask: str
    axis: int = -1
    keepdims: bool = False

    @property
    def text(self) -> str:
        """The expression."""
        given = {"a": self.axis, "k": self.keepdims, "i": self.ids, "b": self.mask}
        return self.template.format(self.one, self.other, **given)


@dataclass(frozen=True)
class FuzzProgram:
    """A random reference: inputs with shapes, calls by name, and what it returns."""

    shapes: Mapping[str, tuple[int, ...]]
    ids: tuple[int, ...] | None
    calls: Mapping[str, Call]
    outputs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The source of its file."""
        arguments = [*self.shapes, *(["ids"] if self.ids is not None else []), "scale=0.5"]
        body = "".join(f"    {name} = {call.text}\n" for name, call in self.calls.items())
        returned = ", ".join(f'"out{i}": {name}' for i, name in enumerate(self.outputs))
        return f"import numpy as np\n\n\ndef mine({', '.join(arguments)}):\n{body}    return {{{returned}}}\n"

    def config(self, dtypes: Sequence[str]) -> str:
        """The YAML of a case."""
        inputs = [f"{name}: {{shape: {list(shape)}}}" for name, shape in self.shapes.items()]
        if self.ids is not None:
            inputs.append(f"ids: {{shape: {list(self.ids)}, integers: {{low: 0, high: 3}}}}")
        return (
            f"version: 1\nbackends: [numpy]\ndtypes: [{', '.join(dtypes)}]\ncases:\n"
            f"  - {{id: fuzz, op: mine, reference: ./ref.py, inputs: {{{', '.join(inputs)}}}}}\n"
        )


class Drawing:
    """Draws programs and kernels from one random number generator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def program(self) -> FuzzProgram:
        """A reference that computes on plain NumPy arrays."""
        rng = self.rng
        shapes = {"x": self._shape()}
        if rng.random() < 0.6:
            shapes["w"] = shapes["x"] if rng.random() < 0.6 else shapes["x"][-1:]
        ids = (rng.choice(SIZES[1:]),) if rng.random() < 0.3 else None
        made = FuzzProgram(shapes, ids, {}, ())
        for number in range(rng.randint(1, 7)):
            for _ in range(TRIES):
                call = self._call(made)
                wider = replace(made, calls={**made.calls, f"h{number}": call})
                if call is not None and values_of(wider) is not None:
                    made = wider
                    break
        names = list(made.calls)
        outputs = tuple(dict.fromkeys([*rng.sample(names, min(len(names), rng.choice((0, 0, 1, 2)))), names[-1]]))
        return replace(made, outputs=outputs)

    def _shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice((1, 2, 2, 2, 3))))

    def _call(self, made: FuzzProgram) -> Call | None:
        values = values_of(made) or {}
        kinds = {kind: [n for n, v in values.items() if np.asarray(v).dtype.kind == kind] for kind in "fib"}
        family = self.rng.choices(range(len(FAMILIES)), WEIGHTS)[0]
        if not kinds["f"] or (FAMILIES[family] is CHOSEN and not kinds["i"]):
            return None
        if FAMILIES[family] is MASKED and not kinds["b"]:
            return None
        latest = kinds["f"][-2:] if self.rng.random() < 0.7 else kinds["f"]
        return Call(
            family,
            self.rng.choice(FAMILIES[family]),
            self.rng.choice(latest),
            self.rng.choice(kinds["f"]),
            self.rng.choice(kinds["i"] or [""]),
            self.rng.choice(kinds["b"] or [""]),
            self.rng.choice((-1, -1, 0, 1)),
            self.rng.random() < 0.5,
        )

    def kernel(self, made: FuzzProgram) -> FuzzProgram:
        """The program with one or two calls changed, so that it still computes."""
        for _ in range(TRIES):
            other = made
            for name in self.rng.sample(list(made.calls), min(len(made.calls), self.rng.choice((1, 1, 2)))):
                other = replace(other, calls={**other.calls, name: self._edited(made, name)})
            if other != made and values_of(other) is not None:
                return other
        return made

    def _edited(self, made: FuzzProgram, name: str) -> Call:
        call, rng = made.calls[name], self.rng
        before = [*made.shapes, *list(made.calls)[: list(made.calls).index(name)]]
        ways: Sequence[Callable[[], Call]] = (
            lambda: replace(call, template=rng.choice(FAMILIES[call.family])),
            lambda: replace(call, template="{0}"),
            lambda: replace(call, one=rng.choice(before)),
            lambda: replace(call, one=call.other, other=call.one),
            lambda: replace(call, axis=rng.choice((-1, 0, 1)), keepdims=not call.keepdims),
            lambda: replace(call, template=with_number(call.template, rng)),
            lambda: replace(call, template=f"{rng.choice(('0.9 * ', '1.0 + ', '-1 * '))}({call.template})"),
        )
        return rng.choice(ways)()

    def strange(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Outputs with one of them changed in its values, its shape or its dtype."""
        name = self.rng.choice(list(outputs))
        return {**outputs, **STRANGE[self.rng.randrange(len(STRANGE))](name, outputs[name])}


STRANGE: Sequence[Callable[[str, Array], dict[str, Array]]] = (
    lambda n, v: {n: v[None]},
    lambda n, v: {n: v.ravel()},
    lambda n, v: {n: v.reshape(v.shape + (1,) * 40)},
    lambda n, v: {n: v.astype(np.float16)},
    lambda n, v: {n: v.astype(complex)},
    lambda n, v: {n: np.full_like(v, np.nan) if v.dtype.kind == "f" else v},
    lambda n, v: {n: np.full_like(v, np.inf) if v.dtype.kind == "f" else v},
    lambda n, v: {n: np.zeros_like(v)},
    lambda n, v: {n: v[:0] if v.ndim else v[None][:0]},
    lambda n, v: {n: -v if v.dtype.kind != "b" else ~v, "extra": v},
    lambda n, v: {n: v.astype(np.int64)},
    lambda n, v: {n: np.roll(v, 1)},
    lambda n, v: {n: np.asarray(v).T},
)
"""What a kernel may return in place of an output."""


def with_number(template: str, rng: random.Random) -> str:
    """The template with one of its numbers changed."""
    numbers = list(re.finditer(r"(?<![\w{.])\d+\.\d+", template))
    if not numbers:
        return template
    match = rng.choice(numbers)
    return f"{template[: match.start()]}{rng.choice(('0.0', '1.0', '0.25', '2.5'))}{template[match.end() :]}"


def values_of(made: FuzzProgram) -> dict[str, Any] | None:
    """The values of a program for some inputs; None where NumPy refuses it, or a value is large."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {name: rng.normal(size=shape) for name, shape in made.shapes.items()}
    if made.ids is not None:
        values["ids"] = rng.integers(0, 3, made.ids)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in made.calls.items():
            try:
                values[name] = eval(call.text, {"np": np, "scale": 0.5, **values})
            except (ValueError, TypeError, LookupError, ArithmeticError, NameError):
                return None
            if np.size(values[name]) > LARGEST or np.ndim(values[name]) > MOST_AXES:
                return None
    return values


@dataclass
class FuzzKernel:
    """The edited program as a backend, computed in this process; `strange` changes its outputs."""

    source: ReferenceFile
    strange: Callable[[dict[str, Array]], dict[str, Array]]

    def outputs(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What it returns in a dtype."""
        assert case.brought is not None
        op = op_of(replace(case.brought, source=self.source))
        given = {n: v if v.dtype.kind in "iu" else as_dtype(v, dtype) for n, v in inputs.items()}
        computed = COMPUTED_IN.get(dtype, dtype)
        with np.errstate(all="ignore"):
            outputs = evaluate(op, case.params, given, dtype=computed, gradients=case.gradients)
            held = {n: v if v.dtype.kind != "f" else as_dtype(v, dtype) for n, v in outputs.items()}
        return self.strange(held)

    def ask(self, _: str, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """`outputs` for other inputs, as the engine gives them; None if it raises."""
        try:
            outputs = self.outputs(case, dtype, inputs)
        except Exception:
            return None
        dtypes = {"int64", "float32" if dtype == "bfloat16" else dtype}
        shapes = case.definition.infer_shapes(case.params, {n: v.shape for n, v in inputs.items() if "." not in n})
        whole = {**shapes.outputs, **{f"grad.{n}": v.shape for n, v in inputs.items()}}
        return {n: v for n, v in outputs.items() if str(v.dtype) in dtypes and v.shape == whole.get(n)}

    def outcome(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> CellOutcome:
        """The outcome of a cell."""
        try:
            outputs = self.outputs(case, dtype, inputs)
        except Exception as error:
            return CellOutcome(case.id, dtype, "mine", Outcome.ERROR, message=repr(error))
        own = "float32" if dtype == "bfloat16" else dtype
        described = {n: dtype if str(v.dtype) == own else str(v.dtype) for n, v in outputs.items()}
        rows = {n: Output(described[n], v.shape, v if v.dtype.kind in "fi" else None) for n, v in outputs.items()}
        return CellOutcome(case.id, dtype, "mine", Outcome.OK, outputs=rows)


@dataclass(frozen=True)
class FuzzCase:
    """One random case: a reference, a kernel, the dtypes, and whether the outputs are strange."""

    seed: int
    reference: FuzzProgram
    kernel: FuzzProgram
    dtypes: tuple[str, ...]
    is_strange: bool

    def judged(self) -> Judged | None:
        """The judge's answer; None if the reference is refused. Raises whatever the judge raises."""
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            (home / "ref.py").write_text(self.reference.text)
            (home / "case.yaml").write_text(self.reference.config(self.dtypes))
            try:
                (case,) = load_plan([home / "case.yaml"]).cases
            except ConfigError:
                return None
            drawing = Drawing(self.seed)
            state = drawing.rng.getstate()

            def strange(outputs: dict[str, Array]) -> dict[str, Array]:
                drawing.rng.setstate(state)
                return drawing.strange(outputs) if self.is_strange else outputs

            kernel = FuzzKernel(ReferenceFile(home / "mine.py", self.kernel.text.encode()), strange)
            inputs = {plan.name: plan.sample(self.seed, case.id, *self.dtypes) for plan in case.tensors}
            with uncontained():
                judge = CaseJudge(case, inputs, consult_oracle(case, inputs), ORACLE, ask=kernel.ask)
                for dtype in case.dtypes:
                    judge.take(dtype, [kernel.outcome(case, dtype, inputs)])
                return judge.judged()

    @property
    def error(self) -> str:
        """The traceback of the judge; "" if it answers."""
        try:
            self.judged()
        except Exception:
            return traceback.format_exc()
        return ""

    def smaller(self) -> Iterator[FuzzCase]:
        """The same case with one dtype, one output or one call fewer."""
        for dtype in self.dtypes if len(self.dtypes) > 1 else ():
            yield replace(self, dtypes=(dtype,))
        outputs = self.reference.outputs
        for kept in (outputs[:i] + outputs[i + 1 :] for i in range(len(outputs)) if len(outputs) > 1):
            yield self.with_programs(lambda p, kept=kept: replace(p, outputs=kept))
        for name in self.reference.calls:
            if name not in outputs:
                rest = {n: c for n, c in self.reference.calls.items() if n != name}
                other = {n: c for n, c in self.kernel.calls.items() if n != name}
                yield replace(
                    self, reference=replace(self.reference, calls=rest), kernel=replace(self.kernel, calls=other)
                )

    def with_programs(self, change: Callable[[FuzzProgram], FuzzProgram]) -> FuzzCase:
        """The case with both programs changed."""
        return replace(self, reference=change(self.reference), kernel=change(self.kernel))


def drawn(seed: int) -> FuzzCase:
    """The case of a seed."""
    drawing = Drawing(seed)
    reference = drawing.program()
    kernel = drawing.kernel(reference)
    return FuzzCase(seed, reference, kernel, drawing.rng.choice(DTYPES), drawing.rng.random() < STRANGELY)


def location_of(error: str) -> str:
    """The last lines of a traceback: where it was raised, and what."""
    lines = error.strip().splitlines()
    return f"{[line.strip() for line in lines if line.strip().startswith('File')][-1]}: {lines[-1]}"


def reduced(case: FuzzCase, error: str) -> FuzzCase:
    """The smallest case with the same exception at the same place."""
    for smaller in case.smaller():
        if values_of(smaller.reference) is None or values_of(smaller.kernel) is None:
            continue
        if (other := smaller.error) and location_of(other) == location_of(error):
            return reduced(smaller, other)
    return case


def main() -> int:
    """Run the cases; 1 if any raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen, ids, began = Counter[str](), Counter[str](), time.monotonic()
    for seed in range(given.seed, given.seed + given.count):
        case = drawn(seed)
        try:
            judged = case.judged()
            ids.update({d.id for d in judged.diagnoses} or {"right"} if judged else {"refused"})
        except Exception:
            error = traceback.format_exc()
            seen[location_of(error)] += 1
            if seen[location_of(error)] == 1:
                small = reduced(case, error)
                print(f"seed {seed}, {', '.join(small.dtypes)}, strange {small.is_strange}\n{error}")
                print(
                    f"{small.reference.config(small.dtypes)}\n{small.reference.text}\n{small.kernel.text}", flush=True
                )
    print(f"{given.count} cases in {time.monotonic() - began:.0f} s: {sum(seen.values())} exceptions")
    for location, n in seen.most_common():
        print(f"{n:6} {location}")
    print(", ".join(f"{name} {n}" for name, n in ids.most_common()))
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main())
