# SPDX-License-Identifier: Apache-2.0
"""The part of a card about tags, symmetric kernels and roots."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelRow:
    """The operations of all processes with one tag, of one symmetric kernel, or with one root.

    A root is a rank of its communicator. Only `operations` and `bytes` include operations without a
    time of their own: parts of groups, whose times overlap, and those for which NCCL gives no time.
    """

    kind: str  # of model.labels.LABEL_KINDS
    value: str  # the tag, kernel or root; empty: all that did not fit
    communicator: str  # of a root: its name or id; else empty
    collective: str  # of a root; else empty
    processes: int
    operations: int
    bytes: int
    timed_operations: int
    busy_s: float  # of `timed_operations`, summed over processes
    start_s: float | None  # first and last operation, exact to about a second
    end_s: float | None


@dataclass(frozen=True, slots=True)
class Labels:
    """The rows with the most time, tags first; `count` is how many rows there are in all."""

    rows: tuple[LabelRow, ...]
    count: int
