# SPDX-License-Identifier: Apache-2.0
"""What the ranks call, each scene on a communicator of its own."""

import os
from collections.abc import Callable

from tests.nccl.nccl import DECOMPOSED_SINCE, Comm

# The ranks are on one host, or each on one of its own.
# Or on one host, with the setting `broadcasts`.
HOST, NETWORK, TOLD = "host", "network", "told"
RANKS = 3
# From here on NCCL tells of a Broadcast only that it was called.
BROADCAST_UNTOLD_SINCE = 22900
KIB = 1 << 10
FLOAT = 4
ROUNDS = 12
BURST = 60  # a channel's last 64 works are those whose times NCCL can still read
# Before, a kernel that begins and ends between two looks of NCCL's thread has an end and no start.
STARTS_TOLD_SINCE = 23100
# What makes NCCL's host and its kernels count differently, so that later operations get the times
# of earlier ones: enum box_mixed of plugin/box/box.h, and the releases.
SELF, GRAPH, BROADCAST, UNASKED = 1, 2, 3, 4
FIXED, EVER = 23100, 99999
MIXED = {
    "all_to_all": (SELF, 0, FIXED),
    "after_self": (SELF, 0, FIXED),
    "decomposed": (SELF, 0, FIXED),
    "graph_and_calls": (GRAPH, 0, FIXED),
    "after_broadcast": (BROADCAST, FIXED, EVER),
    "switched_off": (UNASKED, 0, EVER),
}
# Of these every time would be another operation's: they last longer than those before.
AFTERWARDS = ("after_self", "after_broadcast", "switched_off")
BATCH_NS, LONG_NS, SHORT_NS = 30_000, 300_000, 900
OVERRUN, AGGREGATED = "overrun", "aggregated"

Scene = Callable[[Comm], None]


def collectives(comm: Comm) -> None:
    """Several functions in several sizes; NCCL has no name for uint8."""
    for _ in range(ROUNDS):
        for count in (16, 4 * KIB, 256 * KIB):
            comm.collective("AllReduce", count)
            comm.collective("ReduceScatter", count)
            comm.collective("AllGather", count)
            comm.collective("Reduce", count, root=1)
        comm.collective("AllReduce", 9000, "uint8")
        comm.nccl.settle()


def broadcasts(comm: Comm) -> None:
    """The function of which NCCL tells only the call from 2.29 on."""
    for _ in range(ROUNDS):
        for count in (16, 4 * KIB, 256 * KIB):
            comm.collective("Broadcast", count, root=2)
        comm.nccl.settle()


def aggregated(comm: Comm) -> None:
    """Several collectives in one group: NCCL launches them together."""
    for _ in range(ROUNDS):
        with comm.nccl.group():
            for count in (16, 16, KIB, 64 * KIB):
                comm.collective("AllReduce", count)
            comm.collective("AllGather", 8 * KIB)
        comm.nccl.settle()


