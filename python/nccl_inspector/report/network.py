# SPDX-License-Identifier: Apache-2.0
"""What the network proxies of a job moved, by direction and peer, from network detail."""

from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.counters.model import NodeCounters
from nccl_inspector.model.card_network import RECEIVE, SEND, Network, NetworkPeer, QueuePair
from nccl_inspector.model.network import Net, NetQueue
from nccl_inspector.model.process import Comm, Process
from nccl_inspector.report.port_bytes import port_bytes

PEERS_MAX = 256  # in a card: those with the most bytes
_NS = 1e9
_ACTIVE = "ACTIVE"

Nodes = Mapping[tuple[int, int], str]  # by communicator's id and rank


def only_adapter(counters: NodeCounters | None) -> str:
    """Return the adapter that NCCL's InfiniBand transport used on a node, or empty if not certain.

    NCCL uses every adapter with an active port that its settings allow, and does not tell which of
    several carries a connection. So it is certain only if a single adapter was ever active.
    """
    devices = counters.devices if counters and not counters.absent else ()
    active = {
        one.name.partition("/")[0]
        for one in devices
        if one.kind == "port"
        and any(change.text == _ACTIVE for change in one.facts.get("state", ()))
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
        ports=tuple(port_bytes(placed, counters)),
    )
