# SPDX-License-Identifier: Apache-2.0
"""Samples as numpy arrays, for the analysis; code that the agent runs must not import this."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.box.layout import AHEAD_NS_MAX, GPUS, SAMPLES_MAX, UNION_WINDOWS, WORD_MAX
from nccl_inspector.box.sample_table import MANTISSA_BITS, SampleTable
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import (
    NS_PER_S,
    PEER_BEYOND,
    GpuClock,
    SampleKind,
    Samples,
    Union,
    UnionWindow,
)
from nccl_inspector.summary.columns import START_S_MAX, take_planes
from nccl_inspector.summary.samples import (
    AHEAD_BITS,
    UNIONS_MAX,
    UNIT_BITS,
    UNITS_MAX,
    WINDOW_S_MAX,
    PackedSamples,
    PackedUnions,
    SampleFacts,
)

Ints = NDArray[np.int64]

_UINT32_MAX = (1 << 32) - 1
_FOLDED_AHEAD_MAX = 4 * AHEAD_NS_MAX >> AHEAD_BITS  # from the lowest to the highest value, folded


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """The samples of a process as columns of one length, ordered by start.

    Times are exact to 64 ns, `queued_ns` to 1 us.
    """

    kind: NDArray[np.int32]  # index of Samples.kinds
    # The number of the operation, from 1, equal on all ranks of a communicator's incarnation; its
    # low 32 bits. A collective is counted among those of its function; a Send or Recv among those
    # of its function with the same peer; a group among the groups of its function.
    index: Ints
    peer: NDArray[np.int32]  # rank; PEER_NONE: a collective or group; PEER_BEYOND: not known
    start_ns: Ints  # GPU clock (flag SAMPLE_CPU_TIMED: the host's)
    time_ns: Ints  # from start to end
    queued_ns: Ints  # time from the call to the start; 0: not known
    bytes: Ints
    flags: NDArray[np.uint8]  # bits SAMPLE_GROUP, SAMPLE_CPU_TIMED


def bytes_of(mantissas: NDArray[Any], kind: NDArray[Any], kinds: Sequence[SampleKind]) -> Ints:
    """Return the bytes of samples from their mantissas and kinds."""
    shifts = [max(one.size_class - MANTISSA_BITS, 0) for one in kinds]
    found: Ints = mantissas.astype(np.int64) << np.array(shifts, dtype=np.int64)[kind]
    return found


@dataclass(frozen=True, slots=True)
class ClockColumns:
    """A GpuClock (model/process.py) as arrays."""

    gpu: int
    since_ns: Ints
    ahead_ns: Ints

    def unix_ns(self, times_ns: Ints) -> Ints:
        """Return times of the GPU's clock as Unix times, in ns."""
        found: Ints = (
            times_ns + self.ahead_ns[np.searchsorted(self.since_ns[1:], times_ns, side="right")]
        )
        return found


@dataclass(frozen=True, slots=True)
class UnionColumns:
    """The windows of a Union (model/process.py) as columns, and its clock."""

    gpu: int
    window_s: int
    start_s: Ints
    operations: Ints
    lost: Ints
    busy_ns: Ints
    ahead_ns: Ints

    @property
    def clock(self) -> ClockColumns:
        """The clock that converts times of this GPU into Unix time."""
        begins = np.maximum.accumulate(self.start_s * NS_PER_S - self.ahead_ns)
        return ClockColumns(self.gpu, begins, self.ahead_ns)


def clock_columns(samples: Samples) -> list[ClockColumns]:
    """Return `samples.clocks` as columns, in a tenth of the time that `samples.clocks` takes.

    Raises:
        RefusedError: the unions in the node summary are invalid; the reason is `bad_summary`.
    """
    if isinstance(samples, PackedSamples):
        return [one.clock for one in union_columns(samples.unions) if len(one.start_s)]
    return list(map(_columns_of_clock, samples.clocks))


def _columns_of_clock(clock: GpuClock) -> ClockColumns:
    return ClockColumns(
        clock.gpu, np.array(clock.since_ns, np.int64), np.array(clock.ahead_ns, np.int64)
    )


def unix_ns(times_ns: Ints, clock: GpuClock) -> Ints:
    """Return the Unix times of times of a GPU's clock."""
    return _columns_of_clock(clock).unix_ns(times_ns)


def _columns_of_union(union: Union) -> UnionColumns:
    table = np.array(union.windows, dtype=np.int64).reshape(-1, len(UnionWindow._fields)).T
    return UnionColumns(union.gpu, union.window_s, *table)


def union_columns(unions: Sequence[Union]) -> list[UnionColumns]:
    """Return the unions of a process as columns.

    Raises:
        RefusedError: the unions in the node summary are invalid; the reason is `bad_summary`.
    """
    if isinstance(unions, PackedUnions):
        return _unpack_union_columns(unions.raw())
    return list(map(_columns_of_union, unions))


