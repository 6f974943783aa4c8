"""A reference in PyTorch: a user's class or function, recorded here once for all inputs of the same shapes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import product
from math import prod
from typing import Any
from warnings import catch_warnings

import numpy as np
from autograd.tracer import getval

from parity.cases.brought import MOST_REPLAYED, RecordedFunction, ReferenceFile, namespace, traced
from parity.cases.op import Variant
from parity.cases.program import Program, Traced, trace
from parity.cases.replay import agree, drawn_inputs, first_difference, lowest, narrowest, spaced, whole_numbers
from parity.cases.user_code import BroughtError, placed, user_code
from parity.cases.writable import unwrapped
from parity.program.interception import intercepted
from parity.program.opaque import checked_calls, opaque_step
from parity.program.recorded import RecordedCall
from parity.program.recorded_code import CHANGE, LOSSY, Array, CodeFunction, CodeOptions, RecordedOpCall, Recording
from parity.program.whole import DYNAMIC, WholeCode
from parity.program.worker.recording import UntracedError
from parity.program.worker.tracer import FORMATS, Tracer
from parity.program.worker.user_module import AFTER, UserModule
from parity.torch_gradients import scalar_of

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Bounds = tuple[str, int, int]
Params = tuple[tuple[str, Any], ...]
MOST_STEPS = 400
"""The calls of code of which each is a step; code with more is one step, since each costs a judge seconds."""
REPLAYS = 2
"""The number of further inputs for which a recording is compared with its code."""


@cache
def torch_reference(
    source: ReferenceFile,
    name: str,
    tensors: Sequence[str],
    integers: Sequence[Bounds],
    params: Sequence[str],
) -> RecordedFunction:
    """The class or function `name` of a file that imports PyTorch, as a reference of these inputs and params.

    Raises BroughtError if the file cannot be run, or does not define it.
    """
    return RecordedFunction(source.path, source.text, TorchFunction(source, name, tensors, integers, params))


def torch_namespace(source: ReferenceFile) -> Mapping[str, Any]:
    """The names that a file defines. PyTorch has one thread then: tensors are small, and threads wait for each other.

    Raises BroughtError where the file cannot be run.
    """
    with suppress(ImportError):  # The file's own import tells that; where there is PyTorch, it takes none of its time.
        import_module("torch")
    names = namespace(source, plain=True)
    import torch

    torch.set_num_threads(1)
    return names


class RandomCodeError(UntracedError):
    """The code draws random numbers."""


class TorchFunction:
    """What the user's code computes, as a function of arrays by name; raises BroughtError with the user's line."""

    def __init__(
        self,
        source: ReferenceFile,
        name: str,
        tensors: Sequence[str],
        integers: Sequence[Bounds],
        params: Sequence[str],
    ) -> None:
        entry = torch_namespace(source).get(name)
        if not callable(entry):
            raise BroughtError(f"{source.path.name} defines no class or function {name}")
        self.source, self.name, self.tensors, self.params = source, name, tensors, params
        self.integers = {n: (low, high) for n, low, high in integers}
        self.module = UserModule(entry)
        self.known = {*tensors, *params}
        self.asked: set[str] | None = None
        self.codes: dict[tuple[Shapes, Params], TorchCode | WholeCode | BroughtError] = {}
        kind = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in (*tensors, *params)])
        self.__name__ = name

    def __call__(self, **given: Any) -> dict[str, Any]:
        """The outputs by name."""
        shapes = tuple((name, tuple(given[name].shape)) for name in self.tensors)
        params = tuple((name, plain(given[name])) for name in self.params)
        if (shapes, params) not in self.codes:
            try:
                self.codes[shapes, params] = self.recorded(shapes, params)
            except BroughtError as error:
                self.codes[shapes, params] = error
        code = self.codes[shapes, params]
        if isinstance(code, BroughtError):
            raise code
        return code(
            {name: given[name] for name in self.tensors}, {n: v for n, v in given.items() if n not in self.known}
        )

    @property
    def is_recorded(self) -> bool:
        """Whether it has been recorded for some shapes."""
        return any(not isinstance(code, BroughtError) for code in self.codes.values())

    def output_kinds(
        self, tensors: Mapping[str, Array], params: Mapping[str, Any]
    ) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of every output, as the code returns them in float64, without recording it. Raises
        BroughtError with the user's line."""
        with catch_warnings(action="ignore"), user_code(self.source.path), self.placing(), checked_calls():
            outputs = called(self.module, tensors, params)
        return {name: (values.shape, values.dtype) for name, values in outputs.items()}

    def variants(self, params: Any, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Variant]:
        """What a kernel may compute instead, for these params and shapes."""
        key = tuple((n, tuple(shapes[n])) for n in self.tensors), tuple((n, getattr(params, n)) for n in self.params)
        code = self.codes.get(key)
        yield from () if code is None or isinstance(code, BroughtError) else code.variants()

    @property
    def opaque(self) -> list[str]:
        """The calls that have no meaning in NumPy, so that PyTorch itself is asked, as `model.py:12 lgamma`."""
        codes = [code for code in self.codes.values() if not isinstance(code, BroughtError)]
        return list(dict.fromkeys(text for code in codes for text in code.opaque))

    @property
    def gradients_differ(self) -> str:
        """Where the gradients of a recording are not PyTorch's; "" where none differs."""
        codes = [code for code in self.codes.values() if isinstance(code, TorchCode)]
        return next((code.gradients_differ for code in codes if code.gradients_differ), "")

    def recorded(self, shapes: Shapes, params: Params) -> TorchCode | WholeCode:
        """The recording for these shapes and params, compared with the code itself."""
        sizes = dict(shapes)
        small = sum(map(prod, sizes.values())) <= MOST_REPLAYED
        with catch_warnings(action="ignore"), user_code(self.source.path), self.placing(), checked_calls():
            draws = self.draws(sizes, dict(params))
            try:
                return self.of_recording(draws, params, small=small)
            except (BroughtError, UntracedError, LookupError, ValueError, TypeError) as error:
                if isinstance(error, RandomCodeError):
                    raise
                return self.whole(draws, params, error)

    def draws(self, sizes: Mapping[str, tuple[int, ...]], params: Mapping[str, Any]) -> list[dict[str, Array]]:
        """Sets of inputs, drawn in a way that the code takes, if there is one: integers so or so, then floating-point
        numbers of (0, 1) only, then matrices as covariances."""
        ways = (whole_numbers, spaced, lowest) if self.integers else (whole_numbers,)
        for sign, way in product((self.scaled, fractions, definite), ways):
            draws = [sign(inputs) for inputs in drawn_inputs(sizes, self.integers, way)]
            with suppress(Exception):  # Whatever a user's code raises; the next ones may be taken.
                for inputs in draws:
                    called(self.module, inputs, params)
                return draws
        return [self.scaled(inputs) for inputs in drawn_inputs(sizes, self.integers)]

    def whole(self, draws: Sequence[Mapping[str, Array]], params: Params, error: Exception) -> WholeCode:
        """The code as one step, where it cannot be recorded for this reason; raises what it raises itself."""
        outputs = called(self.module, draws[0], dict(params))
        return WholeCode(self.module, self.tensors, dict(params), tuple(outputs), str(error))

    def of_recording(self, draws: Sequence[Mapping[str, Array]], params: Params, *, small: bool) -> TorchCode:
        """The recording for these inputs, compared with the code itself."""
        code = TorchCode(*recording_of(self.module, draws[0], dict(params)))
        left = tuple(name for name in called(self.module, draws[0], dict(params)) if name.startswith(AFTER))
        code.states = WholeCode(self.module, self.tensors, dict(params), left, "") if left else None
        other = TorchCode(*recording_of(self.module, draws[-1], dict(params)))
        if [call.function for call in other.recording.calls] != [call.function for call in code.recording.calls]:
            raise UntracedError("other functions are called for other values of the inputs")
        for inputs in draws[:REPLAYS] if small else ():
            self.compare(code, inputs, params)
        if small:
            self.differentiate(code, draws[0], params)
        return code

    def differentiate(self, code: TorchCode, inputs: Mapping[str, Array], params: Params) -> None:
        """Compare gradients of the first recording with PyTorch's; later ones have the same opaque calls."""
        if self.asked is None:
            code.differentiate(self.module, inputs, dict(params))
            self.asked = {call.function for call in code.recording.calls if call.mark in code.recording.made}
        else:
            again = [call.mark for call in code.recording.calls if call.function in self.asked]
            code.recording.made.update(mark for mark in again if mark in code.recording.opaque)

    def compare(self, code: TorchCode, inputs: Mapping[str, Array], params: Params) -> None:
        """Raise BroughtError if a recording gives other outputs than the code for these inputs, in float32 and in
        float64: code that loses all digits of float32 agrees in float64."""
        differences = []
        for dtype in ("float32", "float64"):
            given = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in inputs.items()}
            own = called(self.module, given, dict(params))
            differences.append(code.difference(given, own))
            if not differences[-1]:
                return
        raise BroughtError(differences[0])

    def scaled(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs as float32; those with several axes as small as initial weights, so that no product grows."""
        return {
            name: a if a.dtype.kind != "f" else (a * gain(a.shape)).astype(np.float32) for name, a in inputs.items()
        }

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Inside, any error becomes a BroughtError with the user's line."""
        try:
            yield
        except BroughtError:
            raise
        except UntracedError as error:
            raise BroughtError(str(error)) from error
        except Exception as error:
            raise BroughtError(placed(error, self.source.path)) from error


def fractions(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs whose floating-point numbers are between 0.1 and 0.9."""
    return {n: a if a.dtype.kind != "f" else (np.abs(a) % 0.8 + 0.1).astype(np.float32) for n, a in inputs.items()}


def definite(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of (0, 1) whose square matrices are symmetric and positive definite."""
    own = fractions(inputs)
    for name, a in own.items():
        if a.dtype.kind == "f" and a.ndim > 1 and a.shape[-1] == a.shape[-2]:
            own[name] = (a @ np.swapaxes(a, -1, -2) + np.eye(a.shape[-1], dtype=a.dtype)).astype(np.float32)
    return own


def gain(shape: tuple[int, ...]) -> float:
    """The scale of an input."""
    return 1.0 if len(shape) < 2 else min(1.0, prod(shape[1:]) ** -0.5 * 2)


def plain(value: Any) -> Any:
    """A param's value; a trace that asks for it holds for this value only."""
    value = getval(unwrapped(value))
    if not isinstance(value, Traced):
        return value
    value.tape.branches = True
    return np.asarray(value.value).item()


class TorchCode:
    """A recording as a function of arrays by name, with its constants.

    `gradients_differ` says where its gradients are not PyTorch's, as where a maximum is reached twice; else "".
    """

    def __init__(self, recording: Recording, constants: Mapping[str, Array]) -> None:
        self.recording, self.constants, self.gradients_differ = recording, constants, ""
        self.built: CodeFunction | None = None
        self.states: WholeCode | None = None
        self.n_made = 0

    def __call__(self, inputs: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The outputs by name; `changes` are those of a variant."""
        function = self.function(inputs)
        outputs = function(**inputs, **self.constants, **{**function.options.values, **(changes or {})})
        return outputs if self.states is None else {**outputs, **self.states(inputs)}

    def function(self, inputs: Mapping[str, Any]) -> CodeFunction:
        """The recording as a function, made anew when another call has become opaque."""
        if self.built is None or self.n_made != len(self.recording.made):
            shapes = {name: tuple(value.shape) for name, value in {**inputs, **self.constants}.items()}
            self.built, self.n_made = CodeFunction(self.recording, shapes), len(self.recording.made)
        return self.built

    def variants(self) -> Iterator[Variant]:
        """The variants of the ops that it calls, each as one of the whole: another argument of one call's reference, or
        of all calls from one line, as in a loop; and the forms of its own sums that lose digits."""
        options = CodeOptions() if self.built is None else self.built.options
        lines = {call.name: call.source_line for call in self.recording.calls}
        groups: dict[str, list[tuple[Variant, dict[str, Any]]]] = {}
        for name, call in options.calls.items():
            for variant, changes in variants_of_call(name, call, options.values):
                key = repr((lines.get(name, name), call.op.name, variant.id, variant.arguments, variant.params))
                groups.setdefault(key, []).append((variant, changes))
        for lossy, form in () if self.built is None else self.built.lossy_calls():
            own = Variant(form.id, {f"{lossy.name}{CHANGE}{LOSSY}": True}, unstable=True, shown_by=form.shown_by)
            groups.setdefault(repr((lossy.source_line, form.id)), []).append((own, dict(own.arguments)))
        for group in groups.values():
            variant, every = group[0][0], {key: value for _, changes in group for key, value in changes.items()}
            alone = [changes for _, changes in group] if 1 < len(group) <= FEW_CALLS else []
            for changes in (every, *alone):
                yield Variant(variant.id, changes, unstable=variant.unstable, shown_by=variant.shown_by)

    @property
    def opaque(self) -> list[str]:
        """The calls of the user's code that are made themselves."""
        made = [call for call in self.recording.calls if call.mark in self.recording.made and call.source_line]
        return [f"{call.source_line} {call.function}" for call in made]

    def program(self, inputs: Mapping[str, Array], **how: Any) -> Program:
        """The recording as a program; `how` are arguments of `trace`."""
        return trace(lambda tensors, _: traced(lambda **given: self(given), tensors), inputs, labelled=False, **how)[0]

    def differentiate(self, module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]) -> None:
        """Compare gradients with PyTorch's in float64; calls of functions without a gradient in NumPy become opaque."""
        given = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in inputs.items()}
        try:
            arriving, own = own_gradients(module, given, params)
        except Exception:
            return  # The code has no gradients, or computes in float32 only.
        how = {"differentiable": list(own), "gradients": arriving}
        program = self.with_gradients(given, how) if arriving else None
        if program is not None:
            arrived = {f"grad.{name}": values for name, values in arriving.items()}
            results = program.run({**given, **arrived}, "float64")
            kind = narrowest(program, {}, "float32")
            wrong = [n for n, values in own.items() if not agree(results[f"grad.{n}"], values, kind, 1.0)]
            self.gradients_differ = f"the gradient of {wrong[0]} is not PyTorch's" if wrong else ""

    def with_gradients(self, inputs: Mapping[str, Array], how: Mapping[str, Any]) -> Program | None:
        """The program with gradients, with as few opaque calls as it takes; None if there is none."""
        made = self.recording.made
        functions = dict.fromkeys(call.function for call in self.recording.calls if call.mark not in made)
        for names in ((), *((name,) for name in functions), tuple(functions)):
            more = {call.mark for call in self.recording.calls if call.function in names} & {*self.recording.opaque}
            more -= made
            try:
                made |= more
                return self.program(inputs, **how)
            except Exception:
                made -= more
        return None

    def difference(self, inputs: Mapping[str, Array], own: Mapping[str, Array]) -> str:
        """Where the recording gives other outputs than the code for these inputs; "" if it does not."""
        difference = first_difference(self.program(inputs), inputs, own, {}, "float32")
        if difference is None:
            return ""
        lines = {call.name: call.source_line for call in self.recording.calls}
        returned = {output: self.recording.names[mark] for output, mark in self.recording.returned.items()}
        line = lines.get(returned.get(difference.name, ""), "")
        reads = f"; Python gets values of tensors at {', '.join(self.recording.reads)}" if self.recording.reads else ""
        return f"{line}: its recording differs: {difference.name} {difference.text}{reads}"


FEW_CALLS = 3
"""Calls from one line of which each may be wrong alone."""


def variants_of_call(
    name: str, call: RecordedOpCall, values: Mapping[str, Any]
) -> Iterator[tuple[Variant, dict[str, Any]]]:
    """The variants of an op that recorded code calls, each with the options of the whole that it changes."""
    chosen = {param: values[option] for param, option in call.options.items()}
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in call.params.items()}
    try:
        listed = list(call.op.variants(call.op.params(**params, **chosen), call.shapes))
    except (LookupError, TypeError, ValueError):  # Operands that are no tensors, such as a mask of numbers.
        return
    for variant in listed:
        if not variant.absent and variant.params.keys() <= call.options.keys():
            changes = {f"{name}{CHANGE}{key}": value for key, value in variant.arguments.items()}
            yield variant, changes | {call.options[param]: value for param, value in variant.params.items()}


