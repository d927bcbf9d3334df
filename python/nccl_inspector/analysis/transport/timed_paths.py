# SPDX-License-Identifier: Apache-2.0
"""How slow each path of a job was compared with its like: communicators, pairs of ranks, network.

A path is what a time was measured over: the nodes of a communicator, or the two nodes of a pair.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.net import Net
from nccl_inspector.model.process import FUNCS, Peer, Process

_OPERATIONS_MIN = 8  # the first ones carry the start-up of the job
_SIZE_CLASS_MIN = 16  # from 64 KiB on: the time of shorter messages is mostly latency and noise
_STEPS_MIN = 20
_Q20 = float(1 << 20)
_SEND = FUNCS.index("Send")


@dataclass(frozen=True, slots=True)
class Path:
    """A path; `ratio` is its time / that of the fast ones among its like."""

    nodes: frozenset[str]
    ratio: float
    name: str  # as text


@dataclass(frozen=True, slots=True)
class TimedPath:
    """A time to be compared with others of the same `like`; smaller is better."""

    nodes: frozenset[str]
    like: tuple[object, ...]
    time: float  # ns, ns per byte or ns per step: the same unit for all of its like
    name: str


def compare(timed: Iterable[TimedPath]) -> list[Path]:
    """Return paths that have others of their like; ratio 1 is the limit of the fastest quarter."""
    groups: dict[tuple[object, ...], list[TimedPath]] = defaultdict(list)
    for one in timed:
        groups[one.like].append(one)
    found = []
    for group in groups.values():
        usual = sorted(one.time for one in group)[(len(group) - 1) // 4]
        if len(group) > 1 and usual > 0:
            found += [Path(one.nodes, one.time / usual, one.name) for one in group]
    return found


def time_communicators(communicators: Iterable[JoinedComm]) -> list[TimedPath]:
    """Return T, without waiting, of the collectives in which all wait for all."""
    found = []
    for comm in communicators:
        nodes = frozenset(member.place.node for member in comm.members.values())
        for one in comm.figures:
            enough = one.operations >= _OPERATIONS_MIN and one.size_class >= _SIZE_CLASS_MIN
            if enough and one.func in SYNCHRONISING and one.compared and one.time_ns > 0:
                like = (one.func, one.size_class, one.algo_proto, comm.nranks, len(nodes))
                name = f"{comm.name or 'a communicator'} ({hex(comm.id)})"
                found.append(TimedPath(nodes, like, one.time_ns, name))
    return found


def _rank_nodes(processes: Iterable[tuple[str, Process]]) -> Mapping[tuple[int, int], str]:
    """Return the node of each rank, by communicator and rank."""
    return {(comm.id, comm.rank): node for node, one in processes for comm in one.comms}


def _ns_a_byte(peer: Peer) -> float:
    """Return the typical time per byte in ns: the geometric mean over the operations."""
    return float(2 ** (-peer.log2_rate_q20 / peer.ops / _Q20))


def time_pairs(processes: Sequence[tuple[str, Process]]) -> list[TimedPath]:
    """Return the time per byte of Sends and Recvs between ranks on two nodes, in each direction.

    The end that comes first waits for the other, so the end with the shorter time is used.
    """
    nodes = _rank_nodes(processes)
    best: dict[tuple[int, int, int, int], float] = {}
    for _, process in processes:
        comms = {comm.index: comm for comm in process.comms}
        for peer in process.peers:
            comm = comms.get(peer.comm)
            if comm is None or peer.ops < _OPERATIONS_MIN:
                continue
            if size_class(peer.bytes // peer.ops) < _SIZE_CLASS_MIN:
                continue
            ends = (comm.rank, peer.peer) if peer.func == _SEND else (peer.peer, comm.rank)
            key = comm.id, *ends, size_class(peer.bytes // peer.ops)
            best[key] = min(best.get(key, _ns_a_byte(peer)), _ns_a_byte(peer))
    found = []
    for (comm_id, sender, receiver, class_), time in best.items():
        ends_on = {nodes.get((comm_id, sender)), nodes.get((comm_id, receiver))}
        if None not in ends_on and len(ends_on) == 2:
            name = f"rank {sender} to rank {receiver} in {hex(comm_id)}"
            at = frozenset(node for node in ends_on if node)
            found.append(TimedPath(at, ("p2p", class_), time, name))
    return found


def _wire_ns(net: Net) -> float:
    return net.wire_ns / net.steps


def time_network(processes: Sequence[tuple[str, Process]]) -> list[TimedPath]:
    """Return how long a step of the network proxy was on its way, as the senders measured it."""
    nodes = _rank_nodes(processes)
    found = []
    for node, process in processes:
        comms = {comm.index: comm for comm in process.comms}
        for net in process.nets:
            comm = comms.get(net.comm)
            if comm is None or not net.is_send or net.steps < _STEPS_MIN:
                continue
            other = nodes.get((comm.id, net.peer))
            if other and other != node:
                name = f"rank {comm.rank} to rank {net.peer} in {hex(comm.id)}"
                like = ("net", comm.name, comm.nranks)
                found.append(TimedPath(frozenset({node, other}), like, _wire_ns(net), name))
    return found
