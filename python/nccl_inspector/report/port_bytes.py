# SPDX-License-Identifier: Apache-2.0
"""How much of what the InfiniBand ports of a node sent is missing from network detail."""

from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.counters.model import NodeCounters
from nccl_inspector.model.card_network import PortBytes
from nccl_inspector.model.process import Process

_SENT = "port_xmit_data"
_WORD_BYTES = 4  # the unit of that counter
_ALL_THE_TIME = 0.9  # share of a process's life with communicators


def _sent_by_ports(counters: NodeCounters | None) -> int:
    devices = counters.devices if counters and not counters.absent else ()
    counts = (one.counts.get(_SENT) for one in devices if one.kind == "port")
    return sum(count.total for count in counts if count) * _WORD_BYTES


def _has_all(process: Process) -> bool:
    """Tell whether network detail covers everything that a process did."""
    facts = process.facts
    if facts.sampled_ns or facts.net_missed or any(one.socket_requests for one in process.nets):
        return False
    began_ns = min((comm.created_ns for comm in process.comms), default=facts.beat_ns)
    return facts.net_ns >= _ALL_THE_TIME * (facts.beat_ns - began_ns) and facts.net_ns > 0


def port_bytes(
    placed: Sequence[tuple[str, Process]], counters: Mapping[str, NodeCounters | None]
) -> Iterator[PortBytes]:
    """Yield what the ports of each node sent, and how much of it is in network detail.

    Only nodes are returned whose processes had network detail all the time. A node whose ports sent
    less than its processes is left out, because the processes used something else.
    """
    nodes: dict[str, list[Process]] = {}
    for node, process in placed:
        nodes.setdefault(node, []).append(process)
    for node, processes in nodes.items():
        sent = _sent_by_ports(counters.get(node))
        seen = sum(net.bytes for one in processes for net in one.nets if net.is_send)
        if sent and seen <= sent and all(map(_has_all, processes)):
            yield PortBytes(node, sent, seen)
