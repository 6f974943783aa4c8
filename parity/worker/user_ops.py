"""The user's own ops: a Python file whose functions replace a framework's ops, and errors that name its lines."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

from parity.adapters.base import Job


class UserOpsError(Exception):
    """The user's file, or a function in it, cannot be used; the message has its name and line."""


class UserOps:
    """Functions by name from the user's file; none where `path` is None."""

    def __init__(self, path: Optional[str]) -> None:
        self.path = path
        self.namespace: Dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The file's name, as error messages show it."""
        return os.path.basename(self.path or "")

    def load(self) -> None:
        """Run the user's file; raises UserOpsError with its name and line where that fails."""
        if self.path is None:
            return
        # A file beside the user's ops can be imported by them, but must not shadow a framework: it comes last.
        sys.path.append(os.path.dirname(self.path))
        spec = importlib.util.spec_from_file_location("parity_user_ops", self.path)
        if spec is None or spec.loader is None:
            raise UserOpsError(f"{self.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            traceback.print_exc()
            raise UserOpsError(f"{self.place(error)}{type(error).__name__}: {error}") from error
        self.namespace = vars(module)

    def function(self, name: str) -> Optional[Callable[..., Any]]:
        """The user's function of that name."""
        found = self.namespace.get(name)
        return found if callable(found) else None

    def applied(self, job: Job, absent: List[str], droppable: List[str]) -> Job:
        """The job with the user's function in it, and with what that function takes; unchanged where there is none."""
        function = self.function(job.op)
        if function is None:
            return job
        offered = {**job.inputs, **dict.fromkeys(absent), **job.params}
        accepted = accepted_names(function, offered, [*absent, *droppable])
        params = {name: value for name, value in offered.items() if name in accepted and name not in job.inputs}
        return replace(job, function=function, backward=self.backward(job, offered), params=params)

    def backward(self, job: Job, offered: Dict[str, Any]) -> Optional[Callable[..., Any]]:
        """The user's `<op>_backward`, called with the upstream gradients and the tensors and params that it takes.

        Its upstream gradients are those of its parameters that are no tensor and no param of the op, in their order.
        """
        function = self.function(f"{job.op}_backward")
        if function is None:
            return None
        names = list(inspect.signature(function).parameters)

        def call(*upstream: Any) -> Any:
            gradients = dict(zip([name for name in names if name not in offered], upstream))
            return function(**gradients, **{name: offered[name] for name in names if name in offered})

        return call

    def raised(self, error: BaseException) -> bool:
        """Whether the user's file is on the error's stack."""
        return self.path is not None and any(f.filename == self.path for f in traceback.extract_tb(error.__traceback__))

    def place(self, error: BaseException) -> str:
        """`my_ops.py:12: ` for an error that passed through the user's file, else nothing."""
        if self.path is None:
            return ""
        if isinstance(error, SyntaxError) and error.filename == self.path:
            return f"{self.name}:{error.lineno}: "
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return f"{self.name}:{lines[-1]}: " if lines else ""


def accepted_names(function: Callable[..., Any], offered: Dict[str, Any], droppable: List[str]) -> List[str]:
    """Which of the offered tensors and params the function takes; UserOpsError where it must take one and does not."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return list(offered)
    left_out = [name for name in offered if name not in parameters]
    missing = [name for name in left_out if name not in droppable]
    if missing:
        place = f"{os.path.basename(inspect.getsourcefile(function) or '?')}:{inspect.getsourcelines(function)[1]}"
        raise UserOpsError(f"{place}: {function.__name__} must take {', '.join(missing)} by keyword")
    return [name for name in offered if name in parameters]
