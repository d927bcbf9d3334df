# SPDX-License-Identifier: Apache-2.0
"""Peers, time lines and network detail of a box: what cannot be is left out and flagged."""

import pytest

from nccl_inspector.box import layout
from nccl_inspector.model import process as model
from nccl_inspector.model.net import Net, NetQueue
from tests.support.boxes import MS, NOW_S, BoxOf, CommOf, LineOf, NetWords, box_bytes, window
from tests.support.full_boxes import read


def test_two_entries_of_one_peer_are_added_up() -> None:
    words = {"comm": 0, "peer": 1, "begun": 2, "ops": 2, "bytes": 20, "busy_ns": 200}
    peers = [
        {**words, "log2_rate_q20": -5, "best_rate_q20": -9},
        {**words, "func": 10},
        {**words, "log2_rate_q20": -7, "best_rate_q20": -3},
        {**words, "ops": 0},
    ]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], peers=peers))))
    assert process.flags == ()
    assert process.peers == (
        model.Peer(0, 9, 1, 4, 40, 400, -12, -3),
        model.Peer(0, 10, 1, 2, 20, 200, 0, 0),
    )


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    "peers",
    [
        [{"comm": 1, "peer": 1, "ops": 1}],
        [{"comm": 96, "peer": 1, "ops": 1}],
        [{"comm": 0, "peer": 2, "ops": 1}],
        [{"comm": 0, "peer": -1, "ops": 1}],
        [{"comm": 0, "peer": 1, "ops": 1, "func": 1}],
        [{"comm": 0, "peer": 1, "ops": 1, "func": 200}],
        [{"comm": 0, "peer": 1, "ops": 1, "log2_rate_q20": -(1 << 63)}],
        [{"comm": 0, "peer": 1, "ops": 3, "log2_rate_q20": 3 * 65 << 20}],
    ],
)
def test_a_peer_that_cannot_be_is_left_out_and_flagged(peers: list[dict[str, int]]) -> None:
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], peers=peers))))
    assert (process.peers, process.flags) == ((), ("an invalid peer is left out",))


def test_entries_of_one_peer_that_together_are_too_much_are_flagged() -> None:
    peers = [{"comm": 0, "peer": 1, "ops": 1, "bytes": HUGE}] * 2
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], peers=peers))))
    assert ([peer.bytes for peer in process.peers], len(process.flags)) == ([HUGE], 1)


@pytest.mark.parametrize(
    "line",
    [
        LineOf([window(NOW_S + 1000)]),
        LineOf([window(NOW_S), window(NOW_S - 10)]),
        LineOf([window(NOW_S)], {"windows": layout.LINE_WINDOWS + 1}),
        LineOf([window(NOW_S)], {"window_s": 0}),
        LineOf([window(NOW_S)], {"window_s": 0xFFFFFFFF}),
        LineOf([window(NOW_S)], {"func": 200}),
        LineOf([window(NOW_S)], {"size_class": 64}),
        LineOf([window(NOW_S)], {"rank": -2}),
        LineOf([window(NOW_S, ops=0)]),
        LineOf([window(NOW_S, ops=1) | {"bytes": HUGE}]),
        LineOf([window(NOW_S, ops=1) | {"last_index": HUGE}]),
    ],
)
def test_a_time_line_that_cannot_be_is_left_out_and_flagged(line: LineOf) -> None:
    process = read(bytes(box_bytes(BoxOf(lines=[line, LineOf([window(NOW_S)])]))))
    assert (len(process.lines), process.flags) == (1, ("an invalid time line is left out",))


def test_windows_of_one_place_are_one_window() -> None:
    # So it is around a halving: the window that was open keeps its start.
    windows = [window(NOW_S - 20), window(NOW_S - 10, 2, 5 * MS, 5), window(NOW_S, first=9)]
    windows[1]["late_ms"] = 77
    (line,) = read(bytes(box_bytes(BoxOf(lines=[LineOf(windows, {"window_s": 20})])))).lines
    assert line.windows[0] == model.Window(NOW_S - 20, 77, 6, 6 << 20, 18 * MS, MS, 3 * MS, 1, 6)
    assert [one.start_s for one in line.windows] == [NOW_S - 20, NOW_S]


def test_network_detail_of_the_records_earlier_communicator_is_over() -> None:
    nets = [{"comm": 0, "comm_generation": 3, "peer": 1, "steps": 1}]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], nets=nets))))
    assert (process.nets, process.flags) == ((), ())


def test_two_entries_of_one_direction_are_added_up_and_a_step_that_hangs_counts() -> None:
    words = {"comm": 0, "peer": 1, "is_send": 1}
    nets = [{**words, "steps": 3}, {**words, "steps": 0}, {**words, "is_send": 0}]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], nets=nets))))
    assert process.nets == (
        Net(0, 1, 1, 3, 2000, 4000, 6000, 8000),
        Net(0, 1, 0, 0, 1000, 2000, 3000, 4000),
    )


def test_bytes_and_queue_pairs_of_two_entries_are_added_up() -> None:
    pair = 2 << 24 | 100
    words = {
        "comm": 0, "peer": 1, "is_send": 1, "steps": 3, "bytes": 1 << 40, "refused": 2,
        "socket_requests": 3, "other_requests": 4, "other_bytes": 5,
    }  # fmt: skip
    queues = [{"pair": pair, "requests": 6, "bytes": 7}, {"pair": 101, "requests": 1}]
    nets: list[NetWords] = [{**words, "queues": queues}, {**words, "queues": queues[:1]}]
    (found,) = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], nets=nets)))).nets
    assert (found.bytes, found.refused, found.socket_requests) == (2 << 40, 4, 6)
    assert (found.other_requests, found.other_bytes) == (8, 10)
    assert found.queues == (NetQueue(2, 100, 12, 14), NetQueue(0, 101, 1, 0))


@pytest.mark.parametrize(
    "words",
    [
        {"is_send": 2}, {"peer": 2}, {"peer": -1}, {"comm": 9},
        {"queues": [{"pair": 4 << 24 | 1, "requests": 1}]},
        {"queues": [{"pair": 1 << 24, "requests": 1}]},
    ],
)  # fmt: skip
def test_network_detail_that_cannot_be_is_left_out_and_flagged(words: NetWords) -> None:
    nets: list[NetWords] = [{"comm": 0, "peer": 1, "steps": 1, **words}]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], nets=nets))))
    assert (process.nets, process.flags) == ((), ("invalid network detail is left out",))
