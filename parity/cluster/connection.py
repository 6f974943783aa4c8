"""Connects to a Dask cluster: processes of this machine, or a scheduler that the user has started."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UserError

if TYPE_CHECKING:
    from distributed import Client

ADDRESS = re.compile(r"local:(?P<local>[1-9]\d{0,2})|(?:tcp|tls)://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", re.ASCII)
MAX_LOCAL = 256
CONNECT_S = 10.0
RECONNECT_S = 60.0
WORKER_S = 60.0
"""How long to wait for a scheduler, for a restarted scheduler, and for the first worker."""
POLL_S = 0.2
START = "start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"


class ClusterError(UserError):
    """The cluster cannot be used or is lost; the message says what to do."""


class Cluster:
    """A client of a Dask cluster that can reconnect."""

    def __init__(self, address: str) -> None:
        self.address = address
        match = ADDRESS.fullmatch(address)
        if match is None or int(match["local"] or 1) > MAX_LOCAL:
            raise ClusterError(
                f"{address!r} is not a cluster; write local:N (N processes of this machine, 1 to {MAX_LOCAL}) or "
                "tcp://HOST:PORT, the address of a Dask scheduler"
            )
        self._n_local = int(match["local"] or 0)
        self._open: contextlib.ExitStack = contextlib.ExitStack()
        self.client: Client

    @property
    def is_local(self) -> bool:
        """Whether it consists of processes of this machine, which see the same files."""
        return self._n_local > 0

    def connect(self, wait_s: float | None = None) -> None:
        """Connect, and wait for the first worker; raises ClusterError."""
        self.close()
        try:
            # Importing it takes a third of a second.
            from distributed import Client
        except ImportError as error:
            raise ClusterError(f"--cluster needs Dask ({error}): pip install 'parity[cluster]'") from error
        quiet()
        stack = contextlib.ExitStack()
        try:
            with warnings.catch_warnings(action="ignore"):  # about other versions; `versions` checks those that matter
                target = stack.enter_context(local_cluster(self._n_local)) if self.is_local else self.address
                self.client = Client(target, timeout=wait_s or CONNECT_S, set_as_default=False)
                stack.callback(closed, self.client)
            self.await_worker()
        except (OSError, ValueError, RuntimeError) as error:
            stack.close()
            raise ClusterError(f"{self.address}: {error}; {START}") from error
        except BaseException:
            stack.close()
            raise
        self._open = stack

    def await_worker(self) -> None:
        """Wait for the first worker; raises OSError if none comes or the scheduler is gone."""
        with contextlib.suppress(TimeoutError):
            self.client.wait_for_workers(1, timeout=WORKER_S)
        if not self.workers():
            raise OSError(f"no worker has come within {WORKER_S:.0f} s")

    def reconnect(self) -> None:
        """Reconnect to a scheduler that was lost, or start processes of this machine again; raises ClusterError."""
        end = time.monotonic() + RECONNECT_S
        time.sleep(POLL_S)
        # The client itself tries first, and closes if it fails.
        while str(self.client.status) == "connecting":
            time.sleep(POLL_S)
        if self.is_connected and not self.is_local:
            with contextlib.suppress(OSError):
                return self.await_worker()
        while True:
            try:
                return self.connect(max(1.0, end - time.monotonic()))
            except ClusterError:
                if time.monotonic() >= end:
                    raise
                time.sleep(POLL_S)

    @property
    def is_connected(self) -> bool:
        """Whether the scheduler is connected, as far as is known."""
        return str(self.client.status) == "running"

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers that are alive, by address; raises OSError if the scheduler is lost."""
        info = self.client.scheduler_info(n_workers=-1)
        if "workers" not in info:  # between two connections
            raise OSError("the scheduler is gone")
        return dict(info["workers"])

    def close(self) -> None:
        """Disconnect; the processes of this machine end."""
        self._open.close()


def closed(client: Client) -> None:
    """Close a client whose scheduler may be gone."""
    with contextlib.suppress(Exception):
        client.close(timeout=5)


@contextlib.contextmanager
def local_cluster(n_workers: int) -> Iterator[Any]:
    """Dask workers on this machine; a nanny replaces one that is killed."""
    import dask
    from distributed import LocalCluster

    from parity.engine.buffers import Scratch

    settings = {
        # Frameworks' processes inherit these; Dask's defaults would change how NumPy allocates and sums.
        "distributed.nanny.pre-spawn-environ": {"OPENBLAS_NUM_THREADS": "1"},
        # A lost worker costs one shard, not the next one too.
        "distributed.scheduler.worker-saturation": 1.0,
        # Shards have no dependencies, and no worker has more than one.
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
        # Data for Dask's dashboard would cost a tenth of a worker's time.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "10s",
        # The scheduler, which runs in this process, keeps so many of its messages, with the shards in them.
        "distributed.admin.low-level-log-length": 10,
    }
    scratch = Scratch(Path(tempfile.gettempdir()))
    stack = contextlib.ExitStack()
    stack.callback(scratch.remove)
    with stack:
        stack.enter_context(dask.config.set(settings))
        # A cluster whose start was interrupted cannot be closed.
        with uninterrupted():
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    host="127.0.0.1",
                    # Tensors are in the backends' processes, whose memory the engine bounds.
                    memory_limit=0,
                    local_directory=str(scratch.folder),
                    silence_logs=logging.CRITICAL,
                )
            )
        yield cluster


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end a run until the end of the context.

    Threads that start in it, and all processes that they start, never get Ctrl-C: a terminal sends it to all processes
    of a command, and those of Dask would print tracebacks. They end with the host.
    """
    resource_tracker.ensure_running()  # it would unblock Ctrl-C in the thread that needs it first
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def quiet() -> None:
    """Silence Dask's logs: the progress and errors have what a user should know."""
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster within the context; raises ClusterError if the address is invalid or nothing answers there."""
    cluster = Cluster(address)
    cluster.connect()
    try:
        yield cluster
    finally:
        cluster.close()
