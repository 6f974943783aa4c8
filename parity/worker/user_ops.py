"""The user's ops: a Python file whose functions replace a framework's ops, and errors that name its lines."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from parity.adapters.base import Adapter, Job, Unsupported, parts_of
from parity.program.worker.user_function import UserFunction
from parity.program.worker.user_module import ARGUMENTS, UserModule, entry_of, is_module_class

ELSEWHERE = re.compile(r"cannot import name .* from '(\w+)'|module '(\w+)' has no attribute")
METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
"""Methods of classes that are written in C."""


class UserOpsError(Exception):
    """The user's file, or a function in it, cannot be used; the message has its name and line."""


class UserOps:
    """The functions of the user's file by name; none until a file is loaded. `modules`: they are PyTorch's."""

    def __init__(self, *, modules: bool = False) -> None:
        self.wrapper: Callable[[Any], Any] = UserModule if modules else UserFunction
        self.path: Optional[str] = None
        self.namespace: Dict[str, Any] = {}
        self.modules: Dict[str, UserModule] = {}

    @property
    def name(self) -> str:
        """The file's name, as error messages show it."""
        return os.path.basename(self.path or "")

    def load(self, path: str, wanted: List[str]) -> None:
        """Run the user's file; raises UserOpsError with its name and line if that fails.

        It must define at least one of the `wanted` ops: a file that replaces nothing would compare a framework with
        itself.
        """
        self.path = path = os.path.abspath(path)
        if path.endswith(".onnx"):  # A model; there is nothing to run.
            return
        # The user's file can import files beside it; they come last, so that they do not shadow a framework.
        sys.path.append(os.path.dirname(path))
        # Bytecode is matched to its source by size and seconds: a kernel changed twice in a second would stay the same.
        sys.dont_write_bytecode = True
        spec = importlib.util.spec_from_file_location("parity_user_ops", path)
        if spec is None or spec.loader is None:
            raise UserOpsError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            self.path = vars(module).get("__file__", path)  # The file may run another one in its names.
        except BaseException as error:
            self.path = vars(module).get("__file__", path)
            print_stack()
            text = f"{type(error).__name__}: {text_of(error) or 'no message'}{self.shadow(error)}"
            raise UserOpsError(f"{self.location(error)}{text}") from error
        self.namespace = vars(module)
        self.check(wanted)

    def check(self, wanted: List[str]) -> None:
        """Raise UserOpsError if the file replaces none of the wanted ops."""
        if any(self.brings(op) for op in wanted):
            return
        for problem in filter(None, map(self.problem, wanted)):
            raise UserOpsError(problem)
        near = [n for op in wanted for n in get_close_matches(op, list(self.namespace), 1)]
        hint = f"; is {near[0]} a typo?" if near else ""
        raise UserOpsError(f"{self.name} defines none of the ops of this run: {', '.join(wanted)}{hint}")

    def problem(self, op: str) -> str:
        """Why the file's definition of an op cannot be used; empty if it can, or if there is none."""
        value = self.namespace.get(op)
        if value is not None and not callable(value):
            return f"{self.name}: {op} must be a function, not {type(value).__name__}"
        if value is None and self.function(f"{op}_backward") is not None:
            return f"{self.name} defines {op}_backward but no {op}"
        return ""

    def brings(self, op: str) -> bool:
        """Whether the file defines an op, or everything that a composed op calls."""
        return self.function(op) is not None or all(self.function(part) is not None for part in parts_of(op))

    def capabilities(self, adapter: Adapter) -> Dict[str, Any]:
        """The adapter's capabilities, limited by the file's DIFFERENTIABLE = False and DTYPES = [...]."""
        differentiable, dtypes = self.namespace.get("DIFFERENTIABLE", True), self.namespace.get("DTYPES")
        if not isinstance(differentiable, bool):
            raise UserOpsError(f"{self.name}: DIFFERENTIABLE must be True or False, not {differentiable!r}")
        if dtypes is not None and not (isinstance(dtypes, (list, tuple)) and all(isinstance(d, str) for d in dtypes)):
            raise UserOpsError(f'{self.name}: DTYPES must be a list of names such as "float32", not {dtypes!r}')
        return {
            "differentiable": adapter.differentiable and differentiable,
            "dtypes": adapter.dtypes if dtypes is None else list(dtypes),
        }

    def check_capable(self, adapter: Adapter, dtype: str) -> None:
        """Raise Unsupported if the backend cannot train in this dtype."""
        able = self.capabilities(adapter)
        if not able["differentiable"]:
            raise Unsupported("a training needs gradients, but this backend has none")
        if able["dtypes"] is not None and dtype not in able["dtypes"]:
            raise Unsupported(f"supports only {', '.join(able['dtypes'])}, not {dtype}")

    def library(self) -> Dict[str, str]:
        """The versions that the file reports: `VERSIONS` of libraries by name, and its own `__version__`."""
        versions, own = self.namespace.get("VERSIONS", {}), self.namespace.get("__version__")
        if not isinstance(versions, Mapping):
            raise UserOpsError(f"{self.name}: VERSIONS must be a mapping of libraries to versions, not {versions!r}")
        named = {} if own is None else {os.path.splitext(self.name)[0]: own}
        return {str(name): str(version) for name, version in {**named, **versions}.items()}

    def function(self, name: str) -> Optional[Callable[..., Any]]:
        """The user's function of that name, or their class of PyTorch's modules as a function."""
        value = entry_of(self.namespace, name)
        if is_module_class(value):
            return self.modules.setdefault(name, UserModule(value))
        return value if callable(value) else None

    def applied(self, job: Job, absent: List[str], droppable: List[str]) -> Job:
        """The job with the user's function and the params that it accepts; unchanged if there is no such function."""
        function = self.function(job.op)
        if function is not None and ARGUMENTS in job.params and not isinstance(function, UserModule):
            function = self.wrapper(function)
        if problem := self.problem(job.op):
            raise UserOpsError(problem)
        if self.path is not None and not self.brings(job.op):
            raise Unsupported(f"{self.name} has no {job.op}")
        if function is None:
            return job
        offered = {**job.inputs, **dict.fromkeys(absent), **job.params}
        accepted = accepted_names(function, offered, [*absent, *droppable])
        params = {name: value for name, value in offered.items() if name in accepted and name not in job.inputs}
        return replace(job, function=renaming(function, offered), backward=self.backward(job, offered), params=params)

    def backward(self, job: Job, offered: Dict[str, Any]) -> Optional[Callable[..., Any]]:
        """The user's `<op>_backward`, called with the grad_outputs, tensors and params that it takes.

        Its parameters other than the op's tensors and params are the grad_outputs, in order.
        """
        function = self.function(f"{job.op}_backward")
        if function is None:
            return None
        names = list(inspect.signature(function).parameters)

        def call(*grad_outputs: Any) -> Any:
            given = {written(name, names): value for name, value in offered.items()}
            gradients = dict(zip([name for name in names if name not in given], grad_outputs))
            return function(**gradients, **{name: given[name] for name in names if name in given})

        return call

    def own(self, name: str, optional: Sequence[str] = (), returns: Sequence[str] = ()) -> Optional[Callable[..., Any]]:
        """The user's function of that name for a training, called by keyword; None if there is none.

        It need not accept the `optional` arguments; if `returns` is not empty, it must return a mapping with these
        names. Otherwise UserOpsError is raised.
        """
        function = self.function(name)
        if function is None:
            return None
        accepted: Dict[Tuple[str, ...], List[str]] = {}

        def call(**offered: Any) -> Any:
            names = accepted.get(tuple(offered))
            if names is None:
                names = accepted[tuple(offered)] = accepted_names(function, offered, list(optional))
            outputs = renaming(function, offered)(**{name: offered[name] for name in names})
            if returns and not (isinstance(outputs, Mapping) and all(name in outputs for name in returns)):
                raise UserOpsError(f"{where(function)} must return a mapping with {', '.join(returns)}")
            return outputs

        return call

    def raised(self, error: BaseException) -> bool:
        """Whether the user's file is on the error's stack."""
        return self.path is not None and any(f.filename == self.path for f in traceback.extract_tb(error.__traceback__))

    def shadow(self, error: BaseException) -> str:
        """If an import found another module than the file of its name beside the user's: how to have it; else empty."""
        match = ELSEWHERE.search(text_of(error)) if isinstance(error, (ImportError, AttributeError)) else None
        name = match and (match.group(1) or match.group(2))
        folder = os.path.dirname(self.path or "")
        if not name or not self.path or not os.path.exists(os.path.join(folder, f"{name}.py")):
            return ""
        given = getattr(sys.modules.get(name), "__file__", None)
        if given is not None and os.path.dirname(given) == folder:
            return ""
        return f"; this is another module than the {name}.py beside it, and comes first: give that file another name"

    def location(self, error: BaseException) -> str:
        """`my_ops.py:12: ` for an error that was raised in, or passed through, the user's file, else empty."""
        if self.path is None:
            return ""
        if isinstance(error, SyntaxError) and error.filename == self.path:
            return f"{self.name}:{error.lineno}: "
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return f"{self.name}:{lines[-1]}: " if lines else ""