def called(module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]) -> dict[str, Array]:
    """What the code returns for arrays, as arrays by name."""
    import torch

    with torch.no_grad():
        outputs = module(**{name: torch.tensor(array) for name, array in inputs.items()}, **params)
    return {name: array_of(value) for name, value in outputs.items()}


def own_gradients(
    module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Gradients of outputs, drawn, and PyTorch's own of the floating-point inputs for them, by name."""
    import torch

    state, rng = module.state(), np.random.default_rng(1)
    leaves = {name: operand(array, gradients=True, is_leaf=True) for name, array in inputs.items()}
    given = {name: leaf if name in state or not leaf.requires_grad else leaf.clone() for name, leaf in leaves.items()}
    with torch.enable_grad():
        returned = module(**given, **params)
    outputs = {n: t for n, t in returned.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    arriving = {name: rng.uniform(0.5, 1.5, tuple(tensor.shape)) for name, tensor in outputs.items()}
    if not outputs:
        return {}, {}
    floats = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    weights = [torch.tensor(values) for values in arriving.values()]
    own = torch.autograd.grad(scalar_of([*outputs.values()], weights), [*floats.values()], allow_unused=True)
    pairs = zip(floats, own, strict=True)
    return arriving, {n: np.zeros(inputs[n].shape) if g is None else array_of(g) for n, g in pairs}


def recording_of(
    module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any]
) -> tuple[Recording, dict[str, Array]]:
    """A call of the code, recorded, and its constants by name. Raises UntracedError, or what the code raises.

    It is called with gradients, which show where the code cuts them off, and without them if that fails.
    """
    called(module, inputs, params)  # Builds the module before calls are recorded.
    try:
        return recorded_call(module, inputs, params, gradients=True)
    except UntracedError:
        raise
    except Exception:
        return recorded_call(module, inputs, params, gradients=False)


def recorded_call(
    module: UserModule, inputs: Mapping[str, Array], params: Mapping[str, Any], *, gradients: bool
) -> tuple[Recording, dict[str, Array]]:
    """A call of the code, recorded, and its constants by name."""
    import torch

    tracer = Tracer(torch, (*FORMATS, "bfloat16"), MOST_STEPS)
    state = module.state()
    tensors = {name: operand(array, gradients, is_leaf=name in state) for name, array in inputs.items()}
    marks = {tracer.know(tensor, name): f"in:{name}" for name, tensor in tensors.items()}
    with torch.set_grad_enabled(gradients), intercepted(tracer.called, tracer.drew):
        outputs = module(**tensors, **params)
    own = {name: value for name, value in outputs.items() if not name.startswith(AFTER)}
    returned = {name: tracer.mark_of(value) for name, value in own.items() if isinstance(value, torch.Tensor)}
    if tracer.random:
        raise RandomCodeError(tracer.random[0])
    reading = [*tracer.reads, *(row["source_line"] for row in tracer.rows if is_dynamic(row, tracer))]
    if reading:
        raise UntracedError(f"{reading[0]}: what is computed depends on the values of tensors")
    rows = tracer.named_rows()
    constants = {name: array_of(tensor) for name, tensor in tracer.constants.items()}
    marks |= {mark: f"constant:{name}" for mark, name in tracer.names.items() if name in constants}
    calls = tuple(map(RecordedCall.of, rows))
    originals = {
        call.mark: opaque_step(call, tracer.originals[call.mark]) for call in calls if call.mark in tracer.originals
    }
    outputs = {name: name for name in returned}
    return Recording(calls, tracer.names, marks, outputs, returned, tracer.reads, originals), constants


def is_dynamic(row: Mapping[str, Any], tracer: Tracer) -> bool:
    """Whether the shape of a call's result depends on the values of tensors."""
    if row["function"] in DYNAMIC or (row["function"] == "where" and len(row["args"]) == 1):
        return True
    index = row["args"][1] if row["function"] == "getitem" and len(row["args"]) > 1 else None
    parts = index.get("tuple", [index]) if isinstance(index, dict) else [index]
    marks = [part["value"] for part in parts if isinstance(part, dict) and "value" in part]
    return any(str(tracer.values[mark].dtype) == "torch.bool" for mark in marks if mark in tracer.values)


def operand(array: Array, gradients: bool, *, is_leaf: bool) -> Any:
    """An array as a tensor, with `gradients` one that has a gradient; what is no leaf may be written to."""
    import torch

    tensor = torch.tensor(array)
    if not gradients or not tensor.is_floating_point():
        return tensor
    return tensor.requires_grad_() if is_leaf else tensor.requires_grad_().clone()


def array_of(value: Any) -> Array:
    """A tensor or a number as an array; bfloat16 in float32."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    array: Array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return array


def is_torch(source: ReferenceFile, name: str) -> bool:
    """Whether a file defines a class of this name, or a function of PyTorch: it imports PyTorch, and not NumPy."""
    try:
        nodes = list(ast.walk(ast.parse(source.text)))
    except (SyntaxError, ValueError):
        return False
    modules = {a.name.partition(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
    modules |= {(n.module or "").partition(".")[0] for n in nodes if isinstance(n, ast.ImportFrom)}
    is_class = any(isinstance(n, ast.ClassDef) and n.name == name for n in nodes)
    return "torch" in modules and (is_class or "numpy" not in modules)
