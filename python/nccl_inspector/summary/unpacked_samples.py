# SPDX-License-Identifier: Apache-2.0
"""What a node summary has of samples and unions as numpy arrays, for the analysis.

(What the agent runs must not import this.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.box.layout import AHEAD_NS_MAX, GPUS, SAMPLES_MAX, UNION_WINDOWS, WORD_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import (
    NS_PER_S,
    PEER_BEYOND,
    GpuClock,
    Samples,
    Union,
    UnionWindow,
)
from nccl_inspector.model.sample_columns import MANTISSA_BITS, Ints, SampleColumns, bytes_of
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

DRIFT_MAX = 1e-3  # ns per ns by which clocks drift apart; one that changes faster was set
_UINT32_MAX = (1 << 32) - 1
_FOLDED_AHEAD_MAX = 4 * AHEAD_NS_MAX >> AHEAD_BITS  # from the lowest to the highest value, folded


@dataclass(frozen=True, slots=True)
class ClockColumns:
    """A model.GpuClock as arrays."""

    gpu: int
    since_ns: Ints
    ahead_ns: Ints

    def unix_ns(self, times_ns: Ints) -> Ints:
        """Return the Unix times of times of the GPU's clock.

        Each reading is from the end of its window. The clocks drift apart, so from one reading to
        the next the difference changes evenly. If it changes by more than clocks drift, the host's
        clock was set, and what was read counts for all of the window.
        """
        at = np.searchsorted(self.since_ns[1:], times_ns, side="right")
        span = np.maximum(np.diff(self.since_ns), 1)
        if not len(span):
            return times_ns + self.ahead_ns[at]
        drift = np.diff(self.ahead_ns) / span
        drift = np.where(np.abs(drift) <= DRIFT_MAX, drift, 0.0)
        drift = np.append(drift[0], drift)
        since_read = times_ns - self.since_ns[at] - int(span.min())
        since_then = np.rint(drift[at] * since_read).astype(np.int64)
        found: Ints = times_ns + self.ahead_ns[at] + since_then
        return found


@dataclass(frozen=True, slots=True)
class UnionColumns:
    """The windows of a model.Union as columns, and its clock."""

    gpu: int
    window_s: int
    start_s: Ints
    operations: Ints
    lost: Ints
    busy_ns: Ints
    ahead_ns: Ints

    @property
    def clock(self) -> ClockColumns:
        """How to put times of the GPU on Unix time."""
        begins = np.maximum.accumulate(self.start_s * NS_PER_S - self.ahead_ns)
        return ClockColumns(self.gpu, begins, self.ahead_ns)


def clock_columns(samples: Samples) -> list[ClockColumns]:
    """Return `samples.clocks` as columns, in a tenth of the time that these take.

    Raises:
        RefusedError: what a node summary has are no unions; the reason is `bad_summary`.
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
        RefusedError: what a node summary has are no unions; the reason is `bad_summary`.
    """
    if isinstance(unions, PackedUnions):
        return _unpack_union_columns(unions.raw())
    return list(map(_columns_of_union, unions))


def _unpack_union_columns(raw: bytes) -> list[UnionColumns]:
    """Return what `union_columns(unpack_unions(raw))` does, in a fifth of its time."""
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
            # In floats, which have no overflow.
            or np.abs(np.cumsum(steps, dtype=np.float64)).max() > AHEAD_NS_MAX >> AHEAD_BITS
        ):
            raise RefusedError("bad_summary", "invalid union")
        start_s, ahead_ns = np.cumsum(gaps) * window_s, np.cumsum(steps) << AHEAD_BITS
        found.append(UnionColumns(gpu, window_s, start_s, operations, lost, busy_ns, ahead_ns))
    return found


def _column(width: int, planes: bytes, rows: int, most: int) -> Ints:
    """Return the numbers of a packed column, none above `most`."""
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
    """Return how many rows a packed table has, its columns of such numbers, and where it ends."""
    planes, end = take_planes(raw, at, len(mosts), rows_max)
    columns = [
        _column(width, column, planes.rows, most)
        for (width, column), most in zip(planes.columns, mosts, strict=True)
    ]
    return planes.rows, columns, end


def unpack_sample_columns(raw: bytes, facts: SampleFacts) -> SampleColumns:
    """Return the columns of packedsamples.pack_sample_columns' bytes.

    Raises:
        RefusedError: they are none, or do not go with the facts; the reason is `bad_summary`.
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
    # No sum of these has an overflow before it is beyond the limit.
    if facts.first_unit + float(gaps.sum(dtype=np.float64)) > UNITS_MAX:
        raise RefusedError("bad_summary", "invalid times of samples")
    starts = facts.first_unit + np.cumsum(gaps)
    if rows and float((starts + times).max()) > UNITS_MAX:
        raise RefusedError("bad_summary", "invalid times of samples")
    # As `sorted` of the streams: stable.
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
