"""GPU MODE: a folder with `reference.py` (`generate_input`, `ref_kernel`) and `task.yml`, and a `submission.py`."""

from __future__ import annotations

import ast
import keyword
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from parity.check import CheckError
from parity.check.generated import CANDIDATE, FOLDER, REFERENCE, Source, loaded, returned_by, unpacked, written
from parity.check.pair import INPUTS, FilePair, FormatPair, Named, candidate_of, definitions, named_file

KERNEL, OWN, GENERATE = "ref_kernel", "custom_kernel", "generate_input"
TASK, SUBMISSION = "task.yml", "submission.py"
STAGE = "reference/unwrapped.py"
NEITHER = ("eval.py", "reference.py", SUBMISSION)
"""Files of a task that no code imports."""
UNSET = float("nan")
FULL = "parity_torch.full_like({0}, float('nan') if {0}.is_floating_point() else 0)"
COPY = "{0}.clone()"
"""What a call gets for a tensor that receives the result, which it reads, too, or does not."""
GIVEN = '''
{settings}
parity_sizes = {sizes!r}

parity_generate = {generate}


def parity_leaves(value):
    """The tensors and numbers in nested data."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else None
    if items is not None:
        for item in items:
            yield from parity_leaves(item)
    elif isinstance(value, (parity_torch.Tensor, bool, int, float)):
        yield value


def get_inputs():
    """The data of a test, as arguments; what only receives a result is filled with zeros."""
    values = list(parity_leaves(parity_generate({arguments})))
    for index in {destinations!r}:
        values[index] = parity_torch.zeros_like(values[index])
    return values
'''
CALLED = '''
parity_kernel = {kernel}


def ref_kernel({names}):
    """The file's function, given its data in the form that it takes."""
    return parity_kernel({data})
'''


@dataclass
class DataForm:
    """How the data of a task is nested: `text` as code of the tensors' and numbers' names."""

    names: list[str] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)

    def text(self, value: Any, wanted: str, given: Sequence[str] = ()) -> str:
        """The code of a value; leaves are named `wanted`, items of a tuple as `given`. Raises CheckError."""
        import torch

        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.text(v, word(str(k)))}" for k, v in value.items()) + "}"
        if type(value) in (tuple, list):
            names = given if len(given) == len(value) else [f"{wanted}{i}" for i in range(len(value))]
            items = [self.text(item, name) for item, name in zip(value, names, strict=True)]
            return f"[{', '.join(items)}]" if isinstance(value, list) else f"({''.join(f'{item}, ' for item in items)})"
        if isinstance(value, (torch.Tensor, bool, int, float)):
            name = wanted
            while name in self.names:
                name += "_"
            self.names.append(name)
            self.leaves.append(value)
            return name
        if value is None or isinstance(value, str):
            return repr(value)
        if isinstance(value, torch.dtype):
            return f"parity_{value}"
        raise CheckError(
            f"{GENERATE}() returns a {type(value).__name__}; only tensors, numbers and texts are supported"
        )


