# SPDX-License-Identifier: Apache-2.0
"""Where all ranks of a probe are connected: it tells them what to do and waits for their answers.

Every wait has an end, and the first rank to blame is named: one that has gone before one that
failed, and these before those that only lost a neighbour.
"""

import resource
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.wording import number
from nccl_inspector.probe.errors import LostError, MemoryLackError, ProbeError
from nccl_inspector.probe.wire import (
    BACKLOG,
    CHECKS,
    RANKS_MAX,
    STRANGERS_MAX,
    Arrivals,
    Message,
    Wire,
)

_SEND_S = 10.0
_OTHER_FILES = 64
_LOOK_S = 0.2  # between two looks at whether the step still runs
# After the first trouble: who else has trouble, so that the one to blame is named.
_MORE_TROUBLE_S = 1.0
_TELLS_LESS = {"gone": 0, "failed": 1, "memory": 1, "lost": 2}


@dataclass(frozen=True, slots=True)
class Rank:
    """A connected rank, as it says of itself."""

    number: int
    node: str
    local: int
    device: str
    version: str
    gpus: int  # that Slurm gave its step on this node
    offer: Mapping[str, Any]
    wire: Wire

    def __str__(self) -> str:
        """Return `rank 3 (n2)`."""
        return f"rank {self.number} ({self.node})"


@dataclass(frozen=True, slots=True)
class _Trouble:
    who: str
    kind: str
    words: str


def _raise_worst(troubles: Sequence[_Trouble]) -> None:
    if not troubles:
        return
    worst = min(troubles, key=lambda one: _TELLS_LESS.get(one.kind, 1))
    kind = MemoryLackError if worst.kind == "memory" else ProbeError
    raise kind(f"{worst.who}: {worst.words}")


def _failure_of(who: str, message: Message) -> _Trouble | None:
    if "error" not in message:
        return None
    return _Trouble(who, CHECKS.text(message.get("kind")), CHECKS.text(message["error"], 1000))


