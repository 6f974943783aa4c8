"""Files that are written beside the answers so that a pair of another format is one of `Model` or functions.

Each runs the user's own file, by its path and in its own names, so tracebacks, sentences and recorded lines have the
user's file and line; what is added gives arguments and results the form of `get_inputs` and of one function. They need
nothing of parity, and no file outside the answers' folder is written.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.cases.brought import ReferenceFile, namespace
from parity.cases.user_code import BroughtError, placed, user_code
from parity.check import CheckError

REFERENCE, CANDIDATE = "reference/reference.py", "candidate/new.py"
FOLDER = "generated"
"""The folder of these files, in that of the answers."""
ABOUT = '"""Written by `parity check` for {what}: it runs {origin}, and adds how that is called."""\n'
RUN = """
import ast as parity_ast
import sys as parity_sys
{imports}
__file__ = {origin!r}  # {digest}
parity_sys.path += [folder for folder in {folders!r} if folder not in parity_sys.path]
with open(__file__, "rb") as parity_file:
    parity_code = parity_ast.parse(parity_file.read(), __file__)
"""
TORCH_IMPORT = "\nimport torch as parity_torch\n"
EXECUTE = """exec(compile(parity_code, __file__, "exec", dont_inherit=True), globals())
"""
ON_CPU = '''

class ParityOnCpu(parity_ast.NodeTransformer):
    """Where there is no CUDA device, tensors that the reference puts on one are on the CPU."""

    def visit_Constant(self, node):
        is_device = isinstance(node.value, str) and node.value.partition(":")[0] == "cuda"
        return parity_ast.copy_location(parity_ast.Constant("cpu" if is_device else node.value), node)

    def visit_Call(self, node):
        self.generic_visit(node)
        function = node.func
        if not isinstance(function, parity_ast.Attribute):
            return node
        if parity_ast.unparse(function) == "torch.cuda.synchronize":
            return parity_ast.copy_location(parity_ast.Constant(None), node)
        if function.attr == "cuda":
            function.attr, node.args, node.keywords = "cpu", [], []
        return node


if not parity_torch.cuda.is_available():
    parity_code = ParityOnCpu().visit(parity_code)
'''


@dataclass(frozen=True)
class Source:
    """A user's file that is run, and folders from which it may import."""

    path: Path
    folders: tuple[Path, ...] = ()

    def text(self, what: str, *, on_cpu: bool = False, torch: bool = True) -> str:
        """The beginning of a generated file, which runs this one; `torch`: it imports PyTorch before."""
        path = self.path.absolute()
        folders = [str(folder.absolute()) for folder in (path.parent, *self.folders)]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        imports = TORCH_IMPORT if torch else ""
        run = RUN.format(origin=str(path), folders=folders, digest=digest, imports=imports)
        return ABOUT.format(what=what, origin=path.name) + run + (ON_CPU if on_cpu else "") + EXECUTE


def written(folder: Path, name: str, text: str) -> Path:
    """The path of a generated file with this text."""
    path = folder / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def loaded(path: Path, origin: Path) -> Mapping[str, Any]:
    """The names of a generated file, run in this process. Raises CheckError with the location in the user's file."""
    before, folders = set(sys.modules), list(sys.path)
    try:
        with user_code(origin):
            return namespace(ReferenceFile(path.absolute(), path.read_bytes()), plain=True)
    except BroughtError as error:
        raise CheckError(f"{origin}: {error}") from error
    finally:
        sys.path[:] = folders
        forget(set(sys.modules) - before, (origin.absolute().parent, path.absolute().parent))


def forget(names: set[str], folders: tuple[Path, ...]) -> None:
    """Another pair's files of the same names are others."""
    for name in names:
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if "site-packages" not in file.parts and any(folder in file.parents for folder in folders):
            del sys.modules[name]


def returned_by(function: Any, origin: Path, *args: Any, **kwargs: Any) -> Any:
    """What a user's function returns. Raises CheckError with the location in the user's file."""
    try:
        with user_code(origin):
            return function(*args, **kwargs)
    except Exception as error:
        raise CheckError(placed(error, origin.absolute())) from error


def unpacked(path: Path, function: str) -> list[str]:
    """The names that a function of one argument unpacks it into, as in `A, B = data`; [] if it does not."""
    tree = ast.parse(path.read_bytes(), str(path))
    definition = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function), None)
    if definition is None or not definition.args.args:
        return []
    argument = definition.args.args[0].arg
    for node in ast.walk(definition):
        match node:
            case ast.Assign([ast.Tuple(elts)], ast.Name(name)) if name == argument:
                names = [item.id for item in elts if isinstance(item, ast.Name)]
                return names if len({*names} - {"_"}) == len(elts) else []
    return []
