# SPDX-License-Identifier: Apache-2.0
"""Samples of a process in memory, and how they are thinned so that all ranks keep the same bursts.

Columns are of `array`, and no loop of Python's own goes over single records: the agent packs eight
tables of 32,768 records at the end of a job, and may not import numpy.
"""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_inspector.model import GpuClock, SampleKind

if TYPE_CHECKING:
    from nccl_inspector.samplecolumns import SampleColumns

# bytes = mantissa << (size class - MANTISSA_BITS), of smaller size classes mantissa itself.
MANTISSA_BITS = 15
COLUMN_CODES = {
    "kind": "H",
    "index": "I",
    "peer": "H",
    "start_ns": "q",
    "time_ns": "q",
    "queued_us": "I",
    "mantissa": "H",
    "flags": "B",
}


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The samples that a box had, ordered by start: see model.Samples."""

    kinds: tuple[SampleKind, ...]
    clocks: tuple[GpuClock, ...]
    length_bits: int
    period_bits: int
    lost: int
    kind: array[int]
    index: array[int]
    peer: array[int]  # rank + 1, 0: none
    start_ns: array[int]
    time_ns: array[int]
    queued_us: array[int]
    mantissa: array[int]
    flags: array[int]

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.start_ns)

    def columns(self) -> "SampleColumns":
        """Return the records as numpy arrays."""
        from nccl_inspector.samplecolumns import columns_of

        return columns_of(self)
