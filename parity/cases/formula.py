"""Programs as formulas: `var = sum((x - mean)**2, axis=(1,)) / 64`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.program import Program, Ref, Step, getitem, leaves

INFIX: Mapping[str, tuple[str, int]] = {
    "add": ("+", 1),
    "subtract": ("-", 1),
    "multiply": ("*", 2),
    "true_divide": ("/", 2),
    "divide": ("/", 2),
    "matmul": ("@", 2),
    "power": ("**", 4),
}
"""NumPy's functions with an operator, and its precedence."""
SIGN, ATOM = 3, 9
WRITTEN: Mapping[str, tuple[str, int, int]] = {
    "zero": ("0", ATOM, 0),
    "zeros_like": ("0", ATOM, 0),
    "one": ("1", ATOM, 0),
    "ones_like": ("1", ATOM, 0),
    "one less": ("{} - 1", 1, 1),
    "one more": ("{} + 1", 1, 1),
    "double": ("2 * {}", 2, 3),
    "half": ("{} / 2", 2, 2),
    "complement": ("1 - {}", 1, 2),
    "root": ("sqrt({})", ATOM, 0),
    "inverse": ("1 / {}", 2, 3),
    "negative inverse": ("-1 / {}", 2, 3),
}
"""How functions of one value are written, with the precedence of the text and the least precedence of their operand."""
UNSEEN = frozenset(("in_dtype_of", "as_integers", "broadcast_to", "first_of", "stopped"))
"""Steps that change neither numbers nor their order; formulas show their operand instead."""
INVENTED = re.compile(r"\bt\d+\b")
"""The name of a value that has none in the source."""
MOST_NUMBERS = 3
"""The most numbers of a constant row that are written out."""
LONG = 60
"""A longer expression that is read more than once gets its own line."""


def formulas(program: Program) -> list[str]:
    """A line for each named result and each output of a program; unnamed values are written out where they are read."""
    return [f"{name} = {expression}" for name, expression in named_formulas(program)]


def named_formulas(program: Program) -> list[tuple[str, str]]:
    """The name and the expression of each line."""
    text = Formulas(program)
    return [(text.name_of(step), text.expression(step)) for step in program.steps if text.name_of(step)]


def formula(program: Program, index: int) -> str:
    """One value of a program in the names of its source."""
    text = Formulas(program)
    steps = {step.index: step for step in program.steps}
    return text.expression(steps[index]) if index in steps else text.value(index)[0]


def output_formula(program: Program, name: str) -> tuple[str, int]:
    """The expression of an output, and the precedence of its outermost operator."""
    text, index = Formulas(program), program.outputs[name]
    step = next((step for step in program.steps if step.index == index), None)
    return text.value(index) if step is None else text.written(step)


