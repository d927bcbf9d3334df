# SPDX-License-Identifier: Apache-2.0
"""Samples as numpy arrays, for the analysis. (What the agent runs must not import this.)"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.model.process import (
    SAMPLE_AT_LEAST,
    SAMPLE_WITHIN_MASK,
    SAMPLE_WITHIN_SHIFT,
    SampleKind,
)

# bytes = mantissa << (size class - MANTISSA_BITS), of smaller size classes mantissa itself.
MANTISSA_BITS = 15

# Longer than anything is queued: the time that a sample tells is a lower bound.
AT_LEAST_NS = 1 << 60

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """The samples of a process as columns of one length, ordered by start.

    Times are exact within 64 ns, `queued_ns` within 1 us if `within_ns` is 0.
    """

    kind: NDArray[np.int32]  # index of Samples.kinds
    # Which operation it is: the same number on all ranks of a communicator's incarnation, from 1,
    # its low 32 bits. Of a collective: its number among those of this function. Of a Send or Recv:
    # among those of this function with this peer. Of a group: among the groups of this function.
    index: Ints
    peer: NDArray[np.int32]  # rank; PEER_NONE: a collective or group; PEER_BEYOND: not known
    start_ns: Ints  # GPU clock (flag SAMPLE_CPU_TIMED: the host's)
    time_ns: Ints  # from start to end
    queued_ns: Ints  # from the call to the start; 0: not known
    bytes: Ints
    flags: NDArray[np.uint8]  # bits SAMPLE_GROUP, SAMPLE_CPU_TIMED, and how exact queued_ns is

    @property
    def within_ns(self) -> Ints:
        """By how much `queued_ns` is too long at most; AT_LEAST_NS: it is a lower bound."""
        bits = (self.flags.astype(np.int64) >> SAMPLE_WITHIN_SHIFT) & SAMPLE_WITHIN_MASK
        found: Ints = np.where(bits == 0, 0, np.int64(1_000_000) << bits)
        found[bits == SAMPLE_AT_LEAST] = AT_LEAST_NS
        return found


def bytes_of(mantissas: NDArray[Any], kind: NDArray[Any], kinds: Sequence[SampleKind]) -> Ints:
    """Return the bytes of samples of these kinds."""
    shifts = [max(one.size_class - MANTISSA_BITS, 0) for one in kinds]
    found: Ints = mantissas.astype(np.int64) << np.array(shifts, dtype=np.int64)[kind]
    return found


def columns_of(kinds: Sequence[SampleKind], columns: Mapping[str, "array[int]"]) -> SampleColumns:
    """Return the columns of samples that were read from a box (box.sample_table)."""
    kind = np.array(columns["kind"], dtype=np.int32)
    return SampleColumns(
        kind=kind,
        index=np.array(columns["index"], dtype=np.int64),
        peer=np.array(columns["peer"], dtype=np.int32) - 1,
        start_ns=np.array(columns["start_ns"], dtype=np.int64),
        time_ns=np.array(columns["time_ns"], dtype=np.int64),
        queued_ns=np.array(columns["queued_us"], dtype=np.int64) * 1000,
        bytes=bytes_of(np.array(columns["mantissa"]), kind, kinds),
        flags=np.array(columns["flags"], dtype=np.uint8),
    )
