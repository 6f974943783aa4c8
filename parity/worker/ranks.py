"""A data-parallel training in several processes, one per rank; the worker itself computes nothing and leads them.

The ranks are workers with the same bootstrap that answer the same requests, sent by the leading worker. They share its
process group and its cookie, so that the host ends them with it. Tensors are gathered within the step, by the
framework's collectives; the worker only keeps the ranks in step and compares them.

A rank that waits in a collective cannot reply, and one whose peer has died may be ended by its framework. So no rank
leads the others, and the reply says what happened first: a rank ended, a rank failed while others wait, or time is up,
with the location of each rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import chain
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import numpy as np

import parity

Message = Dict[str, Any]
Send = Callable[[int, Message], None]

LED = ("hello", "load", "train", "steps", "restore")
"""Requests that go to all ranks; the others go only to rank 0."""

WORKING = (os.path.join("parity", "adapters"), os.path.join("training", "worker"))
"""The folders whose functions show what a rank is doing."""

GRACE_S = 3.0
"""How long other ranks may take to reach the same error."""

REPORTING = 0.8
GIVING_UP = 0.9
"""The parts of the host's timeout after which the ranks report their locations, and the worker replies with these."""


def is_led(hello: Message) -> bool:
    """Whether this is the first request to a worker that leads ranks."""
    return bool(hello.get("ranks", 1) > 1 and "rank" not in hello)


def lead(hello: Message, lines: Iterable[str], send: Callable[[Message], None]) -> None:
    """Answer `hello` and later requests, until bye, the end of `lines` or a last reply."""
    ranks = Ranks(hello["ranks"])
    agreement = RankAgreement()
    for request in chain([hello], map(json.loads, lines)):
        if request["do"] == "bye":
            break
        answers = ranks.ask(request)
        reply = answers.reply()
        if accepted(reply):
            reply.update(agreement.follow(request, answers.replies))
        send(reply)
        if reply.get("last"):
            break


