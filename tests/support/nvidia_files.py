# SPDX-License-Identifier: Apache-2.0
"""A writer of files as NVIDIA's plugin is one, and an agent that reads them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from nccl_inspector.agent.nvidia.file import parse_vendor
from nccl_inspector.agent.nvidia.vendor_record import VendorRecord
from nccl_inspector.agent.publish import Publisher
from tests.support.boxes import NOW_S, give
from tests.support.clocks import StillClock

UUID = "GPU-1a2b3c4d-0000-1111-2222-333344445555"
FILE = f"nccl_inspector_metrics_{UUID}.prom"
RATE, TIME = "nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"


def labels(size: str, *, p2p: bool = False, comm_name: str = "unknown") -> str:
    what = 'p2p_operation="Send"' if p2p else 'collective="AllReduce"'
    end = "" if p2p else ',algo_proto="RING_SIMPLE"'
    return (
        f'version="v5.1",slurm_job_id="4711",node="vm",gpu="GPU0",comm_name="{comm_name}",'
        f'n_nodes="2",nranks="16",{what},message_size="{size}"{end}'
    )


def bucket(size: str = "8-9KB", rate: str = "6.144", time: str = "20", **words: object) -> str:
    """Two lines as NVIDIA's plugin flushes them."""
    text = labels(size, **words)  # type: ignore[arg-type]
    names = ("nccl_p2p_bus_bandwidth_gbs", "nccl_p2p_exec_time_microseconds")
    rate_name, time_name = names if words.get("p2p") else (RATE, TIME)
    return f"{rate_name}{{{text}}} {rate}\n{time_name}{{{text}}} {time}\n"


def totals(collectives: int = 400, dropped: int = 12, p2p: int = 30, p2p_dropped: int = 3) -> str:
    """The four lines that follow the buckets with NCCL_INSPECTOR_PROM_DUMP_STATS=1."""
    text = 'version="v5.1",slurm_job_id="4711",node="vm",gpu="GPU0"'
    return (
        f"nccl_collectives_total{{{text}}} {collectives}\n"
        f"nccl_collectives_dropped_total{{{text}}} {dropped}\n"
        f"nccl_p2p_total{{{text}}} {p2p}\n"
        f"nccl_p2p_dropped_total{{{text}}} {p2p_dropped}\n"
    )


class Writer:
    """Writes as NVIDIA's plugin does: one handle, truncated and rewritten in place, 0777."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._fd = os.open(path, flags, 0o777)
        os.fchmod(self._fd, 0o777)
        give(path)

    def begin(self) -> None:
        os.ftruncate(self._fd, 0)

    def flush(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def dump(self, *buckets: str) -> None:
        self.begin()
        for one in buckets:
            self.flush(one)

    def close(self) -> None:
        os.close(self._fd)


def passes(agent: Publisher, clock: StillClock, count: int = 2, pause_s: float = 5.0) -> None:
    for _ in range(count):
        agent.run_pass()
        clock.now_s += pause_s


def record_of(dumps: Mapping[str, Sequence[str]]) -> VendorRecord:
    """Return what an agent keeps of dumps, by GPU; one each ten seconds."""
    record = VendorRecord()
    for gpu, texts in dumps.items():
        for at, text in enumerate(texts):
            record.add(gpu, (at, 0, 0), NOW_S + 30 + 10 * at, parse_vendor(text.encode(), gpu, {}))
    return record
