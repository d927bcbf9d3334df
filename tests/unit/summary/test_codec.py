# SPDX-License-Identifier: Apache-2.0
"""Node summaries: what goes in comes out, within 32 KiB a process, and nothing else is read."""

import json
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.model.process import FUNCS, Histogram, Line, Peer, Process
from nccl_inspector.model.timeline import halve
from nccl_inspector.summary import codec as summary
from nccl_inspector.summary.codec import (
    BLOCK_BYTES_MAX,
    NodeSummary,
    decode,
    encode,
    encode_process,
)
from nccl_inspector.summary.columns import (
    line_head,
    pack_keys,
    pack_line,
    pack_peers,
    unpack_keys,
    unpack_line,
    unpack_peers,
)
from nccl_inspector.summary.fit_tables import NOTHING, piece
from nccl_inspector.summary.nets import pack_nets, unpack_nets
from nccl_inspector.summary.packed_tables import PackedLines
from tests.support.boxes import (
    NOW_S,
    BoxOf,
    LineOf,
    box_bytes,
    fixed_chance,
    window,
)
from tests.support.full_boxes import big_process, full_box, read, spoil
from tests.support.summaries import HEAD

EMPTY = [
    *(piece(pack_keys([])), piece(pack_peers([])), piece(pack_nets([]))),
    *[NOTHING] * 3,
]


def through(process: Process) -> Process:
    """Return what is read of a process's block."""
    block = encode_process(process)
    assert len(block) <= summary.BLOCK_BYTES_MAX
    (found,) = decode(encode(HEAD, [block])).processes
    return found


def whole_summary() -> tuple[bytes, NodeSummary]:
    process = read(bytes(full_box()))
    return encode(HEAD, [encode_process(process)] * 2), NodeSummary(HEAD, (process, process))


def test_a_summary_is_read_as_it_was_written() -> None:
    data, expected = whole_summary()
    found = decode(data)
    assert found == expected
    assert found.processes[0].peers
    assert found.processes[0].lines
    assert found.processes[0].nets
    assert found.head.job_start == HEAD.job_start


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("nccl-inspector-node-summary/2", "an earlier release wrote it .format 2; this one reads"),
        ("nccl-inspector-node-summary/13", "a later release wrote it .format 13; this one reads"),
        ("nccl-inspector-node-summary/", "not a node summary"),
        ("nccl-inspector-node-summary/x", "not a node summary"),
        ("summary/10", "not a node summary"),
        (10, "not a node summary"),
    ],
)
def test_a_summary_of_another_release_is_refused_as_such(written: object, why: str) -> None:
    line, rest = whole_summary()[0].split(b"\n", 1)
    other = {**json.loads(line), "format": written}
    with pytest.raises(RefusedError, match=why):
        decode(json.dumps(other).encode() + b"\n" + rest)


def test_an_hour_of_all_time_lines_goes_in_whole() -> None:
    process = big_process(keys=12, peers=16)
    found = through(process)
    assert found.flags == ()
    assert found.lines == process.lines
    assert set(found.peers) == set(process.peers)
    assert set(found.nets) == set(process.nets)


def test_a_block_keeps_to_its_size_and_loses_the_least_busy_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "BLOCK_BYTES_MAX", 16 << 10)
    process = big_process()
    found = through(process)
    keys = set(process.keys) - set(found.keys)
    peers = set(process.peers) - set(found.peers)
    assert found.flags[:2] == (
        f"{len(keys)} kinds of operation did not fit",
        f"{len(peers)} peers did not fit",
    )
    assert len(found.keys) > 20
    assert len(found.peers) > 20
    assert max(key.busy_ns for key in keys) <= min(key.busy_ns for key in found.keys)
    assert max(peer.busy_ns for peer in peers) <= min(peer.busy_ns for peer in found.peers)


def test_room_that_one_table_does_not_need_is_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "BLOCK_BYTES_MAX", 16 << 10)
    alone = through(big_process(peers=0, windows=0))
    together = through(big_process())
    assert len(alone.keys) > 1.5 * len(together.keys)


def sums(line: Line) -> tuple[int, int, int]:
    return (
        sum(one.ops for one in line.windows),
        sum(one.bytes for one in line.windows),
        sum(one.busy_ns for one in line.windows),
    )


