# SPDX-License-Identifier: Apache-2.0
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from nccl_inspector.box import layout
from nccl_inspector.box.layout import WORD_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model import process as model
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.model.process import OPERATIONS_MAX
from tests.support.boxes import (
    BOX_BYTES,
    COMM_AT,
    HIST_AT,
    KEY_AT,
    LINE_AT,
    MS,
    NET_AT,
    NOW_NS,
    NOW_S,
    OP_AT,
    PEER_AT,
    TICK0,
    BoxOf,
    CommOf,
    KeyOf,
    box_bytes,
    fixed_chance,
    put,
)
from tests.support.full_boxes import full_box, read


def test_a_whole_box_is_read_as_it_was_written() -> None:
    process = read(bytes(full_box()))
    assert (process.facts.procid, process.facts.state, process.flags) == (0, model.FINALIZED, ())
    assert [(comm.id, comm.rank, comm.nranks, comm.name) for comm in process.comms] == [
        (7, 0, 4, "world"),
        (8, 1, 2, ""),
    ]
    first, second = process.keys
    assert (first.ops, first.bytes, first.busy_ns, first.algo_proto) == (
        20,
        20 << 20,
        100 * MS,
        "RING_SIMPLE",
    )
    assert sum(second.histogram.counts) == 3
    assert process.comms[0].last_progress_ns == NOW_NS + 500 * MS
    assert process.gpus[0].label == "GPU0"


def test_peers_time_lines_and_network_detail_are_read_as_they_were_written() -> None:
    process = read(bytes(full_box()))
    assert process.peers == (model.Peer(0, 9, 3, 5, 500, 50, 0, 0),)
    queues = (NetQueue(1, 4711, 17, 5 << 20),)
    net = Net(1, 1, 1, 17, 1000, 2000, 3000, 4000, 5 << 20, queues=queues)
    assert process.nets == (net,)
    (line,) = process.lines
    assert (line.comm_id, line.rank, line.func, line.window_s) == (7, 0, 1, 10)
    assert line.windows[1] == model.Window(NOW_S, 0, 4, 4 << 20, 8 * MS, MS, 2 * MS, 1, 4)


def test_what_a_process_says_of_its_own_measuring_is_read() -> None:
    facts = read(
        bytes(
            full_box(
                timing=2, silent=1, silent_ns=5, sampling=16, sampled_ns=6, json_lines=7, net_ns=8,
                hot_ns=9, self_ns=10, nccl_version=22602,
            )
        )
    ).facts  # fmt: skip
    assert (facts.timing, facts.silent, facts.silent_ns) == (model.CPU_TIMED, model.DISABLED, 5)
    assert (facts.sampling, facts.sampled_ns, facts.json_lines) == (16, 6, 7)
    assert (facts.net_ns, facts.hot_ns, facts.self_ns) == (8, 9, 10)
    assert facts.nccl == "NCCL 2.26.2"
    facts = read(bytes(full_box(timing=0, silent=2, nccl_version=0))).facts
    assert (facts.timing, facts.silent) == (model.UNTIMED, model.DENIED)
    assert facts.nccl == "an NCCL of unknown version"


def test_a_kind_of_operation_without_any_time_is_kept() -> None:
    words = {"untimed_ops": 3, "untimed_bytes": 300}
    keys = [KeyOf(0, [], func=4, words=words), KeyOf(0, [], func=5)]
    (key,) = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], keys)))).keys
    assert (key.func, key.ops, key.untimed_ops, key.untimed_bytes) == (4, 0, 3, 300)
    assert not key.histogram


def test_what_became_of_the_enqueued_operations_is_read() -> None:
    data = full_box()
    put(data, layout.COMM, COMM_AT, enqueued=20, untimed=5, lost=2, looks=30)
    put(data, layout.KEY, KEY_AT, phased_ops=7, wait_ns=70, queued_ns=90, queued_looks=9)
    process = read(bytes(data))
    comm, key = process.comms[0], process.keys[0]
    assert (comm.enqueued, comm.untimed, comm.lost, comm.completed) == (20, 5, 2, 8)
    assert (key.phased_ops, key.wait_ns) == (7, 70)
    assert (comm.looks, key.queued_ns, key.queued_looks) == (30, 90, 9)


def test_operations_in_flight_have_their_age_at_the_last_beat() -> None:
    (operation,) = read(bytes(full_box())).operations
    assert (operation.index, operation.age_ns, operation.started) == (9, 1000 * MS, 0)


