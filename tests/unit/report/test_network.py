# SPDX-License-Identifier: Apache-2.0
"""The report's section NETWORK: bytes and queue pairs by direction and peer."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nccl_inspector.counters.node_counters import Change, Count, DeviceCounters, NodeCounters
from nccl_inspector.model.card_network import Network, NetworkPeer, QueuePair
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.render.json import card_from_json, to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.network import only_adapter
from nccl_inspector.summary.attempts import Loaded
from tests.support import stored_cards
from tests.support.boxes import MS, NOW_NS, fixed_chance
from tests.support.synthetic.jobs import US, Job, through_summaries

GB = 10**9
NOON = datetime(2026, 8, 2, 12, tzinfo=UTC)
QUEUES = NetQueue(0, 4711, 2000, 8 * GB), NetQueue(1, 4712, 1000, 4 * GB)
SENT = Net(0, 1, 1, 3000, 0, 0, 900 * MS, 0, bytes=12 * GB, queues=QUEUES)
RECEIVED = Net(0, 0, 0, 3000, 0, 0, 100 * MS, 20 * MS, bytes=11 * GB)


def port(name: str, *states: str) -> DeviceCounters:
    """Return the counters of a port that had these states."""
    changes = tuple(Change(1700000000 + at, state) for at, state in enumerate(states))
    return DeviceCounters("port", name, {}, {}, {"state": changes})


ONE_ADAPTER = NodeCounters(devices=(port("mlx5_0/1", "ACTIVE"), port("mlx5_1/1", "DOWN")))
TWO_ADAPTERS = NodeCounters(devices=(port("mlx5_0/1", "ACTIVE"), port("mlx5_1/1", "ACTIVE")))


def network_of(
    sent: Net = SENT,
    received: Net = RECEIVED,
    counters: NodeCounters | None = None,
    missed: int = 0,
    **facts_words: Any,
) -> tuple[Network, str, str]:
    """Return the section of a job of two nodes, as data, text and JSON; rank 0 sends to rank 1."""
    job = Job(fixed_chance(1), 2, 1)
    group = job.group("world", (0, 1))
    for _ in range(20):
        job.compute(20 * MS, {}, 20 * US)
        job.collective(group, "AllReduce", 1 << 24, 4 * MS)
    first, second = job.processes()
    facts = replace(first.facts, net_missed=missed, **facts_words)
    processes = [replace(first, nets=(sent,), facts=facts), replace(second, nets=(received,))]
    nodes = {one.facts.node: counters for one in processes} if counters else {}
    card = build_card(Loaded(tuple(through_summaries(processes, nodes)), (0,), ()))
    assert card.network is not None
    written = to_json(card, NOON)
    assert card_from_json(written).network is not None
    return card.network, " ".join(render_text(card).split()), written


def test_the_report_names_bytes_by_direction_and_peer() -> None:
    network, text, written = network_of()
    first, second = network.peers
    assert (first.direction, first.peer, first.bytes, first.peer_node) == ("send", 1, 12 * GB, "n2")
    assert (second.direction, second.peer, second.bytes) == ("receive", 0, 11 * GB)
    assert (network.sent_bytes, network.received_bytes) == (12 * GB, 11 * GB)
    assert "NETWORK (12.0 GB sent and 11.0 GB received" in text
    assert "rank 0 n1 to rank 1 n2 world 12.0 GB 3000" in text
    assert "rank 1 n2 from rank 0 n1 world 11.0 GB 3000" in text
    assert card_from_json(written).network == network
    (told, _) = json.loads(written)["network"]["peers"]
    assert told["bytes"] == 12 * GB
    assert told["queue_pairs"][0] == {
        "number": 4711, "device": 0, "requests": 2000, "bytes": 8 * GB, "adapter": "",
    }  # fmt: skip


@pytest.mark.parametrize("counters", [None, TWO_ADAPTERS, NodeCounters(absent="no counters")])
def test_an_adapter_that_is_not_certain_has_no_name(counters: NodeCounters | None) -> None:
    network, text, _ = network_of(counters=counters)
    assert {queue.adapter for queue in network.peers[0].queue_pairs} == {""}
    assert "queue pair 4711 of adapter 0 of its connection: 8.00 GB in 2,000 requests" in text
    assert "queue pair 4712 of adapter 1 of its connection: 4.00 GB in 1,000 requests" in text
    assert "rdma resource show qp` on its node" in text
    assert "mlx5" not in text


def test_the_one_active_adapter_of_a_node_is_named() -> None:
    _, text, _ = network_of(counters=ONE_ADAPTER)
    assert "queue pair 4711 of mlx5_0: 8.00 GB in 2,000 requests" in text
    assert "rdma resource" not in text


def test_two_ports_of_one_adapter_are_one_adapter() -> None:
    ports = (port("mlx5_0/1", "ACTIVE"), port("mlx5_0/2", "ACTIVE"))
    assert only_adapter(NodeCounters(devices=ports)) == "mlx5_0"


def test_an_adapter_that_was_active_for_a_while_counts() -> None:
    ports = (port("mlx5_0/1", "ACTIVE"), port("mlx5_1/1", "DOWN", "ACTIVE", "DOWN"))
    assert not only_adapter(NodeCounters(devices=ports))


def test_without_queue_pairs_the_report_says_why_no_adapter_is_known() -> None:
    _, text, _ = network_of(replace(SENT, queues=()))
    assert "was built with NET_PROFILER=1" in text
    assert "Device API, GIN" in text


def test_what_is_not_in_the_figures_is_said() -> None:
    sent = replace(SENT, refused=6, other_requests=7, socket_requests=8)
    network, text, _ = network_of(sent, missed=9)
    assert (network.refused, network.not_followed) == (6, 9)
    assert "7 requests over further queue pairs" in text
    assert "8 requests over TCP sockets" in text
    assert "9 operations of the network proxy not in these figures" in text
    assert "6 events refused" in text


def test_how_much_of_the_job_it_is_is_said() -> None:
    network, text, _ = network_of(net_ns=90 * 10**9, sampled_ns=1)
    assert (network.taken_s, network.sampled) == (90.0, 1)
    assert "received by NCCL's network proxies in 1 min 30 s, and" in text
    assert "1 process took this of some operations only" in text


def test_the_length_of_a_receive_is_not_told() -> None:
    received = replace(RECEIVED, queues=(NetQueue(0, 99, 5, 0),))
    network, text, _ = network_of(received=received)
    assert network.peers[1].queue_pairs == (QueuePair(99, 0, 5, None),)
    assert "queue pair 99 of adapter 0 of its connection: 5 requests" in text


def test_claims_of_any_size_are_shown() -> None:
    most = (1 << 64) - 1
    network_of(Net(0, 1, 1, most, most, most, most, most, most, 1, most, most, most))


def test_of_many_directions_those_with_most_bytes_are_shown() -> None:
    one = NetworkPeer("rank 0", "n1", "0x7", 0, 1, "n2", "send", 1, 1, 0.0, 0.0, 0.0, 0.0)
    peers = tuple(replace(one, peer=peer, bytes=1000 - peer) for peer in range(256))
    card = replace(stored_cards.card(), network=Network(peers, 300, 1, 1, 0, 0))
    text = " ".join(render_text(card).split())
    assert "to rank 7" in text
    assert "to rank 8" not in text
    assert "and 292 directions with fewer bytes more" in text
    assert "to rank 255" in " ".join(render_text(card, everything=True).split())


def with_ports(sent_bytes: int, **words: Any) -> tuple[Network, str, str]:
    """Return the section of a job whose nodes have one port each, which sent so much."""
    counts = {"port_xmit_data": Count(sent_bytes // 4)}
    counters = NodeCounters(devices=(DeviceCounters("port", "mlx5_0/1", counts, {}, {}),))
    took = {"net_ns": 90 * 10**9, "beat_ns": NOW_NS + 95 * 10**9}
    return network_of(counters=counters, **took | words)


def test_how_much_more_the_ports_sent_is_told() -> None:
    network, text, written = with_ports(15 * GB)
    (told,) = network.ports  # of the other node's process there is no network detail
    assert (told.node, told.sent_bytes, told.seen_bytes, told.other_bytes) == (
        "n1", 15 * GB, 12 * GB, 3 * GB,
    )  # fmt: skip
    assert "ports of 1 node sent 15.0 GB, of which 3.00 GB (20%) are not in these figures" in text
    assert card_from_json(written).network == network


@pytest.mark.parametrize(
    "words",
    [
        {"net_ns": 10 * MS},  # of 95 s
        {"sampled_ns": 1},
        {"missed": 1},
        {"sent": replace(SENT, socket_requests=1)},
        {"sent": replace(SENT, bytes=16 * GB)},  # more than the ports: they are not what was used
    ],
)
def test_what_else_the_ports_sent_is_not_told_where_the_figures_are_not_whole(
    words: dict[str, Any],
) -> None:
    network, text, _ = with_ports(15 * GB, **words)
    assert not network.ports
    assert "ports of" not in text