def test_time_lines_that_do_not_fit_have_longer_windows_and_the_same_sums() -> None:
    process = big_process()
    found = through(process)
    coarse = [line for line in found.lines if line.window_s > 10]
    assert f"time lines with longer windows than measured: {len(coarse)} of 8" in found.flags
    assert [sums(line) for line in found.lines] == [sums(line) for line in process.lines]
    lengths = [line.window_s for line in found.lines]
    assert lengths == sorted(lengths, reverse=True), "the least busy is halved first"
    assert lengths[0] <= 2 * lengths[-1]
    for line in coarse:
        starts = [one.start_s for one in line.windows]
        assert all(start_s % line.window_s == 0 for start_s in starts)
        assert starts == sorted(set(starts))


def test_two_windows_become_one_as_in_the_plugin() -> None:
    windows = [window(NOW_S, 1, 1000, 1), window(NOW_S + 10, 3, 5000, 2)]
    (line,) = read(bytes(box_bytes(BoxOf(lines=[LineOf(windows)])))).lines
    (merged,) = halve(line).windows
    assert (merged.start_s, merged.ops, merged.bytes, merged.busy_ns) == (NOW_S, 4, 4 << 20, 16000)
    assert (merged.min_ns, merged.median_ns) == (500, 4000)
    assert (merged.first_index, merged.last_index) == (1, 4)


def test_communicators_that_do_not_fit_are_said() -> None:
    process, chance = big_process(), fixed_chance(4)
    comms = tuple(
        replace(process.comms[0], index=n, id=chance.randrange(1 << 64)) for n in range(4000)
    )
    found = through(replace(process, comms=comms))
    assert found.flags == ("its communicators did not fit",)
    assert (found.comms, found.keys, found.lines, found.peers) == ((), (), (), ())


def test_a_summary_cut_anywhere_is_refused() -> None:
    data, _ = whole_summary()
    for size in range(len(data)):
        with pytest.raises(RefusedError):
            decode(data[:size])


def test_a_spoilt_summary_is_refused_or_read_and_nothing_else_happens() -> None:
    data, _ = whole_summary()
    for spoilt in spoil(data, 6):
        with suppress(RefusedError):
            decode(spoilt)


def test_spoilt_tables_are_refused_or_read_and_nothing_else_happens() -> None:
    process = read(bytes(full_box()))
    for spoilt in spoil(pack_keys(process.keys), 7):
        with suppress(RefusedError):
            unpack_keys(spoilt)
    for spoilt in spoil(pack_peers(process.peers), 8):
        with suppress(RefusedError):
            unpack_peers(spoilt)
    for spoilt in spoil(pack_nets(process.nets), 10):
        with suppress(RefusedError):
            assert all(queue.device < 4 for net in unpack_nets(spoilt) for queue in net.queues)
    for spoilt in spoil(pack_line(process.lines[0]), 9):
        with suppress(RefusedError):
            line = unpack_line(spoilt)
            assert all(one.ops > 0 <= one.bytes for one in line.windows)


def test_network_detail_is_read_with_its_queue_pairs() -> None:
    queues = NetQueue(0, 100, 7, 9 << 40), NetQueue(3, (1 << 24) - 1, 1, 0)
    nets = (
        Net(0, 1, 1, 2, 3, 4, 5, 6, 7 << 50, 1, 2, 3, 4, queues),
        Net(0, 1, 0, 2, 3, 4, 5, 6),
        Net(1, 9, 1, 2, 3, 4, 5, 6, queues=queues[:1]),
    )
    assert unpack_nets(pack_nets(nets)) == nets


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (Net(0, 1, 2, 1, 1, 1, 1, 1), "too large"),
        (Net(0, 1, 1, 1, 1, 1, 1, 1, queues=(NetQueue(4, 1, 1, 1),)), "too large"),
        (Net(0, 1, 1, 1, 1, 1, 1, 1, queues=(NetQueue(0, 1 << 24, 1, 1),)), "too large"),
    ],
)
def test_network_detail_that_cannot_be_is_refused(net: Net, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        unpack_nets(pack_nets([net]))
    nets = [Net(0, 1, 1, 1, 1, 1, 1, 1)] * 2049
    with pytest.raises(RefusedError, match="too many rows"):
        unpack_nets(pack_nets(nets))


def test_more_rows_than_there_can_be_are_refused() -> None:
    many = pack_peers([Peer(0, 9, 1, 1, 1, 1, 1, 1)] * 8193)
    with pytest.raises(RefusedError, match="too many rows"):
        unpack_peers(many)
    keys = [*read(bytes(full_box())).keys] * 600
    with pytest.raises(RefusedError, match="too many rows"):
        unpack_keys(pack_keys(keys))


@pytest.mark.parametrize(
    "meta",
    [b"[" * 50_000, b"{}", b"[1,2,3,4,5,6]", b"[[],[],[],[],[],[]]", b"[" + b"9" * 5000 + b"]"],
)
def test_odd_json_in_a_block_is_refused(meta: bytes) -> None:
    with pytest.raises(RefusedError):
        decode(encode(HEAD, [b"".join([piece(meta), *EMPTY])]))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("operations", {"func": len(FUNCS)}),
        ("operations", {"func": -1}),
        ("operations", {"peer": -2}),
        ("operations", {"algo": 99}),
        ("comms", {"nranks": -1}),
        ("comms", {"nranks": 1 << 31}),
        ("comms", {"gpu": -5}),
        ("comms", {"rank": -2}),
    ],
)
def test_a_number_that_is_no_place_in_a_table_is_refused(table: str, words: dict[str, int]) -> None:
    process = read(bytes(full_box()))
    rows = getattr(process, table)
    assert rows
    changed: Any = {table: (replace(rows[0], **words), *rows[1:])}
    odd = replace(process, **changed)
    with pytest.raises(RefusedError, match="invalid number"):
        decode(encode(HEAD, [encode_process(odd)]))


