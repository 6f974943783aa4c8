"""FlashInfer-Bench: a Definition, a Solution and a Workload, each a JSON; outputs may be destinations."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from parity.check import CheckError
from parity.check.generated import CANDIDATE, FOLDER, REFERENCE, Source, written
from parity.check.pair import INPUTS, FilePair, FormatPair, Named, candidate_of, definitions, named_file

RUN = "run"
NEEDED = ("name", "axes", "inputs", "outputs", "reference")
USUAL_SIZE = 4
"""An axis of which nothing is known."""
RUNNABLE = ("python", "triton", "pytorch")
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
CALLED = '''

parity_run = {function}


def parity_named(values):
    """The outputs by name."""
    if isinstance(values, dict):
        return {{name: values[name] for name in {outputs!r}}}
    values = values if isinstance(values, (tuple, list)) else (values,)
    return dict(zip({outputs!r}, values))


'''
RETURNING = '''def run({inputs}):
    """What the file's function returns, by name."""
    return parity_named(parity_run({inputs}))
'''
RECEIVING = '''def run({inputs}):
    """What the file's function writes into outputs that are filled with NaN."""
    given = [{destinations}]
    parity_run({inputs}, *given)
    return parity_named(given)
'''
GIVEN = '''
{settings}
parity_sizes = {sizes!r}


def parity_stored(path, key):
    """A tensor of a safetensors file."""
    import json

    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        row = json.loads(file.read(size))[key]
        start, end = row["data_offsets"]
        file.seek(8 + size + start)
        data = bytearray(file.read(end - start))
    kinds = {{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}}
    kinds |= {{"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn"}}
    kinds |= {{"F8_E5M2": "float8_e5m2"}}
    return parity_torch.frombuffer(data, dtype=getattr(parity_torch, kinds[row["dtype"]])).reshape(row["shape"])


def get_inputs():
    """The inputs of a workload."""
    return [{values}]
