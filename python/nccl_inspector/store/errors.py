# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with an index, whatever engine keeps it."""

from nccl_inspector.errors import InspectorError


class IndexUnavailableError(InspectorError):
    """It cannot be used now: it is locked, full, down, or not ours to read; later it may be."""


class UnstorableError(InspectorError):
    """The engine refuses a value of a report's rows; other reports can still be entered."""


class BrokenIndexError(InspectorError):
    """It is not a valid index; it can be made again from the stored reports."""
