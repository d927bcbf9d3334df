# SPDX-License-Identifier: Apache-2.0
"""Which of several services should hold the lock of a queue: the one on the host of slurmctld.

All here is pure. The lock makes sure that one service works; this is only the preference which one.

- A question that Slurm does not answer changes nothing.
- slurmctld works on another host only after answers have said so for SURE_S.
- A service gives way only to one that asks for the work, between two reports.
- If nobody has given a sign of work for some seconds, whichever service gets the lock first works.
"""

from dataclasses import dataclass, replace
from enum import Enum

from nccl_inspector.controller.sign_of_life import OLD_S
from nccl_inspector.controller.slurm_ping import Answer, short_name

SURE_S = 15.0
FIRST_S = 30.0  # to wait for a first answer


class Turn(Enum):
    """Whose turn it is by Slurm."""

    HERE = "slurmctld works on this host"
    ELSEWHERE = "slurmctld works on another host"
    ANYBODY = "there is one slurmctld, none on this host, or no answer: the lock decides"
    UNKNOWN = "no question has been answered yet"


@dataclass(frozen=True, slots=True)
class Slurmctld:
    """Where slurmctld works, as answers over time have it; the times are of time.monotonic().

    `host`: as we take it; empty: the lock decides. `other`: a host that the answers since `since_s`
    have instead.
    """

    begun_s: float
    is_asked: bool = False
    host: str = ""
    other: str = ""
    since_s: float = 0.0

    def after(self, now_s: float, answer: Answer | None, here: str) -> "Slurmctld":
        """Return the same after one more answer; `here`: this host's name, without a domain."""
        if answer is None:
            return replace(self, is_asked=True)
        if len(answer.hosts) < 2 or here not in answer.hosts:
            return Slurmctld(self.begun_s, is_asked=True)
        is_sure = answer.working == self.other and now_s - self.since_s >= SURE_S
        if not self.host or is_sure or answer.working == self.host:
            return Slurmctld(self.begun_s, is_asked=True, host=answer.working)
        if answer.working == self.other:
            return self
        return replace(self, other=answer.working, since_s=now_s)

    def turn(self, now_s: float, here: str) -> Turn:
        """Return whose turn it is."""
        if self.host:
            return Turn.HERE if self.host == here else Turn.ELSEWHERE
        is_known = self.is_asked or now_s - self.begun_s >= FIRST_S
        return Turn.ANYBODY if is_known else Turn.UNKNOWN


class Step(Enum):
    """What a service does next."""

    WORK = "works on; if it waited, tries to take the lock"
    GIVE_WAY = "releases the lock when no child of it writes"
    WAIT = "waits; if slurmctld works here, asks for the work"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a service sees.

    `worker`: the host that said last that it works, empty if that gave way or ended; `quiet_s`: for
    how long nobody has given a sign of work. `asking`: a host whose service asks for the work.
    """

    turn: Turn
    is_ours: bool  # we hold the lock
    worker: str
    quiet_s: float
    asking: str = ""


def next_step(seen: Seen, here: str, slurmctld_host: str) -> Step:
    """Return what the service on the host `here` does next."""
    if seen.is_ours:
        is_asked = short_name(seen.asking) == slurmctld_host
        return Step.GIVE_WAY if seen.turn is Turn.ELSEWHERE and is_asked else Step.WORK
    if seen.turn is Turn.UNKNOWN:
        return Step.WAIT
    is_left = seen.turn is not Turn.ELSEWHERE and short_name(seen.worker) in ("", here)
    return Step.WORK if is_left or seen.quiet_s >= OLD_S else Step.WAIT
