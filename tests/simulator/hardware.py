# SPDX-License-Identifier: Apache-2.0
"""What counters of ports, GPUs and nodes said during a simulated job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.counters.node_counters import (
    Change,
    Count,
    DeviceCounters,
    Level,
    NodeCounters,
    Risen,
    Span,
    XidSeen,
)
from tests.simulator.machine import Machine

_PORT_ZEROS = (
    "link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors",
    "local_link_integrity_errors", "port_xmit_discards", "local_ack_timeout_err",
    "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "req_transport_retries_exceeded",
    "port_xmit_wait", "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled",
    "duplicate_request", "port_xmit_packets", "port_rcv_packets",
)  # fmt: skip
_GPU_ZEROS = (
    "ecc_corrected", "ecc_uncorrected", "nvlink_replay", "nvlink_recovery", "pcie_replay",
    "power_cap", "hw_thermal", "sw_thermal", "thermal", "power_brake",
)  # fmt: skip
_SAMPLES_S = 60


@dataclass(frozen=True)
class Event:
    """Something that a device of a node counted, from and to seconds since the job's start.

    `counter` beginning with `=`: a level or a fact that had this value all the time.
    """

    node: int
    kind: str  # port, gpu, nvlink, node, xid
    device: str
    counter: str
    amount: int = 1
    from_s: float = 0.0
    to_s: float = 1e9
    text: str = ""  # of a fact that changed to it at `from_s`


def port(nic: int) -> str:
    """Return a port's name on its node."""
    return f"mlx5_{nic}/1"


def pci(local: int) -> str:
    """Return where a GPU sits."""
    return f"0000:{0x10 + local:02x}:00"


