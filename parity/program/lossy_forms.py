"""Forms of recorded code that are equal in exact arithmetic, and lose digits in floating point.

A sum of products of differences can be multiplied out: E[(x - E[x])^2] is E[x^2] - E[x]^2, and a squared distance is
|a|^2 - 2ab + |b|^2. Both cancel where the result is small beside its terms (N. J. Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., 2002, sections 1.7 and 1.9). So do log(1 + x) and exp(x) - 1 near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.cases.writable import NUMPY as np  # noqa: N811 - it is NumPy, whose new arrays may be written to
from parity.program.recorded import RecordedCall

Values = Mapping[str, Any]
Compute = Callable[[Values, Values], Any]
MEANS, SUMS = ("mean",), ("sum", "mean")
DIFFERENCES = ("sub", "subtract")
PRODUCTS = ("mul", "multiply")
MATRIX_PRODUCTS = ("matmul", "bmm", "mm")
MOVED = ("reshape", "transpose", "t", "T", "mT")
"""What only moves elements, by kind."""
OFFSET = "a mean that is large beside the spread"
NEARBY = "a difference that is small beside its terms"
NEAR_0 = "values near 0"


@dataclass(frozen=True)
class LossyForm:
    """What a call computes in another form; `id` is the cause that it is, and `shown_by` the inputs that show it."""

    id: str
    shown_by: str
    compute: Compute


@dataclass(frozen=True)
class DifferenceOperand:
    """An operand that is the difference `a - b`, and the calls that only move its elements afterwards."""

    call: RecordedCall
    moves: Sequence[RecordedCall] = ()

    @property
    def terms(self) -> tuple[str, str]:
        """The marks of a and b."""
        a, b = self.call.reads
        return a, b


@dataclass
class RecordedCode:
    """The calls of recorded code, and what each computes, by mark."""

    calls: Sequence[RecordedCall]
    computed: Mapping[str, Compute]
    by_mark: Mapping[str, RecordedCall] = field(init=False)

    def __post_init__(self) -> None:
        self.by_mark = {call.mark: call for call in self.calls}

    def forms(self) -> Iterator[tuple[RecordedCall, LossyForm]]:
        """Every call that has a lossy form, with that form."""
        for call in self.calls:
            if call.function in ("log1p", "expm1") and len(call.reads) == 1:
                yield call, LossyForm("cancellation-near-0", NEAR_0, near_0(call))
            product = self.by_mark.get(call.reads[0]) if call.function in SUMS and len(call.reads) == 1 else call
            is_sum = product is not call
            pair = None if product is None else self.differences(product, PRODUCTS if is_sum else MATRIX_PRODUCTS)
            if product is not None and pair is not None:
                is_centred = all(map(self.is_centred, pair))
                words = ("variance-naive", OFFSET) if is_centred else ("expanded-square", NEARBY)
                yield call, LossyForm(*words, self.expanded(call, product, pair, is_centred=is_centred))

    def differences(
        self, call: RecordedCall, products: Sequence[str]
    ) -> tuple[DifferenceOperand, DifferenceOperand] | None:
        """The two differences that a call multiplies; None if it does something else."""
        is_product = call.function in products and len(call.reads) == 2
        is_square = products is PRODUCTS and (
            call.function == "square" or (call.function == "pow" and len(call.reads) == 1 and exponent(call) == 2)
        )
        if not is_product and not is_square:
            return None
        first, last = self.difference(call.reads[0]), self.difference(call.reads[-1])
        return None if first is None or last is None else (first, last)

    def difference(self, mark: str) -> DifferenceOperand | None:
        """The difference that a value is, perhaps with its elements moved."""
        moves: list[RecordedCall] = []
        while (call := self.by_mark.get(mark)) is not None and call.part is None:
            if call.function in DIFFERENCES and len(call.reads) == 2 and not call.kwargs:
                return DifferenceOperand(call, tuple(reversed(moves)))
            if call.kind not in MOVED or len(call.reads) != 1:
                return None
            moves.append(call)
            mark = call.reads[0]
        return None

    def is_centred(self, item: DifferenceOperand) -> bool:
        """Whether b is a mean of a."""
        a, b = item.terms
        call = self.by_mark.get(b)
        while call is not None and call.kind in MOVED and len(call.reads) == 1:
            call = self.by_mark.get(call.reads[0])
        return call is not None and call.function in MEANS and call.reads == [a]

    def expanded(
        self,
        call: RecordedCall,
        product: RecordedCall,
        pair: tuple[DifferenceOperand, DifferenceOperand],
        *,
        is_centred: bool,
    ) -> Compute:
        """The product of both differences, multiplied out, each term summed where `call` sums."""

        def compute(values: Values, given: Values) -> Any:
            (a, b), (c, d) = (self.terms(item, values, given) for item in pair)

            def term(x: Any, y: Any) -> Any:
                own = self.product(product, x, y, values, given)
                return own if product is call else self.computed[call.mark]({**values, product.mark: own}, given)

            if is_centred:
                return term(a, c) - term(b, d)
            if pair[0] == pair[1]:
                return term(a, a) - 2 * term(a, b) + term(b, b)
            return term(a, c) - term(a, d) - term(b, c) + term(b, d)

        return compute

    def terms(self, item: DifferenceOperand, values: Values, given: Values) -> Iterator[Any]:
        """a and b with the shape of their difference, moved as the operand is."""
        a, b = (values[mark] for mark in item.terms)
        for own, other in ((a, b), (b, a)):
            whole = own if own.shape == values[item.call.mark].shape else own + 0 * other
            moved = {**values, item.call.mark: whole}
            for call in item.moves:
                moved[call.mark] = self.computed[call.mark](moved, given)
            yield moved[item.moves[-1].mark if item.moves else item.call.mark]

    def product(self, call: RecordedCall, x: Any, y: Any, values: Values, given: Values) -> Any:
        """What a product computes of other operands."""
        if call.function not in MATRIX_PRODUCTS:
            return x * y
        return self.computed[call.mark]({**values, call.reads[0]: x, call.reads[1]: y}, given)


def exponent(call: RecordedCall) -> Any:
    """The second operand of a power."""
    return call.args[1] if len(call.args) > 1 else call.kwargs.get("exponent")


def near_0(call: RecordedCall) -> Compute:
    """log(1 + x) or exp(x) - 1."""
    (mark,) = call.reads
    if call.function == "log1p":
        return lambda values, _: np.log(1 + values[mark])
    return lambda values, _: np.exp(values[mark]) - 1
