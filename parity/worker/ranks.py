"""A data-parallel training in several processes: the worker is rank 0, and starts and leads the others.

The others are workers that run the same bootstrap and answer the same requests, to rank 0. They share its process
group and its cookie, so that the host ends them with it. What a step shows is gathered inside of the step, by the
framework's own collectives; here the ranks only move together, and are held against each other.

A rank that waits in a collective cannot be asked anything. So threads of rank 0 see to it that there is an answer in
time: that a rank ended, that it refused while others wait, or where each one is when time is up.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, List, Optional

import numpy as np

Message = Dict[str, Any]
Send = Callable[[int, Message], None]

LED = ("hello", "load", "train", "steps", "restore")
"""What all ranks are asked to do; the rest is rank 0's alone."""

GRACE_S = 3.0
"""How long others may need to come to the same error."""

TELLING = 0.8
GIVING_UP = 0.9
"""The parts of the host's time after which the others say where they are, and rank 0 says so to the host."""


class Alone:
    """The only rank there is."""

    def begin(self, request: Message) -> None:
        """A request has come, and is about to be answered."""

    def end(self, reply: Message) -> Message:
        """The reply to it, with what other ranks have to say."""
        return reply


class Follower(Alone):
    """A rank other than 0, which tells where it is while rank 0 has no time left to wait for its reply."""

    def __init__(self, replies: int, send: Send) -> None:
        self.replies, self.send = replies, send
        self.timer = threading.Timer(0, self.tell)

    def begin(self, request: Message) -> None:
        """Begin to look at the clock."""
        self.timer = threading.Timer(request["timeout_s"] * TELLING, self.tell)
        self.timer.daemon = True
        self.timer.start()

    def end(self, reply: Message) -> Message:
        """The reply, in time."""
        self.timer.cancel()
        return reply

    def tell(self) -> None:
        """Say where the main thread is."""
        self.send(self.replies, {"where": whereabouts()})