def print_stack() -> None:
    """Print the current exception with its stack, or the stack alone if the exception, a user's, cannot be shown."""
    with contextlib.suppress(BaseException):
        traceback.print_exc()
        return
    traceback.print_tb(sys.exc_info()[2])


def text_of(error: BaseException, text: Callable[[Any], Any] = str) -> str:
    """An exception's own text; empty if the exception, which may be a user's, cannot say it."""
    try:
        return str(text(error))
    except BaseException:
        return ""


def accepted_names(function: Callable[..., Any], offered: Dict[str, Any], droppable: List[str]) -> List[str]:
    """The offered tensors and params that the function accepts; UserOpsError if it needs others or lacks some."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        # torch.jit.script hides the signature: pass what every such op must accept.
        return [name for name in offered if name not in droppable]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return list(offered)
    by_keyword = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    spelled = {name: written(name, by_keyword) for name in offered}
    missing = [name for name in offered if spelled[name] not in by_keyword and name not in droppable]
    if missing:
        names = ", ".join(missing).replace(".", "_")
        raise UserOpsError(f"{where(function)} must take {names} by keyword")
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    unknown = [name for name in needed if name not in spelled.values()]
    if unknown:
        raise UserOpsError(f"{where(function)} takes {', '.join(unknown)}, but only {', '.join(offered)} are available")
    return [name for name in offered if spelled[name] in by_keyword]


def written(name: str, parameters: Collection[str]) -> str:
    """The name as one of these parameters: `q_proj_weight` for `q_proj.weight` if that is one."""
    plain = name.replace(".", "_")
    return plain if plain in parameters else name


def renaming(function: Callable[..., Any], offered: Iterable[str]) -> Callable[..., Any]:
    """The function, called with the offered names; itself if it takes all of them under their own names.

    A method of a C class (`relu = torch.Tensor.relu`) takes its object, the first of them, by position.
    """
    if isinstance(function, METHODS):
        return functools.partial(called_by_position, function)
    dotted = [name for name in offered if "." in name]
    parameters = inspect.signature(function).parameters if dotted else ()
    names = {name: written(name, parameters) for name in dotted}
    if all(name == own for name, own in names.items()):
        return function

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        return function(**{names.get(name, name): value for name, value in given.items()})

    return call


def called_by_position(function: Callable[..., Any], **given: Any) -> Any:
    """The function's result for arguments of which it takes the first one by position."""
    (_, first), *others = given.items()
    return function(first, **dict(others))


def where(function: Callable[..., Any]) -> str:
    """`my_ops.py:12: layer_norm`, or less if that is unknown."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return name if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: {name}"
