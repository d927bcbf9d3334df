# SPDX-License-Identifier: Apache-2.0
"""The section NETWORK of a report: what the network proxies moved, by direction and peer."""

from collections.abc import Iterator

from nccl_inspector.model.card import Card
from nccl_inspector.model.card_network import SEND, Network, NetworkPeer, QueuePair
from nccl_inspector.model.table_columns import make_columns
from nccl_inspector.model.wording import (
    compact,
    cut_list,
    duration,
    elapsed,
    number,
    percent,
    volume,
)
from nccl_inspector.render.output_limits import Limits
from nccl_inspector.render.tables import Grid, Row

_NS = 1e9
_NAME_CHARS = 16
_COLUMNS = make_columns(
    "process:", "node:", "peer:", "its node:", "communicator:", "bytes", "steps", "GPU",
    "receiver", "network", "flush",
)  # fmt: skip
_NO_ADAPTERS = (
    "Which adapters carried this is not known: NCCL tells its queue pairs only if it was built "
    "with NET_PROFILER=1."
)
_WHICH_ADAPTER = (
    "NCCL does not name adapters, it numbers those of a connection. While a job runs, `rdma "
    "resource show qp` on its node says to which adapter a queue pair (lqpn) belongs."
)
_UNSEEN = (
    "What the Device API, GIN and one-sided operations move is not in these figures: no profiler "
    "plugin sees it."
)


def _seconds(value_s: float) -> str:
    return duration(value_s * _NS) if value_s else "-"


def _queue_pair(one: QueuePair) -> str:
    where = one.adapter or f"adapter {one.device} of its connection"
    moved = "" if one.bytes is None else f"{volume(one.bytes)} in "
    return f"queue pair {one.number} of {where}: {moved}{number(one.requests, 'request')}"


def _below(one: NetworkPeer, limits: Limits) -> Iterator[str]:
    if one.queue_pairs:
        yield cut_list(map(_queue_pair, one.queue_pairs), limits.names)
    if one.other_requests:
        yield f"{number(one.other_requests, 'request')} over further queue pairs"
    if one.socket_requests:
        yield f"{number(one.socket_requests, 'request')} over TCP sockets"


def _rows(one: NetworkPeer, names: dict[str, str], limits: Limits) -> Iterator[Row]:
    way = "to" if one.direction == SEND else "from"
    yield Row(
        (
            one.process,
            one.node,
            f"{way} rank {one.peer}",
            one.peer_node or "-",
            (names.get(one.communicator) or one.communicator)[:_NAME_CHARS],
            volume(one.bytes),
            compact(one.steps),
            *map(_seconds, (one.gpu_s, one.credit_s, one.wire_s, one.flush_s)),
        )
    )
    for words in _below(one, limits):
        yield Row(between=f"     {words}")


def _ports(found: Network) -> Iterator[str]:
    """Yield a sentence about how much more the ports sent than these figures have."""
    if not found.ports:
        return
    sent = sum(one.sent_bytes for one in found.ports)
    other = sum(one.other_bytes for one in found.ports)
    most = max(found.ports, key=lambda one: one.other_bytes / one.sent_bytes)
    share = percent(most.other_bytes / most.sent_bytes)
    on_most = f", most on {most.node} ({share})" if len(found.ports) > 1 else ""
    yield (
        f"The InfiniBand ports of {number(len(found.ports), 'node')} sent {volume(sent)}, of which "
        f"{volume(other)} ({percent(other / sent)}) are not in these figures{on_most}: "
        "headers, storage, other programs, or what no plugin sees."
    )


def _lines(found: Network, limits: Limits) -> Iterator[str]:
    if found.directions > limits.peers:
        left = number(found.directions - min(limits.peers, len(found.peers)), "direction")
        yield limits.more(f"{left} with fewer bytes")
    pairs = [queue for one in found.peers for queue in one.queue_pairs]
    if found.peers and not pairs and not any(one.socket_requests for one in found.peers):
        yield _NO_ADAPTERS
    if any(not queue.adapter for queue in pairs):
        yield _WHICH_ADAPTER
    if found.sampled:
        yield (
            f"{number(found.sampled, 'process')} took this of some operations only, to spare the "
            "application: their bytes are too few"
        )
    if found.not_followed:
        yield (
            f"{number(found.not_followed, 'operation')} of the network proxy not in these figures: "
            "another process's (PXN), CollNet's, or more than are followed"
        )
    if found.refused:
        refused = number(found.refused, "event")
        yield f"{refused} refused: they cannot be true, or are of a network that is not known"
    yield from _ports(found)
    yield _UNSEEN


def network(card: Card, limits: Limits) -> Grid:
    """Return the section NETWORK; empty if no network detail was taken."""
    found = card.network
    if found is None:
        return Grid("NETWORK")
    taken = f" in {elapsed(found.taken_s)}" if found.taken_s else ""
    names = {one.id: one.name for one in card.communicators}
    rows = [row for one in found.peers[: limits.peers] for row in _rows(one, names, limits)]
    about = (
        f"({volume(found.sent_bytes)} sent and {volume(found.received_bytes)} received by NCCL's "
        f"network proxies{taken}, and what these waited for, summed over channels)"
    )
    return Grid("NETWORK", about, _COLUMNS, tuple(rows), tuple(_lines(found, limits)))
