# SPDX-License-Identifier: Apache-2.0
"""Samples of a process in memory, thinned so that all ranks keep the same bursts.

The columns are of `array`, and no Python loop goes over single records, because the agent packs
eight tables of 32,768 records at the end of a job and may not import numpy.
"""

from array import array
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, Self

from nccl_inspector.box.layout import SAMPLES_MAX
from nccl_inspector.model.process import GpuClock, SampleKind

if TYPE_CHECKING:
    from nccl_inspector.model.sample_columns import SampleColumns

# The most samples of all processes of a job together, and the least for each of them.
JOB_SAMPLES_MAX, SAMPLES_MIN = 4_000_000, 512
# Bursts begin at multiples of the period. Thinning is as in plugin/box/box.h: the period is doubled
# while there are records of at least PERIODS_MIN periods; otherwise the bursts are halved, down to
# 2^24 ns. No period is longer than 2^48 ns.
PERIODS_MIN = 16
LENGTH_BITS_MIN, PERIOD_BITS_MAX = 24, 48
SIZE_CLASS_MAX = 62  # the largest whose bytes fit a signed 64-bit integer


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The samples of a box, ordered by start: see model.process.Samples."""

    kinds: tuple[SampleKind, ...]
    clocks: tuple[GpuClock, ...]
    length_bits: int
    period_bits: int
    lost: int
    kind: "array[int]"
    index: "array[int]"
    peer: "array[int]"  # rank + 1, 0: none
    start_ns: "array[int]"
    time_ns: "array[int]"
    queued_us: "array[int]"
    mantissa: "array[int]"
    flags: "array[int]"

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.start_ns)

    def columns(self) -> "SampleColumns":
        """Return the records as numpy arrays."""
        from nccl_inspector.model.sample_columns import columns_of

        return columns_of(self.kinds, {name: getattr(self, name) for name in _COLUMNS})

    def take(self, places: Sequence[int]) -> Self:
        """Return the table with the records at these places, in this order."""
        columns: dict[str, Any] = {name: take(getattr(self, name), places) for name in _COLUMNS}
        return replace(self, **columns)


# The members of SampleTable that have one value for each record.
_COLUMNS = ("kind", "index", "peer", "start_ns", "time_ns", "queued_us", "mantissa", "flags")


def samples_of_each(ranks: int) -> int:
    """Return how many samples of each process a node summary has, for a job of `ranks` ranks."""
    return min(max(JOB_SAMPLES_MAX // max(ranks, 1), SAMPLES_MIN), SAMPLES_MAX)


def take(column: "array[int]", places: Sequence[int]) -> "array[int]":
    """Return the values at these places."""
    if len(places) < 2:  # with one item, itemgetter returns no tuple
        return array(column.typecode, [column[place] for place in places])
    return array(column.typecode, itemgetter(*places)(column))


# For a GPU without a known clock: its times are taken as Unix time.
_UNKNOWN = GpuClock(-1, (), (0,))


def unix_ends_ns(table: SampleTable) -> list[int]:
    """Return the Unix times, in ns, at which the records end."""
    by_gpu: dict[int | None, GpuClock] = {clock.gpu: clock for clock in table.clocks}
    # Only changes from the second on matter: earlier times also use the first distance.
    changes = [
        (clock.since_ns[1:], clock.ahead_ns)
        for clock in (by_gpu.get(kind.gpu, _UNKNOWN) for kind in table.kinds)
    ]
    ends = map(add, table.start_ns, table.time_ns)
    return [
        end + ahead_ns[bisect(since_ns, end)]
        for end, (since_ns, ahead_ns) in zip(
            ends, map(changes.__getitem__, table.kind), strict=True
        )
    ]


def thin(table: SampleTable, most: int) -> SampleTable:
    """Return at most `most` records, with fewer or shorter bursts by the rules of plugin/box/box.h.

    By these rules the bursts of any two processes are nested, however often each was thinned. If
    shorter bursts would have no records (all are of one moment), the first records are kept and the
    others count as lost.
    """
    if len(table) <= most:
        return table
    places: list[int] = list(range(len(table)))
    ends_ns = unix_ends_ns(table)
    length_bits, period_bits = table.length_bits, table.period_bits
    lost = table.lost
    while len(places) > most:
        periods = len({end_ns >> period_bits for end_ns in ends_ns})
        shorter = periods < PERIODS_MIN and length_bits > LENGTH_BITS_MIN
        next_bits = (length_bits - 1, period_bits) if shorter else (length_bits, period_bits + 1)
        mask, length_ns = (1 << next_bits[1]) - 1, 1 << next_bits[0]
        kept = [end_ns & mask < length_ns for end_ns in ends_ns]
        if not any(kept) or next_bits[1] > PERIOD_BITS_MAX:
            lost += len(places) - most
            places = places[:most]
            break
        length_bits, period_bits = next_bits
        places, ends_ns = list(compress(places, kept)), list(compress(ends_ns, kept))
    return replace(table.take(places), length_bits=length_bits, period_bits=period_bits, lost=lost)


def without_unused_kinds(table: SampleTable) -> SampleTable:
    """Return the same records with only the kinds that they use."""
    used = sorted(set(table.kind))
    if len(used) == len(table.kinds):
        return table
    places = {kind: place for place, kind in enumerate(used)}
    kind = array("H", map(places.__getitem__, table.kind))
    return replace(table, kind=kind, kinds=tuple(map(table.kinds.__getitem__, used)))
