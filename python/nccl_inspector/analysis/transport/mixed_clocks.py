# SPDX-License-Identifier: Apache-2.0
"""Communicators whose operations NCCL gives the times of other ones (plugin/hot/clockmix.h).

The plugin counts their operations without times from then on. Whoever waited in them is not known,
and rests of that waiting look like somebody's lateness in other communicators: so where there are
many such operations, nobody is accused.
"""

from collections.abc import Sequence

from nccl_inspector.model.process import Comm, Process

_OPS_MIN = 100  # of a process: some Broadcasts and barriers at the beginning hide nothing
_SHARE_MIN = 0.001  # of its operations

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
    """Return how many operations came after its times were mixed up."""
    return max(0, comm.enqueued - comm.mixed_since + 1) if comm.mixed_since else 0


def mixed_clocks_note(members: Sequence[Comm]) -> list[str]:
    """Return a sentence about a communicator whose later operations have no times, if it is one.

    `members`: the communicator as each of its ranks saw it.
    """
    mixed = [one for one in members if one.mixed_since]
    if not mixed:
        return []
    first = min(mixed, key=lambda one: one.mixed_since)
    who = "" if len(mixed) == len(members) else f", on {len(mixed)} of {len(members)} ranks"
    return [f"no times from operation {first.mixed_since:,} on{who}: {_reason(first)}"]


def why_waiting_is_hidden(processes: Sequence[Process]) -> str:
    """Return why exact records must not be judged; empty: they may be."""
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