class Ranks:
    """The processes of all ranks."""

    def __init__(self, count: int) -> None:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        self.processes = [
            spawn({**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)
        ]
        self.unread = [b""] * count
        self.ended: Set[int] = set()
        self.ready = select.poll()
        self.rank_of = {process.stdout.fileno(): i for i, process in enumerate(self.processes)}  # type: ignore[union-attr]
        for descriptor in self.rank_of:
            self.ready.register(descriptor, select.POLLIN)

    def ask(self, request: Message) -> RankReplies:
        """Send a request to the ranks; returns all replies, or those so far once the others cannot come."""
        asked = range(len(self.processes)) if request["do"] in LED else range(1)
        answers = RankReplies(request, asked)
        for rank in asked:
            # If the rank has just ended, `listen` finds out.
            with contextlib.suppress(OSError):
                write(self.processes[rank], request_to(rank, request))
        for rank in self.ended.intersection(asked):
            answers.take(rank, None, self.processes[rank])
        while answers.expected() > 0:
            for rank, message in self.listen(answers.expected()):
                answers.take(rank, message, self.processes[rank])
        return answers

    def listen(self, seconds: float) -> Iterator[Tuple[int, Optional[Message]]]:
        """The next messages by rank, None for a rank that has ended; these come first."""
        messages: List[Tuple[int, Optional[Message]]] = []
        for descriptor, _ in self.ready.poll(1000 * seconds):
            rank = self.rank_of[descriptor]
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                self.ready.unregister(descriptor)
                self.ended.add(rank)
                messages.insert(0, (rank, None))
            *whole, self.unread[rank] = (self.unread[rank] + chunk).split(b"\n")
            messages.extend((rank, json.loads(line)) for line in whole)
        return iter(messages)


class RankReplies:
    """The replies so far of the ranks that were `asked`."""

    def __init__(self, request: Message, asked: Iterable[int]) -> None:
        self.request, self.asked = request, list(asked)
        self.replies: Dict[int, Message] = {}
        self.locations: Dict[int, str] = {}
        self.lost: List[str] = []
        self.trouble: Optional[Message] = None
        self.end = time.monotonic() + GIVING_UP * request["timeout_s"]

    @property
    def complete(self) -> bool:
        """Whether all ranks have replied."""
        return len(self.replies) == len(self.asked)

    def expected(self) -> float:
        """For how many more seconds to wait for a reply."""
        return 0.0 if self.complete else self.end - time.monotonic()

    def take(self, rank: int, message: Optional[Message], process: subprocess.Popen[bytes]) -> None:
        """Take a message; the first error becomes the reply's."""
        if message is None:
            if rank not in self.replies:
                self.lose(f"rank {rank} {ending(process.wait())}")
        elif "where" in message:
            self.locations[rank] = message["where"]
        else:
            self.replies[rank] = message
            if not accepted(message):
                self.trouble = self.trouble or refusal_of(rank, message)
                # The others may wait for it in a collective, forever.
                self.end = min(self.end, time.monotonic() + GRACE_S)

    def lose(self, what: str) -> None:
        """A rank ended without a reply, which may have caused an earlier error of another rank."""
        if self.lost or self.trouble is None or not self.trouble.get("last"):
            self.lost.append(what)
            self.trouble = {"outcome": "crash", "message": "; ".join(self.lost), "last": True}
        self.end = time.monotonic()

    def reply(self) -> Message:
        """The reply for all ranks; it is the last one if some did not reply, since they cannot continue."""
        blank: Message = {"cell": self.request.get("cell"), "ok": False, "done": 0, "seconds": 0.0, "tensors": []}
        mine = self.replies.get(0, blank)
        if self.complete:
            alike = len({reply.get("message") for reply in self.replies.values()}) == 1
            return {**mine, **({} if self.trouble is None or alike else self.trouble)}
        return {**mine, **(self.trouble or self.out_of_time()), "last": True}

    def out_of_time(self) -> Message:
        """The reply if time is up: the locations of the ranks that have not replied."""
        missing = [rank for rank in self.asked if rank not in self.replies]
        locations = "; ".join(f"rank {rank} is {self.locations.get(rank, 'silent')}" for rank in missing)
        return {"outcome": "timeout", "message": f"the ranks did not all answer in time: {locations}"}


class RankAgreement:
    """Compares the tensors of the ranks after every step."""

    def __init__(self) -> None:
        self.tracked: List[str] = []
        self.position = 0

    def follow(self, request: Message, replies: Dict[int, Message]) -> Message:
        """Follow the training's steps; returns the fields to add to the reply."""
        if request["do"] == "steps":
            before, self.position = self.position, self.position + replies[0]["done"]
            return {"message": disagreement(request, replies, self.tracked, before)}
        if request["do"] == "train":
            self.tracked, self.position = replies[0]["tracked"], 0
        elif request["do"] == "restore":
            self.position = request["step"]
        return {}


@contextlib.contextmanager
def reporting_location(request: Message, replies: int, send: Send) -> Iterator[None]:
    """While a rank works on a request: send its location once most of the request's time is over."""
    if "rank" not in request:
        yield
        return
    timer = threading.Timer(request["timeout_s"] * REPORTING, lambda: send(replies, {"where": whereabouts()}))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def spawn(environment: Dict[str, str]) -> subprocess.Popen[bytes]:
    """A worker for a rank, in this process group."""
    package = os.path.dirname(os.path.abspath(parity.__file__))
    bootstrap = os.path.join(package, "worker", "bootstrap.py")
    return subprocess.Popen(
        [sys.executable, bootstrap, package, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        bufsize=0,
    )


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def request_to(rank: int, request: Message) -> Message:
    """The request for a rank: ranks other than 0 get their own buffer, and no memory for records."""
    own = {**request, "rank": rank}
    if rank == 0:
        return own
    if "buffer" in request:
        own["buffer"] = buffer_of(rank, request)
        with open(own["buffer"], "ab"):
            pass
    return {**own, "memory": 0} if "memory" in request else own


def buffer_of(rank: int, request: Message) -> str:
    """The shared buffer of a rank."""
    return f"{request['buffer']}.rank{rank}" if rank else str(request["buffer"])


def write(process: subprocess.Popen[bytes], message: Message) -> None:
    """Send a message, whole."""
    data = memoryview((json.dumps(message) + "\n").encode("utf-8"))
    while data:
        data = data[os.write(process.stdin.fileno(), data) :]  # type: ignore[union-attr]


def accepted(reply: Message) -> bool:
    """Whether a reply is not an error."""
    return reply.get("ok", True) is True and reply.get("outcome", "ok") == "ok"


def refusal_of(rank: int, answer: Message) -> Message:
    """A rank's error as fields of the reply."""
    known: Message = {name: answer[name] for name in ("ok", "outcome", "last") if name in answer}
    return {**known, "message": f"rank {rank}: {answer.get('message')}"}


def disagreement(request: Message, replies: Dict[int, Message], tracked: List[str], before: int) -> str:
    """The first step after which a rank's parameter or state differs from rank 0's; empty if all agree.

    Buffers may differ: the statistics of batch normalisation are those of a rank's own rows.
    """
    shared = [i for i, name in enumerate(tracked) if not name.startswith("buffer.")]
    mine = measured(0, request, replies)[:, shared]
    for rank in range(1, len(replies)):
        theirs = measured(rank, request, replies)[:, shared]
        steps, tensors = np.nonzero((mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs)))
        if len(steps):
            name = tracked[shared[int(tensors[0])]]
            return f"rank {rank} and rank 0 differ in {name} after step {before + int(steps[0]) + 1}"
    return ""


def measured(rank: int, request: Message, replies: Dict[int, Message]) -> Any:
    """The sketches [steps, tracked] of a rank, which differ if tensors do."""
    [sketches] = [tensor for tensor in replies[rank]["tensors"] if tensor["name"] == "sketches"]
    count = int(np.prod(sketches["shape"]))
    values = np.fromfile(buffer_of(rank, request), sketches["dtype"], count, offset=sketches["offset"])
    return values.reshape(sketches["shape"])


def ending(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exited with status {code} before it replied"
    return f"was killed by {signal.Signals(-code).name}"


def whereabouts() -> str:
    """The location of the main thread: its function, with the line if it is in the user's file."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    location = "in no function"
    own = sys.modules.get("parity_user_ops")
    path = getattr(own, "__file__", None)
    while frame is not None:
        code = frame.f_code
        if path is not None and code.co_filename == path:
            return f"in {code.co_name} ({os.path.basename(path)}:{frame.f_lineno})"
        if location == "in no function" and any(room in code.co_filename for room in WORKING):
            location = f"in {code.co_name}"
        frame = frame.f_back
    return location