def test_a_truth_value_is_no_number() -> None:
    process = read(bytes(full_box()))
    odd = replace(process, facts=replace(process.facts, procid=True))
    with pytest.raises(RefusedError, match=r"invalid Facts\.procid"):
        decode(encode(HEAD, [encode_process(odd)]))


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "0.5", 10**400])
def test_a_share_of_time_that_cannot_be_is_refused(share: object) -> None:
    block = encode_process(read(bytes(full_box())))
    size = int.from_bytes(block[:4], "little")
    meta = json.loads(zlib.decompress(block[4 : 4 + size]))
    decode(encode(HEAD, [piece(json.dumps([*meta[:-1], 1]).encode()) + block[4 + size :]]))
    odd = piece(json.dumps([*meta[:-1], share]).encode()) + block[4 + size :]
    with pytest.raises(RefusedError):
        decode(encode(HEAD, [odd]))


def test_a_block_of_too_few_or_too_many_pieces_is_refused() -> None:
    (block,) = {encode_process(read(bytes(full_box())))}
    for odd in (b"", piece(b"[]"), block + EMPTY[0] * 65, block + b"\xff\xff\xff\xff"):
        with pytest.raises(RefusedError):
            decode(encode(HEAD, [odd]))


def test_a_block_that_unpacks_to_gigabytes_is_refused() -> None:
    block = piece(bytes(28 << 20))
    assert len(block) <= BLOCK_BYTES_MAX
    with pytest.raises(RefusedError):
        decode(encode(HEAD, [block]))
    block = b"".join([*EMPTY, *[piece(bytes(3 << 20))] * 3])
    assert len(block) <= BLOCK_BYTES_MAX
    with pytest.raises(RefusedError):
        decode(encode(HEAD, [block]))


def test_a_histogram_that_counts_nothing_is_refused() -> None:
    (key, *_) = read(bytes(full_box())).keys
    for histogram in (((5, 0),), ((3, 1), (5, 0)), ((1 << 20, 1),)):
        with pytest.raises(RefusedError, match="invalid histogram"):
            unpack_keys(pack_keys([key._replace(histogram=Histogram.of(histogram))]))


def test_a_spoilt_time_line_is_refused_when_it_is_looked_at() -> None:
    good = pack_line(read(bytes(full_box())).lines[0])
    lines = PackedLines([zlib.compress(good), zlib.compress(good[:-1]), b"none"])
    assert lines[0] == unpack_line(good)
    for place in (1, 2):
        with pytest.raises(RefusedError):
            lines[place]
    head = line_head(good)
    with pytest.raises(RefusedError):
        list(lines.of_kinds({(head.comm_id, head.func, head.size_class)}))


def test_only_lines_of_the_kinds_asked_for_are_unpacked() -> None:
    lines = read(bytes(full_box())).lines
    packed = PackedLines([*(zlib.compress(pack_line(line)) for line in lines)])
    wanted = lines[0]
    kind = (wanted.comm_id, wanted.func, wanted.size_class)
    assert list(packed.of_kinds({kind})) == [wanted]
    assert list(packed.of_kinds({kind}, {kind: [wanted.rank]})) == [wanted]
    assert not list(packed.of_kinds({kind}, {kind: [wanted.rank + 1]}))
    assert not list(packed.of_kinds(set()))