def _allow_connections(count: int) -> None:
    """Raise this process's limit of open files, which is 1024 by default, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


class Hub:
    """Listens for ranks; `key` is what they must show first."""

    def __init__(self, key: bytes, host: str = "", port: int = 0) -> None:
        """Listen on `host` (empty: on all addresses) and `port` (0: any free one).

        Raises:
            ProbeError: it is not possible.
        """
        self._key = key
        self.ranks: list[Rank] = []
        try:
            both = not host and socket.has_dualstack_ipv6()
            self._listening = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if both else socket.AF_INET,
                dualstack_ipv6=both,
                backlog=BACKLOG,
            )
        except OSError as err:
            raise ProbeError(f"cannot listen on port {port}: {err.strerror}") from err
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> Self:
        """Return the hub."""
        return self

    def __exit__(self, *_: object) -> None:
        """Tell all ranks that it is over, and hang up."""
        for rank in self.ranks:
            with suppress(LostError):
                rank.wire.send({"do": "end"}, _SEND_S)
            rank.wire.close()
        self._listening.close()

    def gather(self, count: int, seconds: float, ended: Callable[[], str]) -> None:
        """Wait until `count` ranks are there; `ended` says why the step has ended, or nothing.

        Raises:
            ProbeError: a rank cannot take part, the step has ended, or not all came in time.
        """
        _allow_connections(count + STRANGERS_MAX)
        found: dict[int, Rank] = {}
        until_s = time.monotonic() + seconds
        with Arrivals(self._listening, self._key) as arrivals:
            while len(found) < count:
                if time.monotonic() > until_s:
                    missing = min(set(range(count)) - found.keys())
                    raise ProbeError(
                        f"after {seconds:g} s {len(found)} of {number(count, 'rank')} have come; "
                        f"the first that is missing is rank {missing}"
                    )
                streams = arrivals.with_key(_LOOK_S)
                if not streams and (why := ended()):
                    raise ProbeError(why)
                for stream in streams:
                    rank = self._greet(Wire(stream), seconds, count)
                    if rank.number in found:
                        raise ProbeError(f"{rank} came twice")
                    found[rank.number] = rank
        self.ranks = [found[at] for at in range(count)]

    def _greet(self, wire: Wire, seconds: float, count: int) -> Rank:
        try:
            message = wire.receive(seconds)
            at = CHECKS.integer(message.get("rank"), RANKS_MAX)
            node = CHECKS.text(message.get("node"))
            if trouble := _failure_of(f"rank {at} ({node})", message):
                _raise_worst([trouble])
            if at >= count:
                raise ProbeError(f"rank {at} ({node}) came, of {number(count, 'rank')}")
            return Rank(
                at, node, CHECKS.integer(message.get("local"), RANKS_MAX),
                CHECKS.text(message.get("device")), CHECKS.text(message.get("version")),
                CHECKS.integer(message.get("gpus", 0), RANKS_MAX),
                CHECKS.table(message.get("offer")), wire,
            )  # fmt: skip
        except (TimeoutError, LostError) as err:
            raise ProbeError(f"a rank came and said nothing: {err}") from err
        except RefusedError as err:
            raise ProbeError(f"a rank says what cannot be understood: {err}") from err

    def ask(self, message: Message, seconds: float) -> list[Message]:
        """Tell all ranks the same, and return their answers in order (see `ask_each`)."""
        answers = self.ask_each({rank.number: message for rank in self.ranks}, seconds)
        return [answers[rank.number] for rank in self.ranks]

    def ask_each(self, messages: Mapping[int, Message], seconds: float) -> dict[int, Message]:
        """Tell ranks what to do, and return their answers.

        Raises:
            MemoryLackError: a rank has no memory for it.
            ProbeError: a rank has gone, failed, or has not answered in time.
        """
        asked = [self.ranks[at] for at in messages]
        troubles: list[_Trouble] = []
        for rank in asked:
            try:
                rank.wire.send(messages[rank.number], _SEND_S)
            except LostError:
                troubles.append(_Trouble(str(rank), "gone", "its process has ended"))
        # Longer than the ranks wait for each other: who has lost a neighbour says so first.
        answers = self._answers(asked, seconds + 2 * _MORE_TROUBLE_S, troubles)
        told = {one.who for one in troubles}
        missing = [rank for rank in asked if rank.number not in answers and str(rank) not in told]
        if not missing or any(one.kind != "lost" for one in troubles):
            _raise_worst(troubles)
        if missing:
            more = f" (nor have {number(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
            raise ProbeError(f"{missing[0]}: it has not answered for {seconds:g} s{more}")
        return answers

    def _answers(
        self, asked: Sequence[Rank], seconds: float, troubles: list[_Trouble]
    ) -> dict[int, Message]:
        """Return what came in time; what went wrong is put into `troubles`."""
        answers: dict[int, Message] = {}
        until_s = time.monotonic() + (_MORE_TROUBLE_S if troubles else seconds)
        with selectors.DefaultSelector() as waiting:
            for rank in asked:
                waiting.register(rank.wire.stream, selectors.EVENT_READ, rank)
            while waiting.get_map() and (left_s := until_s - time.monotonic()) > 0:
                for key, _ in waiting.select(left_s):
                    rank = key.data
                    answer, trouble = self._heard(rank)
                    if trouble:
                        troubles.append(trouble)
                        until_s = min(until_s, time.monotonic() + _MORE_TROUBLE_S)
                    elif answer is not None:
                        answers[rank.number] = answer
                    if trouble or answer is not None:
                        waiting.unregister(rank.wire.stream)
        return answers

    @staticmethod
    def _heard(rank: Rank) -> tuple[Message | None, _Trouble | None]:
        try:
            rank.wire.take()
            message = rank.wire.taken()
            if message is None:
                return None, None
            return message, _failure_of(str(rank), message)
        except LostError:
            return None, _Trouble(str(rank), "gone", "its process has ended")
        except RefusedError as err:
            return None, _Trouble(str(rank), "failed", f"its answer is refused: {err}")
