# SPDX-License-Identifier: Apache-2.0
"""A box's figures by kind of operation, by peer, and on the network, for all its communicators.

Each function returns the entries that are possible, and a text for each that was left out.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import Any

from nccl_inspector.box.copy import USED, BoxCopy
from nccl_inspector.box.layout import (
    HIST,
    KEY,
    NET,
    NET_QUEUE,
    NET_QUEUES,
    PEER,
    QUEUE_DEVICES,
    QUEUE_NUMBER_BITS,
    WORD_MAX,
)
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.model.process import (
    ALGOS,
    COMM_FOLDED,
    FUNCS,
    P2P_FUNCS,
    PROTOS,
    Comm,
    Histogram,
    Key,
    Peer,
)

_KEY = KEY.reader(
    "used", "comm", "func", "size_class", "algo", "proto", "ops", "bytes", "busy_ns", "min_ns",
    "max_ns", "log2_rate_q20", "first_index", "last_index", "untimed_ops", "untimed_bytes",
    "phased_ops", "wait_ns", "queued_ns", "queued_looks",
)  # fmt: skip
_PEER = PEER.reader(
    "used", "comm", "func", "peer", "ops", "bytes", "busy_ns", "log2_rate_q20", "best_rate_q20"
)
_NET = NET.reader(
    "used", "steps", "comm", "comm_generation", "peer", "is_send", "refused", "bytes",
    "socket_requests", "other_requests", "other_bytes",
)  # fmt: skip
_NET_QUEUE = NET_QUEUE.reader("pair", "requests", "bytes")
_NET_SUMS = ("steps", "bytes", "refused", "socket_requests", "other_requests", "other_bytes")
_NET_TIMES = ("gpu_ns", "peer_ns", "wire_ns", "flush_ns")


def _histogram(copy: BoxCopy, base: int) -> Histogram:
    """Return the buckets that are not 0; most of the 896 are."""
    raw = copy.data[base : base + HIST.size].rstrip(b"\0")
    first = (len(raw) - len(raw.lstrip(b"\0"))) // 4
    end = -(-len(raw) // 4)
    counts = struct.unpack_from(f"<{end - first}I", copy.data, base + 4 * first)
    return Histogram(tuple(compress(range(first, end), counts)), tuple(filter(None, counts)))


def _is_key(words: Mapping[str, int], comms: Mapping[int, Comm]) -> bool:
    return (
        words["comm"] in comms
        and words["func"] < len(FUNCS)
        and words["algo"] < len(ALGOS)
        and words["proto"] < len(PROTOS)
        and words["size_class"] <= 63
    )


def read_keys(copy: BoxCopy, comms: Mapping[int, Comm]) -> tuple[tuple[Key, ...], list[str]]:
    """Return the kinds of operation with at least one operation, with or without a time."""
    found, flags = [], []
    for index in copy.keys.places(copy.data, "used", USED):
        words = _KEY.at(copy.data, copy.keys.offset + index * KEY.size)
        if words.pop("used") != 1 or not (words["ops"] or words["untimed_ops"]):
            continue
        if _is_key(words, comms):
            histogram = _histogram(copy, copy.hists.offset + index * HIST.size)
            found.append(Key(histogram=histogram, **words))
        else:
            flags.append("an invalid kind of operation is left out")
    return tuple(found), flags


def _is_rank_of(rank: int, comm: Comm) -> bool:
    """Tell whether the rank is possible; NCCL before 2.27 does not tell the number of ranks."""
    return rank >= 0 and (rank < comm.nranks or not comm.nranks or comm.state == COMM_FOLDED)


def _add(one: Peer | None, words: Mapping[str, int]) -> Peer:
    """Return the sum: two threads that meet a new peer at the same time make two entries of it."""
    if one is None:
        return Peer(**words)
    return Peer(
        one.comm,
        one.func,
        one.peer,
        one.ops + words["ops"],
        one.bytes + words["bytes"],
        one.busy_ns + words["busy_ns"],
        one.log2_rate_q20 + words["log2_rate_q20"],
        max(one.best_rate_q20, words["best_rate_q20"]),
    )


def _fits(peer: Peer) -> bool:
    return max(peer.ops, peer.bytes, peer.busy_ns) <= WORD_MAX and peer.has_possible_rate()


def read_peers(copy: BoxCopy, comms: Mapping[int, Comm]) -> tuple[tuple[Peer, ...], list[str]]:
    """Return the peers with at least one completed Send or Recv, each once."""
    found: dict[tuple[int, int, int], Peer] = {}
    flags = []
    for index in copy.peers.places(copy.data, "used", USED):
        words = _PEER.at(copy.data, copy.peers.offset + index * PEER.size)
        if words.pop("used") != 1 or not words["ops"]:
            continue
        comm = comms.get(words["comm"])
        place = words["comm"], words["func"], words["peer"]
        both = _add(found.get(place), words)
        if comm and words["func"] in P2P_FUNCS and _is_rank_of(words["peer"], comm) and _fits(both):
            found[place] = both
        else:
            flags.append("an invalid peer is left out")
    return tuple(found.values()), flags


def _queues(data: bytes, base: int) -> list[NetQueue]:
    """Return the queue pairs of the network entry that begins at `base`."""
    found = []
    for index in range(NET_QUEUES):
        words = _NET_QUEUE.at(data, base + NET.offsets["queues"] + index * NET_QUEUE.size)
        pair, requests = words["pair"], words["requests"]
        if pair and requests:
            device, number = pair >> QUEUE_NUMBER_BITS, pair & ((1 << QUEUE_NUMBER_BITS) - 1)
            found.append(NetQueue(device, number, requests, words["bytes"]))
    return found


def _add_queues(one: Iterable[NetQueue], other: Iterable[NetQueue]) -> tuple[NetQueue, ...]:
    found: dict[tuple[int, int], NetQueue] = {}
    for queue in chain(one, other):
        place = queue.device, queue.number
        before = found.get(place, NetQueue(*place, 0, 0))
        requests, size = before.requests + queue.requests, before.bytes + queue.bytes
        found[place] = NetQueue(*place, requests, size)
    return tuple(found.values())


def _net(words: Mapping[str, int], ns: Sequence[int], queues: Iterable[NetQueue]) -> Net:
    times = dict(zip(_NET_TIMES, ns, strict=True))
    sums = {name: words[name] for name in _NET_SUMS}
    own: dict[str, Any] = {name: words[name] for name in ("comm", "peer", "is_send")}
    return Net(**own, **sums, **times, queues=_add_queues(queues, ()))


def _add_net(one: Net | None, other: Net) -> Net:
    """Return the sum of two entries, as `_add` does for peers."""
    if one is None:
        return other
    names = (*_NET_SUMS, *_NET_TIMES)
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    return replace(one, queues=_add_queues(one.queues, other.queues), **sums)


def _net_fits(net: Net) -> bool:
    sums = (getattr(net, name) for name in (*_NET_SUMS, *_NET_TIMES))
    queues = ((one.requests, one.bytes) for one in net.queues)
    known = all(one.device < QUEUE_DEVICES and one.number for one in net.queues)
    return known and max(*sums, *chain.from_iterable(queues)) <= WORD_MAX and net.is_send <= 1


def read_nets(
    copy: BoxCopy, comms: Mapping[int, Comm], generations: Mapping[int, int]
) -> tuple[tuple[Net, ...], list[str]]:
    """Return the network detail, with each direction of each peer once.

    `generations`: the current generation of each communicator, by index. Entries of an earlier
    generation are left out, because that communicator is gone.
    """
    found: dict[tuple[int, int, int], Net] = {}
    flags = []
    for index in copy.nets.places(copy.data, "used", USED):
        base = copy.nets.offset + index * NET.size
        words, ns = _NET.at(copy.data, base), NET.numbers(copy.data, "ns", base)
        if words["used"] != 1 or not (words["steps"] or any(ns)):
            continue
        if generations.get(words["comm"], words["comm_generation"]) != words["comm_generation"]:
            continue
        comm = comms.get(words["comm"])
        place = words["comm"], words["peer"], words["is_send"]
        both = _add_net(found.get(place), _net(words, ns, _queues(copy.data, base)))
        if comm and _is_rank_of(words["peer"], comm) and _net_fits(both):
            found[place] = both
        else:
            flags.append("invalid network detail is left out")
    return tuple(found.values()), flags
