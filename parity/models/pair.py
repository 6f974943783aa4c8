"""Two ports of a model, from their runs to findings: outputs, gradients, layers in step, causes, shares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from parity.cases.options import differing
from parity.config.plan import ORACLE, CasePlan
from parity.engine.inputs import slug
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.case import CaseJudge, Cell, Judged
from parity.judge.compare.cell import consult_oracle
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import FAILED, FAILURES, Failures
from parity.models import backward, call_divergence, converted, layer_ops, orders, repeated, repro, steps, weights
from parity.models.call_traces import LONGEST
from parity.models.code import CodeCase, CodeKernel, children_of, code_case
from parity.models.comparisons import ComparedPorts, outputs_of
from parity.models.converted import Fold, FoldedKernel
from parity.models.findings import CODE, LAYER, WEIGHTS, Boundary, ModelFinding
from parity.models.layer_ops import Kernel
from parity.models.layers import plain
from parity.models.layouts import layout_of
from parity.models.likeness import likeness
from parity.models.measure import difference
from parity.models.ports import Array, ModelError, RemotePort
from parity.models.repeated import INPUT, SECOND, THIRD, RepeatedCall
from parity.models.worker.crossing import LOSS, ULP
from parity.models.worker.tape import Recorded
from parity.outcome import CellOutcome, Outcome, Output
from parity.program.recorded_code import PROGRAM
from parity.reporting.text.words import few

MOST_MEASURED = 12
"""Findings whose share is measured, each in a run of its own."""
ELSEWHERE = 0.1
"""A tensor that differs by more, relative to its namesake, is another tensor if the outputs are right."""
CLASS = "its class"
NAMELESS = ("unexplained", FAILED)
"""Diagnoses without a cause."""
EDITED = "reference-edit"
"""A cause without a name."""
MAIN = 0.1
"""A finding that explains less of the output's difference is not its cause."""
SMALL_CASE = 1 << 22
"""Elements of a layer's inputs up to which its op is judged with a search for the cause."""
SEARCHED = 1 << 12
"""Elements of a layer's inputs up to which its code is judged with the whole batch: code has intermediate tensors."""


