# SPDX-License-Identifier: Apache-2.0
"""A few things or processes as text."""

from collections.abc import Iterable, Sequence

from nccl_inspector.doctor.facts import JobProcess

_SHOWN = 4


def few(words: Iterable[object]) -> str:
    """Return the first of them, and how many more there are."""
    found = [str(word) for word in words]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def pids(processes: Sequence[JobProcess]) -> str:
    """Return `pid 7, 8`."""
    return f"pid {few(one.pid for one in processes)}"