def task_pair(reference: str, candidate: str, folder: Path, inputs: str | None) -> FormatPair:
    """The pair of a task and a submission. Raises CheckError."""
    task = Path(reference) if Path(reference).is_dir() else Path(reference).parent
    path = task / "reference.py"
    if not path.is_file():
        raise CheckError(f"{task} has no reference.py")
    theirs = definitions(path)
    missing = [name for name in (KERNEL, GENERATE) if name not in theirs]
    if missing:
        raise CheckError(f"{path} defines no function {missing[0]}, as a task of GPU MODE does")
    tests = arguments_of_tests(task / TASK)
    copies = copied(task, folder)
    source = Source(path, (copies,))
    names = loaded(written(folder, STAGE, source.text("GPU MODE", on_cpu=True)), path)
    data = returned_by(names[GENERATE], path, **tests[0])
    form = DataForm()
    text = form.text(data, "data", unpacked(path, KERNEL))
    receiving, overwritten = destinations(lambda: returned_by(names[KERNEL], path, data), form.leaves)
    for index in (*receiving, *overwritten):
        text = with_destination(text, form.names[index], COPY if index in overwritten else FULL)
    settings = {n: v for n, v in tests[0].items() if n != "seed" and type(v) is int and n not in names}
    arguments = ", ".join(f"{name}={name if name in settings else repr(value)}" for name, value in tests[0].items())
    given = GIVEN.format(
        settings="\n".join(f"{name} = {value}" for name, value in settings.items()),
        sizes=list(settings),
        generate=GENERATE,
        arguments=arguments,
        destinations=receiving,
    )
    called = CALLED.format(kernel=KERNEL, names=", ".join(form.names), data=text)
    file = written(folder, REFERENCE, source.text("GPU MODE", on_cpu=True) + given + called)
    loaded(file, path)
    own_path, own = submission(candidate)
    called = CALLED.format(kernel=own.name, names=", ".join(form.names), data=text)
    new = written(folder, CANDIDATE, Source(own_path, (copies,)).text("GPU MODE") + called)
    rest = (f"the first of {len(tests)} tests of {TASK}; others: --set NAME=VALUE",) if tests[1:] else ()
    at, name = named_file(inputs) if inputs else (file, INPUTS)
    pair = FilePair(
        Named(file, KERNEL, False, theirs[KERNEL].line, path),
        Named(new, own.name, False, own.line, own_path),
        (at, name or INPUTS),
    )
    return FormatPair(pair, rest, forward_only=True)


def submission(candidate: str) -> tuple[Path, Named]:
    """The submission's function. Raises CheckError."""
    path, name = named_file(str(Path(candidate) / SUBMISSION) if Path(candidate).is_dir() else candidate)
    return path, candidate_of(Named(path, OWN, False, 1), path, name)


def arguments_of_tests(path: Path) -> list[dict[str, Any]]:
    """The arguments of `generate_input` in a task's tests. Raises CheckError."""
    task = read_task(path)
    tests = task.get("tests")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, dict) for test in tests):
        raise CheckError(f"{path} has no tests: add `tests:`, a list of the arguments of {GENERATE}()")
    return tests


def read_task(path: Path) -> Mapping[str, Any]:
    """A task's file. Raises CheckError."""
    try:
        task = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise CheckError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    return task if isinstance(task, dict) else {}


def copied(task: Path, folder: Path) -> Path:
    """The folder with the files that a task names and that both codes may import: never the reference."""
    copies = folder / FOLDER / "task_files"
    copies.mkdir(parents=True, exist_ok=True)
    for item in read_task(task / TASK).get("files") or ():
        name, source = Path(str(item.get("name"))).name, task / str(item.get("source"))
        if name.endswith(".py") and name not in NEITHER and source.is_file():
            shutil.copyfile(source, copies / name)
    return copies


def destinations(call: Callable[[], Any], leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The indexes of tensors that only receive the result, as the reference does not read them, and of those that it
    reads and overwrites, found by calling it with other values in every tensor that is like a result."""
    before = [leaf.clone() if hasattr(leaf, "clone") else leaf for leaf in leaves]
    returned = tensors_in(call())
    pointers, first = {value.data_ptr() for value in returned}, [value.clone() for value in returned]
    unread, overwritten = [], []
    for index, leaf in enumerate(leaves):
        if not any(hasattr(leaf, "shape") and leaf.shape == value.shape for value in first):
            continue
        for other, values in zip(leaves, before, strict=True):
            if other is not values:
                other.copy_(values)
        leaf.fill_(UNSET if leaf.is_floating_point() else 1)
        again = tensors_in(call())
        if all(one.equal(other) for one, other in zip(first, again, strict=True)):
            unread.append(index)
        elif leaf.data_ptr() in pointers:
            overwritten.append(index)
    return unread, overwritten


def tensors_in(result: Any) -> list[Any]:
    """The tensors that were returned."""
    values = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else [result]
    return [value for value in values if hasattr(value, "data_ptr")]


def with_destination(text: str, name: str, tensor: str) -> str:
    """The code, with another tensor for one that receives a result: each call has its own."""
    full = tensor.format(name)
    tree = ast.parse(text, mode="eval")

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(full, mode="eval").body if node.id == name else node

    return ast.unparse(Put().visit(tree))


def word(text: str) -> str:
    """A key as a name."""
    name = "".join(c if c.isalnum() else "_" for c in text)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"x_{name}"
