# SPDX-License-Identifier: Apache-2.0
"""Tables of a process that are unpacked only when they are used: a large job has too many.

A job of 8,192 ranks has 65,000 time lines. Of one with 100,000 ranks not even the kinds of
operation fit into memory all at once.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import Key, Line
from nccl_inspector.summary.columns import (
    LINE_BYTES_MAX,
    LINE_HEAD_BYTES,
    line_head,
    pack_keys,
    unpack_keys,
    unpack_line,
)
from nccl_inspector.summary.streams import Stream, bytes_of
from nccl_inspector.system.lazy import LazyItems, LazyWhole

# A line's communicator, function and size class.
Kind = tuple[int, int, int]


def inflate(data: Stream, most: int) -> bytes:
    """Return the data of a whole zlib stream, which must be fewer bytes than `most`.

    Raises:
        RefusedError: the stream is invalid or too large; the reason is `bad_summary`.
    """
    try:
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(bytes_of(data), most)
    except zlib.error as err:
        raise RefusedError("bad_summary", "invalid block") from err
    if not unpacker.eof or unpacker.unused_data or len(found) >= most:
        raise RefusedError("bad_summary", "invalid block")
    return found


class PackedLines(LazyItems[Line]):
    """The time lines of a process, each a zlib stream of `pack_line`'s bytes.

    An invalid line is noticed only when it is used: RefusedError.
    """

    __slots__ = ("_streams",)

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Take the streams, unchecked."""
        self._streams = tuple(streams)

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._streams)

    def _item(self, at: int) -> Line:
        return unpack_line(inflate(self._streams[at], LINE_BYTES_MAX))

    def packed_of_kinds(
        self, kinds: Collection[Kind], ranks: Mapping[Kind, Collection[int]] | None = None
    ) -> Iterator[bytes]:
        """Yield the uncompressed bytes of the lines of these kinds; only heads of others are read.

        `ranks`: for each kind in it, only the lines of these ranks are returned.
        """
        for stream in self._streams:
            try:
                data = zlib.decompressobj().decompress(bytes_of(stream), LINE_HEAD_BYTES)
            except zlib.error as err:
                raise RefusedError("bad_summary", "invalid block") from err
            head = line_head(data)
            kind = head.comm_id, head.func, head.size_class
            if kind in kinds and (ranks is None or head.rank in ranks.get(kind, (head.rank,))):
                yield inflate(stream, LINE_BYTES_MAX)

    def of_kinds(
        self, kinds: Collection[Kind], ranks: Mapping[Kind, Collection[int]] | None = None
    ) -> Iterator[Line]:
        """Yield the lines of these kinds, as `packed_of_kinds`."""
        return map(unpack_line, self.packed_of_kinds(kinds, ranks))


class PackedKeys(LazyWhole[Key]):
    """Kinds of operation, unpacked at each use; they were checked before."""

    __slots__ = ("_by_comm", "_packed")

    def __init__(self, packed: bytes, by_comm: Mapping[int, bytes] | None = None) -> None:
        """Take `pack_keys`'s bytes: of all, and of each communicator's own.

        The communicators are those of a process, by their index.
        """
        self._packed, self._by_comm = packed, by_comm or {}

    @classmethod
    def of(cls, keys: Sequence[Key], packed: bytes) -> "PackedKeys":
        """Return the keys of a process; `packed` is all of them."""
        by_comm: dict[int, list[Key]] = {}
        for key in keys:
            by_comm.setdefault(key.comm, []).append(key)
        return cls(packed, {comm: pack_keys(own) for comm, own in by_comm.items()})

    def of_comm(self, comm: int) -> Sequence[Key]:
        """Return those of one communicator."""
        packed = self._by_comm.get(comm)
        return PackedKeys(packed) if packed else ()

    def _all(self) -> tuple[Key, ...]:
        return unpack_keys(self._packed)
