# SPDX-License-Identifier: Apache-2.0
"""The sources of counters: when each is asked, its latest sample, and whether it answers."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nccl_inspector.agent.counters.child import DIED, HUNG, SourceChild
from nccl_inspector.agent.counters.gpu import read_gpus
from nccl_inspector.agent.counters.infiniband import SYS, read_ports
from nccl_inspector.agent.counters.pressure import PROC, read_pressure
from nccl_inspector.agent.counters.xid import KMSG
from nccl_inspector.counters.sample import GPU, INFINIBAND, PRESSURE, Sample
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger("nccl-inspector")

# A source rests this many times as long as its answer took, because jobs may start every second;
# but not longer than REST_MAX_S, so that the last sample of a job is not late.
REST_TIMES = 20
REST_MAX_S = 10.0
FAILURES = (HUNG, DIED)


@dataclass(frozen=True, slots=True)
class Readers:
    """Where counters are read; only tests use other places."""

    sys: Path = SYS
    proc: Path = PROC
    kernel_log: Path = KMSG
    gpus: Callable[[Clock], Sample] = read_gpus


class Sources:
    """All sources of this node."""

    def __init__(self, readers: Readers, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make the sources; nothing is asked yet."""
        self._readers = readers
        self._clock = clock
        self._asked = {
            INFINIBAND: SourceChild(partial(read_ports, readers.sys, clock), clock),
            GPU: SourceChild(partial(readers.gpus, clock), clock),
        }
        self._ready: list[Sample] = []
        self._next_s: dict[str, float] = {}  # boot clock; not asked before
        self._troubles: dict[str, str] = {}
        self.latest: dict[str, Sample] = {}
        self.failures: Counter[tuple[str, str]] = Counter()

    def ask(self, wanted: Iterable[str]) -> None:
        """Ask these sources, if they are free and have rested."""
        now = self._clock.boot_s()
        for name in wanted:
            if now < self._next_s.get(name, 0.0):
                continue
            if name == PRESSURE:
                self._ready.append(read_pressure(self._readers.proc, self._clock))
            elif name == INFINIBAND and not (self._readers.sys / "class" / "infiniband").exists():
                self._ready.append(
                    read_ports(self._readers.sys, self._clock)
                )  # no ports: no child needed
            else:
                self._start(name)

    def poll(self) -> list[Sample]:
        """Return the samples that have arrived since the last call."""
        found, self._ready = self._ready, []
        for name, asked in self._asked.items():
            said = asked.poll()
            if isinstance(said, Sample):
                found.append(said)
                rest_s = min(REST_TIMES * said.took_s, REST_MAX_S)
                self._next_s[name] = self._clock.boot_s() + rest_s
            elif said:
                self._fail(name, said)
        for sample in found:
            self.latest[sample.source] = sample
            self._troubles.pop(sample.source, None)
        return found

    def trouble(self, name: str) -> str:
        """Return why a source does not answer; empty if it does, or was not asked yet."""
        return self._troubles.get(name, "")

    def close(self) -> None:
        """Stop all running children."""
        for asked in self._asked.values():
            asked.close()

    def _start(self, name: str) -> None:
        try:
            self._asked[name].ask()
        except OSError as err:
            self._fail(name, DIED)
            log.warning("counters: %s cannot be asked: %s", name, err.strerror)

    def _fail(self, name: str, why: str) -> None:
        self.failures[name, why] += 1
        if name not in self._troubles:
            log.warning("counters: the process that reads %s %s", name, why)
        self._troubles[name] = why
        self._next_s[name] = self._clock.boot_s() + REST_MAX_S
