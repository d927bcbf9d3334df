# SPDX-License-Identifier: Apache-2.0
"""Pack the tables of a process into a bounded number of bytes; the least busy rows are dropped."""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from nccl_inspector.box.sample_table import SampleTable, thin, without_unused_kinds
from nccl_inspector.model.net import Net
from nccl_inspector.model.process import Key, Line, Peer, Process
from nccl_inspector.model.timeline import halve
from nccl_inspector.summary.columns import pack_keys, pack_line, pack_peers
from nccl_inspector.summary.nets import pack_nets
from nccl_inspector.summary.samples import (
    PackedSamples,
    pack_facts,
    pack_sample_columns,
    pack_unions,
)

# Shares of the room that keys, time lines, peers and nets are each guaranteed. What one does not
# need goes to the others, in this order.
_SHARES = (0.4, 0.35, 0.2, 0.05)

# A record usually takes five to six bytes; if records do not compress, fewer are kept.
SAMPLE_BYTES = 8
SAMPLES_BYTES_LEAST = 1 << 10
SAMPLE_FACTS_BYTES_MAX = 32 << 10  # 256 kinds with the longest names take 20 KB
UNIONS_BYTES_MAX = 32 << 10  # an hour of a GPU takes 2 to 3 KB, and there are at most eight GPUs

LENGTH = struct.Struct("<I")  # of a piece, before it
NOTHING = LENGTH.pack(0)  # an empty piece
_Row = TypeVar("_Row", Key, Peer, Net)


def piece(raw: bytes) -> bytes:
    """Return a piece: four bytes of length, then zlib data."""
    data = zlib.compress(raw)
    return LENGTH.pack(len(data)) + data


def _cut(
    rows: Sequence[_Row], pack: Callable[[Sequence[_Row]], bytes], whole: bytes, room: int
) -> tuple[bytes, int]:
    """Return the piece of the first rows that fit into `room`, and how many rows do not fit.

    `whole` is the piece of all rows.
    """
    kept, packed = rows, whole
    while len(packed) > room and kept:
        kept = kept[: len(kept) * room // len(packed) * 9 // 10]
        packed = piece(pack(kept))
    return packed, len(rows) - len(kept)


def _length(pieces: Sequence[bytes]) -> int:
    return sum(map(len, pieces))


def _thin_out(lines: Sequence[Line], whole: Sequence[bytes], room: int) -> tuple[list[bytes], int]:
    """Return the pieces of time lines, and how many of these became coarser.

    The least busy line is halved first. When all have been halved, the lines are halved again. If
    even single windows do not fit, no line is kept.
    """
    found, pieces = list(lines), list(whole)
    order = sorted(range(len(found)), key=lambda place: found[place].busy_ns)
    coarse: set[int] = set()
    while _length(pieces) > room and any(len(line.windows) > 1 for line in found):
        for place in order:
            if _length(pieces) > room and len(found[place].windows) > 1:
                found[place] = halve(found[place])
                pieces[place] = piece(pack_line(found[place]))
                coarse.add(place)
    return (pieces, len(coarse)) if _length(pieces) <= room else ([], len(lines))


def _rooms(needs: Sequence[int], room: int) -> list[int]:
    """Return the room of each table: up to its share, plus what the others do not need."""
    rooms = [min(need, int(share * room)) for need, share in zip(needs, _SHARES, strict=True)]
    for place, need in enumerate(needs):
        rooms[place] += min(need - rooms[place], room - sum(rooms))
    return rooms


def pack_process(process: Process, room: int) -> tuple[list[bytes], list[str]]:
    """Return the pieces of keys, peers, nets and each time line, and flags for what did not fit.

    Together the pieces have at most `room` bytes, which must be enough for empty pieces.
    """
    keys = sorted(process.keys, key=lambda key: -key.busy_ns)
    peers = sorted(process.peers, key=lambda peer: -peer.busy_ns)
    nets = sorted(process.nets, key=lambda net: -net.waited_ns)
    whole = (
        piece(pack_keys(keys)),
        piece(pack_peers(peers)),
        piece(pack_nets(nets)),
    )
    lines = [piece(pack_line(line)) for line in process.lines]
    keys_room, lines_room, peers_room, nets_room = _rooms(
        (len(whole[0]), _length(lines), len(whole[1]), len(whole[2])), room
    )
    cuts = (
        _cut(keys, pack_keys, whole[0], keys_room),
        _cut(peers, pack_peers, whole[1], peers_room),
        _cut(nets, pack_nets, whole[2], nets_room),
    )
    thin, coarse = _thin_out(process.lines, lines, lines_room)
    words = ("kinds of operation", "peers", "entries of network detail")
    flags = [
        f"{left_out} {word} did not fit"
        for (_, left_out), word in zip(cuts, words, strict=True)
        if left_out
    ]
    if coarse:
        what = "with longer windows than measured" if thin else "that did not fit"
        flags.append(f"time lines {what}: {coarse} of {len(lines)}")
    return [*(packed for packed, _ in cuts), *thin], flags


def _packed(data: bytes) -> bytes:
    """Return a piece from data that is compressed already."""
    return LENGTH.pack(len(data)) + data


def samples_room(samples: int) -> int:
    """Return the most bytes for this many samples of a process, without their facts."""
    return samples * SAMPLE_BYTES + SAMPLES_BYTES_LEAST


def _fit_samples(table: SampleTable) -> tuple[bytes, bytes, list[str]]:
    room = samples_room(len(table))
    kept = table
    while True:
        kept = without_unused_kinds(kept)
        facts, columns = piece(pack_facts(kept)), piece(pack_sample_columns(kept))
        if len(facts) > SAMPLE_FACTS_BYTES_MAX:
            return NOTHING, NOTHING, ["its samples did not fit"]
        if len(columns) <= room:
            return facts, columns, []
        kept = thin(kept, len(kept) * 3 // 4)


def pack_samples(process: Process) -> tuple[list[bytes], list[str]]:
    """Return the pieces of samples (two) and unions, and flags for what did not fit.

    Samples are thinned if they need more bytes than `samples_room` allows.
    """
    facts, columns = NOTHING, NOTHING
    flags: list[str] = []
    if isinstance(process.samples, PackedSamples):  # from a summary that is written again
        facts, columns = map(_packed, process.samples.streams)
    elif isinstance(process.samples, SampleTable):
        facts, columns, flags = _fit_samples(process.samples)
    unions = piece(pack_unions(process.unions)) if process.unions else NOTHING
    if len(unions) > UNIONS_BYTES_MAX:
        unions, flags = NOTHING, [*flags, "how long its GPUs were busy did not fit"]
    return [facts, columns, unions], flags
