# SPDX-License-Identifier: Apache-2.0
"""Time lines that are unpacked only when they are looked at: a large job has 65,000 of them."""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import Line
from nccl_inspector.summary.columns import LINE_BYTES_MAX, LINE_HEAD_BYTES, line_head, unpack_line

# Of a summary: a view of it, so that what nobody unpacks is never copied.
Stream = bytes | memoryview
# A line's communicator, function and size class.
Kind = tuple[int, int, int]
_Item = TypeVar("_Item")


def inflate(data: Stream, most: int) -> bytes:
    """Return what a whole zlib stream unpacks to, fewer bytes than `most`.

    Raises:
        RefusedError: it is none, or unpacks to more; the reason is `bad_summary`.
    """
    try:
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(data, most)
    except zlib.error as err:
        raise RefusedError("bad_summary", "odd block") from err
    if not unpacker.eof or unpacker.unused_data or len(found) >= most:
        raise RefusedError("bad_summary", "odd block")
    return found


class Packed(Sequence[_Item]):
    """What is unpacked when it is looked at, and equals a tuple of that."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Tell whether the same items are in it."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return what equal ones have in common."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return what a tuple of them would."""
        return repr(tuple(self))


class PackedLines(Packed[Line]):
    """The time lines of a process, each a zlib stream of `pack_line`'s bytes.

    What is no time line is found out when it is looked at: RefusedError.
    """

    __slots__ = ("_streams",)

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Take the streams, of which nothing is known yet."""
        self._streams = tuple(streams)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._streams)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Line, ...]: ...
    def __getitem__(self, place: int | slice) -> Line | tuple[Line, ...]:
        """Return one, unpacked now, or several."""
        if isinstance(place, slice):
            return tuple(map(self._unpack, self._streams[place]))
        return self._unpack(self._streams[place])

    @staticmethod
    def _unpack(stream: Stream) -> Line:
        return unpack_line(inflate(stream, LINE_BYTES_MAX))

    def packed_of_kinds(
        self, kinds: Collection[Kind], ranks: Mapping[Kind, Collection[int]] | None = None
    ) -> Iterator[bytes]:
        """Return what the lines of these kinds unpack to; of the others only heads are looked at.

        `ranks`: of a kind that is in it only the lines of these.
        """
        for stream in self._streams:
            try:
                data = zlib.decompressobj().decompress(stream, LINE_HEAD_BYTES)
            except zlib.error as err:
                raise RefusedError("bad_summary", "odd block") from err
            head = line_head(data)
            kind = head.comm_id, head.func, head.size_class
            if kind in kinds and (ranks is None or head.rank in ranks.get(kind, (head.rank,))):
                yield inflate(stream, LINE_BYTES_MAX)

    def of_kinds(
        self, kinds: Collection[Kind], ranks: Mapping[Kind, Collection[int]] | None = None
    ) -> Iterator[Line]:
        """Return the lines of these kinds, as `packed_of_kinds`."""
        return map(unpack_line, self.packed_of_kinds(kinds, ranks))