class Formulas:
    """The texts of a program's values."""

    def __init__(self, program: Program) -> None:
        self._steps = {step.index: step for step in program.steps}
        self._names = {index: name for name, index in program.inputs.items()}
        self._names |= {
            index: name.replace(".", "[", 1) + "]" if "." in name else name
            for name, (index, _) in program.options.items()
        }
        self._names |= {step.index: step.label for step in program.steps if step.label}
        results = {index: name for name, index in program.outputs.items() if index in self._steps}
        self._names |= {i: f"new {name}" if name in program.inputs else name for i, name in results.items()}
        reads = Counter(ref for step in program.steps for ref in step.refs)
        for step in program.steps:
            if step.index not in self._names and reads[step.index] > 1 and len(self.expression(step)) > LONG:
                self._names[step.index] = f"t{step.index}"

    def name_of(self, step: Step) -> str:
        """The name of a step's result, "" if it has none."""
        return self._names.get(step.index, "")

    def value(self, index: int) -> tuple[str, int]:
        """A value as an operand, and the precedence of its outermost operator."""
        return (self._names[index], ATOM) if index in self._names else self.written(self._steps[index])

    def expression(self, step: Step) -> str:
        """The expression of a step."""
        return self.written(step)[0]

    def written(self, step: Step) -> tuple[str, int]:
        """The expression of a step, and the precedence of its outermost operator."""
        if step.name in INFIX and len(step.operands) == 2:
            sign, strength = INFIX[step.name]
            left, right = (self._operand(operand) for operand in step.operands)
            space = "" if sign == "**" else " "
            return (
                f"{bracketed(left, strength)}{space}{sign}{space}{bracketed(right, strength + 1)}",
                strength,
            )
        if step.name == "negative":
            return f"-{bracketed(self._operand(step.operands[0]), SIGN)}", SIGN
        if step.name in WRITTEN:
            return written(step.name, self._operand(step.operands[0]))
        if step.name in UNSEEN:
            return self._operand(step.operands[0])
        if step.function is getitem or step.name == "part":
            return f"{bracketed(self._operand(step.operands[0]), ATOM)}[{self._indexed(step.operands[1])}]", ATOM
        if step.name == "put":
            values, new = (bracketed(self._operand(operand), 1) for operand in step.operands[:2])
            return f"{values} with [{self._indexed(step.operands[2])}] = {new}", 0
        operands = [self._operand(operand)[0] for operand in step.operands]
        if hasattr(step.function, "text_of"):
            return step.function.text_of(operands), ATOM
        keywords = [f"{name}={value}" for name, value in step.keywords.items() if shown(name, value)]
        return f"{step.name}({', '.join(operands + keywords)})", ATOM

    def _indexed(self, index: Any) -> str:
        """An index as in Python: `:, 0`, `1:5`, `x > 0`."""
        if isinstance(index, tuple) and index:
            return ", ".join(map(self._indexed, index))
        if index is Ellipsis:
            return "..."
        if not isinstance(index, slice):
            return self._operand(index)[0]
        ends = ["" if end is None else self._operand(end)[0] for end in (index.start, index.stop)]
        return ":".join(ends if index.step is None else [*ends, self._operand(index.step)[0]])

    def _operand(self, operand: Any) -> tuple[str, int]:
        if isinstance(operand, Ref):
            return self.value(operand.index)
        if isinstance(operand, (tuple, list)):
            inside = any(isinstance(leaf, Ref) for leaf in leaves(operand))
            texts = [self._operand(item)[0] for item in operand]
            return (f"[{', '.join(texts)}]" if inside else str(operand)), ATOM
        if isinstance(operand, np.ndarray):
            return constant(operand), ATOM
        return (short(operand) if isinstance(operand, float) else str(operand)), ATOM


def constant(values: NDArray[Any]) -> str:
    """An array of a program: its numbers, the first ones of a row, or its shape."""
    numbers = [short(v) if isinstance(v, float) else str(v) for v in values.ravel()[:MOST_NUMBERS].tolist()]
    if values.size == max(values.shape, default=1):
        return f"[{', '.join([*numbers, *(['...'] if values.size > MOST_NUMBERS else [])])}]"
    return f"constant{list(values.shape)}"


def short(number: float) -> str:
    """A number in six digits if they are exact, else in ten, which distinguish it from its rounding to float32."""
    return f"{number:g}" if float(f"{number:g}") == number else f"{number:.10g}"


def written(function: str, operand: tuple[str, int]) -> tuple[str, int]:
    """A function of `WRITTEN` as an operand."""
    text, strength, inner = WRITTEN[function]
    return text.format(bracketed(operand, inner)), strength


def bracketed(text: tuple[str, int], strength: int) -> str:
    """A text, in brackets if its operator has lower precedence than its context."""
    return text[0] if text[1] >= strength else f"({text[0]})"


def shown(name: str, value: Any) -> bool:
    """Whether a keyword affects more than the layout of a result."""
    return name not in ("keepdims", "order") and value not in (None, "")


def definitions(text: str, named: Mapping[str, str]) -> str:
    """The definitions of the invented names in a text: ` (t14 = sum(x) / 64)`, or nothing."""
    names = dict.fromkeys(name for name in INVENTED.findall(text) if name in named)
    return f" ({', '.join(f'{name} = {named[name]}' for name in names)})" if names else ""
