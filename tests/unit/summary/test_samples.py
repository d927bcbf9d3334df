# SPDX-License-Identifier: Apache-2.0
"""Samples and unions: from a box into a summary and out of it; nothing false is believed."""

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from nccl_inspector.box.layout import HEADER, SAMPLE, SAMPLES_MAX
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.box.sample_table import SampleTable, samples_of_each, thin, unix_ends_ns
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import (
    PEER_BEYOND,
    PEER_NONE,
    SAMPLE_GROUP,
    Process,
    SampleKind,
    Samples,
    Union,
    UnionWindow,
)
from nccl_inspector.model.sample_columns import SampleColumns
from nccl_inspector.summary.codec import SAMPLES_BYTES_MAX, decode, encode, encode_process
from nccl_inspector.summary.fit_tables import NOTHING, piece, samples_room
from nccl_inspector.summary.samples import (
    PackedSamples,
    PackedUnions,
    pack_facts,
    pack_sample_columns,
    pack_unions,
    unpack_facts,
    unpack_unions,
)
from nccl_inspector.summary.unpacked_samples import union_columns, unix_ns
from nccl_inspector.system import safe_files as hostile
from tests.support.boxes import (
    BOX_BYTES,
    MS,
    NOW_NS,
    NOW_S,
    SAMPLE_AT,
    SAMPLE_KIND_AT,
    UNION_AT,
    BoxOf,
    CommOf,
    UnionOf,
    box_bytes,
    fixed_chance,
)
from tests.support.command_line import environment
from tests.support.summaries import HEAD

SEND, SENDRECV = 9, 11
AHEAD_NS = 3 * 10**17  # what Unix time is ahead of the GPU's clock
START_NS = NOW_NS - AHEAD_NS
UNIX_S = 10**9


def sample(start_ns: int, time_ns: int = MS, **words: int) -> dict[str, int]:
    """Return the words of a record."""
    return {
        "start_ns": start_ns,
        "stop_ns": start_ns + time_ns,
        "index": 1,
        "mantissa": 1 << 15,
    } | (words)


def busy(start_s: int, **words: int) -> dict[str, int]:
    """Return the words of a union's window."""
    return {"start_s": start_s, "operations": 5, "busy_ns": 7 * MS, "ahead_ns": AHEAD_NS, **words}


UNION = UnionOf([busy(NOW_S - 20), busy(NOW_S)])
KINDS: list[dict[str, int | str]] = [
    {"name": "dp"},
    {"func": SEND, "size_class": 14, "rank": 2, "comm_id": 9, "incarnation": 3},
    {"func": SENDRECV, "size_class": 2, "algo": 8, "proto": 0},
]


def read(data: bytes, ranks: int = 4) -> Process:
    fd = os.memfd_create("box")
    try:
        os.write(fd, data)
        process = read_box(fd, len(data), "0_1", alive=False)
        return add_samples(fd, len(data), process, ranks)
    finally:
        os.close(fd)


def read_samples(samples: Sequence[dict[str, int]], **words: int) -> Process:
    box = BoxOf(
        [CommOf(7, 0, 4)], sample_kinds=KINDS, samples=samples, unions=[UNION], header=words
    )
    return read(bytes(box_bytes(box)))


def columns_of(process: Process) -> SampleColumns:
    assert process.samples is not None
    return process.samples.columns()


def through(process: Process) -> Process:
    """Return what is read of a process's block."""
    (found,) = decode(encode(HEAD, [encode_process(process)])).processes
    return found


