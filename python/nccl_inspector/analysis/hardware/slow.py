# SPDX-License-Identifier: Apache-2.0
"""Whether a late process was late by its GPU or by its host, as far as the counters tell.

They prove nothing: they only show GPUs whose clocks were held down, and nodes that were short of
CPUs, which compute more slowly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.hardware.counter_rules import THROTTLES, XIDS
from nccl_inspector.analysis.hardware.counter_words import elapsed_of, share_of_time
from nccl_inspector.analysis.hardware.other_devices import OtherDevices
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.model.card import CRITICAL, GPU, HOST, UNKNOWN, Evidence
from nccl_inspector.summary.codec import NodeSummary

THROTTLED_MIN = 0.01  # of the time
POWER_CAPPED_MIN = 0.05
CPU_SHORT_MIN = 0.10  # of the time: some task waited for a CPU
TIMES_MIN = 2.0  # times the job's usual share


@dataclass(frozen=True, slots=True)
class SlowHardware:
    """GPUs and nodes that were slowed, with the evidence."""

    gpus: dict[tuple[str, str], tuple[Evidence, ...]]  # by node and GPU
    hosts: dict[str, tuple[Evidence, ...]]

    def kind_of(self, node: str, gpu: str) -> str:
        """Return host, gpu or unknown; also unknown if there is evidence for both."""
        by_gpu, by_host = (node, gpu) in self.gpus, node in self.hosts
        if by_gpu == by_host:
            return UNKNOWN
        return GPU if by_gpu else HOST

    def evidence(self, node: str, gpu: str) -> tuple[Evidence, ...]:
        """Return the evidence for either."""
        return (*self.gpus.get((node, gpu), ()), *self.hosts.get(node, ()))


def _share(node: NodeCounters, kind: str, name: str) -> dict[str, float]:
    """Return for each device the share of the time that a counter of time stands for."""
    elapsed_s = elapsed_of(node.spans, kind)
    known = load_counters()[kind, name]
    return {
        device: share
        for device, count in node.counts_of(kind, name)
        if (share := share_of_time(known, count.total, elapsed_s)) is not None
    }


def _high(
    counters: dict[str, NodeCounters], kind: str, name: str, least: float
) -> dict[tuple[str, str], Evidence]:
    """Return the devices with a high share, by node and name, compared with the others' median."""
    shares = {
        (node, device): share
        for node, one in counters.items()
        for device, share in _share(one, kind, name).items()
    }
    found = {}
    others = OtherDevices(shares.values())
    for key, share in shares.items():
        usual = others.median(share)
        if share >= max(least, TIMES_MIN * usual):
            reference = usual if others.count else None
            count = others.count or None
            found[key] = Evidence("counters", name, share, "share", reference, count)
    return found


def find_slow_hardware(summaries: Sequence[NodeSummary]) -> SlowHardware:
    """Return GPUs that were throttled or had an error, and nodes that were short of CPU."""
    counters = {one.head.node: one.counters for one in summaries if one.counters is not None}
    gpus: dict[tuple[str, str], tuple[Evidence, ...]] = {}
    for name in (*THROTTLES, "power_cap"):
        least = POWER_CAPPED_MIN if name == "power_cap" else THROTTLED_MIN
        for key, one in _high(counters, "gpu", name, least).items():
            gpus[key] = (*gpus.get(key, ()), one)
    for node, found in counters.items():
        for xid in found.xids:
            if xid.number in XIDS and XIDS[xid.number].severity == CRITICAL:
                seen = Evidence("counters", f"XID {xid.number}", 1, "events")
                gpus[node, xid.gpu] = (*gpus.get((node, xid.gpu), ()), seen)
    hosts: dict[str, tuple[Evidence, ...]] = {
        node: (one,)
        for (node, _), one in _high(counters, "node", "cpu_some", CPU_SHORT_MIN).items()
    }
    return SlowHardware(gpus, hosts)
