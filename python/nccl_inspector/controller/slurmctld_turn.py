# SPDX-License-Identifier: Apache-2.0
"""Which of several controller services works without a database: the one beside slurmctld.

If slurm.conf names several controllers, and one of them is this host, then the service works only
while Slurm's own controller works here, which is the first one that answers `scontrol ping`. The
lock of the queue is needed as well: whoever does not see the other host cannot take its place as
long as the shared storage keeps the lock.
"""

import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from nccl_inspector.controller.queue_lock import QueueLock
from nccl_inspector.slurm.command import Command

LOOK_S = 10.0  # from one question to the next
ALONE_S = 600.0  # the same, on a site with one controller
ANSWER_S = 20.0
_LINE = re.compile(r"^Slurmctld\([a-z0-9]+\) at (\S+) is (UP|DOWN)\s*$", re.MULTILINE)


def controllers_of(said: str) -> tuple[tuple[str, ...], str]:
    """Return the hosts of Slurm's controllers, in their order, and the one that works (pure).

    `said`: what `scontrol ping` prints. Hosts have no domain. The second is empty if none answers.
    """
    found = [(host.partition(".")[0], state) for host, state in _LINE.findall(said)]
    return tuple(host for host, _ in found), next((host for host, one in found if one == "UP"), "")


class SlurmctldTurn:
    """Whether it is this host's turn; `beat` asks Slurm without waiting for it."""

    def __init__(self, scontrol: Path, lock: QueueLock, host: str = "") -> None:
        """Ask nothing yet; `host`: this one's name, without a domain."""
        self._scontrol, self._lock = scontrol, lock
        self._host = host or socket.gethostname().partition(".")[0]
        self._question: Command | None = None
        self._asked_s, self._next_s = 0.0, 0.0
        self._is_heard = False  # until Slurm has answered once, nobody works here
        self._elsewhere = ""

    @property
    def is_held(self) -> bool:
        """Whether this service is the one that works."""
        return self._is_heard and not self._elsewhere and self._lock.is_held

    @property
    def words(self) -> str:
        """Who works; empty while that is not known yet."""
        return self._elsewhere or (self._lock.words if self._is_heard else "")

    def beat(self) -> None:
        """Take Slurm's answer if there is one, and ask again if it is time."""
        now_s = time.monotonic()
        if self._question is not None:
            said = self._question.said()
            if said is None and now_s < self._asked_s + ANSWER_S:
                return
            if said is None:
                self._question.stop()
            self._question = None
            self._learn(*controllers_of(said.output if said and not said.cut else ""))
        elif now_s >= self._next_s:
            self._asked_s, self._next_s = now_s, now_s + LOOK_S
            try:
                self._question = Command(self._scontrol, "ping")
            except OSError:
                self._learn((), "")

    def _learn(self, hosts: Sequence[str], working: str) -> None:
        """Decide; without an answer it stays as it is, and at first the lock decides."""
        self._is_heard = True
        if len(hosts) < 2 or self._host not in hosts:
            self._elsewhere = ""
            self._next_s = self._asked_s + (ALONE_S if hosts else LOOK_S)
        elif working == self._host:
            self._elsewhere = ""
        elif working:
            self._elsewhere = f"the service on {working} works, as slurmctld does"
            self._lock.close()

    def close(self) -> None:
        """Let another one work."""
        if self._question is not None:
            self._question.stop()
            self._question = None
        self._lock.close()