def assert_alike(found: SampleColumns, expected: SampleColumns) -> None:
    """The same but for times, of which each end is in the same unit of 64 ns."""
    for name in ("kind", "index", "peer", "queued_ns", "bytes", "flags"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
        assert getattr(found, name).dtype == getattr(expected, name).dtype, name
    assert found.start_ns.tolist() == (expected.start_ns >> 6 << 6).tolist()
    ends = (expected.start_ns + expected.time_ns) >> 6 << 6
    assert (found.start_ns + found.time_ns).tolist() == ends.tolist()


def test_samples_of_a_box_are_ordered_by_start_and_arrive_in_the_report() -> None:
    samples = [
        sample(START_NS + 5 * MS, 2 * MS, index=8, mantissa=0xC000, queued_us=70),
        {},
        sample(START_NS, kind=1, peer=4, index=3, mantissa=20_000),
        sample(START_NS + 3 * MS, kind=2, flags=SAMPLE_GROUP, index=1, mantissa=5),
        sample(START_NS + 4 * MS, kind=1, peer=0xFFFF, index=1, mantissa=5),
    ]
    process = read_samples(samples, samples_lost=5, samples_unkinded=1)
    assert process.flags == ()
    found = columns_of(process)
    assert found.start_ns.tolist() == [START_NS + n * MS for n in (0, 3, 4, 5)]
    assert found.time_ns.tolist() == [MS, MS, MS, 2 * MS]
    assert found.kind.tolist() == [1, 2, 1, 0]
    assert found.index.tolist() == [3, 1, 1, 8]
    assert found.peer.tolist() == [3, PEER_NONE, PEER_BEYOND, PEER_NONE]
    assert found.bytes.tolist() == [20_000, 5, 5, 0xC000 << 5]
    assert found.queued_ns.tolist() == [0, 0, 0, 70_000]
    assert found.flags.tolist() == [0, SAMPLE_GROUP, 0, 0]
    arrived = through(process)
    assert isinstance(arrived.samples, PackedSamples)
    assert_alike(columns_of(arrived), found)
    for samples_ in (process.samples, arrived.samples):
        assert samples_ is not None
        assert (len(samples_), samples_.lost) == (4, 6)
        assert (samples_.length_bits, samples_.period_bits) == (34, 34)
        assert samples_.kinds == (
            SampleKind(7, 4, 1, 0, 0, 1, 20, 2, 3, NOW_NS, 0, "dp"),
            SampleKind(9, 4, 1, 2, 0, SEND, 14, 2, 3, NOW_NS, 3, ""),
            SampleKind(7, 4, 1, 0, 0, SENDRECV, 2, 8, 0, NOW_NS, 0, ""),
        )
        (clock,) = samples_.clocks
        assert unix_ns(found.start_ns, clock)[0] == pytest.approx(NOW_NS, abs=1024)
    assert arrived.unions == process.unions
    assert through(arrived) == arrived


def test_a_process_without_samples_has_none() -> None:
    process = read(bytes(box_bytes(BoxOf([CommOf(7, 0, 4)]))))
    assert (process.samples, process.unions, process.flags) == (None, (), ())
    arrived = through(process)
    assert (arrived.samples, arrived.unions) == (None, ())


def test_the_time_that_a_gpu_was_busy_is_read_by_windows() -> None:
    windows = [busy(NOW_S - 30, operations=0), busy(NOW_S - 20, lost=2), busy(NOW_S, ahead_ns=-7)]
    gone = busy(NOW_S - 10, operations=0, busy_ns=0)
    box = BoxOf(unions=[UnionOf([*windows[:2], gone, windows[2]])])
    process = read(bytes(box_bytes(box)))
    assert process.unions == (
        Union(
            0,
            10,
            (
                UnionWindow(NOW_S - 30, 0, 0, 7 * MS, AHEAD_NS),
                UnionWindow(NOW_S - 20, 5, 2, 7 * MS, AHEAD_NS),
                UnionWindow(NOW_S, 5, 0, 7 * MS, -7),
            ),
        ),
    )
    (arrived,) = through(process).unions
    assert [window[:4] for window in arrived.windows] == [
        window[:4] for window in process.unions[0].windows
    ]
    for window, expected in zip(arrived.windows, process.unions[0].windows, strict=True):
        assert window.ahead_ns == expected.ahead_ns >> 10 << 10


def test_unions_are_columns_of_numbers_too() -> None:
    windows = [busy(NOW_S - 20, ahead_ns=AHEAD_NS + 7000), busy(NOW_S, lost=3, ahead_ns=AHEAD_NS)]
    process = through(read(bytes(box_bytes(BoxOf(unions=[UnionOf(windows)])))))
    assert isinstance(process.unions, PackedUnions)
    for found, expected in zip(
        union_columns(process.unions), union_columns(tuple(process.unions)), strict=True
    ):
        assert (found.gpu, found.window_s) == (expected.gpu, expected.window_s) == (0, 10)
        for name in ("start_s", "operations", "lost", "busy_ns", "ahead_ns"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()
        times = np.array([START_NS - 10**12, START_NS, START_NS + 10**12])
        assert (
            found.clock.unix_ns(times).tolist() == unix_ns(times, process.unions[0].clock).tolist()
        )


def test_windows_around_a_doubling_are_put_on_the_grid() -> None:
    windows = [busy(NOW_S - 20), busy(NOW_S - 10), busy(NOW_S)]
    process = read(bytes(box_bytes(BoxOf(unions=[UnionOf(windows, {"window_s": 20})]))))
    assert [window[:4] for window in process.unions[0].windows] == [
        (NOW_S - 20, 10, 0, 14 * MS),
        (NOW_S, 5, 0, 7 * MS),
    ]


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    "odd",
    [
        sample(START_NS, kind=3),
        sample(START_NS, kind=0xFFFF),
        sample(START_NS, kind=2, peer=1),
        sample(START_NS, index=0),
        sample(START_NS, -1),
        sample(START_NS, peer=1),
        sample(START_NS, kind=1),
        sample(START_NS, kind=1, peer=5),
        sample(START_NS + 20 * 366 * 86400 * UNIX_S),
        sample(1),
        {"start_ns": HUGE, "stop_ns": HUGE, "index": 1},
        {"start_ns": START_NS, "stop_ns": HUGE, "index": 1},
    ],
)
def test_a_sample_that_cannot_be_is_left_out_and_counted(odd: dict[str, int]) -> None:
    process = read_samples([odd, sample(START_NS), odd])
    assert len(columns_of(process).kind) == 1
    assert process.flags == ("samples that cannot be true and are left out: 2",)


@pytest.mark.parametrize(
    "words",
    [
        {"func": 12}, {"algo": 11}, {"proto": 4}, {"size_class": 63}, {"rank": 4}, {"rank": -1},
        {"nranks": -1}, {"nnodes": -1}, {"used": 2},
    ],
)  # fmt: skip
def test_samples_of_a_kind_that_cannot_be_are_left_out(words: dict[str, int | str]) -> None:
    box = BoxOf(
        sample_kinds=[words, {}],
        samples=[sample(START_NS), sample(START_NS, kind=1)],
        unions=[UNION],
    )
    process = read(bytes(box_bytes(box)))
    assert process.samples is not None
    assert [kind.comm_id for kind in process.samples.kinds] == [7]
    assert columns_of(process).kind.tolist() == [0]
    assert process.flags == ("samples that cannot be true and are left out: 1",)


@pytest.mark.parametrize(
    "union",
    [
        UnionOf([busy(NOW_S + 2000)]),
        UnionOf([busy(NOW_S), busy(NOW_S - 10)]),
        UnionOf([busy(NOW_S)], {"windows": 385}),
        UnionOf([busy(NOW_S)], {"window_s": 0}),
        UnionOf([busy(NOW_S)], {"window_s": 0xFFFFFFFF}),
        UnionOf([busy(NOW_S)], {"gpu": 1}),
        UnionOf([busy(NOW_S, busy_ns=10**10 + 1)]),
        UnionOf([busy(NOW_S, ahead_ns=-(1 << 63))]),
    ],
)
def test_a_union_that_cannot_be_is_left_out_and_flagged(union: UnionOf) -> None:
    process = read(bytes(box_bytes(BoxOf(unions=[union, UNION, UNION]))))
    assert len(process.unions) == 1
    assert process.flags == ("how long a GPU was busy cannot be true and is left out",)


@pytest.mark.parametrize(
    "words",
    [{"sample_period_bits": 49}, {"sample_length_bits": 35}, {"sample_length_bits": 0}],
)
def test_bursts_that_cannot_be_are_flagged(words: dict[str, int]) -> None:
    process = read_samples([sample(START_NS)], **words)
    assert process.samples is None
    (flag,) = process.flags
    assert "cannot be true" in flag


@pytest.mark.parametrize(
    "words",
    [
        {"sample_offset": BOX_BYTES - 64}, {"sample_count": SAMPLES_MAX + 1}, {"sample_bytes": 33},
        {"sample_kind_offset": 0}, {"union_offset": 0xFFFFFFF8}, {"union_count": 17},
    ],
)  # fmt: skip
def test_tables_that_are_not_within_the_box_are_refused(words: dict[str, int]) -> None:
    with pytest.raises(RefusedError, match="bad_box"):
        read_samples([sample(START_NS)], **words)


def test_who_looks_at_living_processes_does_not_read_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = []
    read_at = hostile.read_at

    def noted(fd: int, count: int, offset: int) -> bytes:
        ends.append(offset + count)
        return read_at(fd, count, offset)

    monkeypatch.setattr("nccl_inspector.box.copy.read_at", noted)
    fd = os.memfd_create("box")
    try:
        size = os.write(fd, box_bytes(BoxOf()))
        read_box(fd, size, "0_1", alive=True)
    finally:
        os.close(fd)
    assert max(ends) == SAMPLE_AT


def test_samples_that_are_dropped_meanwhile_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = box_bytes(BoxOf(sample_kinds=KINDS, samples=[sample(START_NS)], unions=[UNION]))
    fd = os.memfd_create("box")
    try:
        os.write(fd, data)
        process = read_box(fd, len(data), "0_1", alive=False)
        process = replace(process, facts=replace(process.facts, state="running"))
        reads: list[int] = []
        read_at = hostile.read_at
        turns = iter(range(1, 100))

        def busy_process(fd: int, count: int, offset: int) -> bytes:
            found = read_at(fd, count, offset)
            if offset == SAMPLE_AT and len(reads) < until:
                reads.append(offset)
                at = HEADER.offsets["sample_seq"]
                os.pwrite(fd, (2 * next(turns)).to_bytes(4, "little"), at)
            return found

        monkeypatch.setattr("nccl_inspector.box.copy.read_at", busy_process)
        until = 2
        assert add_samples(fd, len(data), process, 4).flags == ()
        until = 100
        flags = add_samples(fd, len(data), process, 4).flags
        assert flags == ("its samples kept changing while they were read",)
        # A process that died in between has left whole records.
        killed = replace(process, facts=replace(process.facts, state="killed"))
        assert add_samples(fd, len(data), killed, 4).flags == ()
    finally:
        os.close(fd)


def table_of(seed: int, rows: int = SAMPLES_MAX, step_ns: int = MS) -> SampleTable:
    """Return samples of a training: two functions of one communicator, and Sends to two peers."""
    chance = fixed_chance(seed)
    kinds = tuple(
        SampleKind(comm, 64, 8, 3, 0, func, size_class, 2, 3, NOW_NS, 0, "dp")
        for comm, func, size_class in ((7, 2, 20), (7, 3, 24), (9, SEND, 30))
    )
    starts, at = [], START_NS
    for _ in range(rows):
        at += chance.randrange(1, 2 * step_ns)
        starts.append(at)
    kind = [chance.choice((0, 0, 1, 2)) for _ in range(rows)]
    window_s = 10
    windows = range((START_NS + AHEAD_NS) // UNIX_S, (at + AHEAD_NS) // UNIX_S + 1, window_s)
    clock = Union(0, window_s, tuple(UnionWindow(s, 1, 0, 1, AHEAD_NS) for s in windows)).clock
    return SampleTable(
        kinds=kinds,
        clocks=(clock,),
        length_bits=34,
        period_bits=34,
        lost=0,
        kind=array("H", kind),
        index=array("I", range(1, rows + 1)),
        peer=array("H", (0 if one < 2 else chance.choice((5, 9)) for one in kind)),
        start_ns=array("q", starts),
        time_ns=array("q", (chance.randrange(1, step_ns) for _ in range(rows))),
        queued_us=array("I", (0 if n % 64 else chance.randrange(50_000) for n in range(rows))),
        mantissa=array("H", (0x8000 + one for one in kind)),
        flags=array("B", (0 for _ in range(rows))),
    )


def packed(table: SampleTable) -> PackedSamples:
    facts, columns = piece(pack_facts(table)), piece(pack_sample_columns(table))
    return PackedSamples(facts[4:], columns[4:], ())


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
def test_any_number_of_samples_can_be_packed(rows: int) -> None:
    table = table_of(1, rows)
    assert_alike(packed(table).columns(), table.columns())


def test_indices_that_pass_their_highest_number_and_fall_can_be_packed() -> None:
    table = table_of(1, 700)
    index = array("I", (n * 2_654_435_761 & 0xFFFFFFFF for n in range(700)))
    table = replace(table, index=index)
    assert packed(table).columns().index.tolist() == table.columns().index.tolist()


def kept(table: SampleTable) -> set[int]:
    return set(table.index)


def test_what_two_processes_keep_of_bursts_is_nested() -> None:
    # The second has half of the records, at other places: it is thinned less.
    whole = table_of(2)
    some = whole.take(range(0, len(whole), 2))
    for most in (20_000, 8_000, 1_000, 512):
        one, other = thin(whole, most), thin(some, most)
        assert most // 4 < len(one) <= most
        assert most // 4 < len(other) <= most
        period = max(one.period_bits, other.period_bits)
        length = min(one.length_bits, other.length_bits)
        both = {
            index
            for index, end_ns in zip(some.index, unix_ends_ns(some), strict=True)
            if end_ns % (1 << period) < 1 << length
        }
        assert kept(one) & kept(other) == both, "of the shorter bursts both have all"
        assert both


def test_few_long_bursts_become_shorter_and_many_become_rarer() -> None:
    brief = thin(table_of(3, step_ns=MS), 8000)  # 33 s: two periods of 17 s
    assert brief.period_bits == 34
    assert brief.length_bits < 34
    long = thin(table_of(3, step_ns=1000 * MS), 8000)  # nine hours
    assert long.length_bits == 34
    assert long.period_bits > 34
    ends = unix_ends_ns(long)
    assert all(end_ns % (1 << long.period_bits) < 1 << 34 for end_ns in ends)
    assert len({end_ns >> long.period_bits for end_ns in ends}) >= 8


def test_samples_of_one_moment_cannot_be_thinned_but_are_bounded() -> None:
    table = table_of(4, 2000)
    table = replace(table, start_ns=array("q", [START_NS + 12345] * 2000))
    found = thin(table, 600)
    assert (len(found), found.lost) == (600, 1400)


def test_between_two_readings_of_a_clock_it_drifts_evenly() -> None:
    drift_ns = 4_000_000  # in 10 s: 400 ppm; each window ends with a reading
    windows = tuple(
        UnionWindow(NOW_S + 10 * at, 1, 0, 1, AHEAD_NS + drift_ns * (at + 1)) for at in range(3)
    )
    clock = Union(0, 10, windows).clock
    passed_s = np.array([0, 5, 10, 15, 25, 30])
    times = clock.since_ns[0] + passed_s * UNIX_S
    ahead = unix_ns(times, clock) - times - AHEAD_NS
    assert ahead.tolist() == pytest.approx((passed_s * drift_ns / 10).tolist(), abs=0.01 * drift_ns)


def test_a_clock_that_is_set_while_the_job_runs_moves_the_bursts_with_it() -> None:
    windows = (
        UnionWindow(NOW_S, 1, 0, 1, AHEAD_NS),
        UnionWindow(NOW_S + 10, 1, 0, 1, AHEAD_NS + 5 * UNIX_S),
    )
    clock = Union(0, 10, windows).clock
    times = [START_NS, START_NS + 12 * UNIX_S, START_NS + 10**12]
    expected = [NOW_NS, NOW_NS + 17 * UNIX_S, NOW_NS + 10**12 + 5 * UNIX_S]
    assert unix_ns(np.array(times), clock).tolist() == expected
    table = replace(
        table_of(1, 3),
        clocks=(clock,),
        kind=array("H", [0] * 3),
        start_ns=array("q", times),
        time_ns=array("q", [0] * 3),
    )
    assert unix_ends_ns(table) == expected


def test_the_samples_of_a_job_are_shared_out_among_its_ranks() -> None:
    assert [samples_of_each(ranks) for ranks in (0, 8, 122, 1024, 8192, 1 << 31)] == [
        32768, 32768, 32768, 3906, 512, 512,
    ]  # fmt: skip


def many_samples(rows: int, seed: int = 5) -> bytes:
    table = table_of(seed, rows)
    data = box_bytes(BoxOf([CommOf(7, 0, 4)], sample_kinds=[{}, {"func": SEND}], unions=[UNION]))
    for place in range(rows):
        kind = int(table.kind[place] == 2)
        start_ns = table.start_ns[place]
        words = (start_ns, start_ns + table.time_ns[place], place + 1, kind, 2 * kind, 0, 1 << 15)
        SAMPLE_ROW.pack_into(data, SAMPLE_AT + place * SAMPLE.size, *words)
    return bytes(data)


SAMPLE_ROW = SAMPLE.reader(
    "start_ns", "stop_ns", "index", "kind", "peer", "queued_us", "mantissa"
).words


def test_a_large_job_has_fewer_samples_of_each_process() -> None:
    data = many_samples(SAMPLES_MAX)
    assert len(columns_of(read(data, ranks=8)).kind) == SAMPLES_MAX
    found = read(data, ranks=1024)
    assert 1000 < len(columns_of(found).kind) <= 3906
    assert found.flags == ()
    box = BoxOf([CommOf(7, 0, 1 << 20)], sample_kinds=[{}], unions=[UNION])
    box.samples = [sample(START_NS + n * 100 * MS) for n in range(2000)]
    assert len(columns_of(read(bytes(box_bytes(box)), ranks=1)).kind) <= 512


def test_samples_that_do_not_compress_are_fewer_and_within_their_bound() -> None:
    chance = fixed_chance(6)
    table = table_of(6)
    noise = replace(
        table,
        index=array("I", chance.randbytes(4 * len(table))),
        queued_us=array("I", chance.randbytes(4 * len(table))),
        mantissa=array("H", chance.randbytes(2 * len(table))),
        flags=array("B", chance.randbytes(len(table))),
    )
    process = replace(read(bytes(box_bytes(BoxOf()))), samples=noise)
    block = encode_process(process)
    assert len(block) < samples_room(len(table)) + 4096 < SAMPLES_BYTES_MAX
    (found,) = decode(encode(HEAD, [block])).processes
    assert 5000 < len(columns_of(found).kind) < len(table)


def use(process: Process) -> None:
    """Look at all of it; what comes is what samples can be."""
    if process.samples is not None:
        found = process.samples.columns()
        kinds = process.samples.kinds
        for column in (found.kind, found.start_ns, found.time_ns, found.queued_ns, found.bytes):
            assert not column.size or column.min() >= 0
        if found.kind.size:
            assert found.kind.max() < len(kinds)
            assert (np.diff(found.start_ns) >= 0).all()
            assert (found.start_ns + found.time_ns).min() >= 0
            assert -1 <= found.peer.min() <= found.peer.max() <= PEER_BEYOND
        assert process.samples.length_bits <= process.samples.period_bits <= 48
        for clock in process.samples.clocks:
            assert len(clock.since_ns) == len(clock.ahead_ns) > 0
    for columns in union_columns(process.unions):
        if columns.busy_ns.size:
            assert (np.diff(columns.start_s) > 0).all()
            columns.clock.unix_ns(columns.busy_ns)
    for union in process.unions:
        for window in union.windows:
            assert 0 <= window.busy_ns <= union.window_s * UNIX_S
            assert window.start_s % union.window_s == 0


def spoil(data: bytes, seed: int, parts: Sequence[range], times: int) -> Iterator[bytes]:
    """Yield the data with one to four bytes changed, in these parts of it."""
    chance = fixed_chance(seed)
    for _ in range(times):
        spoilt = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            spoilt[chance.choice(chance.choice(parts))] ^= 1 << chance.randrange(8)
        yield bytes(spoilt)


def test_a_spoilt_box_gives_a_reason_or_samples_that_can_be() -> None:
    data = many_samples(40)
    parts = [
        range(HEADER.offsets["sample_offset"], HEADER.offsets["pid"]),
        range(HEADER.offsets["sample_seq"], HEADER.size),
        range(SAMPLE_AT, SAMPLE_AT + 40 * SAMPLE.size),
        range(SAMPLE_KIND_AT, SAMPLE_KIND_AT + 256),
        range(UNION_AT, UNION_AT + 128),
    ]
    for spoilt in spoil(data, 7, parts, 150):
        with suppress(RefusedError):
            process = read(spoilt)
            use(process)
            use(through(process))


def test_spoilt_samples_of_a_summary_are_refused_or_can_be() -> None:
    process = read(many_samples(300))
    assert isinstance(process.samples, SampleTable)
    facts, columns = pack_facts(process.samples), pack_sample_columns(process.samples)
    unions = pack_unions(process.unions)
    for which, raw in enumerate((facts, columns, unions)):
        for spoilt in spoil(raw, which, [range(len(raw)), range(min(len(raw), 60))], 500):
            streams = [
                piece(spoilt if place == which else good)[4:]
                for place, good in enumerate((facts, columns, unions))
            ]
            packed_unions = PackedUnions(streams[2])
            with suppress(RefusedError):
                packed_samples = PackedSamples(streams[0], streams[1], packed_unions)
                use(replace(process, samples=packed_samples, unions=packed_unions))


def test_samples_cut_anywhere_are_refused() -> None:
    table = table_of(8, 50)
    columns, facts = pack_sample_columns(table), unpack_facts(pack_facts(table))
    for size in range(len(columns)):
        with pytest.raises(RefusedError):
            PackedSamples(piece(pack_facts(table))[4:], piece(columns[:size])[4:], ()).columns()
    assert facts.rows == 50
    unions = pack_unions([Union(0, 10, (UnionWindow(NOW_S, 1, 0, 1, 0),))])
    for size in range(len(unions)):
        with pytest.raises(RefusedError):
            unpack_unions(unions[:size])


def test_samples_of_other_facts_are_refused() -> None:
    table = table_of(9, 50)
    facts, columns = piece(pack_facts(table))[4:], piece(pack_sample_columns(table))[4:]
    fewer = piece(pack_facts(table.take(range(49))))[4:]
    kindless = piece(pack_facts(replace(table, kinds=table.kinds[:1])))[4:]
    late = piece(pack_facts(replace(table, start_ns=array("q", [(1 << 63) - 1] * 50))))[4:]
    PackedSamples(facts, columns, ()).columns()
    for other in (fewer, kindless, late, columns, NOTHING):
        with pytest.raises(RefusedError):
            PackedSamples(other, columns, ()).columns()


def test_what_collects_samples_needs_no_numpy() -> None:
    modules = ", ".join(
        f"nccl_inspector.{name}" for name in ("agent.collect", "agent.service", "box.sample_reader")
    )
    code = f"import sys, {modules}\nprint('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout == "False\n"


def use_protocol(samples: Samples) -> int:
    return len(samples)


def test_both_forms_of_samples_are_samples() -> None:
    table = table_of(1, 3)
    assert use_protocol(table) == use_protocol(packed(table)) == 3