class Leader(Alone):
    """Rank 0. `others` are the processes of the ranks from 1."""

    def __init__(self, hello: Message, replies: int, send: Send) -> None:
        self.replies, self.send = replies, send
        self.others: Dict[int, subprocess.Popen[bytes]] = {}
        self.answers: Dict[int, Message] = {}
        self.places: Dict[int, str] = {}
        self.asked: Optional[Message] = None
        self.tracked: List[str] = []
        self.position = 0
        self.changed = threading.Condition()
        self.timers: List[threading.Timer] = []
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(hello["ranks"])}
        for rank in range(1, hello["ranks"]):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.others[rank] = spawn({**os.environ, **shared, **own})
            threading.Thread(target=self.listen, args=(rank,), daemon=True).start()
        os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0"})

    def begin(self, request: Message) -> None:
        """Ask the others for the same."""
        if request["do"] not in LED:
            return
        with self.changed:
            self.asked, self.answers, self.places = request, {}, {}
        for rank, process in self.others.items():
            try:
                os.write(process.stdin.fileno(), encoded(request_to(rank, request)))  # type: ignore[union-attr]
            except OSError:
                self.lose(rank)
        self.later(request["timeout_s"] * GIVING_UP, self.give_up)

    def end(self, reply: Message) -> Message:
        """The reply of all, as soon as they have answered; the last one where they have not and cannot go on."""
        if self.asked is None:
            return reply
        fine = accepted(reply)
        with self.changed:
            self.changed.wait_for(lambda: len(self.answers) == len(self.others), None if fine else GRACE_S)
            request, self.asked = self.asked, None
            complete = len(self.answers) == len(self.others)
        for timer in self.timers:
            timer.cancel()
        self.timers = []
        if fine:
            reply = self.with_refusals(reply)
        if accepted(reply):
            reply = {**reply, **self.follow(request, reply)}
        return reply if complete else {**reply, **refusal_of(0, reply), "last": True}

    def follow(self, request: Message, reply: Message) -> Message:
        """Keep account of the training's steps; what is to be said of them."""
        if request["do"] == "steps":
            before, self.position = self.position, self.position + reply["done"]
            return {"message": disagreement(request, reply, self.answers, self.tracked, before)}
        if request["do"] == "train":
            self.tracked, self.position = reply["tracked"], 0
        elif request["do"] == "restore":
            self.position = request["step"]
        return {}

    def with_refusals(self, reply: Message) -> Message:
        """The reply, or the first refusal of another rank."""
        for rank, answer in sorted(self.answers.items()):
            if not accepted(answer):
                return {**reply, **refusal_of(rank, answer), "last": True}
        return reply

    def listen(self, rank: int) -> None:
        """Take the answers of a rank until it ends."""
        for line in self.others[rank].stdout or ():
            answer = json.loads(line)
            with self.changed:
                if "where" in answer:
                    self.places[rank] = answer["where"]
                else:
                    self.answers[rank] = answer
                    self.changed.notify_all()
            if "where" not in answer and not accepted(answer):
                # The others may wait for it in a collective, and would do so for ever.
                self.later(GRACE_S, lambda: self.leave(refusal_of(rank, answer)))  # noqa: B023 - it ends the process
        with self.changed:
            lost = self.asked is not None and rank not in self.answers
        if lost:
            self.lose(rank)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function unless the request has been answered by then."""
        timer = threading.Timer(seconds, function)
        timer.daemon = True
        self.timers.append(timer)
        timer.start()

    def lose(self, rank: int) -> None:
        """A rank has ended in the middle of its work."""
        self.leave({"outcome": "crash", "message": f"rank {rank} {ending(self.others[rank].wait())}"})

    def give_up(self) -> None:
        """Time is up: say where each rank is that has not answered."""
        missing = [rank for rank in self.others if rank not in self.answers]
        places = {0: whereabouts(), **{rank: self.places.get(rank, "silent") for rank in missing}}
        told = "; ".join(f"rank {rank} is {place}" for rank, place in places.items())
        self.leave({"outcome": "timeout", "message": f"the ranks did not all answer in time: {told}"})

    def leave(self, reply: Message) -> None:
        """Answer in the place of the main thread, which may never come back, and end."""
        with self.changed:
            if self.asked is None:
                return
            cell = {"cell": self.asked.get("cell")}
            self.send(
                self.replies, {**cell, "ok": False, "done": 0, "seconds": 0.0, "tensors": [], **reply, "last": True}
            )
            os._exit(0)


def company(request: Message, replies: int, send: Send) -> Alone:
    """Who this process works with, by the first request."""
    if request.get("ranks", 1) == 1:
        return Alone()
    return Follower(replies, send) if request.get("rank") else Leader(request, replies, send)


def spawn(environment: Dict[str, str]) -> subprocess.Popen[bytes]:
    """A worker for one more rank, in this process group."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    bootstrap = os.path.join(package, "worker", "bootstrap.py")
    return subprocess.Popen(
        [sys.executable, bootstrap, package, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        bufsize=0,
    )


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def request_to(rank: int, request: Message) -> Message:
    """The request as another rank gets it: with a slot of its own, and memory for no more records than it needs."""
    found = {**request, "rank": rank}
    if "slot" in request:
        found["slot"] = slot_of(rank, request)
        with open(found["slot"], "ab"):
            pass
    return {**found, "memory": 0} if "memory" in request else found


def slot_of(rank: int, request: Message) -> str:
    """The slot of another rank."""
    return f"{request['slot']}.rank{rank}"


def encoded(message: Message) -> bytes:
    """A message as a line."""
    return (json.dumps(message) + "\n").encode("utf-8")


def accepted(reply: Message) -> bool:
    """Whether a rank did as it was told."""
    return reply.get("ok", True) is True and reply.get("outcome", "ok") == "ok"


def refusal_of(rank: int, answer: Message) -> Message:
    """What a rank refused, as a reply says it."""
    known: Message = {name: answer[name] for name in ("ok", "outcome") if name in answer}
    return {**known, "message": f"rank {rank}: {answer.get('message')}"}


def disagreement(request: Message, reply: Message, answers: Dict[int, Message], tracked: List[str], before: int) -> str:
    """The first step after which a rank holds another parameter or state than rank 0; empty where there is none.

    Buffers may differ: the statistics of batch normalisation are those of a rank's own rows.
    """
    shared = [i for i, name in enumerate(tracked) if not name.startswith("buffer.")]
    mine = measured(request["slot"], reply)[:, shared]
    for rank, answer in sorted(answers.items()):
        theirs = measured(slot_of(rank, request), answer)[:, shared]
        steps, tensors = np.nonzero((mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs)))
        if len(steps):
            name = tracked[shared[int(tensors[0])]]
            return f"rank {rank} and rank 0 do not hold the same {name} after step {before + int(steps[0]) + 1}"
    return ""


def measured(slot: str, reply: Message) -> Any:
    """The sketches [steps, tracked] of a reply, which tell apart what differs."""
    [found] = [tensor for tensor in reply["tensors"] if tensor["name"] == "sketches"]
    count = int(np.prod(found["shape"]))
    return np.fromfile(slot, found["dtype"], count, offset=found["offset"]).reshape(found["shape"])


def ending(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exited with status {code} in the middle of its work"
    return f"was killed by {signal.Signals(-code).name}"


def whereabouts() -> str:
    """Where the main thread is: in which function, with the line in the user's file if it is called from there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found = "in no function"
    own = sys.modules.get("parity_user_ops")
    path = getattr(own, "__file__", None)
    known = os.path.join("parity", "adapters")
    while frame is not None:
        code = frame.f_code
        if path is not None and code.co_filename == path:
            return f"in {code.co_name} ({os.path.basename(path)}:{frame.f_lineno})"
        if found == "in no function" and known in code.co_filename:
            found = f"in {code.co_name}"
        frame = frame.f_back
    return found