def _unpack_union_columns(raw: bytes) -> list[UnionColumns]:
    """Return the columns of `unpack_unions(raw)`, in a fifth of the time."""
    _, heads, end = _take(raw, 0, (GPUS - 1, WINDOW_S_MAX, UNION_WINDOWS), UNIONS_MAX)
    mosts = START_S_MAX, WORD_MAX >> 2, WORD_MAX >> 2, WINDOW_S_MAX * NS_PER_S, _FOLDED_AHEAD_MAX
    rows, columns, end = _take(raw, end, mosts, UNIONS_MAX * UNION_WINDOWS)
    gpus, lengths, counts = (head.tolist() for head in heads)
    if end != len(raw) or sum(counts) != rows:
        raise RefusedError("bad_summary", "invalid unions")
    found, at = [], 0
    for gpu, window_s, number in zip(gpus, lengths, counts, strict=True):
        gaps, operations, lost, busy_ns, drifts = (column[at : at + number] for column in columns)
        at += number
        steps = (drifts >> 1) ^ -(drifts & 1)
        if number and (
            not window_s
            or not gaps[1:].all()
            or int(gaps.sum()) * window_s > START_S_MAX
            or int(busy_ns.max()) > window_s * NS_PER_S
            # Added as floats, which do not overflow.
            or np.abs(np.cumsum(steps, dtype=np.float64)).max() > AHEAD_NS_MAX >> AHEAD_BITS
        ):
            raise RefusedError("bad_summary", "invalid union")
        start_s, ahead_ns = np.cumsum(gaps) * window_s, np.cumsum(steps) << AHEAD_BITS
        found.append(UnionColumns(gpu, window_s, start_s, operations, lost, busy_ns, ahead_ns))
    return found


def columns_of(table: SampleTable) -> SampleColumns:
    """Return the columns of samples that were read from a box."""
    kind = np.array(table.kind, dtype=np.int32)
    return SampleColumns(
        kind=kind,
        index=np.array(table.index, dtype=np.int64),
        peer=np.array(table.peer, dtype=np.int32) - 1,
        start_ns=np.array(table.start_ns, dtype=np.int64),
        time_ns=np.array(table.time_ns, dtype=np.int64),
        queued_ns=np.array(table.queued_us, dtype=np.int64) * 1000,
        bytes=bytes_of(np.array(table.mantissa), kind, table.kinds),
        flags=np.array(table.flags, dtype=np.uint8),
    )


def _column(width: int, planes: bytes, rows: int, most: int) -> Ints:
    """Return the numbers of a packed column; none may be above `most`."""
    found: Ints
    if width == 1:
        found = np.frombuffer(planes, dtype=np.uint8).astype(np.int64)
    else:
        raw = np.zeros((rows, 8), dtype=np.uint8)
        if width:
            raw[:, :width] = np.frombuffer(planes, dtype=np.uint8).reshape(width, rows).T
        found = raw.view("<i8")[:, 0]
    may_be_more = most < (1 << 8 * width) - 1 or not width
    if may_be_more and rows and (int(found.max()) > most or int(found.min()) < 0):
        raise RefusedError("bad_summary", "invalid number in samples")
    return found


def _take(
    raw: bytes, at: int, mosts: Sequence[int], rows_max: int = SAMPLES_MAX
) -> tuple[int, list[Ints], int]:
    """Return the number of rows of a packed table, its columns, and where it ends.

    `mosts`: the highest number allowed in each column.
    """
    planes, end = take_planes(raw, at, len(mosts), rows_max)
    columns = [
        _column(width, column, planes.rows, most)
        for (width, column), most in zip(planes.columns, mosts, strict=True)
    ]
    return planes.rows, columns, end


def unpack_sample_columns(raw: bytes, facts: SampleFacts) -> SampleColumns:
    """Return the columns from the bytes of samples.pack_sample_columns.

    Raises:
        RefusedError: the bytes are invalid, or do not match the facts; the reason is `bad_summary`.
    """
    rows, (stream, gaps, times, queued_us), end = _take(
        raw, 0, (SAMPLES_MAX, UNITS_MAX, UNITS_MAX, _UINT32_MAX)
    )
    streams, (kinds, peers), end = _take(raw, end, (len(facts.kinds) - 1, PEER_BEYOND + 1))
    rows_by_stream, (steps, mantissas, flags), end = _take(
        raw, end, (_UINT32_MAX, (1 << MANTISSA_BITS + 1) - 1, 0xFF)
    )
    if end != len(raw) or not facts.rows == rows == rows_by_stream:
        raise RefusedError("bad_summary", "invalid table of samples")
    if rows and int(stream.max()) >= streams:
        raise RefusedError("bad_summary", "invalid table of samples")
    # Summed as floats, which exceed the limit before they could overflow.
    if facts.first_unit + float(gaps.sum(dtype=np.float64)) > UNITS_MAX:
        raise RefusedError("bad_summary", "invalid times of samples")
    starts = facts.first_unit + np.cumsum(gaps)
    if rows and float((starts + times).max()) > UNITS_MAX:
        raise RefusedError("bad_summary", "invalid times of samples")
    # A stable order, as `sorted` by stream makes when packing.
    order = np.argsort(stream.astype(np.uint16), kind="stable")
    index, bytes_, flag = (np.empty(rows, dtype=np.int64) for _ in range(3))
    kind = kinds[stream] if rows else stream
    index[order] = np.cumsum(steps) & _UINT32_MAX
    bytes_[order] = mantissas
    flag[order] = flags
    return SampleColumns(
        kind=kind.astype(np.int32),
        index=index,
        peer=(peers[stream] if rows else stream).astype(np.int32) - 1,
        start_ns=starts << UNIT_BITS,
        time_ns=times << UNIT_BITS,
        queued_ns=queued_us * 1000,
        bytes=bytes_of(bytes_, kind, facts.kinds),
        flags=flag.astype(np.uint8),
    )
