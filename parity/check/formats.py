"""The formats of benchmarks, found out from the files, each turned into a pair that is one of `Model` or functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from parity.check import CheckError
from parity.check.backend_bench import operator_pair
from parity.check.flashinfer_bench import definition_pair
from parity.check.frameworks import NUMPY, TORCH
from parity.check.generated import CANDIDATE, REFERENCE, Source, written
from parity.check.gpu_mode import task_pair
from parity.check.pair import MODEL, FilePair, FormatPair, definitions, named_file, pair_of
from parity.check.robust_kbench import FUNCTION, module_pair
from parity.program.worker.user_module import NEW

FILES = "kernelbench"
"""The format that needs no other files: two files with `Model` or functions, and `get_inputs`."""
OPERATORS = ("aten", "torch.ops.aten")
Reader = Callable[[str, str, Path, str | None], FormatPair]


def plain_pair(
    reference: str, candidate: str, folder: Path, inputs: str | None, adapter: str | None = None
) -> FormatPair:
    """A pair of files as they are; one that runs the candidate's where that has another name than the reference's."""
    pair = pair_of(reference, candidate, inputs, adapter)
    known = pair.reference
    if known.adapter == NUMPY:
        text = Source(known.path).text("a reference in NumPy", torch=False) + "DIFFERENTIABLE = False\n"
        pair = replace(pair, reference=replace(known, run_path=written(folder, REFERENCE, text)))
    return FormatPair(renamed(pair, folder))


READERS: Mapping[str, Reader] = {
    FILES: plain_pair,
    "robust-kbench": module_pair,
    "gpu-mode": task_pair,
    "backendbench": operator_pair,
    "flashinfer-bench": definition_pair,
}
"""The formats by name."""


def resolved(
    reference: str,
    candidate: str,
    folder: Path,
    *,
    inputs: str | None = None,
    format_name: str | None = None,
    adapter: str | None = None,
) -> FormatPair:
    """The pair that two files or folders are, in the format of this name or in the one found out; `adapter` is the
    candidate's. Raises CheckError."""
    name = format_name or format_of(reference, candidate)
    if name == FILES:
        return plain_pair(reference, candidate, folder, inputs, adapter)
    if adapter not in (None, TORCH):
        raise CheckError(f"--adapter {adapter}: a pair in the format {name} is one of PyTorch")
    return READERS[name](reference, candidate, folder, inputs)


def format_of(reference: str, candidate: str) -> str:
    """The name of the format, from what the reference is and has. Raises CheckError for a folder that is no task."""
    path = Path(reference)
    if reference in OPERATORS or reference.startswith(OPERATORS[1] + "."):
        return "backendbench"
    if path.suffix == ".json":
        return "flashinfer-bench"
    if path.is_dir():
        if (path / "reference.py").is_file() and (path / "task.yml").is_file():
            return "gpu-mode"
        raise CheckError(f"{path} is a folder without task.yml and reference.py; name a Python file, or FILE.py:NAME")
    if path.is_file() and path.suffix == ".py" and takes_function(path) and not has_module(candidate):
        return "robust-kbench"
    return FILES


def takes_function(path: Path) -> bool:
    """Whether a file's `Model.forward` takes the function that it calls, as `fn`."""
    model = definitions(path).get(MODEL)
    tree = ast.parse(path.read_bytes())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == MODEL]
    methods = [n for node in classes for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    return model is not None and any(arg.arg == FUNCTION for m in methods for arg in (*m.args.args, *m.args.kwonlyargs))


def has_module(candidate: str) -> bool:
    """Whether a candidate's file has the class that is compared."""
    path, name = named_file(candidate)
    ours = definitions(path)
    return ours[name].is_class if name in ours else MODEL + NEW in ours or MODEL in ours


def renamed(pair: FilePair, folder: Path) -> FilePair:
    """The pair, whose candidate's file defines what is compared under the name that the reference has."""
    known, new = pair.reference, pair.candidate
    usual = known.name + NEW if known.is_class and new.adapter == TORCH else known.name
    if new.name == usual or (new.name == known.name and usual not in definitions(new.path)):
        return pair
    source = Source(new.path).text(f"a candidate named {new.name}", torch=new.adapter == TORCH)
    text = source + f"{usual} = {new.name}\n"
    return replace(pair, candidate=replace(new, path=written(folder, CANDIDATE, text), origin=new.path))
