# SPDX-License-Identifier: Apache-2.0
"""The part of a card that tags, symmetric kernels and roots give."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Operations of all processes with one tag, of one symmetric kernel, or with one root.

    A root is the rank in its communicator. What has no time is in `operations` only: parts of
    groups, whose times overlap, and what NCCL gives no time for.
    """

    kind: str  # of labelmodel.LABEL_KINDS
    value: str  # the tag, kernel or root; empty: all for which a process had no place
    communicator: str  # of a root: its name or id; else empty
    collective: str  # of a root; else empty
    processes: int
    operations: int
    bytes: int
    timed_operations: int
    busy_s: float  # of those with a time, summed over processes
    start_s: float | None  # the first and the last, to about a second
    end_s: float | None


@dataclass(frozen=True, slots=True)
class Labels:
    """The rows with most time, tags first, of so many in all."""

    rows: tuple[LabelRow, ...]
    count: int
