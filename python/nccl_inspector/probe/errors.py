# SPDX-License-Identifier: Apache-2.0
"""Why nothing was measured."""

from nccl_inspector.errors import InspectorError


class ProbeError(InspectorError):
    """The probe could not measure; the text says which rank, and why."""


class LostError(ProbeError):
    """Another rank has gone: that one is to blame, not the one that says so."""


class MemoryLackError(ProbeError):
    """A rank has no memory for buffers of this size."""
