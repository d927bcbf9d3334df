# SPDX-License-Identifier: Apache-2.0
"""Which channels of a communicator end late: from the box to the sentence of the report."""

import os
from dataclasses import replace

import pytest

from nccl_inspector.analysis.transport.late_channels import late_channels_note
from nccl_inspector.box import layout
from nccl_inspector.box.channels import LATE_SHARE, late_channels
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.process import Comm
from nccl_inspector.summary.codec import decode, encode, encode_process
from tests.support.boxes import MS, SKEW_AT, BoxOf, CommOf, box_bytes, fixed_chance, put
from tests.support.summaries import HEAD

EIGHT = 0xFF
WORD_MAX = (1 << 64) - 1


def comm_of(**words: int) -> Comm:
    """Return a communicator as collection reads it from a box with these sums."""
    data = box_bytes(BoxOf([CommOf(7, 0, 4)]))
    late_ns = {place: words.pop(f"late{place}", 0) for place in range(64)}
    put(data, layout.SKEW, SKEW_AT, **words)
    at = SKEW_AT + layout.SKEW.offsets["late_ns"]
    for place, ns in late_ns.items():
        data[at + 8 * place : at + 8 * place + 8] = ns.to_bytes(8, "little")
    fd = os.memfd_create("box")
    try:
        os.write(fd, data)
        process = add_samples(fd, len(data), read_box(fd, len(data), "0_1", alive=False), 4)
    finally:
        os.close(fd)
    (again,) = decode(encode(HEAD, [encode_process(process)])).processes
    assert again.comms == process.comms
    return process.comms[0]


def test_a_channel_that_ends_late_is_named_with_how_late() -> None:
    comm = comm_of(ops=20, time_ns=20 * MS, channels=EIGHT, late3=8 * MS, late7=6 * MS)
    assert (comm.looked_ops, comm.looked_ns, comm.channels) == (20, 20 * MS, EIGHT)
    assert (comm.late_channels, comm.late_ns) == (0b1000_1000, 6 * MS)


@pytest.mark.parametrize(
    "words",
    [
        {"ops": 9, "time_ns": 9 * MS, "channels": EIGHT, "late3": 8 * MS},
        {"ops": 20, "time_ns": 20 * MS, "channels": EIGHT, "late3": MS},
        # The first one has less to do than all others.
        {"ops": 20, "time_ns": 20 * MS, "channels": 7, "late1": 5 * MS, "late2": 5 * MS},
    ],
    ids=["few operations", "hardly late", "one is early"],
)
def test_a_channel_that_is_not_late_for_certain_is_not_named(words: dict[str, int]) -> None:
    comm = comm_of(**words)
    assert comm.looked_ops == words["ops"]
    assert (comm.late_channels, comm.late_ns) == (0, 0)


@pytest.mark.parametrize(
    "words",
    [
        {"ops": 20, "time_ns": 20 * MS, "channels": EIGHT, "late3": 21 * MS},
        {"ops": 20, "time_ns": WORD_MAX, "channels": EIGHT, "late3": WORD_MAX},
        {"ops": 0, "time_ns": 20 * MS, "channels": EIGHT, "late3": 8 * MS},
    ],
    ids=["later than the whole", "centuries", "of nothing"],
)
def test_sums_that_cannot_be_true_are_left_out(words: dict[str, int]) -> None:
    assert comm_of(**words).looked_ops == 0


def test_never_half_of_the_channels_are_late() -> None:
    """The one in the middle is what they are compared with."""
    chance = fixed_chance(7)
    for _ in range(500):
        used = chance.getrandbits(64) & chance.getrandbits(64)
        late_ns = [chance.choice((0, 10, 500, 1000)) for _ in range(64)]
        found = late_channels(100, 1000, used, late_ns)
        assert found.mask & ~used == 0
        assert found.mask.bit_count() <= used.bit_count() // 2
        assert (found.late_ns >= LATE_SHARE * 1000) == bool(found.mask)


def test_what_few_ranks_say_is_not_told() -> None:
    late = comm_of(ops=20, time_ns=20 * MS, channels=EIGHT, late3=8 * MS)
    well = replace(late, late_channels=0, late_ns=0)
    assert late_channels_note([well, well, late]) == []
    assert late_channels_note([]) == []
    (note,) = late_channels_note([well, late, late])
    assert note.startswith("channel 3 of 8 ends 400 us after the others, 40% of an operation, on 2")


@pytest.mark.parametrize(("nodes", "rail"), [(1, False), (2, True), (0, True)])
def test_within_a_node_there_is_no_rail_of_adapters(nodes: int, rail: bool) -> None:
    late = replace(comm_of(ops=20, time_ns=20 * MS, channels=EIGHT, late3=8 * MS), nnodes=nodes)
    (note,) = late_channels_note([late, late])
    assert ("adapters" in note) == rail
