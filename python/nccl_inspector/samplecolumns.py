# SPDX-License-Identifier: Apache-2.0
"""Samples as numpy arrays, for the analysis. (What the agent runs must not import this.)"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.model import SampleKind
from nccl_inspector.sampletable import MANTISSA_BITS, SampleTable


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """The samples of a process as columns of one length, ordered by start.

    Times are exact within 64 ns, `queued_ns` within 1 us.
    """

    kind: NDArray[np.int32]  # index of Samples.kinds
    # Of a collective: its place (low 32 bits) in the order of its communicator's operations, from
    # 1. Of a Send or Recv: its number among those of this function with this peer. Of a group: its
    # number among the groups of this function. Each counts by communicator.
    index: NDArray[np.int64]
    peer: NDArray[np.int32]  # rank; PEER_NONE: a collective or group; PEER_BEYOND: not known
    start_ns: NDArray[np.int64]  # GPU clock (flag SAMPLE_CPU_TIMED: the host's)
    time_ns: NDArray[np.int64]  # from start to end
    queued_ns: NDArray[np.int64]  # from the call to the start; 0: not known
    bytes: NDArray[np.int64]
    flags: NDArray[np.uint8]  # bits SAMPLE_GROUP, SAMPLE_CPU_TIMED


def bytes_of(
    mantissas: NDArray[Any], kind: NDArray[Any], kinds: Sequence[SampleKind]
) -> NDArray[np.int64]:
    """Return the bytes of samples of these kinds."""
    shifts = [max(one.size_class - MANTISSA_BITS, 0) for one in kinds]
    found: NDArray[np.int64] = mantissas.astype(np.int64) << np.array(shifts, dtype=np.int64)[kind]
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
