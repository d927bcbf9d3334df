# SPDX-License-Identifier: Apache-2.0
"""Communicators whose operations get the times of other ones from NCCL (plugin/hot/clockmix.h).

From that moment on, the plugin counts their operations without times. Who waited in them is not
known, and the rest of that waiting looks like lateness in other communicators. So if there are many
such operations, no rank is accused.
"""

from collections.abc import Sequence

from nccl_inspector.model.process import Comm, Process

_OPS_MIN = 100  # for a process: a few Broadcasts and barriers at the beginning hide nothing
_SHARE_MIN = 0.001  # of the process's operations

# By enum box_mixed of plugin/box/box.h.
_REASONS = (
    "",
    "NCCL up to 2.30 mixes up the times of a communicator once a rank has sent something to itself,"
    " as in an AlltoAll",
    "NCCL up to 2.30 mixes up the times of a communicator once a CUDA graph is launched between"
    " other calls",
    "NCCL 2.31 and later mixes up the times of a communicator once a Broadcast was called;"
    " --nccl-inspector=...,broadcasts=1 prevents it",
    "NCCL mixes up the times of a communicator once it was not asked for kernel events for a while,"
    " as by the kill switch",
)


def _reason(comm: Comm) -> str:
    return _REASONS[comm.mixed_why] if 0 < comm.mixed_why < len(_REASONS) else "a reason not known"


def _untimed(comm: Comm) -> int:
    """Return how many operations came after the communicator's times were mixed up."""
    return max(0, comm.enqueued - comm.mixed_since + 1) if comm.mixed_since else 0


def mixed_clocks_note(members: Sequence[Comm]) -> list[str]:
    """Return a sentence about a communicator whose later operations have no times, or nothing.

    `members`: the communicator as each of its ranks saw it.
    """
    mixed = [one for one in members if one.mixed_since]
    if not mixed:
        return []
    first = min(mixed, key=lambda one: one.mixed_since)
    who = "" if len(mixed) == len(members) else f", on {len(mixed)} of {len(members)} ranks"
    return [f"no times from operation {first.mixed_since:,} on{who}: {_reason(first)}"]


def why_waiting_is_hidden(processes: Sequence[Process]) -> str:
    """Return why exact records must not be judged, as text; empty: they can be judged."""
    hidden, why = 0, ""
    for process in processes:
        found = {comm.index: _untimed(comm) for comm in process.comms}
        untimed = sum(found.values())
        if untimed > max(_OPS_MIN, _SHARE_MIN * sum(comm.enqueued for comm in process.comms)):
            hidden += 1
            why = why or _reason(max(process.comms, key=lambda comm: found[comm.index]))
    if not hidden:
        return ""
    return f"many operations of {hidden:,} of {len(processes):,} processes have no times: {why}"
