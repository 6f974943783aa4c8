"""The script that a worker's interpreter runs: `python bootstrap.py PACKAGE_FOLDER PARENT_PID ADAPTER`.

It needs the standard library only; the adapter's name is there for whoever looks at a list of processes.

Before any framework is imported, it takes the protocol's descriptors away: 0 and 1 are duplicated, then 0 reads nothing
and 1 goes to the log, like 2. It registers the package `parity` from its folder, so that the host's site-packages stay
out of this interpreter. On Linux the worker dies with its parent.
"""

import ctypes
import importlib.util
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main() -> None:
    """Serve requests until the host says bye or goes away."""
    die_with(int(sys.argv[2]))
    # The folder of this script must not shadow anything that a framework imports.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    register(sys.argv[1])
    serve()


def serve() -> None:
    """Answer the requests that descriptor 0 brings on descriptor 1, which the framework gets in neither place."""
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    from parity.worker import main as worker

    worker.serve(requests, replies)


def die_with(parent: int) -> None:
    """Ask Linux for SIGKILL when the parent ends, and leave at once if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def register(package: str) -> None:
    """Make `import parity` find the package in `package`, whatever sys.path says."""
    spec = importlib.util.spec_from_file_location(
        "parity", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