@pytest.mark.parametrize("tick", [TICK0 + 10, 0], ids=["one round", "not seen yet"])
def test_of_many_operations_in_flight_the_first_of_each_communicator_are_kept(tick: int) -> None:
    """What stands in front holds up the rest, and one round of the writer saw them all."""
    first = {"comm": 0, "index": 5000, "peer": -1, "enqueue_tick": TICK0 + 99}
    many = [{"comm": 1, "index": n, "peer": -1, "enqueue_tick": tick} for n in range(4095, 0, -1)]
    comms = [CommOf(7, 0, 2), CommOf(8, 0, 2)]
    process = read(bytes(box_bytes(BoxOf(comms, [], [*many, first]))))
    assert len(process.operations) == OPERATIONS_MAX
    kept = sorted(one.index for one in process.operations)
    assert kept == [*range(1, OPERATIONS_MAX), 5000]


def test_of_many_operations_in_flight_those_with_each_peer_are_kept_in_their_order() -> None:
    """Their place among those with the peer tells which Send meets which Recv."""
    operations = [
        {"comm": 0, "index": n, "peer": n % 2, "enqueue_tick": TICK0 + 4000 - n}
        for n in range(1, 201)
    ]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], [], operations))))
    assert sorted(one.index for one in process.operations) == list(range(1, OPERATIONS_MAX + 1))


def test_operations_that_the_writer_thread_has_not_seen_have_no_age_yet() -> None:
    operations = [
        {"comm": 0, "index": 1, "enqueue_tick": 0},
        {"comm": 0, "index": 2, "enqueue_tick": TICK0 + 10},
    ]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], [], operations))))
    assert [(one.index, one.age_ns) for one in process.operations] == [(2, 1000 * MS - 10), (1, 0)]


def test_an_operation_whose_channels_have_ended_is_not_in_flight() -> None:
    """The plugin has yet to count it (plugin/hot/late.h); nobody hangs in it."""
    kind = 1 | 2 << 24
    ended = {"started_channels": 0b110, "stopped_channels": 0b110, "kind": kind}
    operations = [
        {"comm": 0, "index": 1, **ended},
        {"comm": 0, "index": 2, **ended, "stopped_channels": 0b010},
        {"comm": 0, "index": 3, **ended, "kind": 1 | 3 << 24},
    ]
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], [], operations))))
    assert [one.index for one in process.operations] == [2, 3]
    assert process.comms[0].enqueued >= 3


def test_what_was_enqueued_since_the_last_round_is_added() -> None:
    data = box_bytes(BoxOf([CommOf(7, 0, 2)], [], [{"comm": 0, "enqueue_tick": 0}] * 3))
    put(data, layout.COMM, COMM_AT, enqueued=10, completed=9, untimed=5, lost=2)
    assert read(bytes(data)).comms[0].enqueued == 9 + 5 + 2 + 3


@pytest.mark.parametrize("words", [{"completed": 1 << 63, "lost": 1 << 63}, {"started": WORD_MAX}])
def test_a_communicator_whose_counts_have_no_sum_is_left_out(words: dict[str, int]) -> None:
    """A summary has no room for it: the other processes of the node would be lost with it."""
    operations = [{"comm": 0, "started_channels": 1}]
    data = box_bytes(BoxOf([CommOf(7, 0, 2), CommOf(8, 0, 2)], [], operations))
    put(data, layout.COMM, COMM_AT, **words)
    process = read(bytes(data))
    assert [comm.id for comm in process.comms] == [8]
    assert process.flags == ("an invalid communicator is left out",)


def test_an_operation_of_the_records_earlier_communicator_is_left_out() -> None:
    operations = [{"comm": 0, "comm_generation": 3, "enqueue_tick": TICK0}]
    assert read(bytes(box_bytes(BoxOf([CommOf(7, 0, 2)], [], operations)))).operations == ()


def test_a_box_whose_lock_is_gone_while_live_is_of_a_killed_process() -> None:
    assert read(bytes(full_box(state=1))).facts.state == model.KILLED
    assert read(bytes(full_box(state=1)), alive=True).facts.state == model.RUNNING
    assert read(bytes(full_box(state=3))).facts.state == model.EXITED


def test_a_box_that_never_rests_is_flagged() -> None:
    assert read(bytes(full_box(layout_seq=3)), alive=True).flags == (
        "kept changing while it was read",
    )
    data = full_box()
    put(data, layout.KEY, KEY_AT, begun=21)
    assert read(bytes(data), alive=True).flags == ("kept changing while it was read",)
    assert read(bytes(data)).flags == ()
    data = full_box()
    put(data, layout.PEER, PEER_AT, begun=6)
    assert read(bytes(data), alive=True).flags == ("kept changing while it was read",)
    assert read(bytes(data)).flags == ()