def burst(comm: Comm) -> None:
    """Calls without a pause, as many as NCCL can tell the times of."""
    for _ in range(ROUNDS // 4):
        for _ in range(BURST):
            comm.collective("AllReduce", 2 * KIB)
        comm.nccl.settle()


def overrun(comm: Comm) -> None:
    """More: where NCCL's thread comes late it reads the time of a later operation."""
    for _ in range(10 * BURST):
        comm.collective("AllReduce", 2 * KIB)


def ring(comm: Comm) -> None:
    """A Send to the next rank and a Recv from the one before, in a group."""
    for _ in range(ROUNDS):
        with comm.nccl.group():
            comm.send((comm.rank + 1) % comm.nranks, 5000)
            comm.receive((comm.rank - 1) % comm.nranks, 5000)
        comm.note_group("SendRecv", 5000 * FLOAT)
        comm.nccl.wait()


def lone_pairs(comm: Comm) -> None:
    """Sends and Recvs that are calls of their own."""
    for _ in range(ROUNDS):
        if comm.rank == 0:
            comm.send(1, 3 * KIB)
        if comm.rank == 1:
            comm.receive(0, 3 * KIB)
        comm.nccl.wait()


def all_to_all(comm: Comm) -> None:
    """What PyTorch's all_to_all is: a group with all ranks, oneself among them."""
    for _ in range(ROUNDS):
        with comm.nccl.group():
            for peer in range(comm.nranks):
                comm.send(peer, KIB)
                comm.receive(peer, KIB)
        comm.note_group("AlltoAll", comm.nranks * KIB * FLOAT)
        comm.nccl.wait()


def after_self(comm: Comm) -> None:
    """Longer operations after some with oneself: each must have the time of its own kernel."""
    all_to_all(comm)
    comm.nccl.settle()
    comm.nccl.batch_ns(LONG_NS)
    for _ in range(ROUNDS):
        comm.collective("AllReduce", 2 * KIB)
        comm.nccl.settle()
    comm.nccl.batch_ns(BATCH_NS)


def instant(comm: Comm) -> None:
    """Operations so short that NCCL may see start and end in one look."""
    comm.nccl.batch_ns(SHORT_NS)
    for _ in range(ROUNDS):
        for _ in range(BURST):
            comm.collective("AllReduce", 16)
        comm.nccl.settle()
    comm.nccl.batch_ns(BATCH_NS)


def mixed_group(comm: Comm) -> None:
    """Collectives, Sends and Recvs in one group."""
    for _ in range(ROUNDS):
        with comm.nccl.group():
            comm.collective("AllReduce", 32 * KIB)
            for peer in comm.others:
                comm.send(peer, 2 * KIB)
                comm.receive(peer, 2 * KIB)
        comm.note_group("AlltoAll", len(comm.others) * 2 * KIB * FLOAT)
        comm.nccl.wait()


def decomposed(comm: Comm) -> None:
    """NCCL's own AlltoAll, Gather and Scatter."""
    share = KIB * FLOAT
    for _ in range(ROUNDS):
        comm.decomposed("AlltoAll", KIB)
        comm.note_group("AlltoAll", comm.nranks * share)
        comm.decomposed("Gather", KIB)
        comm.decomposed("Scatter", KIB)
        if comm.rank == 0:
            comm.note_group("Gather", comm.nranks * share)
            comm.note_group("Scatter", comm.nranks * share)
        comm.nccl.wait()


def graph(comm: Comm) -> None:
    """A captured graph, launched again and again."""
    with comm.nccl.capture(ROUNDS):
        comm.collective("AllReduce", KIB)
        comm.collective("ReduceScatter", 16 * KIB)
        with comm.nccl.group():
            comm.send((comm.rank + 1) % comm.nranks, 5000)
            comm.receive((comm.rank - 1) % comm.nranks, 5000)
        comm.note_group("SendRecv", 5000 * FLOAT)
    comm.collective("AllReduce", KIB)
    comm.nccl.settle()


def after_broadcast(comm: Comm) -> None:
    """Longer operations after Broadcasts, as when a training begins."""
    for _ in range(ROUNDS):
        comm.collective("Broadcast", 4 * KIB)
        comm.nccl.settle()
    comm.nccl.batch_ns(LONG_NS)
    for _ in range(ROUNDS):
        comm.collective("AllReduce", 2 * KIB)
        comm.nccl.settle()
    comm.nccl.batch_ns(BATCH_NS)


def switched_off(comm: Comm) -> None:
    """The site's kill switch, on and off again; last of all, for it is of all communicators."""
    comm.collective("AllGather", KIB)
    comm.nccl.settle()
    with comm.nccl.switched_off():
        for _ in range(ROUNDS):
            comm.collective("AllGather", KIB, unseen=True)
        comm.nccl.wait()
    comm.nccl.batch_ns(LONG_NS)
    for _ in range(ROUNDS):
        comm.collective("AllReduce", 2 * KIB)
        comm.nccl.settle()
    comm.nccl.batch_ns(BATCH_NS)


def graph_and_calls(comm: Comm) -> None:
    """A graph is launched between calls on the same communicator, which take longer."""

    def call() -> None:
        comm.nccl.batch_ns(LONG_NS)
        comm.collective("AllGather", KIB)
        comm.nccl.settle()
        comm.nccl.batch_ns(BATCH_NS)

    with comm.nccl.capture(ROUNDS, call):
        comm.collective("AllReduce", KIB)


def scenes(place: str, nccl_version: int) -> dict[str, Scene]:
    """Return the scenes that a release can play, by the name of their communicator."""
    if place == TOLD:
        chosen = [broadcasts, after_broadcast]
    elif place == NETWORK:
        chosen = [collectives, ring, all_to_all, graph]
        if nccl_version < BROADCAST_UNTOLD_SINCE:  # its steps neither
            chosen.append(broadcasts)
    else:
        chosen = [collectives, broadcasts, aggregated, burst, overrun, ring, lone_pairs]
        chosen += [all_to_all, after_self, instant, mixed_group, graph, graph_and_calls]
        chosen.append(after_broadcast)
        if nccl_version >= DECOMPOSED_SINCE:
            chosen.append(decomposed)
        chosen.append(switched_off)
    only = os.environ.get("TEST_NCCL_SCENES", "").split()
    return {one.__name__: one for one in chosen if not only or one.__name__ in only}
