# SPDX-License-Identifier: Apache-2.0
"""What the network proxies of a job moved, by direction and peer, from network detail."""

from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.model.card_network import (
    RECEIVE,
    SEND,
    Network,
    NetworkPeer,
    PortBytes,
    QueuePair,
)
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.model.process import Comm, Process

PEERS_MAX = 256  # in a card: those with the most bytes
_NS = 1e9
_ACTIVE = "ACTIVE"
_SENT = "port_xmit_data"
_WORD_BYTES = 4  # the unit of that counter
_ALL_THE_TIME = 0.9  # of a process's life with communicators

Nodes = Mapping[tuple[int, int], str]  # by communicator's id and rank


def only_adapter(counters: NodeCounters | None) -> str:
    """Return the adapter that NCCL's InfiniBand transport used on a node, or empty if not certain.

    NCCL uses every adapter with an active port that its settings allow, and does not tell which of
    several carries a connection. So it is certain only if a single adapter was ever active.
    """
    states = counters.facts_of("port", "state") if counters and not counters.absent else ()
    active = {
        port.partition("/")[0]
        for port, changes in states
        if any(change.text == _ACTIVE for change in changes)
    }
    return active.pop() if len(active) == 1 else ""


def _queue_pair(queue: NetQueue, net: Net, adapter: str) -> QueuePair:
    sent = queue.bytes if net.is_send else None
    return QueuePair(queue.number, queue.device, queue.requests, sent, adapter)


def _peer(net: Net, comm: Comm, name: str, node: str, nodes: Nodes, adapter: str) -> NetworkPeer:
    queues = sorted(net.queues, key=lambda one: (-one.bytes, -one.requests))
    return NetworkPeer(
        process=name,
        node=node,
        communicator=hex(comm.id),
        rank=comm.rank,
        peer=net.peer,
        peer_node=nodes.get((comm.id, net.peer), ""),
        direction=SEND if net.is_send else RECEIVE,
        bytes=net.bytes,
        steps=net.steps,
        gpu_s=net.gpu_ns / _NS,
        credit_s=net.peer_ns / _NS,
        wire_s=net.wire_ns / _NS,
        flush_s=net.flush_ns / _NS,
        queue_pairs=tuple(_queue_pair(one, net, adapter) for one in queues),
        other_requests=net.other_requests,
        socket_requests=net.socket_requests,
        refused=net.refused,
    )


def _peers(
    placed: Sequence[tuple[str, Process]], names: Sequence[str], adapters: Mapping[str, str]
) -> Iterator[NetworkPeer]:
    nodes = {(comm.id, comm.rank): node for node, one in placed for comm in one.comms}
    for (node, process), name in zip(placed, names, strict=True):
        comms = {comm.index: comm for comm in process.comms}
        for net in process.nets:
            if comm := comms.get(net.comm):
                yield _peer(net, comm, name, node, nodes, adapters.get(node, ""))


def _sent_by_ports(counters: NodeCounters | None) -> int:
    sent = counters.counts_of("port", _SENT) if counters and not counters.absent else ()
    return sum(count.total for _, count in sent) * _WORD_BYTES


def _has_all(process: Process) -> bool:
    """Tell whether network detail was taken of all that a process did."""
    facts = process.facts
    if facts.sampled_ns or facts.net_missed or any(one.socket_requests for one in process.nets):
        return False
    began_ns = min((comm.created_ns for comm in process.comms), default=facts.beat_ns)
    return facts.net_ns >= _ALL_THE_TIME * (facts.beat_ns - began_ns) and facts.net_ns > 0


def _port_bytes(
    placed: Sequence[tuple[str, Process]], counters: Mapping[str, NodeCounters | None]
) -> Iterator[PortBytes]:
    """Yield what the ports of each node sent, and how much of it is in network detail.

    Only nodes are told whose processes had network detail all the time. A node whose ports sent
    less than its processes is left out: they used something else.
    """
    nodes: dict[str, list[Process]] = {}
    for node, process in placed:
        nodes.setdefault(node, []).append(process)
    for node, processes in nodes.items():
        sent = _sent_by_ports(counters.get(node))
        seen = sum(net.bytes for one in processes for net in one.nets if net.is_send)
        if sent and seen <= sent and all(map(_has_all, processes)):
            yield PortBytes(node, sent, seen)


def describe_network(
    placed: Sequence[tuple[str, Process]],
    names: Sequence[str],
    counters: Mapping[str, NodeCounters | None],
) -> Network | None:
    """Return what the processes' network detail says, or None if none was taken.

    `placed` are the processes with their nodes, `names` their names, `counters` those of each node.
    """
    if not any(process.nets or process.facts.net_missed for _, process in placed):
        return None
    adapters = {node: only_adapter(found) for node, found in counters.items()}
    found = sorted(
        _peers(placed, names, adapters),
        key=lambda one: (-one.bytes, -(one.gpu_s + one.credit_s + one.wire_s + one.flush_s)),
    )
    return Network(
        peers=tuple(found[:PEERS_MAX]),
        directions=len(found),
        sent_bytes=sum(one.bytes for one in found if one.direction == SEND),
        received_bytes=sum(one.bytes for one in found if one.direction == RECEIVE),
        not_followed=sum(process.facts.net_missed for _, process in placed),
        refused=sum(one.refused for one in found),
        taken_s=max(process.facts.net_ns for _, process in placed) / _NS,
        sampled=sum(process.facts.sampled_ns > 0 for _, process in placed),
        ports=tuple(_port_bytes(placed, counters)),
    )
