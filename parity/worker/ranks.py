"""A data-parallel training in several processes, one a rank; the worker itself computes nothing and leads them.

The ranks are workers that run the same bootstrap and answer the same requests, to the worker. They share its process
group and its cookie, so that the host ends them with it. What a step shows is gathered inside of the step, by the
framework's own collectives; here the ranks only move together, and are held against each other.

A rank that waits in a collective cannot be asked anything, and one whose peer has died may be ended by its framework.
So no rank leads: the reply says what happened first, that a rank ended, that it refused while others wait, or where
each one is when time is up.
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
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import numpy as np

import parity

Message = Dict[str, Any]
Send = Callable[[int, Message], None]

LED = ("hello", "load", "train", "steps", "restore")
"""What all ranks are asked to do; the rest is rank 0's alone."""

WORKING = (os.path.join("parity", "adapters"), os.path.join("training", "worker"))
"""The folders whose functions say what a rank is at."""

GRACE_S = 3.0
"""How long others may need to come to the same error."""

TELLING = 0.8
GIVING_UP = 0.9
"""The parts of the host's time after which the ranks say where they are, and the worker says so to the host."""


def is_led(hello: Message) -> bool:
    """Whether this is the first request to a worker that leads ranks."""
    return bool(hello.get("ranks", 1) > 1 and "rank" not in hello)


def lead(hello: Message, lines: Iterable[str], send: Callable[[Message], None]) -> None:
    """Answer `hello` and the requests that follow, until bye, the end of `lines` or a reply that is the last."""
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
        """What becomes of a request: all answers, or those that came before it was plain that others will not."""
        asked = range(len(self.processes)) if request["do"] in LED else range(1)
        answers = RankReplies(request, asked)
        for rank in asked:
            # Its replies show that a rank has just ended.
            with contextlib.suppress(OSError):
                write(self.processes[rank], request_to(rank, request))
        for rank in self.ended.intersection(asked):
            answers.take(rank, None, self.processes[rank])
        while answers.expected() > 0:
            for rank, message in self.listen(answers.expected()):
                answers.take(rank, message, self.processes[rank])
        return answers

    def listen(self, seconds: float) -> Iterator[Tuple[int, Optional[Message]]]:
        """The messages that come next, by rank; None where a rank has ended. Those that ended come first."""
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
    """What the ranks that were `asked` have said to a request so far."""

    def __init__(self, request: Message, asked: Iterable[int]) -> None:
        self.request, self.asked = request, list(asked)
        self.replies: Dict[int, Message] = {}
        self.locations: Dict[int, str] = {}
        self.lost: List[str] = []
        self.trouble: Optional[Message] = None
        self.end = time.monotonic() + GIVING_UP * request["timeout_s"]

    @property
    def complete(self) -> bool:
        """Whether all have answered."""
        return len(self.replies) == len(self.asked)

    def expected(self) -> float:
        """For how many seconds more an answer may be waited for."""
        return 0.0 if self.complete else self.end - time.monotonic()

    def take(self, rank: int, message: Optional[Message], process: subprocess.Popen[bytes]) -> None:
        """Take a message; the reply says what goes wrong first."""
        if message is None:
            if rank not in self.replies:
                self.lose(f"rank {rank} {ending(process.wait())}")
        elif "where" in message:
            self.locations[rank] = message["where"]
        else:
            self.replies[rank] = message
            if not accepted(message):
                self.trouble = self.trouble or refusal_of(rank, message)
                # The others may wait for it in a collective, and would do so for ever.
                self.end = min(self.end, time.monotonic() + GRACE_S)

    def lose(self, what: str) -> None:
        """A rank ended without an answer. What another one refused before that may be a consequence of it."""
        if self.lost or self.trouble is None or not self.trouble.get("last"):
            self.lost.append(what)
            self.trouble = {"outcome": "crash", "message": "; ".join(self.lost), "last": True}
        self.end = time.monotonic()

    def reply(self) -> Message:
        """The reply of all, which is the last where some did not answer and cannot go on."""
        blank: Message = {"cell": self.request.get("cell"), "ok": False, "done": 0, "seconds": 0.0, "tensors": []}
        mine = self.replies.get(0, blank)
        if self.complete:
            alike = len({reply.get("message") for reply in self.replies.values()}) == 1
            return {**mine, **({} if self.trouble is None or alike else self.trouble)}
        return {**mine, **(self.trouble or self.out_of_time()), "last": True}

    def out_of_time(self) -> Message:
        """Where each rank is that has not answered."""
        missing = [rank for rank in self.asked if rank not in self.replies]
        locations = "; ".join(f"rank {rank} is {self.locations.get(rank, 'silent')}" for rank in missing)
        return {"outcome": "timeout", "message": f"the ranks did not all answer in time: {locations}"}


class RankAgreement:
    """Holds what the ranks hold after every step against each other."""

    def __init__(self) -> None:
        self.tracked: List[str] = []
        self.position = 0

    def follow(self, request: Message, replies: Dict[int, Message]) -> Message:
        """Keep account of the training's steps; what is to be said of them."""
        if request["do"] == "steps":
            before, self.position = self.position, self.position + replies[0]["done"]
            return {"message": disagreement(request, replies, self.tracked, before)}
        if request["do"] == "train":
            self.tracked, self.position = replies[0]["tracked"], 0
        elif request["do"] == "restore":
            self.position = request["step"]
        return {}


def telling(request: Message, replies: int, send: Send) -> ContextManager[None]:
    """While a rank is at work on a request: say where it is while there is still time to pass that on."""
    return telling_in_time(request, replies, send) if "rank" in request else contextlib.nullcontext()


@contextlib.contextmanager
def telling_in_time(request: Message, replies: int, send: Send) -> Iterator[None]:
    """Say where the main thread is when most of the time is over."""
    timer = threading.Timer(request["timeout_s"] * TELLING, lambda: send(replies, {"where": whereabouts()}))
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
    """The request as a rank gets it: beyond rank 0 with a buffer of its own, and memory for no more than it needs."""
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
    """Whether a rank did what the request asks."""
    return reply.get("ok", True) is True and reply.get("outcome", "ok") == "ok"


def refusal_of(rank: int, answer: Message) -> Message:
    """What a rank refused, as a reply says it."""
    known: Message = {name: answer[name] for name in ("ok", "outcome", "last") if name in answer}
    return {**known, "message": f"rank {rank}: {answer.get('message')}"}


def disagreement(request: Message, replies: Dict[int, Message], tracked: List[str], before: int) -> str:
    """The first step after which a rank holds another parameter or state than rank 0; empty where there is none.

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
    """The sketches [steps, tracked] of a rank, which tell apart what differs."""
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
    """Where the main thread is: in which function, with the line in the user's file if it is called from there."""
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
