"""Lists the packages of this interpreter. The host imports it; other interpreters run it as a script.

It needs only the standard library and Python 3.8, since it runs in interpreters without parity. As a script it takes
one argument, the JSON of `{"modules": [...], "distributions": [...], "imports": [...]}`, and prints a line that starts
with ANSWER.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any

ANSWER = "parity-look:"


def contents(modules: list[str], distributions: list[str]) -> dict[str, Any]:
    """The Python version, the `modules` that are missing, and the versions of the installed `distributions`."""
    return {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "missing": [name for name in modules if not _is_importable(name)],
        "versions": {name: version for name in distributions for version in _versions(name)},
    }


def _is_importable(name: str) -> bool:
    """Whether a module exists, without importing it. A namespace (a stray folder of that name) does not count."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # the package that would contain `name` is missing
        return False
    return spec is not None and spec.origin is not None


def _versions(distribution: str) -> list[str]:
    try:
        return [importlib.metadata.version(distribution)]
    except importlib.metadata.PackageNotFoundError:
        return []


def _main() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this file's folder, whose modules must not shadow others
    question = json.loads(sys.argv[1])
    for name in question["imports"]:
        __import__(name)
    answer = contents(question["modules"], question["distributions"])
    sys.stdout.write("\n" + ANSWER + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a framework may abort while its threads end


if __name__ == "__main__":
    _main()