class PortPair(ComparedPorts):
    """The search for findings and their causes; `repeated` is what is wrong in further calls."""

    repeated: Sequence[RepeatedCall] = ()

    def judged(self) -> None:
        """Find what differs, layer by layer in step, and the causes; measure how much each explains."""
        is_wrong = any(map(self.is_wrong, [*self._outputs, "loss"]))
        if self.other.converted:
            self.partners = converted.of_size(self.other, self.partners, self.free.plain, self.run)
        after = steps.resized(self.partners, self.free.plain, self.run) if is_wrong else None
        self.resized = after is not None
        self.partners = steps.fitting(self.other, self.partners, self.free.plain, self.run, after)
        self.keys = steps.aligned(
            self.free.plain, self.run, self.partners, self._buffers, after, self.behind, self.other.converted
        )
        if self.other.converted and not is_wrong:
            self.keys = dict(self._trusted())
        self.axes = orders.axis_orders(self.free.plain, self.run, self.keys)
        converter = self.converter
        run = self.other.run(
            self.states[self.other.name], self.batch, layers=self.partners, partner=self.free.plain, keys=self.keys,
            axes=self.axes, resized=self.resized,
        )  # fmt: skip
        self.findings = steps.wrong_in_step(self.other, self.step, run, self.partners, self.keys, self.axes)
        if not is_wrong and not any(self._wrong_gradients()) and not any(self._buffers_left()):
            # Layers that commute, in another order: the tensors between them differ, nothing after them does.
            self.findings = [finding for finding in self.findings if finding.kind != CODE]
        for finding in self.findings:
            values = {at: converter.to_baseline(str(at), run.load(str(at))) for at in finding.boundaries}
            finding.values = {at: array for at, array in values.items() if at.role == "in"}
            finding.metrics = {at: self._measured(array, at) for at, array in values.items()}
        self.n_layers = len({at.layer for name in run if (at := Boundary.of(name)) is not None})
        for finding in self.findings:
            failures = Failures()
            with failures.contained(f"explaining {finding.location}", passing=(ModelError,)):
                self._diagnose(finding)
            if failures:
                finding.evidence |= failures.evidence
                self._undiagnosed(finding)
            self._count_calls(finding, run)
        state = self.states[self.other.name]
        loaded = [] if self.own is None else list(weights.differing(self.moves, self.base, self.other, state))
        for finding in loaded:
            finding.comparisons = [self._weights(name) for name in finding.parameters]
        shared = weights.untied(self.moves, self.base, self.other) if self._differentiable else ()
        right = self._with_weights(loaded)
        if not right.findings and any(right._wrong_gradients()):
            is_wrong = any(map(right.is_wrong, [*right._outputs, "loss"]))
            self.findings = (
                right._backward() or right._called_otherwise(run) or ([] if is_wrong else right._backward_divergence())
            )
        elif any(right._buffers_left()):
            known = {finding.layer for finding in self.findings}
            self.findings += [finding for finding in right._called_otherwise(run) if finding.layer not in known]
        self.findings = [*loaded, *(finding for finding in self.findings if finding.title), *shared]
        self._measure()
        self.first = next(
            (at for at, d in steps.distances(self.free, self.run, self.keys, self.axes, whole=True) if d.exceeds_bound),
            None,
        )

    def _with_weights(self, loaded: Sequence[ModelFinding]) -> PortPair:
        """The pair with the baseline's values in place of the port's own weights that differ."""
        if not loaded:
            return self
        state = self.states[self.other.name]
        run = self.other.run(state, self.batch, layers=self.partners, gradients=bool(self.model.loss))
        return replace(self, run=run)

    def _trusted(self) -> Iterator[tuple[str, str]]:
        """The names of tensors, without those that are far off in a right run: a converter moved them."""
        for name, ours in self.keys.items():
            apart = self.free.distance(ours, self.run, name, whole=True) if ours in self.free.plain else None
            if apart is None or apart.relative < ELSEWHERE:
                yield name, ours

    @property
    def converter(self) -> orders.AxesConverter:
        """The other port's tensors in the baseline's layout."""
        partners = {theirs: self.free.plain.entries[ours] for theirs, ours in self.keys.items()}
        return orders.AxesConverter(self.run, self.axes, partners)

    @property
    def _buffers(self) -> dict[str, str]:
        """The baseline's names of the other port's buffers."""
        moves = (move for move in self.moves if len(move.sources) == 1 and not self.other.tensors[move.target].trained)
        return {move.target: move.sources[0] for move in moves}

    def _wrong_gradients(self) -> Iterator[str]:
        """The parameters whose gradients differ by more than rounding."""
        yield from (c.tensor for c in self.comparisons() if c.tensor.startswith("grad.") and c.verdict.fails)

    def _backward(self) -> list[ModelFinding]:
        """Layers that return the right values and wrong gradients; each is called alone."""
        findings = []
        for layer, partner in self.partners.items():
            op = layer_ops.op_of(self.base.layers[partner])
            finding = ModelFinding(LAYER, layer, 0, partner, {})
            if op is not None and self._judged_op(finding, op) is not None and finding.title:
                findings.append(finding)
        return findings

    def _backward_divergence(self) -> list[ModelFinding]:
        """The code that passes back a wrong gradient, located by the parameters whose gradients are wrong."""
        factors, wrong = {}, set(self._wrong_gradients())
        for move in self.moves:
            name, source = f"grad.{move.target}", f"grad.{move.sources[0]}"
            if name in wrong and len(move.sources) == 1 and move.part is None and source in self.free.plain:
                shape = self.base.tensors[move.sources[0]].shape
                theirs = move.undone(self.run.load(name), shape) if name in self.run else None
                factors[move.target] = backward.factor(theirs, self.free.plain.load(source))
        order = backward.order_of(self.run, list(self.other.tensors))
        divergence = backward.divergence(order, factors, self.base.name)
        if divergence is None:
            return []
        layer, title = divergence
        while layer not in self.partners:
            layer = layer.rpartition(".")[0]
        finding = ModelFinding(CODE, layer, 0, self.partners[layer], {}, title=title, id="layer-code", explained=True)
        cuts = self._cuts()
        if cuts:
            finding.layer = layer if layer in cuts else next(iter(cuts))
            finding.partner = self.partners[finding.layer]
            finding.title = f"{title}; it calls {few(cuts[finding.layer])}, which {self.base.name} does not"
        return [finding]

    def _cuts(self) -> dict[str, list[str]]:
        """The calls that change only gradients, and that the baseline does not have, by layer."""
        cuts: dict[str, list[str]] = {}
        for layer, partner in self.partners.items():
            if not self.other.layers[layer].own or layer == LOSS:
                continue
            finding = ModelFinding(CODE, layer, 0, partner, {})
            try:
                calls = call_divergence.cutting(*self._closed_layers(finding, self._few_rows(finding)), self.dtype)
            except (ModelError, ValueError, TypeError, KeyError):
                continue
            cuts |= {layer: calls} if calls else {}
        return cuts

    def _closed_layers(
        self, finding: ModelFinding, rows: int | None
    ) -> tuple[call_divergence.ClosedLayer, call_divergence.ClosedLayer]:
        """The code of a finding in both ports."""
        return call_divergence.closed_layers(
            (self.base, self.other), self.states, self.partners, finding.layer, finding.call, self.free.plain,
            self.converter, self.keys, rows, tuple(self.behind.values()),
        )  # fmt: skip

    def _called_otherwise(self, run: Recorded) -> list[ModelFinding]:
        """Code that calls its layers a different number of times although all values agree."""
        findings = [ModelFinding(CODE, layer, 0, partner, {}) for layer, partner in self.partners.items()]
        wrong = [name.removeprefix("grad.") for name in self._wrong_gradients()]
        for finding in findings:
            self._count_calls(finding, run)
            # A layer that the other port replaces by a function has right gradients.
            apart = finding.called_otherwise
            own = [[n for n in self.other.tensors if n.startswith(f"{name}.")] for name in apart]
            if self._differentiable and all(own) and not any(name in wrong for names in own for name in names):
                finding.title = ""
        return [finding for finding in findings if finding.title]

    # Causes

    def _diagnose(self, finding: ModelFinding) -> None:
        """Set the cause of a finding: options that differ, or what the search for ops finds."""
        ours, theirs = self.base.layers[finding.partner], self.other.layers[finding.layer]
        options = differing(layer_ops.options_of(self.base, ours), layer_ops.options_of(self.other, theirs))
        if finding.kind == LAYER and layer_ops.op_of(ours) is not layer_ops.op_of(theirs):
            options = {CLASS: (ours.kind, theirs.kind), **options}
        if finding.kind == LAYER:
            options |= self._dtypes(finding)
        names = (self.base.name, self.other.name)
        finding.options = options
        if options:
            finding.evidence["options"] = {name: dict(zip(names, pair, strict=True)) for name, pair in options.items()}
        if all(values.dtype.kind != "f" for values in finding.values.values()) and len(finding.values) == len(
            finding.boundaries
        ):
            self._undiagnosed(finding)
            return
        op = layer_ops.op_of(ours) if finding.kind == LAYER else None
        judged = self._judged_code(finding) if op is None else self._judged_op(finding, op)
        if judged is None and not finding.title:
            self._undiagnosed(finding)
        if op is not None and self.other.converted and not finding.title:
            self._of_its_own(finding)
        elif op is not None and self.other.converted and finding.id != "layer-options":
            self._spell_out(finding)

    def _of_its_own(self, finding: ModelFinding) -> None:
        """Keep the finding of a layer that is right with the baseline's parameters, if its own match none of these."""
        known = {move.target for move in self.moves}
        own = [name for name in self.other.tensors if name.rpartition(".")[0] == finding.layer and name not in known]
        if own and any(map(self.is_wrong, self._outputs)):
            self._undiagnosed(finding)
            names = few([name.rpartition(".")[2] for name in own])
            finding.title += f"; its {names} are not {self.base.name}'s, or have another factor or sum in them"

    def _spell_out(self, finding: ModelFinding) -> None:
        """Add to a finding what a layer of several nodes computes, or which node is the cause."""
        at = Boundary(finding.layer, finding.call, "out", 0)
        goal = self.free.plain.load(self.keys[str(at)])
        try:
            closed = self._closed_layers(finding, None)[1]
            text, is_cause = call_divergence.spelled_out(
                closed, str(at), goal, self.dtype, self.base.name, leave_out=not finding.explained
            )
        except (ModelError, ValueError, TypeError, KeyError):
            return
        if is_cause:
            self._set_cause(finding, [text])
            return
        words = re.findall(r"\w+", f"{text} {finding.options.get('dtype')}")
        narrow = next((name for name in ULP if name in words), "")
        metrics = finding.metrics.get(at)
        if narrow and metrics is not None and metrics.rmse <= ERROR_BOUND * ULP[narrow] * metrics.expected_rms:
            finding.id, finding.title, finding.explained = "layer-options", f"computes in {narrow}", True
        if text and len(text) <= LONGEST and (narrow or not finding.explained or finding.id == EDITED):
            finding.title += f"; it computes {text}"

    def _dtypes(self, finding: ModelFinding) -> dict[str, tuple[Any, Any]]:
        """The dtypes of a layer's parameters, if they differ."""
        ours, theirs = (
            {t.dtype for t in port.tensors.values() if t.name.rpartition(".")[0] == name and t.trained}
            for port, name in ((self.base, finding.partner), (self.other, finding.layer))
        )
        (here, *more), (there, *others) = (sorted(dtypes) or [""] for dtypes in (ours, theirs))
        return {} if more or others or here == there or not there else {"dtype": (here, there)}

    def _count_calls(self, finding: ModelFinding, run: Recorded) -> None:
        """Add to a finding that the code calls one of its layers a different number of times."""
        if finding.kind != CODE:
            return
        children = {name: name for name in children_of(finding.layer, list(self.partners))}
        theirs = steps.calls(run, children)
        ours = steps.calls(self.free.plain, {self.partners[name]: name for name in children})
        evaluates = self.model.mode == "eval"
        idle = {name for name in children if evaluates and plain(self.other.layers[name].kind) == "dropout"}
        apart = [
            name for name in children
            if theirs[name] != ours[name] and name not in idle and not self._is_passed(name, run)
        ]  # fmt: skip
        if apart:
            finding.called_otherwise = apart
            if finding.explained and finding.id == "layer-code":
                return
            finding.id, finding.explained = "layer-code", True
            texts = (f"calls {name} {times(theirs[name])}, {self.base.name} {times(ours[name])}" for name in apart)
            finding.title = "; ".join(texts)
            finding.evidence.pop("expression", None)

    def _is_passed(self, name: str, run: Recorded) -> bool:
        """Whether a layer is only a container in one port: its inner layers are called equally often in both."""
        within = {layer: layer for layer in self.partners if layer.startswith(f"{name}.")}
        theirs = steps.calls(run, within)
        ours = steps.calls(self.free.plain, {self.partners[layer]: layer for layer in within})
        return bool(within) and theirs == ours

    def _judged_op(self, finding: ModelFinding, op: Any) -> Judged | None:
        """Judge a layer as a case of its op; a layer within its error bound there is no finding."""
        kernels = self._kernels(finding, op)
        folder = self.folder / "layers" / slug(finding.layer)
        made = kernels and layer_ops.layer_case(
            kernels[0], self.case, self.free.plain, folder, gradients=self._differentiable and not finding.resized
        )
        if not kernels or made is None:
            return None
        case, inputs = made
        oracle = consult_oracle(case, inputs)
        by_name = {self.base.name: kernels[0], self.other.name: kernels[1]}
        outcomes = [outcome(case, self.dtype, name, kernel, inputs, oracle) for name, kernel in by_name.items()]
        judge = CaseJudge(
            case, inputs, oracle, self.base.name, self.memory, ask=lambda name, *cell: by_name[name](*cell)
        )
        judge.take(self.dtype, outcomes)
        cell = judge.cells[self.dtype]
        if not finding.resized and not has_shapes(outcomes[1], oracle):
            return None
        if not finding.resized and not self._wrong_alone(cell):
            return judge.judged(diagnose=False)
        verified = self._verified(finding, case, inputs, outcomes[1], set(cell.wrong.get(self.other.name, {})))
        small = sum(array.size for array in inputs.values()) <= SMALL_CASE
        judged = judge.judged(diagnose=small and not verified)
        wrong = self._wrong_alone(cell)
        finding.comparisons = [
            renamed(c, finding)
            for c in judged.comparisons
            if c.tensor in wrong and c.actual == self.other.name and c.culprit
        ]
        script = repro.write(kernels[1], self.base.name, oracle, folder)
        finding.evidence |= {
            "op": op.name,
            "folder": str(folder),
            **({} if script is None else {"script": str(script)}),
        }
        if verified:
            finding.id, finding.explained = "layer-options", True
            finding.title = layer_ops.words(verified, (self.base.name, self.other.name))
        elif not self._explained(finding, judged):
            self._undiagnosed(finding)
        return judged

    def _wrong_alone(self, cell: Cell) -> set[str]:
        """The tensors in which the other port is wrong, and not in the same way as the baseline."""
        shared = cell.wrong.get(self.base.name, {})
        apart = {c.tensor for c in cell.comparisons if c.expected == self.base.name and c.verdict.fails}
        return {tensor for tensor in cell.wrong.get(self.other.name, {}) if tensor not in shared or tensor in apart}

    def _explained(self, finding: ModelFinding, judged: Judged) -> bool:
        """Whether the judge has found the other port's cause, which becomes that of the finding."""
        mine = [d for d in judged.diagnoses if d.id != "rounding" and d.backend == self.other.name]
        # A wrong output may cause a wrong gradient, but not the reverse.
        causes = sorted(mine, key=lambda d: (d.id in NAMELESS, of_gradients(d), not d.explained))
        if not causes or causes[0].id in NAMELESS:
            failed = [d.evidence[FAILURES] for d in causes if FAILURES in d.evidence]
            finding.evidence |= {FAILURES: failed[0]} if failed else {}
            return False
        finding.id, finding.title, finding.explained = causes[0].id, causes[0].title, causes[0].explained
        finding.evidence |= dict(causes[0].evidence)
        if finding.options:
            finding.title += f" ({layer_ops.words(finding.options, (self.base.name, self.other.name))})"
        return True

    def _judged_code(self, finding: ModelFinding) -> Judged | None:
        """Judge the code of a layer by its program in the baseline; None if there is none that gives its values.

        Of a large batch a few rows are judged, if they show it.
        """
        few = self._few_rows(finding)
        texts, is_code = self._divergence(finding, few)
        if "unrecorded" in finding.evidence and few:
            # A graph may have the batch's size in it.
            texts, is_code = self._divergence(finding, None)
        if texts and is_code:
            return None
        judged = self._judged_rows(finding, few) if few else None
        judged = judged or self._judged_rows(finding, None)
        if texts and not finding.explained:
            self._set_cause(finding, texts)
        return judged

    def _divergence(self, finding: ModelFinding, rows: int | None) -> tuple[Sequence[str], bool]:
        """Where the code of both ports diverges, and whether the baseline's is more than one function. If so, that is
        the cause; for one function the op's causes, which have names, are searched first."""
        folder = self.folder / "layers" / slug(f"{finding.layer or 'model'}-code")
        try:
            texts, is_code = call_divergence.diverging(
                *self._closed_layers(finding, rows), self.keys, self.dtype, folder
            )
        except (ModelError, ValueError, TypeError, KeyError) as error:
            finding.evidence["unrecorded"] = str(error)
            return [], False
        if texts and is_code:
            self._set_cause(finding, texts)
        return texts, is_code

    def _set_cause(self, finding: ModelFinding, texts: Sequence[str]) -> None:
        """Set as the cause of a finding where the code of both ports diverges."""
        steps = "one step differs" if len(texts) == 1 else f"{len(texts)} steps differ"
        finding.id, finding.title, finding.explained = "layer-code", steps, True
        finding.evidence["expression"] = "; ".join(texts)

    def _few_rows(self, finding: ModelFinding) -> int | None:
        """The number of rows of the batch that can be searched; None if all."""
        prefix = f"{finding.partner}|{finding.call}|in|"
        shapes = [self.free.plain.shape(name) for name in self.free.plain if name.startswith(prefix)]
        rows, size = next(((shape[0], sum(map(math.prod, shapes))) for shape in shapes if shape), (0, 0))
        return max(1, rows * SEARCHED // size) if size > SEARCHED and rows > 1 else None

    def _judged_rows(self, finding: ModelFinding, rows: int | None) -> Judged | None:
        folder = self.folder / "layers" / slug(f"{finding.layer or 'model'}-code")
        same = {m.sources[0]: m.target for m in self.moves if len(m.sources) == 1 and not m.axes and m.part is None}
        try:
            made = code_case(
                self.case, self.dtype, (self.base, self.other), self.states, self.partners, same, finding.layer,
                finding.call, self.free.plain, self.converter, self.keys, folder, rows, tuple(self.behind.values()),
            )  # fmt: skip
            oracle = consult_oracle(made.case, made.inputs)
        except (ModelError, ValueError, TypeError, KeyError) as error:
            finding.evidence["untraced"] = str(error)
            return None
        outcomes = [
            outcome(made.case, self.dtype, name, kernel, made.inputs, oracle) for name, kernel in made.kernels.items()
        ]
        judge = CaseJudge(
            made.case,
            made.inputs,
            oracle,
            self.base.name,
            self.memory,
            ask=lambda name, *cell: made.kernels[name](*cell),
        )
        judge.take(self.dtype, outcomes)
        wrong = judge.cells[self.dtype].wrong
        if wrong.get(self.base.name) or not wrong.get(self.other.name):
            finding.evidence["untraced"] = "the program does not give the baseline's values"
            return None
        other = self._otherwise(made, outcomes[1])
        judged = judge.judged(diagnose=not other)
        finding.comparisons = [
            renamed(c, finding) for c in judged.comparisons if c.actual == self.other.name and c.culprit
        ]
        finding.evidence |= {"program": str(folder / PROGRAM), "folder": str(folder)}
        if other:
            finding.id, finding.explained = "layer-options", True
            finding.title = layer_ops.words(other, (self.base.name, self.other.name))
        elif not self._explained(finding, judged):
            self._undiagnosed(finding)
        return judged

    def _otherwise(self, made: CodeCase, theirs: CellOutcome) -> Mapping[str, tuple[Any, Any]]:
        """The option of an op in a program that reproduces what the other port returned."""
        for name, value, other in made.otherwise():
            try:
                judge = CaseJudge(other, made.inputs, consult_oracle(other, made.inputs), ORACLE)
                judge.take(self.dtype, [theirs])
                if not judge.cells[self.dtype].wrong[self.other.name]:
                    return {name: (getattr(made.case.params, name), value)}
            except (TypeError, ValueError, KeyError, ArithmeticError):
                continue
        return {}

    def _kernels(self, finding: ModelFinding, op: Any) -> tuple[Kernel, Kernel] | None:
        """Both ports' layers as kernels of an op with the baseline's params; None if these do not fit."""
        params = self._params(self.base, finding.partner, op)
        ours, theirs = (
            Kernel(port, port.layers[name], finding.call, op, params, self.states[port.name], self.dtype, converter)
            for port, name, converter in (
                (self.base, finding.partner, orders.AxesConverter(self.free.plain)),
                (self.other, finding.layer, self.converter),
            )
        )
        if params is None:
            return None
        if finding.layer in self.behind:
            fold = Fold(finding.layer, finding.partner, self.behind[finding.layer])
            return FoldedKernel(**vars(theirs), base=self.base, base_state=ours.state, fold=fold), theirs
        return ours, theirs

    def _params(self, port: RemotePort, name: str, op: Any) -> Any:
        """The params of an op from a layer's options; None if they do not fit."""
        layer, shapes = port.layers[name], {}
        for tensor in port.tensors.values():
            if tensor.name.rpartition(".")[0] == name:
                layout = layout_of(port.spec.adapter, layer, tensor.name.rpartition(".")[2])
                shapes[layout.name] = layout.shape(tensor.shape)
        try:
            return layer_ops.params_of(op, layer_ops.options_of(port, layer), shapes)
        except (TypeError, ValueError):
            return None

    def _verified(
        self, finding: ModelFinding, case: CasePlan, inputs: Mapping[str, Array], theirs: CellOutcome, wrong: set[str]
    ) -> Mapping[str, tuple[Any, Any]]:
        """The options that differ, if they are the cause: with the other's class and values, the reference gives the
        other's outputs, and a tensor that was `wrong` is right (`wrong` is empty if the shapes differ)."""
        op = layer_ops.op_of(self.other.layers[finding.layer])
        params = None if op is None else self._params(self.other, finding.layer, op)
        if op is None or params is None or (op.name, params) == (case.op, case.params) or not finding.options:
            return {}
        other = replace(case, op=op.name, params=params)
        try:
            judge = CaseJudge(other, inputs, consult_oracle(other, inputs), ORACLE)
            judge.take(self.dtype, [theirs])
            # Other differences of the layer, such as in its running statistics, are found in other modes.
            left = judge.cells[self.dtype].wrong[self.other.name].keys()
            right = left.isdisjoint(other.definition.grad_outputs) and (not wrong or bool(wrong - left))
        except (TypeError, ValueError, KeyError):
            return {}
        finding.evidence["verified"] = right
        same = {name for name in finding.options if getattr(params, name, None) == getattr(case.params, name, None)}
        used = finding.options.keys() - same if op.name == case.op else {CLASS}
        return {name: pair for name, pair in finding.options.items() if name in used} if right else {}

    def _undiagnosed(self, finding: ModelFinding) -> None:
        """Set what is known about a finding without a cause."""
        at = max(finding.boundaries, key=lambda b: finding.boundaries[b], default=Boundary(finding.layer, 0, "out", 0))
        finding.id = "layer-code" if finding.kind != LAYER else "unexplained"
        finding.title = f"computes {at.words()} differently" if finding.kind != LAYER else "differs for the same inputs"
        theirs, names = finding.values.get(at), (self.other.name, self.base.name)
        looks = "" if theirs is None else likeness(theirs, self.free.plain.load(self.keys[str(at)]), names)
        finding.title += f": {looks}" if looks else self._values(finding, at)
        finding.explained = bool(looks)
        if FAILURES in finding.evidence:
            finding.id = FAILED if finding.kind == LAYER else finding.id
            error = finding.evidence[FAILURES][0]["error"]
            finding.title += f" (parity failed while searching for the cause; please report: {error})"
        elif finding.kind == CODE and "untraced" in finding.evidence and not looks:
            finding.title += f" (its code cannot be searched: {finding.evidence['untraced']})"
        if finding.options:
            finding.title += f"; {layer_ops.words(finding.options, (self.base.name, self.other.name))}"

    def _values(self, finding: ModelFinding, at: Boundary) -> str:
        """The first values that differ, for integers."""
        ours = self.free.plain.load(self.keys[str(at)])
        theirs = finding.values.get(at)
        if theirs is None or theirs.dtype.kind not in "iu" or theirs.shape != ours.shape:
            return ""
        first = max(int(np.argmax(theirs != ours)) - 1, 0)
        a, b = (", ".join(map(str, values.ravel()[first : first + 4])) for values in (theirs, ours))
        return f": {a}, ... where {self.base.name} has {b}, ..."

    # Shares

    def _measure(self) -> None:
        """Measure how much of the difference at the output, the loss and the metrics each finding explains.

        Findings are fixed one after the other, in the order of the run.
        """
        self.metrics = {self.other.name: self._metric(self.run), self.base.name: self._metric(self.free.plain)}
        right = {} if any(map(self.is_wrong, self._outputs)) else {"output": 0.0}
        right |= {} if self.is_wrong("loss") else {"loss": 0.0}
        last = self._apart(self.run)
        total = {**last, **right}
        fixed: list[str] = []
        loaded: list[str] = []
        one_by_one = [[finding] for finding in self.findings[:MOST_MEASURED]]
        for together in (*one_by_one, self.findings[MOST_MEASURED:]):
            for finding in together:
                loaded += finding.parameters
                fixed += [str(at) for at in (*finding.boundaries, *finding.again) if not at.state]
            if not together:
                continue
            try:
                run = self.other.run(
                    self._state(loaded),
                    self.batch,
                    layers=self.partners,
                    partner=self.free.plain,
                    keys=self.keys,
                    axes=self.axes,
                    resized=self.resized,
                    replace=fixed,
                )
            except ModelError:
                # A fixed tensor of another size does not fit what follows; with the next finding fixed, it may.
                continue
            left = self._apart(run)
            outputs = [self.free.distance(name, run, name, whole=True) for name in self._outputs if name in run]
            for finding in together:
                finding.left = max((distance.ratio for distance in outputs), default=None)
            if len(together) == 1:
                finding.shares = {
                    name: (last[name] - left[name]) / whole
                    for name, whole in total.items()
                    if whole and np.isfinite(whole)
                }
                finding.share = finding.shares.pop("output", None)
            last = left

    def _state(self, loaded: Sequence[str]) -> Path:
        """The other port's state: the baseline's values, or its own except for those in `loaded`."""
        if self.own is None:
            return self.states[self.other.name]
        folder = self.other.folder / f"state-{len(loaded)}"
        weights.combined(self.own, self.states[self.other.name], loaded, folder)
        return folder

    def _apart(self, run: Recorded) -> dict[str, float]:
        """The distance of a run's outputs (the largest root mean square, relative), loss and metrics from the
        baseline's."""
        outputs = [0.0]
        for name in self._outputs:
            ours = self.free.plain.load(name)
            scale = difference(ours, np.zeros_like(ours)) or 1.0
            outputs.append(difference(run.load(name), ours) / scale if name in run else float("inf"))
        distances = {"output": max(outputs)}
        if "loss" in run and "loss" in self.free.plain:
            distances["loss"] = difference(run.load("loss"), self.free.plain.load("loss"))
        ours = self.metrics.get(self.base.name, {})
        return distances | {name: abs(value - ours[name]) for name, value in self._metric(run).items() if name in ours}

    def diagnoses(self, comparisons: Sequence[Comparison]) -> Iterator[Diagnosis]:
        """One for each finding; tensors that fail without a finding are unexplained."""
        yield from repeated.diagnoses(self, self.repeated)
        cell = self.case.id, self.dtype, self.other.name
        apart = ("layer.", "weights.", SECOND, THIRD, INPUT)
        wrong = [c.tensor for c in comparisons if c.verdict.fails and not c.tensor.startswith(apart)]
        main = [f for f in self.findings if (f.share or 0.0) >= MAIN] or self.findings
        for finding in self.findings:
            mine = [c.tensor for c in finding.comparisons or self._boundaries(finding)]
            mine += [name for name in wrong if self._is_buffer_of(finding, name)]
            mine += [name for name in wrong if name.removeprefix("grad.") in finding.parameters]
            evidence = {
                **finding.evidence,
                "place": finding.location,
                "layer": finding.layer,
                "partner": finding.partner,
                "share": finding.share,
                "shares": finding.shares,
                "left": finding.left,
                "first_off": None if self.first is None else self.first.words(),
                "layers": self.n_layers,
                "boundaries": {str(at): ratio for at, ratio in finding.boundaries.items()},
            }
            rest = [name for name in wrong if not name.startswith("buffer.")] if finding in main else []
            tensors = tuple(dict.fromkeys([*mine, *rest]))
            alike = [one for one in self.findings if one.description == finding.description]
            title = f"{locations(alike)}: {finding.title}"
            yield Diagnosis(*cell, finding.id, title, tensors, finding.explained, finding.ratio, None, evidence)
        left = list(self._buffers_left(wrong))
        otherwise, lonely = self._other_outputs(), set(outputs_of(self.run)) ^ set(self._outputs)
        if otherwise:
            remedy = f"{otherwise}; return the same from a function of each file, `forward: NAME`"
            yield Diagnosis(*cell, "missing-output", remedy, tuple(name for name in wrong if name in lonely), True)
        left = [name for name in left or (wrong if not self.findings else ()) if name not in lonely]
        if left:
            yield Diagnosis(*cell, "unexplained", "no layer differs when given the same inputs", tuple(left), False)

    def _buffers_left(self, wrong: Sequence[str] | None = None) -> Iterator[str]:
        """The wrong buffers that belong to no finding."""
        wrong = [c.tensor for c in self.comparisons() if c.verdict.fails] if wrong is None else wrong
        yield from (
            name for name in wrong
            if name.startswith("buffer.") and not any(self._is_buffer_of(finding, name) for finding in self.findings)
        )  # fmt: skip

    def _is_buffer_of(self, finding: ModelFinding, name: str) -> bool:
        """Whether a wrong buffer belongs to a finding: to its layer, or to what is wrong in that."""
        layer, _, own = name.removeprefix("buffer.").rpartition(".")
        if finding.kind == CODE:
            return layer in finding.called_otherwise
        if layer != finding.layer:
            return False
        known = layout_of(self.other.spec.adapter, self.other.layers[layer], own).name
        judged = {c.tensor.removeprefix(f"layer.{layer}.") for c in finding.comparisons if finding.kind == LAYER}
        return not judged or known in judged


def outcome(
    case: CasePlan,
    dtype: str,
    backend: str,
    kernel: Kernel | CodeKernel,
    inputs: Mapping[str, Array],
    oracle: Any,
) -> CellOutcome:
    """The outcome of a layer that is called alone, twice."""
    returned, again = (kernel(case, dtype, inputs) for _ in range(2))
    if returned is None or again is None:
        return CellOutcome(case.id, dtype, backend, Outcome.ERROR, message="its layer cannot be called alone")

    def outputs(arrays: Mapping[str, Array]) -> dict[str, Output]:
        whole = {n: "int64" if a.dtype.kind in "iub" else dtype for n, a in arrays.items()}
        return {n: Output(whole[n], a.shape, a) for n, a in arrays.items() if n in oracle}

    differing = {n: a for n, a in again.items() if n in returned and not np.array_equal(a, returned[n], equal_nan=True)}
    return CellOutcome(case.id, dtype, backend, Outcome.OK, outputs=outputs(returned), again=outputs(differing))


def has_shapes(outcome: CellOutcome, oracle: Mapping[str, Any]) -> bool:
    """Whether a layer that was called alone has returned tensors, all in the right shapes."""
    return bool(outcome.outputs) and all(o.shape == oracle[name].shape for name, o in outcome.outputs.items())


def locations(findings: Sequence[ModelFinding]) -> str:
    """`layers encoder.0.norm and encoder.1.norm`, `the code of a and b`."""
    if len(findings) == 1 or len({finding.kind for finding in findings}) > 1 or findings[0].kind == WEIGHTS:
        return few([finding.location for finding in findings])
    names = few([finding.layer or "the model" for finding in findings])
    return f"layers {names}" if findings[0].kind == LAYER else f"the code of {names}"


def of_gradients(diagnosis: Diagnosis) -> bool:
    """Whether a cause affects only gradients."""
    return all(tensor.startswith("grad.") for tensor in diagnosis.tensors)


def times(n: int) -> str:
    """`once`, `3 times`, `not at all`."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(n, f"{n} times")


def renamed(comparison: Comparison, finding: ModelFinding) -> Comparison:
    """A layer's comparison as one of the model."""
    return structs.replace(comparison, tensor=f"layer.{finding.layer}.{comparison.tensor}")
