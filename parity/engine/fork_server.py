"""Forks workers from a process that has imported their framework, which takes a second or more each time.

Run as a script: `python fork_server.py DESCRIPTOR PACKAGE ADAPTER`. It writes "ready" to the socket of this descriptor,
or "threads" where its framework has started threads and cannot be forked; then it reads requests, and writes
"forked PID" and "ended PID STATUS". A worker that it forks is a process of its own, in its own session, with its own
descriptors and environment, which has answered no request and computed nothing. Where a request has `calls`, such as
"parity.program.worker.trail:main", the process makes these calls instead, with `arguments`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

FRAMEWORKS = {
    "jax": "jax",
    "mlx": "mlx.core",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "paddle": "paddle",
    "torch": "torch",
}
"""An adapter's framework; those of the others read what the adapter sets in the environment when they are imported."""


def main() -> None:
    """Fork a worker for each request on the descriptor that the command line names, and say how each one ends."""
    descriptor, package, adapter = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    del sys.path[0]  # the folder of this script
    bootstrap = loaded(f"{package}/worker/bootstrap.py")
    bootstrap.register(package)
    for module in ("numpy", "parity.worker.main", FRAMEWORKS[adapter]):
        importlib.import_module(module)
    channel = socket.socket(fileno=descriptor)
    if len(list(Path("/proc/self/task").iterdir())) > 1 or not hasattr(socket, "recv_fds"):  # Python 3.9
        channel.sendall(b"threads\n")
        return
    channel.sendall(b"ready\n")
    serve(channel, bootstrap)


def serve(channel: socket.socket, bootstrap: Any) -> None:
    """Answer requests until the client ends."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    server = os.getpid()
    while True:
        ready, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            reap(channel)
        if channel.fileno() in ready:
            request = received(channel)
            if request is None:
                return
            message, descriptors = request
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                channel.sendall(b"forked %d\n" % os.getpid())
                for kept in (channel.detach(), wake, woken):
                    os.close(kept)
                become_worker(bootstrap, server, message, descriptors)
            for given in descriptors:
                os.close(given)


def loaded(path: str) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location("bootstrap", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def received(channel: socket.socket) -> Any:
    """A request and its descriptors; None once the client has ended."""
    head, descriptors, _, _ = socket.recv_fds(channel, 4, 3)
    if len(head) < 4:
        return None
    (length,), data = struct.unpack("I", head), b""
    while len(data) < length:
        part = channel.recv(length - len(data))
        if not part:
            return None
        data += part
    return json.loads(data), descriptors


def reap(channel: socket.socket) -> None:
    """Say which children have ended, and how."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.sendall(b"ended %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def become_worker(bootstrap: Any, server: int, message: Any, descriptors: Any) -> None:
    """Serve as a worker that has just been started, or make the calls that are asked for; does not return."""
    try:
        for number, given in enumerate(descriptors):
            os.dup2(given, number)
            os.close(given)
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["folder"])
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        bootstrap.die_with(server)
        if not message["calls"]:
            bootstrap.serve()
        sys.argv[:] = message["arguments"]
        make_calls(message["calls"])
        os._exit(0)
    finally:
        os._exit(1)


def make_calls(calls: Any) -> None:
    """Call functions, each named as "package.module:function"."""
    for call in calls:
        module, _, name = call.partition(":")
        getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    main()
    os._exit(0)  # Some frameworks abort in their exit handlers.