def test_a_communicator_to_which_something_is_being_added_is_no_trouble() -> None:
    data = full_box()
    put(data, layout.COMM, COMM_AT, busy=7)
    assert read(bytes(data), alive=True).flags == ()


def test_a_process_that_died_while_folding_is_flagged() -> None:
    (flag,) = read(bytes(full_box(layout_seq=3))).flags
    assert flag.startswith("died while it was moving its own figures")


@pytest.mark.parametrize(
    "change",
    [
        {"version": layout.VERSION - 1},
        {"file_bytes": 1},
        {"header_bytes": 16},
        {"header_bytes": 0xFFFFFFFF},
        {"comm_offset": 0xFFFFFFF8},
        {"comm_offset": 8},
        {"comm_count": 0xFFFFFFFF},
        {"key_count": 0xFFFFFFFF, "hist_count": 0xFFFFFFFF},
        {"key_count": 255},
        {"key_bytes": 0},
        {"hist_offset": HIST_AT + 1},
        {"op_count": 65537},
        {"peer_bytes": 128},
        {"peer_count": 8193},
        {"line_bytes": 64},
        {"line_count": 65},
        {"line_offset": 4097},
        {"net_count": 1025},
        {"net_offset": 0xFFFFFFF8},
        {"timing": 3},
        {"silent": 4},
        {"op_bytes": 0x80000000},
        {"state": 0},
        {"state": 77},
    ],
)
def test_a_header_that_lies_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(RefusedError) as caught:
        read(bytes(full_box(**change)))
    assert caught.value.reason == "bad_box"


@pytest.mark.parametrize("size", [0, 1, 2447, 4096, BOX_BYTES - 1, BOX_BYTES + 1, 1 << 40])
def test_a_size_that_is_not_the_boxs_is_refused(size: int) -> None:
    with pytest.raises(RefusedError):
        read(bytes(full_box()), size)


@pytest.mark.parametrize("step", [pytest.param(512, marks=pytest.mark.long), 10_007])
def test_a_box_cut_at_any_place_is_refused(step: int) -> None:
    data = bytes(full_box())
    for size in range(0, len(data), step):
        with pytest.raises(RefusedError):
            read(data[:size])


def spoil_header(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(layout.HEADER.size)] = chance.randrange(256)


def spoil_tables(data: bytearray, chance: random.Random) -> None:
    start = chance.choice((COMM_AT, KEY_AT, HIST_AT, OP_AT, PEER_AT, LINE_AT, NET_AT))
    at = start + chance.randrange(2048)
    data[at : at + 8] = chance.choice((b"\xff" * 8, bytes(8), chance.randbytes(8)))


@pytest.mark.parametrize("spoil", [spoil_header, spoil_tables])
def test_a_spoilt_box_gives_a_reason_or_figures_and_nothing_else(
    spoil: Callable[[bytearray, random.Random], None],
) -> None:
    chance, whole = fixed_chance(2), full_box()
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 8)):
            spoil(data, chance)
        with suppress(RefusedError):
            read(bytes(data), alive=chance.random() < 0.2)


def test_random_bytes_are_refused() -> None:
    chance = fixed_chance(3)
    for size in (0, 7, 2448, 100_000):
        with pytest.raises(RefusedError):
            read(chance.randbytes(size))


def test_a_huge_box_never_takes_memory_without_bound() -> None:
    tracemalloc.start()
    with pytest.raises(RefusedError):
        read(bytes(full_box()), 1 << 33)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "comm", [CommOf(7, 4, 4), CommOf(7, -2, 4, state=3), CommOf(7, 0, -1, state=3)]
)
def test_ranks_that_cannot_be_are_left_out_and_flagged(comm: CommOf) -> None:
    process = read(bytes(box_bytes(BoxOf([comm], [KeyOf(0, [MS])]))))
    assert process.comms == ()
    assert process.keys == ()
    assert len(process.flags) == 2


def test_a_communicator_that_is_just_being_named_has_no_name_yet() -> None:
    """NCCL before 2.27 tells it with the first operation. A half-written name is not shown."""
    data = full_box()
    put(data, layout.COMM, COMM_AT, named=2)
    (comm, other) = read(bytes(data)).comms
    assert (comm.name, comm.id, comm.rank) == ("", 0, -1)
    assert other.id == 8


def test_text_of_a_box_cannot_move_a_terminals_cursor() -> None:
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 1, name="\x1b[2J\n")]))))
    assert process.comms[0].name == "?[2J?"
