# SPDX-License-Identifier: Apache-2.0
"""Which of several services works on a queue: one holds a lock of the queue, or a lease.

Without a database it is the lock (queue_lock.py), and Slurm decides who should hold it
(beside_slurmctld.py). With an index in a database the lease there decides (lease.py): it is free
within seconds, whatever happens to a host, and locks on shared storage may not be.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from nccl_inspector.controller.beside_slurmctld import BesideSlurmctld
from nccl_inspector.controller.lease import LEASE_S, Lease
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.queue_lock import QueueLock
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config

_LOOK_S = 0.05


class Duty(Protocol):
    """Whether this process is the one that works; `words` says who does."""

    @property
    def is_held(self) -> bool:
        """Whether this process may work now."""

    @property
    def words(self) -> str:
        """Who works, or why that is not known."""

    def beat(self) -> None:
        """Give a sign of life, every few seconds."""

    def give_way(self) -> None:
        """Let another one work if it should; called when no child of ours runs."""

    def close(self) -> None:
        """Let another one work."""


def duty_on(queue: Queue, config: Config, *, needs_life: bool = True) -> Duty:
    """Return what decides on the work. `needs_life`: only while `beat` is called."""
    if config.store_url:
        return Lease(config.store_url, config.cluster, needs_life=needs_life)
    return BesideSlurmctld(queue, config.scontrol) if needs_life else QueueLock(queue)


def refuse_root() -> None:
    """Raise an InspectorError if this process is root."""
    if os.geteuid() == 0:
        raise InspectorError(
            "root does not read users' measurements: run it as report_user or SlurmUser"
        )


@contextmanager
def alone(config: Config) -> Iterator[Queue]:
    """Give the queue, for work that needs the service not to run.

    Raises:
        InspectorError: there is no queue, a service works on it, or this process is root.
    """
    refuse_root()
    queue = Queue(config.controller_dir)
    try:
        duty = duty_on(queue, config, needs_life=False)
        try:
            until_s = time.monotonic() + (LEASE_S if config.store_url else 0.0)
            while not duty.is_held:
                if time.monotonic() >= until_s:
                    raise InspectorError(f"{config.controller_dir}: {duty.words}")
                time.sleep(_LOOK_S)
            yield queue
        finally:
            duty.close()
    finally:
        queue.close()
