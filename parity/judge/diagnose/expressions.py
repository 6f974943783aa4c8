"""What a cause computes, as an expression in the reference's own names: `grad.x = 0.5 * (g @ weight), where the
reference has g @ weight`."""

from __future__ import annotations

from typing import Any

from parity.cases.op import IncompatibleError
from parity.cases.oracle import is_plain
from parity.judge.diagnose.causes import Cause, Result, standing_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator


def expression_of(evaluator: Evaluator, cause: Cause, before: Alteration) -> str:
    """The expression that a cause changes, after the alterations `before`; "" if it only locates an error."""
    try:
        if cause.expression:
            return cause.expression
        if cause.alteration is None:
            return changed_results(evaluator, cause)
        return altered(evaluator, cause.alteration, before) or named_alike(evaluator, cause, before)
    except IncompatibleError:
        return ""


def changed_results(evaluator: Evaluator, cause: Cause) -> str:
    """The results that a cause changes, each beside that of the reference."""
    if evaluator.universal or not cause.results:
        return ""
    program = evaluator.program(Alteration())
    names: dict[Result, list[str]] = {}
    for name, result in cause.results.items():
        if name in program.outputs:
            names.setdefault(result, []).append(name)
    note = f" ({cause.parameters['meaning']})" if cause.counted else ""
    texts = [result.text(program, tensors[0], note) for result, tensors in names.items()]
    also = [f"the same in {', '.join(tensors[1:])}" for tensors in names.values() if tensors[1:]]
    return "; ".join([*texts, *also])


def altered(evaluator: Evaluator, alteration: Alteration, before: Alteration) -> str:
    """What an alteration changes: a formula, numbers, inputs that are left out or rounded."""
    if text := evaluator.expression(alteration, before):
        return text
    given = vars(evaluator.case.params)
    texts = [f"{n} = {value!r}, where the reference has {given[n]!r}" for n, value in alteration.params.items()]
    texts += [f"{name} is left out" for name in alteration.absent]
    names = [name for name in evaluator.inputs if name in alteration.rounded]
    if alteration.operands and names:
        rounded = ", ".join(f"rounded_to({name}, {alteration.operands})" for name in names)
        texts.append(f"{rounded}, wherever the reference has {', '.join(names)}")
    return "; ".join(texts)


def named_alike(evaluator: Evaluator, cause: Cause, before: Alteration) -> str:
    """The expression of the variant with the same id, of numbers that are no formula; else with the same options."""
    own = options_of(cause.alteration or Alteration())
    variants = (c.alteration for c in standing_causes(evaluator) if c.id == cause.id and c.alteration is not None)
    alike = (a for a in variants if not all(map(is_plain, own.values())) or options_of(a).keys() == own.keys())
    return next((text for a in alike if (text := altered(evaluator, a, before))), "")


def options_of(alteration: Alteration) -> dict[str, Any]:
    """The options of the reference that an alteration changes."""
    return {**alteration.arguments, **alteration.unstable}
