"""What the layers of a model compute, recorded in the framework's own interpreter, on Python 3.8 and later.

The package is `parity.capture`, and can be called as that function: importing it makes it an attribute of `parity`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from parity.capture.capturing import capture

        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