'''


@dataclass(frozen=True)
class Definition:
    """What a Definition says; `path` is its file."""

    path: Path
    name: str
    axes: Mapping[str, Mapping[str, Any]]
    inputs: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, Mapping[str, Any]]
    reference: str

    @property
    def variable(self) -> list[str]:
        """The axes that a workload sets."""
        return [name for name, axis in self.axes.items() if axis.get("type") == "var"]

    def shape(self, tensor: Mapping[str, Any], axes: Mapping[str, str]) -> str:
        """The code of a shape, with the code of variable axes."""
        items = [axes.get(name) or str(self.axes[name]["value"]) for name in tensor["shape"]]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def definition_pair(reference: str, candidate: str, folder: Path, inputs: str | None) -> FormatPair:
    """The pair of a definition and a solution. Raises CheckError."""
    definition = definition_in(Path(reference))
    source = written(folder, "reference/definition.py", definition.reference)
    if RUN not in definitions(source):
        raise CheckError(f"{definition.path}: its reference defines no function {RUN}")
    axes, given, which = workload_of(definition, inputs)
    names = list(definition.inputs)
    unset = [name for name in definition.variable if name not in axes]
    axes = {name: axes.get(name, USUAL_SIZE) for name in definition.variable}
    settings = "\n".join(f"{name} = {size}" for name, size in axes.items())
    values = [value_of(definition, name, given.get(name, {})) for name in names]
    text = GIVEN.format(settings=settings, sizes=list(axes), values=", ".join(values))
    called = CALLED.format(function=RUN, outputs=tuple(definition.outputs)) + RETURNING.format(inputs=", ".join(names))
    file = written(folder, REFERENCE, Source(source).text("FlashInfer-Bench", on_cpu=True) + text + called)
    new = solution_of(definition, candidate, folder)
    notes = [f"the workload {which}"] if which else []
    if unset:
        notes.append(f"no workload sets {', '.join(unset)}: {USUAL_SIZE}; name one: --inputs WORKLOADS.jsonl")
    line = definitions(source)[RUN].line
    pair = FilePair(Named(file, RUN, False, line, source), new, (file, INPUTS))
    return FormatPair(pair, tuple(notes), forward_only=True)


def read(path: Path) -> Any:
    """The content of a JSON. Raises CheckError."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckError(f"{path} cannot be read as JSON: {error}") from error


def definition_in(path: Path) -> Definition:
    """The definition in a file. Raises CheckError."""
    row = read(path)
    missing = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
    if missing:
        raise CheckError(f"{path} is no Definition of FlashInfer-Bench: it has no {missing[0]}")
    definition = Definition(path, **{name: row[name] for name in NEEDED})
    for name, tensor in {**definition.inputs, **definition.outputs}.items():
        unknown = [axis for axis in tensor.get("shape") or () if axis not in definition.axes]
        if unknown or not name.isidentifier():
            raise CheckError(f"{path}: {name} has the axis {''.join(unknown[:1]) or '?'}, which `axes` does not have")
        if tensor["dtype"] == "float4_e2m1":
            raise CheckError(f"{path}: {name} is {tensor['dtype']}, which PyTorch on a CPU does not compute with")
    return definition


def workload_of(definition: Definition, inputs: str | None) -> tuple[Mapping[str, int], Mapping[str, Any], str]:
    """The axes and inputs of a workload, the first of its file, and its name. Raises CheckError."""
    path = Path(inputs) if inputs else beside(definition.path)
    if path is None:
        return {}, {}, ""
    if inputs and not path.is_file():
        raise CheckError(f"{path} is not a file; name the JSON lines of a workload")
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [row.get("workload", row) for row in rows]
        smallest = min(rows, key=lambda row: sum(row["axes"].values()))
        given = {name: {**item, "root": str(root_of(path))} for name, item in smallest["inputs"].items()}
        return smallest["axes"], given, f"{smallest.get('uuid', '')} of {path.name}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckError(f"{path} holds no workloads of FlashInfer-Bench: {type(error).__name__} {error}") from error


def root_of(path: Path) -> Path:
    """The folder of a collection, relative to which its tensors are named."""
    return next((folder.parent for folder in path.absolute().parents if folder.name == "workloads"), path.parent)


def beside(path: Path) -> Path | None:
    """The workloads of a definition in a collection, which mirrors its folders."""
    parts = list(path.absolute().parts)
    if "definitions" not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index("definitions")
    file = Path(*parts[:at], "workloads", *parts[at + 1 :]).with_suffix(".jsonl")
    return file if file.is_file() else None


def value_of(definition: Definition, name: str, given: Mapping[str, Any]) -> str:
    """The code of an input."""
    tensor = definition.inputs[name]
    kind, dtype = given.get("type"), tensor["dtype"]
    if kind == "scalar":
        return repr(given["value"])
    if kind == "safetensors":
        return f"parity_stored({str(Path(given['root']) / given['path'])!r}, {given['tensor_key']!r})"
    if tensor.get("shape") is None:
        return "1.0" if dtype in FLOATS else "1"
    shape = definition.shape(tensor, {axis: axis for axis in definition.variable})
    if dtype == "bool":
        return f"parity_torch.randint(0, 2, {shape}) > 0"
    if dtype not in FLOATS:
        return f"parity_torch.randint(0, 2, {shape}, dtype=parity_torch.{dtype})"
    if dtype.startswith("float8"):
        return f"parity_torch.randn({shape}).to(parity_torch.{dtype})"
    return f"parity_torch.randn({shape}, dtype=parity_torch.{dtype})"


def solution_of(definition: Definition, candidate: str, folder: Path) -> Named:
    """The candidate: the sources of a Solution, or a Python file. Raises CheckError."""
    if candidate.endswith(".json"):
        path, name, receives = unpacked_solution(definition, Path(candidate), folder)
    else:
        path, name = named_file(candidate)
        name = name or RUN
        receives = takes(path, name) == len(definition.inputs) + len(definition.outputs)
    own = candidate_of(Named(path, name, False, 1), path, "")
    inputs = ", ".join(definition.inputs)
    text = CALLED.format(function=name, outputs=tuple(definition.outputs))
    if receives:
        text += RECEIVING.format(inputs=inputs, destinations=", ".join(destinations(definition)))
    else:
        text += RETURNING.format(inputs=inputs)
    new = written(folder, CANDIDATE, Source(path).text("FlashInfer-Bench") + text)
    return Named(new, name, False, own.line, path)


def takes(path: Path, name: str) -> int:
    """The number of arguments that a function of a file takes by position."""
    tree = ast.parse(path.read_bytes())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return len(functions[-1].args.args) if functions else 0


def unpacked_solution(definition: Definition, path: Path, folder: Path) -> tuple[Path, str, bool]:
    """The file of a solution's entry, once its sources are written, its function, and whether that gets destinations.

    Raises CheckError.
    """
    row = read(path)
    try:
        spec, sources = row["spec"], row["sources"]
        language, (file, _, name) = spec["language"], spec["entry_point"].partition("::")
        texts = {PurePosixPath(source["path"]): source["content"] for source in sources}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise CheckError(f"{path} is no Solution of FlashInfer-Bench: {type(error).__name__} {error}") from error
    if row.get("definition") not in (None, definition.name):
        raise CheckError(f"{path} solves {row['definition']}, not {definition.name}; name its definition")
    if language not in RUNNABLE:
        raise CheckError(f"{path} is written in {language}, which is not built here; give a Python file that calls it")
    outside = [source for source in texts if source.is_absolute() or ".." in source.parts]
    if outside:
        raise CheckError(f"{path}: the source {outside[0]} is outside its folder")
    for source, text in texts.items():
        written(folder, f"solution/{source}", text)
    if PurePosixPath(file) not in texts:
        raise CheckError(f"{path}: its entry {file} is none of its sources")
    return folder / FOLDER / "solution" / file, name, spec.get("destination_passing_style", True)


def destinations(definition: Definition) -> Sequence[str]:
    """The code of the outputs that a function fills. Raises CheckError for an axis that no input has."""
    axes: dict[str, str] = {}
    for name, tensor in definition.inputs.items():
        for index, axis in enumerate(tensor.get("shape") or ()):
            axes.setdefault(axis, f"{name}.shape[{index}]")
    lacking = {a for t in definition.outputs.values() for a in t["shape"] or ()} & set(definition.variable) - set(axes)
    if lacking:
        raise CheckError(f"{definition.path}: no input has the axis {min(lacking)} of an output")
    known = {name: axes[name] for name in definition.variable if name in axes}
    return [
        f"parity_torch.full({definition.shape({'shape': tensor['shape'] or []}, known)}, "
        f"{'float(' + repr('nan') + ')' if tensor['dtype'] in FLOATS else '0'}, dtype=parity_torch.{tensor['dtype']})"
        for tensor in definition.outputs.values()
    ]
