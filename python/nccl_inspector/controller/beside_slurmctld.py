# SPDX-License-Identifier: Apache-2.0
"""Which of several services works without a database: the lock, given as Slurm prefers.

The service that works names its host in `state/lock` and gives signs of life there. One that waits
on the host where slurmctld works names its host in `state/next`, which asks the other one to give
way. What to do when is decided in slurmctld_turn.py.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path

from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.queue_lock import BUSY, QueueLock
from nccl_inspector.controller.sign_of_life import OLD_S, Watch, give_sign, write_name
from nccl_inspector.controller.slurm_ping import SlurmPing, short_name
from nccl_inspector.controller.slurmctld_turn import Seen, Slurmctld, Step, Turn, next_step

LOOK_S = 1.0


class BesideSlurmctld:
    """Whether this service works. `words` says why not; empty: that is not known yet."""

    def __init__(self, queue: Queue, scontrol: Path) -> None:
        """Take nothing yet."""
        self._host = socket.gethostname()
        self._here = short_name(self._host)
        self._lock, self._next = QueueLock(queue), queue.lock_path.with_name("next")
        self._working, self._asking = Watch(self._lock.path), Watch(self._next)
        self._ping = SlurmPing(scontrol)
        self._slurmctld = Slurmctld(time.monotonic())
        self._look_next_s = 0.0
        self._is_named = False  # our name is in the file of the lock
        self._gives_way = False
        self.is_held, self.words = False, ""

    def beat(self) -> None:
        """Give a sign of life; take the lock if it is free and our turn. No wait for Slurm."""
        now_s = time.monotonic()
        for answer in self._ping.heard(now_s):
            self._slurmctld = self._slurmctld.after(now_s, answer, self._here)
        if now_s >= self._look_next_s:
            self._look_next_s = now_s + LOOK_S
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        self._working.look(now_s)
        self._asking.look(now_s)
        if self.is_held and self._is_named and self._works_elsewhere:
            # While we were cut off from the storage, it gave the lock to that host.
            self._release()
        turn = self._slurmctld.turn(now_s, self._here)
        step = next_step(self._seen(turn), self._here, self._slurmctld.host)
        if not self.is_held and step is Step.WORK:
            self.is_held, self._is_named = self._lock.is_held, False
        self._gives_way = step is Step.GIVE_WAY
        if self.is_held:
            if give_sign(self._lock.path, self._host, self._working.host):
                self._is_named = True
        elif turn is Turn.HERE and self._lock.words == BUSY:
            # If the lock cannot be taken here at all, another service would stop for nothing.
            give_sign(self._next, self._host, self._asking.host)
        self.words = "" if self.is_held else self._why_not(step)

    @property
    def _works_elsewhere(self) -> bool:
        return short_name(self._working.host) not in ("", self._here)

    def _seen(self, turn: Turn) -> Seen:
        asking = self._asking.host if self._asking.is_alive else ""
        return Seen(turn, self.is_held, self._working.host, self._working.quiet_s, asking)

    def _why_not(self, step: Step) -> str:
        if step is Step.WORK:  # it was tried
            return self._lock.words
        if self._works_elsewhere and self._working.quiet_s < OLD_S:
            return f"the service on {self._working.host} works on these jobs"
        host = self._slurmctld.host
        return f"slurmctld works on {host}, and the service there is first" if host else ""

    def give_way(self) -> None:
        """Release the lock if another service is to work; no child of ours writes now."""
        if self._gives_way:
            self._leave()

    def close(self) -> None:
        """Let another one work."""
        self._ping.close()
        if self.is_held:
            self._leave()

    def _leave(self) -> None:
        """Say that nobody works, so that the one whose turn it is need not wait; release."""
        with suppress(OSError):
            write_name(self._lock.path, "")
        self._release()

    def _release(self) -> None:
        self.is_held = self._gives_way = False
        self._lock.close()
