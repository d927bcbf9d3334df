# SPDX-License-Identifier: Apache-2.0
"""Counters of all ports, GPUs and NVLinks of a node, as a busy site has them.

Eight ports, eight GPUs with 18 links each. Ports and GPUs have every counter of the table, links
those of a Hopper GPU. What rises in every job rises on all of them: waiting ports, marks of
congestion, capped power. One port and one GPU have many more, and some links a few replays.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from nccl_inspector.counters.counter_record import CounterRecord
from nccl_inspector.counters.counter_table import names_of
from nccl_inspector.counters.node_counters import Count, DeviceCounters, NodeCounters, Risen
from nccl_inspector.counters.sample import GPU, INFINIBAND, PRESSURE, Device, Sample
from tests.bench.sampled import LOCAL

LINKS = 18
_LINK_COUNTERS = ("replay", "recovery", "crc", "data_tx", "data_rx")
_SAMPLE_S = 60
# How much each busy counter rises in a second, about; all others stay 0.
_BUSY = {
    "port_xmit_data": 5e9, "port_rcv_data": 5e9, "port_xmit_packets": 5e6, "port_rcv_packets": 5e6,
    "port_xmit_wait": 2e6, "np_ecn_marked_roce_packets": 2e3, "np_cnp_sent": 2e3,
    "rp_cnp_handled": 2e3, "out_of_sequence": 0.05, "roce_adp_retrans": 0.01,
    "rx_write_requests": 4e5, "rx_read_requests": 10.0, "rx_atomic_requests": 1.0,
    "power_cap": 8e7, "pcie_tx": 5e7, "pcie_rx": 5e7, "pcie_correctable": 0.001,
    "data_tx": 2e7, "data_rx": 2e7,
    "cpu_some": 1e3, "io_some": 1e3,
}  # fmt: skip
_ODD_TIMES = 30  # a device that stands out has this many times as much
_ODD = {("port", "mlx5_3/1"): "port_xmit_wait", ("gpu", "GPU3"): "power_cap"}
_REPLAYS_OF = 50  # NVLinks, of which one has a few replays
_FACTS = {
    "port": {"state": "ACTIVE", "phys_state": "LinkUp", "rate": "400 Gb/sec (4X NDR)",
             "link_layer": "InfiniBand", "firmware": "28.39.1002"},
    "gpu": {"model": "NVIDIA H100 80GB HBM3"},
    "nvlink": {}, "node": {},
}  # fmt: skip
_LEVELS = {
    "gpu": {"nvlinks": LINKS, "nvlinks_active": LINKS, "pcie_width": 16, "pcie_width_max": 16,
            "pcie_generation": 5, "pcie_generation_max": 5, "sm_clock_mhz": 1755,
            "sm_clock_max_mhz": 1980, "temperature_celsius": 61},
    "nvlink": {"speed_mb_s": 26562},
}  # fmt: skip


def _names() -> Iterator[tuple[str, str, str]]:
    """Yield source, kind and name of all devices of a node."""
    for at in range(LOCAL):
        yield INFINIBAND, "port", f"mlx5_{at}/1"
    for at in range(LOCAL):
        yield GPU, "gpu", f"GPU{at}"
        for link in range(LINKS):
            yield GPU, "nvlink", f"GPU{at}/{link}"
    yield PRESSURE, "node", ""


@cache
def _alike(start_s: int, wall_s: int) -> NodeCounters:
    """Return what the agent's samples of one node come to."""
    chance = random.Random(2)  # noqa: S311 - no secret
    record = CounterRecord(whole_node=False)
    readings = {
        (source, kind, name): dict.fromkeys(
            _LINK_COUNTERS if kind == "nvlink" else names_of(kind), 0.0
        )
        for source, kind, name in _names()
    }
    for time_s in range(0, wall_s + 1, _SAMPLE_S):
        by_source: dict[str, list[Device]] = {INFINIBAND: [], GPU: [], PRESSURE: []}
        for (source, kind, name), values in readings.items():
            for counter in values:
                if time_s and counter in _BUSY:
                    values[counter] += _BUSY[counter] * _SAMPLE_S * chance.lognormvariate(0, 0.3)
            found = {counter: int(value) for counter, value in values.items()}
            by_source[source].append(
                Device(kind, name, found, dict(_LEVELS.get(kind, {})), dict(_FACTS[kind]))
            )
        for source, devices in by_source.items():
            record.add(Sample(source, start_s + time_s, float(time_s), tuple(devices)))
    return record.counters()


def _times(count: Count, factor: float) -> Count:
    rows = tuple(Risen(one.from_s, one.to_s, int(one.amount * factor)) for one in count.risen)
    return Count(int(count.total * factor), count.flags, rows)


def _device(one: DeviceCounters, chance: random.Random, odd: str) -> DeviceCounters:
    counts = {
        name: _times(count, chance.lognormvariate(0, 0.3) * (_ODD_TIMES if name == odd else 1))
        if count.total
        else count
        for name, count in one.counts.items()
    }
    if "replay" in counts and not chance.randrange(_REPLAYS_OF):
        counts["replay"] = Count(chance.randrange(1, 9))
    return replace(one, counts=counts)


def counters_of(node: int, nodes: int, start_s: int, wall_s: int) -> NodeCounters:
    """Return the counters of a node; the node in the middle has the devices that stand out."""
    chance = random.Random(node)  # noqa: S311 - no secret
    odd = _ODD if node == nodes // 2 else {}
    alike = _alike(start_s, wall_s)
    devices = (_device(one, chance, odd.get((one.kind, one.name), "")) for one in alike.devices)
    return replace(alike, devices=tuple(devices))