def _port_events(
    node: int, name: str, machine: Machine, chance: np.random.Generator, wall_s: float, marks: bool
) -> list[Event]:
    hours = wall_s / 3600
    moved = int(chance.normal(1, 0.02) * wall_s * machine.nic_gbs * 1e9 * 0.15 / 4)
    amounts = {
        "port_xmit_data": moved, "port_rcv_data": moved,
        "port_xmit_packets": moved // 1000, "port_rcv_packets": moved // 1000,
        "port_xmit_wait": int(chance.lognormal(14, 1)),
        "out_of_sequence": int(chance.poisson(4) * (chance.random() < 0.3)),
        "packet_seq_err": int((1 + chance.poisson(2)) * (chance.random() < 0.15 * hours)),
        "local_ack_timeout_err": int(chance.random() < 0.02 * hours),
    }  # fmt: skip
    if marks:
        amount = int(chance.lognormal(7, 1.2))
        amounts |= {"np_ecn_marked_roce_packets": amount, "np_cnp_sent": amount // 3,
                    "rp_cnp_handled": amount // 4}  # fmt: skip
    return [Event(node, "port", name, counter, amount) for counter, amount in amounts.items()]


def _gpu_events(node: int, name: str, chance: np.random.Generator, wall_s: float) -> list[Event]:
    amounts = {
        "power_cap": int(abs(chance.normal(0.01, 0.004)) * wall_s * 1e9),
        "ecc_corrected": int(chance.random() < 0.1),
        "nvlink_replay": int((1 + chance.poisson(2)) * (chance.random() < 0.2)),
    }
    return [Event(node, "gpu", name, counter, amount) for counter, amount in amounts.items()]


def everyday(machine: Machine, chance: np.random.Generator, wall_s: float) -> list[Event]:
    """Return what ports and GPUs count in a healthy job: marks, waits, some retransmissions."""
    found: list[Event] = []
    marks = bool(chance.random() < 0.6)
    for node in range(machine.nodes):
        for nic in range(machine.nics):
            found += _port_events(node, port(nic), machine, chance, wall_s, marks)
        for gpu in range(machine.gpus):
            found += _gpu_events(node, f"GPU{gpu}", chance, wall_s)
        for counter, most in (("cpu_some", 0.02), ("io_some", 0.01)):
            amount = int(wall_s * 1e6 * chance.uniform(0, most))
            found.append(Event(node, "node", "", counter, amount))
    return [one for one in found if one.amount]


def _count(events: Sequence[Event], start_s: int, wall_s: float) -> Count:
    risen = []
    for one in events:
        first = start_s + int(max(0.0, one.from_s) // _SAMPLES_S * _SAMPLES_S)
        last = start_s + int(-(-min(one.to_s, wall_s) // _SAMPLES_S) * _SAMPLES_S)
        if one.amount:
            risen.append(Risen(first, max(last, first + 1), one.amount))
    risen.sort()
    return Count(sum(one.amount for one in risen), (), tuple(risen[:16]))


def _device(
    kind: str, name: str, usual: Mapping[str, int], facts: Mapping[str, str],
    levels: Mapping[str, int], events: Iterable[Event], start_s: int, wall_s: float,
) -> DeviceCounters:  # fmt: skip
    of_counter: dict[str, list[Event]] = {counter: [] for counter in usual}
    changes = {word: (Change(start_s, text),) for word, text in facts.items()}
    seen = dict(levels)
    for one in events:
        if one.counter.startswith("="):
            word = one.counter[1:]
            if one.text:
                before = () if one.from_s <= 0 else changes.get(word, ())
                changes[word] = (*before, Change(start_s + int(one.from_s), one.text))
            else:
                seen[word] = one.amount
        else:
            of_counter.setdefault(one.counter, []).append(one)
    samples = max(2, int(wall_s // _SAMPLES_S))
    return DeviceCounters(
        kind,
        name,
        {counter: _count(some, start_s, wall_s) for counter, some in of_counter.items()},
        {word: Level(value, value, value * samples, samples) for word, value in seen.items()},
        changes,
    )


def _devices(machine: Machine) -> Iterable[tuple[str, str, Sequence[str], dict[str, str]]]:
    for nic in range(machine.nics):
        facts = {"state": "ACTIVE", "phys_state": "LinkUp", "rate": machine.nic_rate,
                 "link_layer": "InfiniBand", "firmware": "28.39.1002"}  # fmt: skip
        yield "port", port(nic), _PORT_ZEROS, facts
    for gpu in range(machine.gpus):
        facts = {"model": machine.model, "pci": pci(gpu)}
        yield "gpu", f"GPU{gpu}", _GPU_ZEROS, facts
    yield "node", "", ("cpu_some", "memory_some", "memory_full", "io_some", "io_full"), {}


def counters_of(
    machine: Machine, names: Sequence[str], events: Sequence[Event], start_s: int, wall_s: float
) -> dict[str, NodeCounters]:
    """Return the counters of each node, by its name."""
    found = {}
    for node, name in enumerate(names[: machine.nodes]):
        mine = [one for one in events if one.node == node]
        devices = []
        for kind, device, counters, facts in _devices(machine):
            levels = {}
            if kind == "gpu":
                levels = {"pcie_width": 16, "pcie_width_max": 16, "pcie_generation": 5,
                          "pcie_generation_max": 5, "sm_clock_mhz": 1900}  # fmt: skip
            some = [one for one in mine if (one.kind, one.device) == (kind, device)]
            facts = {**facts, "there": "yes"}
            usual = dict.fromkeys(counters, 0)
            devices.append(_device(kind, device, usual, facts, levels, some, start_s, wall_s))
        xids = tuple(
            XidSeen(start_s + int(one.from_s), one.device, one.amount)
            for one in mine
            if one.kind == "xid"
        )
        samples = max(2, int(wall_s // _SAMPLES_S))
        spans = tuple(
            Span(source, start_s, start_s + int(wall_s), int(wall_s), samples, "")
            for source in ("infiniband", "gpu", "pressure")
        )
        found[name] = NodeCounters(spans, tuple(devices), xids)
    return found
