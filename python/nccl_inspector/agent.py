# SPDX-License-Identifier: Apache-2.0
"""The service of a node: publish, collect, and say how it fares, again and again."""

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from nccl_inspector.collect import Collector
from nccl_inspector.config import Config
from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition import Series, make_series
from nccl_inspector.handover import CHILD_S
from nccl_inspector.publish import Publisher
from nccl_inspector.tally import Tally

log = logging.getLogger("nccl-inspector")

# How long a pass waits for the child that writes a summary; the next pass looks after a slow one.
HANDOVER_WAIT_S = 1.0


class Agent:
    """Publisher and collector of one run directory, sharing one tally."""

    def __init__(self, config: Config, run_fd: int) -> None:
        """Take up the work of a run directory.

        Raises:
            OSError: a directory of it is not there.
        """
        self._tally = Tally()
        self._publisher = Publisher(run_fd, config.cluster, self._tally)
        self._collector = Collector(run_fd, config, self._tally)
        self._node = config.node_name or socket.gethostname().split(".")[0]

    def run_pass(self, wait_s: float) -> None:
        """Publish and collect once.

        Raises:
            OSError: the run directory itself does not work.
        """
        begun = time.monotonic()
        jobs = self._publisher.run_pass()
        waiting = self._collector.run_pass(wait_s)
        self._tally.forget(jobs | self._collector.jobs())
        self._publisher.write_own(self._series(len(jobs), waiting, time.monotonic() - begun))

    def stop(self) -> None:
        """Withdraw what was published."""
        self._publisher.stop()

    def close(self) -> None:
        """Close the directories."""
        self._publisher.close()
        self._collector.close()

    def _series(self, jobs: int, waiting: int, pass_s: float) -> list[Series]:
        who = {"cluster": self._publisher.cluster, "node": self._node}
        values = {
            "jobs": str(jobs),
            "ended_jobs_waiting": str(waiting),
            "collect_failures_total": str(self._tally.collect_failures),
            "ranks_lost_total": str(self._tally.lost),
            "last_pass_timestamp_seconds": f"{time.time():.3f}",
            "pass_seconds": f"{pass_s:.6f}",
        }
        series = [
            make_series(f"nccl_inspector_agent_{name}", who, value)
            for name, value in values.items()
        ]
        for reason, number in sorted(self._tally.rejected.items()):
            labels = who | {"reason": reason}
            series.append(
                make_series("nccl_inspector_agent_rejected_files_total", labels, str(number))
            )
        return series + self._publisher.build_info()


@contextmanager
def _run_dir(config: Config) -> Iterator[int]:
    fd = -1
    try:
        fd = os.open(config.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        yield fd
    except OSError as err:
        where = f"{config.run_dir}/{err.filename}" if err.filename else str(config.run_dir)
        raise InspectorError(f"{where}: {err.strerror}") from err
    finally:
        if fd >= 0:
            os.close(fd)


def run_agent(config: Config, once: bool) -> None:
    """Publish and collect each agent_interval until SIGTERM or SIGINT.

    `once`: a single pass, and what it publishes stays.

    Raises:
        InspectorError: the run directory is not there or does not work.
    """
    end = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    with _run_dir(config) as run_fd:
        agent = Agent(config, run_fd)
        try:
            agent.run_pass(CHILD_S if once else HANDOVER_WAIT_S)
            while not once and not end.wait(config.agent_interval_s):
                agent.run_pass(HANDOVER_WAIT_S)
            if not once:
                agent.stop()
        finally:
            agent.close()


def run_collect(config: Config) -> int:
    """Collect once, for a site without the agent; return how many ended jobs are left.

    Raises:
        InspectorError: the run directory is not there or does not work.
    """
    with _run_dir(config) as run_fd:
        collector = Collector(run_fd, config, Tally())
        try:
            return collector.run_pass(CHILD_S)
        finally:
            collector.close()
